# SPDX-License-Identifier: Apache-2.0
"""Toxiproxy between a client and the daemon, and what redbot says of answers: what tests/lab/hostile runs."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.images import PATIENCE, MiB, Source, compared, make_source
from tests.lab.table import Table
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.polling import eventually
from tests.support.ports import unused_port

LAB = Path(__file__).resolve().parents[2] / ".cache/lab"
TABLE = Table(Path(os.environ["RESULTS"]) / "links.md", "link, or answer")
SMALL = 64 * MiB
#: What toxiproxy does to connections, by its own names. The last three end them now and then. It decides on the
#: toxicity for each direction: with 0.3, half of the connections have the toxic.
TOXICS: dict[str, list[dict[str, Any]]] = {
    "latency of 100 ms, jitter of 50": [{"type": "latency", "attributes": {"latency": 100, "jitter": 50}}],
    "pieces of 100 to 900 bytes": [{"type": "slicer", "attributes": {"average_size": 500, "size_variation": 400}}],
    "8 MiB/s": [{"type": "bandwidth", "attributes": {"rate": 8192}}],
    "slow to close": [{"type": "slow_close", "attributes": {"delay": 1000}}],
    "cut after 5 MB": [{"type": "limit_data", "attributes": {"bytes": 5_000_000}}],
    "reset after 300 ms": [{"type": "reset_peer", "attributes": {"timeout": 300}, "toxicity": 0.3}],
    "silent, then cut, after 2 s": [{"type": "timeout", "attributes": {"timeout": 2000}, "toxicity": 0.3}],
}
#: What redbot says of our answers, and why it stays as it is.
EXPLAINED = {
    # Which file the browser makes is decided by the link that it followed; a ticket may have a `filename`.
    "The Content-Disposition header doesn't have a 'filename' parameter.",
    # Of the page for browsers, which is 2 KiB, and is asked for each time.
    "This response allows all caches to store it.",
    "This response cannot be served from cache without validation, and doesn't have a validator.",
}
#: Sentences of redbot that are no fault.
GOOD = re.compile(
    r"clock is correct|Content-Length header is correct|instructs browsers not to 'sniff'|can't be stored by caches|"
    r"has forbidden this request|sets a|restricts referrer leakage|isolates the browsing|only available for reading|"
    r"ranged request returned the correct partial content|If-None-Match conditional requests are supported"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(Certificates.make(tmp_path_factory.mktemp("certificates"))) as daemon:
        yield daemon


class Toxiproxy:
    """A running toxiproxy: its commands are requests."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, method: str, path: str, fields: object = None) -> Any:
        body = None if fields is None else json.dumps(fields).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", body, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or b"null")

    def running(self) -> bool:
        try:
            self.ask("GET", "/proxies")
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def toxiproxy() -> Iterator[Toxiproxy]:
    program = LAB / "toxiproxy/server"
    if not program.exists():
        TABLE.set("toxiproxy", "up", "SKIP: cannot be had here")
        pytest.skip("toxiproxy cannot be had here")
    port = unused_port()
    process = subprocess.Popen([str(program), "-host", "127.0.0.1", "-port", str(port)], stderr=subprocess.DEVNULL)
    try:
        server = Toxiproxy(port)
        eventually(server.running, "toxiproxy answers")
        yield server
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def link(daemon: Daemon, toxiproxy: Toxiproxy) -> Iterator[int]:
    """Return the port of a link to the daemon."""
    port = unused_port()
    toxiproxy.ask(
        "POST", "/proxies", {"name": "link", "listen": f"127.0.0.1:{port}", "upstream": f"localhost:{daemon.port}"}
    )
    yield port
    toxiproxy.ask("DELETE", "/proxies/link")


@pytest.mark.parametrize("name", TOXICS)
def test_link_that_toxiproxy_spoils(daemon: Daemon, toxiproxy: Toxiproxy, link: int, source: Source, name: str) -> None:
    """Both ways have the toxic: from the client, and to it."""
    for stream in ("upstream", "downstream"):
        for toxic in TOXICS[name]:
            toxiproxy.ask("POST", "/proxies/link/toxics", {**toxic, "stream": stream, "name": stream})
    directory = source.small.parent
    target, copy = directory / "target", directory / "copy"
    target.touch()
    os.truncate(target, SMALL)
    ticket = daemon.add_ticket(target, SMALL, ops=["read", "write"])
    url = f"https://localhost:{link}/images/{ticket}"
    for command, *places in (("upload", "--no-state", "--verify", source.small, url), ("download", url, copy)):
        words = [sys.executable, "-m", "imageio_daemon.client.cli", command, "--quiet", "--no-local"]
        words += ["--retry-for", "60", "--cafile", str(daemon.cafile), *map(str, places)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
    TABLE.set(f"toxiproxy: {name}", "up", compared(source.small, target))
    TABLE.set(f"toxiproxy: {name}", "down", compared(source.small, copy))
    daemon.remove(ticket)
    for path in (target, copy):
        path.unlink()


@pytest.fixture(scope="module")
def in_the_clear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for redbot, which knows no private authority and no name of this host."""
    config: dict[str, Section] = {
        "tls": {"enable": False},
        "remote": {"host": "127.0.0.1", "port": unused_port()},
        "local": {"enable": False},
        "ui": {"enable": True},
    }
    with Daemon(Certificates.make(tmp_path_factory.mktemp("clear")), config) as daemon:
        yield daemon


@pytest.mark.parametrize("what", ["/images/ID", "/images/ID/extents", "/images/none", "/ui/", "/info/"])
def test_redbot(in_the_clear: Daemon, source: Source, what: str) -> None:
    program = LAB / "others-venv/bin/redbot"
    if not program.exists():
        TABLE.set(f"redbot: {what}", "notes", "SKIP: cannot be had here")
        pytest.skip("redbot cannot be had here")
    ticket = in_the_clear.add_ticket(source.small, SMALL, ops=["read"])
    url = f"http://127.0.0.1:{in_the_clear.port}{what.replace('ID', ticket)}"
    words = [str(program.with_name("python")), str(program), "-o", "text", url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    head, _, notes = done.stdout.partition("\n\n")
    assert head.startswith("HTTP/1.1 "), done.stdout + done.stderr
    told = re.findall(r"^  +\* (.+)$", notes, re.MULTILINE)
    left = [note for note in told if note not in EXPLAINED and not GOOD.search(note)]
    print(done.stdout)
    assert not left, left
    explained = [note for note in told if note in EXPLAINED]
    TABLE.set(f"redbot: {what}", "notes", f"{len(explained)} explained" if explained else "none")
    in_the_clear.remove(ticket)
