# SPDX-License-Identifier: Apache-2.0
"""Transfers through reverse proxies: what tests/lab/proxies runs in its tree.

Each is complete and identical, or ends with a sentence that names the limit of the proxy. LIMITS has those.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.front_proxies import Proxy, running
from tests.lab.images import DATA, PATIENCE, PIECE, SIZE, MiB, Source, compared, make_source
from tests.lab.table import Table
from tests.support.daemon import STATE, Certificates, Daemon, Section
from tests.support.ports import unused_port

OVIRT = Path(__file__).resolve().parents[2] / ".cache/lab/others-venv/bin/python"
#: Longer than each proxy waits by default, but Squid.
SLOW = 65
#: Of an upload that is watched or interrupted, bytes per second.
RATE = 16 * MiB
LIMIT_OF_PROGRESS = 5.0

#: What does not go with the default settings, and how the program says so.
LIMITS = {
    ("nginx", "imageio-client up"): "413",
    ("nginx", "curl up"): "413",
    ("nginx", "ovirt up"): "413",
    ("nginx", "page up"): "413",
    ("nginx", "resumed"): "413",
    ("nginx", "restart"): "413",
    ("nginx", "progress"): "413",
    ("nginx", "slow extents"): "504",
    ("nginx", "slow zero"): "504",
    ("haproxy", "slow extents"): "504",
    ("haproxy", "slow zero"): "504",
    # On a connection to the daemon that it has used before, Varnish waits longer.
    ("varnish", "slow extents"): "503|waited 65 s",
    ("varnish", "slow zero"): "503|waited 65 s",
    ("h2o", "slow extents"): "502",
    ("h2o", "slow zero"): "502",
}
#: How Squid 5.7 ends the connection of a client whose body is longer than its buffer and comes faster than the daemon
#: takes it: with its default now and then, with the settings of the page if the body is longer than those say. Clients
#: that repeat requests do not mind.
CUT = re.compile(r"Remote end closed|Broken pipe|Connection reset|Empty reply|\b502\b")
REPEATED_BY_NOBODY = ("ovirt up", "curl up")
SQUID_HOLDS = 128 * MiB
NAMES = [f"{name}-{kind}" for name in ("nginx", "haproxy", "varnish", "squid", "h2o") for kind in ("default", "tuned")]


@dataclass(frozen=True)
class Bench:
    """A daemon, the proxies before it, and a source."""

    daemon: Daemon
    proxies: list[Proxy]
    source: Source
    table: Table
    directory: Path

    def target(self, **fields: Any) -> tuple[Path, str]:
        """Make an empty image and a ticket for it."""
        path = self.directory / f"target-{time.monotonic_ns()}"
        path.touch()
        os.truncate(path, SIZE)
        return path, self.daemon.add_ticket(path, SIZE, **{"sparse": True, "ops": ["read", "write"], **fields})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("proxies")
    config: dict[str, Section] = {
        "tls": {"enable": False},
        "remote": {"host": "127.0.0.1", "port": unused_port()},
        "local": {"enable": False},
        "ui": {"enable": True},
        "daemon": {"state_dir": STATE},
    }
    with Daemon(Certificates.make(directory), config) as daemon, running(directory, daemon.port) as proxies:
        table = Table(Path(os.environ["RESULTS"]) / "proxies.md", "proxy, settings")
        yield Bench(daemon, proxies, make_source(directory), table, directory)


@pytest.fixture(params=NAMES)
def proxy(request: pytest.FixtureRequest, bench: Bench) -> Proxy:
    return bench.proxies[NAMES.index(request.param)]


class Limited(Exception):
    """A program ended with this sentence: the first line with a status of HTTP, or else the last one."""

    def __init__(self, told: str) -> None:
        lines = told.strip().splitlines() or ["nothing"]
        super().__init__(next((line for line in lines if re.search(r"\b(403|408|413|50[0234])\b", line)), lines[-1]))


def run(*command: object, timeout: float = PATIENCE) -> str:
    """Run a program. Raises Limited if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise Limited(f"{done.stderr}\n{done.stdout}")
    return done.stdout


def client(command: str, *arguments: object) -> list[str]:
    # By default Varnish fetches all of the image for each range, and has nothing to tell until it comes to the range.
    words = [command, "--insecure", "--no-local", "--json", "--retry-for", str(PATIENCE), *arguments]
    if command == "upload":
        words.insert(1, "--no-room-check")
    return [sys.executable, "-m", "imageio_daemon.client.cli", *map(str, words)]


def check(bench: Bench, proxy: Proxy, what: str, attempt: Callable[[], str]) -> None:
    """Make an attempt: it goes well, or ends with the limit that the proxy has by default."""
    limit = None if proxy.tuned else LIMITS.get((proxy.program, what))
    longest = DATA if what == "curl up" else 128 * MiB  # of the bodies
    held = SQUID_HOLDS if proxy.tuned else 0
    if proxy.program == "squid" and what in REPEATED_BY_NOBODY and longest > held:
        limit = f"identical|{CUT.pattern}"
    began = time.monotonic()
    try:
        word = attempt()
    except Limited as e:
        word = f"refused: {e}"
    matched = re.search(limit, word) if limit else None
    bench.table.set(proxy.name, what, word if matched is None else matched[0])
    print(f"{proxy.name}: {what}: {word} ({time.monotonic() - began:.1f} s)")
    assert not word.startswith("refused") if limit is None else matched, word


def forget(bench: Bench, path: Path, ticket: str) -> None:
    bench.daemon.remove(ticket)
    path.unlink()


# Transfers


def test_imageio_client_uploads(bench: Bench, proxy: Proxy) -> None:
    path, ticket = bench.target()

    def attempt() -> str:
        run(*client("upload", "--no-state", "--verify", bench.source.path, proxy.image(ticket)))
        return compared(bench.source.path, path)

    check(bench, proxy, "imageio-client up", attempt)
    forget(bench, path, ticket)


def test_imageio_client_downloads(bench: Bench, proxy: Proxy) -> None:
    ticket = bench.daemon.add_ticket(bench.source.path, SIZE, ops=["read"])
    copy = bench.directory / "copy"

    def attempt() -> str:
        run(*client("download", "--verify", proxy.image(ticket), copy))
        return compared(bench.source.path, copy)

    check(bench, proxy, "imageio-client down", attempt)
    bench.daemon.remove(ticket)
    copy.unlink()


@pytest.mark.parametrize("way", ["up", "down"])
def test_client_of_ovirt_imageio(bench: Bench, proxy: Proxy, way: str) -> None:
    if not OVIRT.exists():
        bench.table.set(proxy.name, f"ovirt {way}", "SKIP: not installed")
        pytest.skip("ovirt-imageio cannot be installed here")
    path, ticket = bench.target()
    here = bench.source.path
    if way == "down":
        forget(bench, path, ticket)
        ticket, path = bench.daemon.add_ticket(here, SIZE, ops=["read"]), bench.directory / "copy"
    call = "upload(sys.argv[1], sys.argv[2], None, secure=False)"
    if way == "down":
        call = "download(sys.argv[2], sys.argv[1], None, fmt='raw', secure=False)"
    program = f"import sys; from ovirt_imageio import client; client.{call}"

    def attempt() -> str:
        run(OVIRT, "-c", program, here if way == "up" else path, proxy.image(ticket))
        return compared(here, path)

    check(bench, proxy, f"ovirt {way}", attempt)
    bench.daemon.remove(ticket)
    path.unlink(missing_ok=True)


def test_curl_puts_all_data_in_one_request(bench: Bench, proxy: Proxy) -> None:
    path, ticket = bench.target()

    def attempt() -> str:
        run("curl", "-sS", "--fail-with-body", "-T", bench.source.dense, "-o", "/dev/stderr", proxy.image(ticket))
        return compared(bench.source.dense, path, DATA)

    check(bench, proxy, "curl up", attempt)
    forget(bench, path, ticket)


def test_curl_gets_all_data_and_goes_on(bench: Bench, proxy: Proxy) -> None:
    """A download that has ended in the middle, with If-Range as browsers send it."""
    ticket = bench.daemon.add_ticket(bench.source.dense, DATA, ops=["read"])
    copy = bench.directory / "copy"
    url = proxy.image(ticket)

    def attempt() -> str:
        copy.write_bytes(b"")
        head = run("curl", "-sS", "--fail", "-I", url)
        tag = re.search(r'^etag: (".*?")', head, re.IGNORECASE | re.MULTILINE)
        assert tag is not None, head
        run("curl", "-sS", "--fail", "-r", f"0-{DATA // 2 - 1}", "-o", copy, url)
        run("curl", "-sS", "--fail", "-C", "-", "-H", f"If-Range: {tag[1]}", "-o", copy, url)
        return compared(bench.source.dense, copy)

    check(bench, proxy, "curl down, in two", attempt)
    bench.daemon.remove(ticket)
    copy.unlink()


def test_range_past_the_end_is_cut(bench: Bench, proxy: Proxy) -> None:
    ticket = bench.daemon.add_ticket(bench.source.dense, DATA, ops=["read"])

    def attempt() -> str:
        told = run("curl", "-sS", "-D", "-", "-o", "/dev/null", "-r", f"{DATA - 10}-{DATA + 10}", proxy.image(ticket))
        assert f"bytes {DATA - 10}-{DATA - 1}/{DATA}" in told, told
        return "cut"

    check(bench, proxy, "range past the end", attempt)
    bench.daemon.remove(ticket)


# What a cache would do


def test_nothing_is_kept(bench: Bench, proxy: Proxy) -> None:
    path, ticket = bench.target()

    def attempt() -> str:
        url = proxy.image(ticket)
        for content in (b"old", b"new"):
            with bench.daemon.connect("tcp") as connection:
                assert connection.put(f"/images/{ticket}", content).status == 200
            assert run("curl", "-sS", "--fail", "-r", "0-2", url) == content.decode()
        bench.daemon.remove(ticket)
        status = run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-r", "0-2", url)
        assert status == "403", status
        return "as it is now"

    check(bench, proxy, "read after a write", attempt)
    path.unlink()


# Requests of their own


def test_refusal_of_a_ticket_reaches_who_waits_for_it(bench: Bench, proxy: Proxy) -> None:
    """Without Expect, too: a body that the daemon does not read."""
    limits = ("403",) if proxy.tuned or proxy.program != "nginx" else ("403", "413")

    def attempt() -> str:
        told = []
        for expect in ("Expect: 100-continue", "Expect:"):
            command = [
                "curl",
                "-sS",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "-H",
                expect,
                "-T",
                str(bench.source.dense),
            ]
            done = subprocess.run(
                [*command, proxy.image("no-such-ticket")], capture_output=True, text=True, timeout=100, check=False
            )
            told.append(done.stdout)
        assert all(status in (*limits, "502", "503") for status in told), told
        return ", ".join(told)

    check(bench, proxy, "refused with Expect, without", attempt)


def test_zero_and_flush(bench: Bench, proxy: Proxy) -> None:
    path, ticket = bench.target()

    def attempt() -> str:
        with bench.daemon.connect("tcp") as connection:
            assert connection.put(f"/images/{ticket}", b"x" * MiB).status == 200
        for body in (f'{{"op": "zero", "size": {MiB // 2}, "offset": 0}}', '{"op": "flush"}', '{"op": "flush"}'):
            run("curl", "-sS", "--fail", "-X", "PATCH", "-d", body, proxy.image(ticket))
        with path.open("rb") as file:
            assert file.read(MiB) == bytes(MiB // 2) + b"x" * (MiB // 2)
        return "done"

    check(bench, proxy, "zero, flush", attempt)
    forget(bench, path, ticket)


@pytest.mark.parametrize("what", ["extents", "zero"])
def test_what_takes_long(bench: Bench, what: str) -> None:
    """No byte of the answer for 65 s, of all proxies at the same time, each with an image of its own."""
    delay = {"extents": "delay-extents", "zero": "delay-zero"}[what]
    words = ["curl", "-sS", "--fail", "--max-time", str(4 * SLOW)]
    servers = []

    def ask(proxy: Proxy) -> str:
        socket = bench.directory / f"nbd-{what}-{proxy.port}"
        command = ["nbdkit", "-f", "-U", str(socket), "--filter=delay", "memory", "64M", f"{delay}={SLOW}"]
        servers.append(subprocess.Popen(command))
        while not socket.exists():
            time.sleep(0.1)
        ticket = bench.daemon.add_ticket(socket, 64 * MiB, url=f"nbd:unix:{socket}", ops=["read", "write"])
        if what == "extents":
            found = json.loads(run(*words, f"{proxy.image(ticket)}/extents"))
            assert sum(extent["length"] for extent in found) == 64 * MiB
        else:
            body = json.dumps({"op": "zero", "offset": 0, "size": MiB})
            run(*words, "-X", "PATCH", "-d", body, proxy.image(ticket))
        bench.daemon.remove(ticket)
        return f"waited {SLOW} s"

    try:
        failed = []
        with ThreadPoolExecutor(len(bench.proxies)) as pool:
            for proxy, asked in [(proxy, pool.submit(ask, proxy)) for proxy in bench.proxies]:
                try:
                    check(bench, proxy, f"slow {what}", asked.result)
                except AssertionError as e:
                    failed.append(e)
        assert not failed, failed
    finally:
        for server in servers:
            server.kill()
            server.wait()


# Interruptions


def test_upload_that_was_ended_goes_on(bench: Bench, proxy: Proxy) -> None:
    path, ticket = bench.target(rate=RATE)
    state = bench.directory / f"state-{time.monotonic_ns()}"
    command = client("upload", "--state-dir", state, bench.source.path, proxy.image(ticket))

    def attempt() -> str:
        first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert first.stdout is not None
        for line in first.stdout:
            if (json.loads(line).get("durable") or 0) > 0:
                break
        first.terminate()
        _, err = first.communicate(timeout=60)
        assert bench.daemon.control("PATCH", f"/tickets/{ticket}", b'{"rate": 0}').status == 200
        told = json.loads(run(*command).splitlines()[-1])
        assert told["resumed"] > 0, (told, err)
        return f"{compared(bench.source.path, path)}, {told['resumed'] // MiB} MiB not sent again"

    check(bench, proxy, "resumed", attempt)
    forget(bench, path, ticket)


def test_daemon_is_restarted(bench: Bench, proxy: Proxy) -> None:
    path, ticket = bench.target(rate=4 * RATE)

    def attempt() -> str:
        command = client("upload", "--no-state", bench.source.path, proxy.image(ticket))
        upload = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while upload.poll() is None and bench.daemon.status(ticket)["written"] < DATA // 4:
            time.sleep(0.1)
        bench.daemon.stop()
        bench.daemon.restart()  # it keeps its tickets
        out, err = upload.communicate(timeout=PATIENCE)
        if upload.returncode:
            raise Limited(err)
        return f"{compared(bench.source.path, path)}, {json.loads(out.splitlines()[-1])['retries']} requests again"

    check(bench, proxy, "restart", attempt)
    forget(bench, path, ticket)


def test_progress_is_honest(bench: Bench, proxy: Proxy) -> None:
    """What the client tells is not more than 5 s before what the daemon has, whatever the proxy collects."""
    path, ticket = bench.target(rate=RATE)

    def attempt() -> str:
        command = client("upload", "--no-state", bench.source.path, proxy.image(ticket))
        upload = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ahead = 0
        assert upload.stdout is not None
        for line in upload.stdout:
            told = json.loads(line)
            if told["event"] == "progress" and told.get("phase") == "transferring":
                ahead = max(ahead, told["data"] - bench.daemon.status(ticket)["written"])
        _, err = upload.communicate(timeout=PATIENCE)
        if upload.returncode:
            raise Limited(err)
        seconds = ahead / RATE
        assert seconds <= LIMIT_OF_PROGRESS, f"{seconds:.1f} s ahead"
        return f"{seconds:.1f} s ahead"

    check(bench, proxy, "progress", attempt)
    forget(bench, path, ticket)


# The page for browsers


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    browsers = pytest.importorskip("tests.ui.browser", reason="selenium is not installed", exc_type=ImportError)
    with browsers.started(tmp_path_factory.mktemp("profile")) as driver:
        yield browsers.Browser(driver)


def test_page_uploads(bench: Bench, proxy: Proxy, chromium: Any) -> None:
    path, ticket = bench.target()

    def attempt() -> str:
        chromium.open(f"{proxy.url}/ui/#{ticket}")
        chromium.upload(bench.source.path)
        ended = time.monotonic() + PATIENCE
        while chromium.title in ("Ready to upload", "Uploading", "Comparing") and time.monotonic() < ended:
            time.sleep(0.2)
        if chromium.title != "The disk is safe":
            told = (chromium.text(name) for name in ("lead", "notice", "waiting"))
            raise Limited(f"{chromium.title}: {' '.join(told)}")
        return compared(bench.source.path, path)

    check(bench, proxy, "page up", attempt)
    chromium.forget()
    forget(bench, path, ticket)


def saved(chromium: Any, small: Path) -> str:
    """Compare what the browser has in its own file system with a file."""
    size, sums = chromium.saved("small.raw", PIECE)
    data = small.read_bytes()
    assert size == len(data)
    assert sums == [hashlib.sha256(data[at : at + PIECE]).hexdigest() for at in range(0, len(data), PIECE)]
    return "identical"


def test_page_downloads(bench: Bench, proxy: Proxy, chromium: Any) -> None:
    ticket = bench.daemon.add_ticket(bench.source.small, 64 * MiB, ops=["read"], filename="small.raw")

    def attempt() -> str:
        chromium.open(f"{proxy.url}/ui/#{ticket}")
        chromium.offer_picker()
        chromium.press("Save the disk")
        chromium.wait("The file is complete", timeout=90)
        return saved(chromium, bench.source.small)

    check(bench, proxy, "page down", attempt)
    chromium.forget()
    bench.daemon.remove(ticket)
