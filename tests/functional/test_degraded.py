# SPDX-License-Identifier: Apache-2.0
"""A daemon that goes on without what was configured says so in five places (docs/monitoring.md, Degraded).

Each feature that may be missing is broken in a real daemon, at its start or while it runs, and in most cases mended.
The daemon looks at them more often than others do: each wait would be ten seconds long.
"""

import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from imageio_daemon.lifecycle import supervision, watching
from imageio_daemon.runtime.degraded import Feature
from imageio_daemon.runtime.state import PROBE_INTERVAL
from tests.control.conftest import run
from tests.support.daemon import PROMPT_PROGRAM, STATE, Certificates, Daemon, MakeDaemon, Section
from tests.support.images import KiB, MiB
from tests.support.manager import Manager
from tests.support.metrics import Metrics
from tests.support.polling import eventually
from tests.support.realstorage import missing, mounted

#: More than the time until a probe, or the status line, shows a change, on a machine that does other things, too.
LONG = 30.0


class Way(NamedTuple):
    """A way in which a feature is not in force. reason: what is told of it.

    config: of the daemon. before: is called with the daemon's directory before the start. breaks: is called with the
    running daemon; None: it is broken from the start. mends: the same; None: only a restart helps, or it is not mended.
    """

    feature: Feature
    reason: str
    config: Mapping[str, Section] = MappingProxyType({})
    before: Callable[[Path], object] | None = None
    breaks: Callable[[Daemon], object] | None = None
    mends: Callable[[Daemon], object] | None = None


def state(directory: Path) -> Path:
    made = directory / "state"
    made.mkdir(mode=0o700, exist_ok=True)
    return made


def replace_state(daemon: Daemon) -> None:
    state(daemon.directory).rename(daemon.directory / "away")
    state(daemon.directory)


def put_state_back(daemon: Daemon) -> None:
    state(daemon.directory).rmdir()
    (daemon.directory / "away").rename(daemon.directory / "state")


def options(daemon: Daemon, text: str) -> None:
    """Write options over the others, and have the daemon read them."""
    (daemon.directory / "conf.d" / "z.conf").write_text(text)
    daemon.send_signal(signal.SIGHUP)


def certificate(daemon: Daemon, content: bytes) -> None:
    daemon.certificates.certfile.write_bytes(content)
    daemon.send_signal(signal.SIGHUP)


WITH_STATE: dict[str, Section] = {"daemon": {"state_dir": STATE}}
GONE = "another directory has its path now"

WAYS = {
    "state of another version": Way(
        Feature.STATE_DIR,
        "expected version 1, and the file `version` has another one: b'2\\n'",
        WITH_STATE,
        lambda directory: (state(directory) / "version").write_text("2\n"),
    ),
    "state of everybody": Way(
        Feature.STATE_DIR,
        "expected mode 0700: it is 0755",
        WITH_STATE,
        lambda directory: state(directory).chmod(0o755),
    ),
    "state is a file": Way(
        Feature.STATE_DIR, "Not a directory", WITH_STATE, lambda directory: (directory / "state").touch()
    ),
    "state becomes everybody's": Way(
        Feature.STATE_DIR,
        "expected mode 0700: it is 0755",
        WITH_STATE,
        breaks=lambda daemon: state(daemon.directory).chmod(0o755),
        mends=lambda daemon: state(daemon.directory).chmod(0o700),
    ),
    "state is replaced": Way(
        Feature.STATE_DIR,
        GONE,
        WITH_STATE,
        breaks=replace_state,
        mends=put_state_back,
    ),
    "tickets": Way(
        Feature.TICKETS, "Not a directory", WITH_STATE, lambda directory: (state(directory) / "tickets").touch()
    ),
    "events": Way(
        Feature.EVENTS, "Not a directory", WITH_STATE, lambda directory: (state(directory) / "events").touch()
    ),
    "durable": Way(
        Feature.DURABLE, "Not a directory", WITH_STATE, lambda directory: (state(directory) / "durable").touch()
    ),
    "certificate": Way(
        Feature.CERTIFICATE,
        "it cannot be loaded again, the old one stays in use",
        breaks=lambda daemon: certificate(daemon, b"none"),
        mends=lambda daemon: certificate(daemon, daemon.certificates.certfile.with_name("good").read_bytes()),
    ),
    "options that are not valid": Way(
        Feature.CONFIGURATION,
        "the files are not valid, the configuration from before stays in force",
        breaks=lambda daemon: options(daemon, "[daemon]\nmax_tickets = x\n"),
        mends=lambda daemon: options(daemon, "[daemon]\nmax_tickets = 7\n"),
    ),
    "options of the next start": Way(
        Feature.CONFIGURATION,
        "the next start changes [daemon] hash_threads, [nbd] enable",
        breaks=lambda daemon: options(daemon, "[daemon]\nhash_threads = 2\nmax_tickets = 7\n[nbd]\nenable = true\n"),
        mends=lambda daemon: options(daemon, ""),
    ),
    "formats": Way(
        Feature.FORMATS,
        "qemu-nbd is not installed",
        {"backend_file": {"qcow2": "qemu-nbd"}, "backend_nbd": {"allowed_paths": "/images"}},
    ),
    "ceph": Way(Feature.CEPH, "qemu-nbd is not installed", {"backend_rbd": {"allowed_pools": "images"}}),
}


@pytest.fixture
def manager() -> Iterator[Manager]:
    with Manager() as made:
        yield made


@pytest.fixture
def own_certificate(certificates: Certificates, tmp_path: Path) -> Certificates:
    """A certificate whose file the test may change; the same is in `good`."""
    own = replace(certificates, certfile=tmp_path / "cert.pem")
    for path in (own.certfile, tmp_path / "good"):
        path.write_bytes(certificates.certfile.read_bytes())
    return own


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_each_place_tells_what_is_not_in_force(
    own_certificate: Certificates, manager: Manager, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(own_certificate, way.config, manager=manager, program=PROMPT_PROGRAM)
    if way.before is not None:
        way.before(daemon.directory)
    if "qemu-nbd" in way.reason:
        monkeypatch.setenv("PATH", "/no/such")
    with daemon:
        if way.breaks is not None:
            assert whole(daemon)
            way.breaks(daemon)
            eventually(lambda: not whole(daemon), "it is degraded", timeout=LONG)
        check_places(daemon, manager, way.feature, way.reason)
        if way.mends is not None:
            way.mends(daemon)
            check_mended(daemon, manager, way.feature)


def test_changes_are_found_as_soon_as_the_guides_say() -> None:
    """The daemons here look more often."""
    assert max(supervision.STATUS_INTERVAL, PROBE_INTERVAL) <= 10
    assert watching.DEGRADED_INTERVAL <= 2


def test_each_feature_has_a_way_to_break() -> None:
    others = {Feature.SOCKETS, Feature.SERVICE_MANAGER}  # below
    assert {way.feature for way in WAYS.values()} | others == set(Feature)


def test_socket_of_a_unit_that_is_not_served_is_told(make_daemon: MakeDaemon, manager: Manager) -> None:
    with socket.create_server(("127.0.0.1", 0)) as of_unit:  # systemd has it, too
        manager.pass_on("remote", of_unit)
        daemon = make_daemon(manager=manager)
        reason = "sockets of the service manager are not as configured: remote"
        check_places(daemon, manager, Feature.SOCKETS, reason)


def test_stored_socket_of_a_former_configuration_is_none_of_a_unit(make_daemon: MakeDaemon, manager: Manager) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stored:
        manager.pass_on("remote", stored)
    daemon = make_daemon(manager=manager)
    assert daemon.log.find("not as configured: remote")
    assert whole(daemon)


def test_what_a_unit_passes_and_no_client_can_use_is_told(make_daemon: MakeDaemon, manager: Manager) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        manager.pass_on("remote", datagrams)
    reason = "sockets of the service manager are not as configured: remote"
    check_places(make_daemon(manager=manager), manager, Feature.SOCKETS, reason)


def test_service_manager_that_cannot_be_told_is_told_elsewhere(
    make_daemon: MakeDaemon, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/no/such/socket")
    daemon = make_daemon(daemon={"systemd_enable": True})
    check_places(daemon, None, Feature.SERVICE_MANAGER, "it cannot be told how the daemon is")


def test_certificate_that_has_expired_is_told(certificates: Certificates, manager: Manager, tmp_path: Path) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    expired = certificates.ca.issue_cert("localhost", not_after=past)
    own = replace(certificates, certfile=tmp_path / "cert.pem", keyfile=tmp_path / "key.pem")
    expired.cert_chain_pems[0].write_to_path(str(own.certfile))
    expired.private_key_pem.write_to_path(str(own.keyfile))
    with Daemon(own, manager=manager) as daemon:
        check_places(daemon, manager, Feature.CERTIFICATE, "expired")


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_state_that_cannot_be_written_any_more_is_told_until_it_can(
    certificates: Certificates, manager: Manager, tmp_path: Path, fault: str
) -> None:
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with mounted("tmpfs", tmp_path, MiB) as disk:
        path = disk / "state"
        config: dict[str, Section] = {"daemon": {"state_dir": path}}
        with Daemon(certificates, config, manager=manager, program=PROMPT_PROGRAM) as daemon:
            assert whole(daemon)
            if fault == "full":
                fill(disk / "filler")
            else:
                remount(disk, "ro")
            eventually(lambda: not whole(daemon), "it is degraded", timeout=LONG)
            text = "No space left on device" if fault == "full" else "Read-only file system"
            lost = daemon.add_ticket("/nowhere", 4 * KiB)
            eventually(lambda: "tickets: " in daemon.control("GET", "/readyz").text, "the ticket is not kept")
            told = daemon.control("GET", "/readyz").text
            assert told == "".join(f"{name}: {text}\n" for name in ("state_dir", "tickets", "events"))
            if fault == "full":
                (disk / "filler").unlink()
            else:
                remount(disk, "rw")
            eventually(lambda: whole(daemon), "it is whole again", timeout=LONG)
            assert len(list((path / "tickets").iterdir())) == 1
            assert (path / "events" / "events").read_text().count("ticket added") == 1
            daemon.remove(lost)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(4 * KiB))


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)


def whole(daemon: Daemon) -> bool:
    return daemon.control("GET", "/readyz").text == "ok\n"


def check_places(daemon: Daemon, manager: Manager | None, feature: Feature, reason: str) -> None:
    """Check that each place tells of one feature, and that the daemon lives and serves."""
    told = f"{feature}: {reason}"
    answer = daemon.control("GET", "/readyz")
    assert (answer.status, answer.text, answer.code) == (503, f"{told}\n", "not_ready")
    assert daemon.control("GET", "/livez").status == 200
    metrics = Metrics(daemon)
    assert metrics.sum("degraded", feature=feature) == metrics.sum("degraded") == 1
    daemon.log.wait_for(rf"WARNING .*: not in force feature={feature} reason=")
    if manager is not None:
        wanted = f"degraded: {told}; remote on "
        eventually(lambda: status_line(manager).startswith(wanted), "the status line tells it", timeout=LONG)
    done = run("check", "--conf-dir", daemon.directory, "--socket", daemon.control_socket)
    assert done.status == 1
    assert told in next(line for line in done.out.splitlines() if line.split()[1] == "daemon")
    daemon.add_ticket("/nowhere", 4 * KiB)


def check_mended(daemon: Daemon, manager: Manager, feature: Feature) -> None:
    """Check that each place tells that all is well again."""
    eventually(lambda: whole(daemon), "it is whole again", timeout=LONG)
    assert Metrics(daemon).sum("degraded") == 0
    daemon.log.wait_for(f"INFO .*: in force again feature={feature}$")
    eventually(lambda: status_line(manager).startswith("remote on "), "the status line tells it", timeout=LONG)
    done = run("check", "--conf-dir", daemon.directory, "--socket", daemon.control_socket)
    assert done.status == 0, done


def status_line(manager: Manager) -> str:
    """Return the newest status line, or "" if there is none yet."""
    lines = [line for told in manager.states for line in told.splitlines() if line.startswith("STATUS=")]
    return lines[-1].removeprefix("STATUS=") if lines else ""
