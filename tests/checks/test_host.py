# SPDX-License-Identifier: Apache-2.0
"""What is found on a host, as this user."""

import dataclasses
import datetime
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from imageio_daemon.checks import host
from imageio_daemon.checks.finding import Finding, Verdict
from imageio_daemon.config.config import Config
from imageio_daemon.storage.engine import async_io_error
from imageio_daemon.units import KiB, MiB
from tests.support.daemon import Certificates
from tests.support.ports import unused_port

Configure = Callable[..., Config]

#: What this host lacks: with `make test REFUSE=io_setup:EAGAIN`, asynchronous I/O.
NOT_HERE = {"lanes": Verdict.WARNING} if async_io_error() else {}


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Make a configuration with these sections, and else one that is good here."""

    def make(**sections: dict[str, Any]) -> Config:
        config = Config()
        good: dict[str, dict[str, Any]] = {
            "tls": {"enable": False},
            "daemon": {"run_dir": str(tmp_path / "run")},
            "remote": {"host": "127.0.0.1", "port": 0},
        }
        (tmp_path / "run").mkdir(exist_ok=True)
        for name in {*good, *sections}:
            options = {**good.get(name, {}), **sections.get(name, {})}
            config = dataclasses.replace(config, **{name: dataclasses.replace(getattr(config, name), **options)})
        return config

    return make


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let access(2) answer by the mode alone, as it does for users who are not root."""
    bits = {os.R_OK: 0o400, os.W_OK: 0o200, os.X_OK: 0o100}
    monkeypatch.setattr(
        os, "access", lambda path, wanted: all(os.stat(path).st_mode & bit for way, bit in bits.items() if wanted & way)
    )


def issue(directory: Path, **ends: int) -> dict[str, str]:
    """Write a certificate that ends so many days (or more) from now; return the options of [tls]."""
    issued = trustme.CA().issue_cert(
        "localhost", not_after=datetime.datetime.now(datetime.UTC) + datetime.timedelta(**ends)
    )
    options = {"cert_file": str(directory / "cert.pem"), "key_file": str(directory / "key.pem")}
    issued.cert_chain_pems[0].write_to_path(options["cert_file"])
    issued.private_key_pem.write_to_path(options["key_file"])
    return options


def only(findings: Iterable[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def test_all_is_well_where_the_daemon_can_start(configure: Configure, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.touch()
    config = configure(daemon={"state_dir": str(tmp_path / "state")}, local={"socket": str(tmp_path / "run" / "local")})
    found = [*host.of_user(config, [str(image), str(tmp_path)], prepared=False), *host.ports(config, running=False)]
    assert {finding.check: finding.verdict for finding in found if finding.verdict is not Verdict.OK} == NOT_HERE, found
    names = [
        "user",
        "certificate",
        "authorities",
        "run_dir",
        "local",
        "control",
        "state_dir",
        "formats",
        "lanes",
        "image",
        "image",
    ]
    assert [finding.check for finding in found] == [*names, "remote"]


def test_nothing_is_left_behind(configure: Configure, tmp_path: Path) -> None:
    config = configure(daemon={"state_dir": str(tmp_path / "state")})
    before = sorted(tmp_path.rglob("*"))
    list(host.of_user(config, [], prepared=False))
    assert sorted(tmp_path.rglob("*")) == before


# The certificate


@pytest.mark.parametrize(
    ("ends", "verdict", "text"),
    [
        ({"days": 30, "hours": 1}, Verdict.OK, "30 days left"),
        ({"days": 13, "hours": 1}, Verdict.WARNING, "13 days left"),
        ({"hours": -1}, Verdict.FAILED, "has expired"),
    ],
    ids=["long", "soon", "expired"],
)
def test_certificate_has_days_left(
    configure: Configure, tmp_path: Path, ends: dict[str, int], verdict: Verdict, text: str
) -> None:
    found = host.certificate(configure(tls={"enable": True, **issue(tmp_path, **ends)}))
    assert (found.verdict, found.text.endswith(text)) == (verdict, True), found


def test_key_that_cannot_be_read_is_a_failure(configure: Configure, certificates: Certificates) -> None:
    tls = {"enable": True, "cert_file": str(certificates.certfile), "key_file": "/no/such/key"}
    found = host.certificate(configure(tls=tls))
    assert found.verdict is Verdict.FAILED
    assert "key_file /no/such/key" in found.text
    assert "as user " in found.text


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ("backend_http", {"ca_file": "/no/such"}),
        ("backend_nbd", {"ca_file": "/no/such"}),
        ("backend_nbd", {"cert_file": "/no/such"}),
        ("backend_nbd", {"key_file": "/no/such"}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_certificates_for_other_servers_that_cannot_be_loaded_are_a_failure(
    configure: Configure, certificates: Certificates, section: str, options: dict[str, str]
) -> None:
    if "key_file" in options:
        options = {"cert_file": str(certificates.certfile), **options}
    found = host.authorities(configure(**{section: options}))
    assert found.verdict is Verdict.FAILED, found


# Directories


@pytest.mark.usefixtures("unprivileged")
def test_run_directory_that_cannot_be_written_is_a_failure(configure: Configure, tmp_path: Path) -> None:
    config = configure()
    (tmp_path / "run").chmod(0o500)
    found = host.run_dir(config, prepared=False)
    assert (found.verdict, "cannot write to" in found.text) == (Verdict.FAILED, True)
    assert host.run_dir(config, prepared=True).verdict is Verdict.OK


def test_run_directory_is_made_if_that_is_possible(configure: Configure, tmp_path: Path) -> None:
    assert host.run_dir(configure(daemon={"run_dir": str(tmp_path / "new")}), prepared=False).verdict is Verdict.OK
    found = host.run_dir(configure(daemon={"run_dir": str(tmp_path / "no" / "new")}), prepared=False)
    assert (found.verdict, found.text.endswith("is no directory")) == (Verdict.FAILED, True)


def test_run_directory_of_the_unit_is_made_by_systemd(configure: Configure) -> None:
    assert host.run_dir(configure(daemon={"run_dir": "/run/imageio-daemon"}), prepared=False).verdict is Verdict.OK


@pytest.mark.parametrize("mode", [0o700, 0o750], ids=oct)
def test_state_directory_is_for_its_user_alone(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    found = host.state_dir(str(tmp_path), prepared=False)
    assert found.verdict is (Verdict.OK if mode == 0o700 else Verdict.FAILED)
    assert mode == 0o700 or found.text.endswith("expected mode 0700: it is 0750: nothing is kept")


def test_state_directory_of_another_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert f"its owner is {owner}" in host.state_dir(str(tmp_path), prepared=False).text


def test_state_directory_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels" in host.state_dir(str(tmp_path / "loop"), prepared=False).text


# Sockets


def test_path_of_a_socket_may_be_too_long(configure: Configure) -> None:
    found = only(host.sockets(configure(local={"socket": "/" + "x" * 107}), prepared=False), "local")
    assert (found.verdict, "longer than 107 bytes" in found.text) == (Verdict.FAILED, True)


def test_directory_of_a_socket_has_to_be_there(configure: Configure) -> None:
    config = configure(nbd={"enable": True, "socket": "/no/such/nbd"})
    assert only(host.sockets(config, prepared=False), "nbd-local").verdict is Verdict.FAILED


def test_abstract_sockets_need_no_directory(configure: Configure) -> None:
    assert only(host.sockets(configure(local={"socket": "@x"}), prepared=False), "local").verdict is Verdict.OK


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("service", ["remote", "nbd", "metrics"])
def test_port_of_another_program_is_a_failure(configure: Configure, taken: int, service: str) -> None:
    place = {"host": "127.0.0.1", "port": taken}
    config = configure(**{service: place if service == "remote" else {**place, "enable": True}})
    found = only(host.ports(config, running=False), service)
    assert (found.verdict, found.text.endswith("in use: another program has it")) == (Verdict.FAILED, True)
    assert only(host.ports(config, running=True), service).verdict is Verdict.OK


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("service", ["nbd", "metrics", "control"])
def test_two_services_on_one_port_are_a_failure(
    configure: Configure, taken: int, service: str, *, running: bool
) -> None:
    port = taken if running else unused_port()
    place = {"transport": "tcp"} if service == "control" else {"host": "127.0.0.1"}
    config = configure(remote={"port": port}, **{service: {"enable": True, "port": port, **place}})
    first, second = host.ports(config, running=running)
    assert (first.verdict, second.verdict) == (Verdict.OK, Verdict.FAILED)
    assert second.text.endswith("in use: [remote] has it")


def test_address_of_another_host_is_a_failure(configure: Configure) -> None:
    found = only(host.ports(configure(remote={"host": "192.0.2.1", "port": 0}), running=True), "remote")
    assert (found.verdict, "Cannot assign requested address" in found.text) == (Verdict.FAILED, True)


def test_daemon_that_runs_is_found_by_its_socket(configure: Configure, tmp_path: Path) -> None:
    path = host.control_socket(configure())
    assert path == str(tmp_path / "run" / "sock")
    assert not host.is_running(configure())
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        assert host.is_running(configure())


# Images


def test_formats_need_qemu(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    assert "qemu-nbd is not installed" in host.formats(configure()).text
    assert host.formats(configure()).verdict is Verdict.OK
    chains = {"allowed_paths": ("/images",)}
    assert host.formats(configure(backend_nbd=chains)).verdict is Verdict.WARNING
    assert host.formats(configure(backend_nbd=chains, backend_file={"qcow2": "qemu-nbd"})).verdict is Verdict.FAILED


def test_lanes_need_memory(configure: Configure) -> None:
    found = host.lanes(configure(daemon={"buffer_memory": 16 * MiB}))
    assert (found.verdict, "buffer_memory" in found.text) == (Verdict.WARNING, True)


def test_state_directory_of_the_unit_may_have_another_mode(tmp_path: Path) -> None:
    assert host.unit_state_dir(str(tmp_path / "not-yet")).verdict is Verdict.OK
    tmp_path.chmod(0o755)
    assert host.unit_state_dir(str(tmp_path)).verdict is Verdict.OK
    (tmp_path / "version").write_text("2\n")
    assert "expected version 1" in host.unit_state_dir(str(tmp_path)).text


def test_allowed_paths_have_to_be_readable(configure: Configure) -> None:
    found = host.formats(configure(backend_nbd={"allowed_paths": ("/", "/no/such")}))
    assert (found.verdict, found.text.endswith("cannot read /no/such")) == (Verdict.WARNING, True)


@pytest.mark.usefixtures("unprivileged")
@pytest.mark.parametrize(
    ("mode", "verdict"), [(0o600, Verdict.OK), (0o400, Verdict.WARNING), (0o200, Verdict.FAILED)], ids=str
)
def test_image_is_readable_and_writable(tmp_path: Path, mode: int, verdict: Verdict) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(KiB))
    image.chmod(mode)
    assert host.image(str(image)).verdict is verdict


@pytest.mark.usefixtures("unprivileged")
def test_directory_of_images_has_to_be_entered(tmp_path: Path) -> None:
    tmp_path.chmod(0o600)
    found = host.image(str(tmp_path))
    tmp_path.chmod(0o700)
    assert (found.verdict, found.text.endswith("cannot enter it")) == (Verdict.FAILED, True)


def test_image_that_cannot_be_reached_is_a_failure() -> None:
    found = host.image("/no/such/image")
    assert (found.verdict, "cannot reach it: No such file" in found.text) == (Verdict.FAILED, True)


def test_image_that_the_unit_hides_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "HIDDEN", (str(tmp_path.parent),))
    assert host.image(str(tmp_path)).text.endswith(f"the systemd unit hides {tmp_path.parent} from the service")


def test_state_directory_that_a_manager_has_named_is_checked(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}:/another")
    found = only(host.of_user(configure(), (), prepared=False), "state_dir")
    assert (found.verdict, found.text) == (
        Verdict.FAILED,
        f"{tmp_path}: expected mode 0700: it is 0755: nothing is kept",
    )
