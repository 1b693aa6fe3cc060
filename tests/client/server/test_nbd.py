# SPDX-License-Identifier: Apache-2.0
"""`imageio-client nbd`: a unix socket for programs that speak NBD and no HTTP."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings
from imageio_daemon.client.nbd_socket import serve
from imageio_daemon.client.relay import PIECE, relay
from tests.client.programs import PROGRAM, run, start
from tests.client.proxy import Proxy
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, pattern
from tests.support.nbdservers import make_qcow2, qemu_nbd
from tests.support.places import Place
from tests.support.polling import eventually

MiB = 1024 * 1024
SIZE = 24 * MiB


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    """8 MiB of a pattern in an image that is a hole otherwise."""
    return new_image(size=SIZE, pieces={4 * MiB: pattern(8 * MiB)}, sparse=True)


@pytest.fixture(params=["tls", "unix"])
def way(request: pytest.FixtureRequest) -> list[str]:
    """Options that have the server reached by TLS, or by its unix socket."""
    return ["--no-local"] if request.param == "tls" else []


@contextlib.contextmanager
def serving(daemon: Daemon, image: Image, path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command until the block ends; it ends then as by Ctrl-C."""
    process = start("nbd", "--cafile", daemon.cafile, *options, daemon.url(image.ticket), path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"nbd+unix:///?socket={path}\n"
        yield process
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()
        process.communicate()


def program(*arguments: object) -> str:
    if shutil.which(str(arguments[0])) is None:
        pytest.skip(f"{arguments[0]} is not installed")
    done = subprocess.run([str(a) for a in arguments], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("connections", [1, 4])
def test_nbdcopy_moves_the_image_both_ways(
    daemon: Daemon, image: Image, way: list[str], tmp_path: Path, connections: int
) -> None:
    path = tmp_path / "s"
    with serving(daemon, image, path, *way):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        uri = f"nbd+unix:///?socket={path}"
        program("nbdcopy", f"--connections={connections}", uri, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == image.content()
        (tmp_path / "source").write_bytes(pattern(SIZE, 3))
        program("nbdcopy", "--flush", f"--connections={connections}", tmp_path / "source", uri)
        assert image.content() == pattern(SIZE, 3)
    assert not path.exists()


def test_qemu_img_reads_and_maps_it(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with serving(daemon, image, path, "--no-local"):
        uri = f"nbd+unix:///?socket={path}"
        mapped = json.loads(program("qemu-img", "map", "--output=json", uri))
        assert [(e["start"], e["length"], e["data"]) for e in mapped] == [
            (0, 4 * MiB, False),
            (4 * MiB, 8 * MiB, True),
            (12 * MiB, 12 * MiB, False),
        ]
        program("qemu-img", "convert", "-O", "qcow2", uri, tmp_path / "copy.qcow2")
        program("qemu-img", "compare", image.path, tmp_path / "copy.qcow2")


def test_bitmap_is_told_through_it(daemon: Daemon, tmp_path: Path) -> None:
    disk, path = make_qcow2(tmp_path / "disk.qcow2", SIZE), tmp_path / "s"
    program("qemu-img", "bitmap", "--add", "-f", "qcow2", disk, "changed")
    program("qemu-io", "-f", "qcow2", *(part for at in range(0, 24, 2) for part in ("-c", f"write {at}M 64k")), disk)
    with qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=changed") as server:
        ticket = daemon.add_ticket("", SIZE, url=server.url, ops=["read"], dirty=True)
        with serving(daemon, Image(Place(disk), ticket), path, "--no-local"):
            for context in ("base:allocation", "qemu:dirty-bitmap:changed"):
                told = program("nbdinfo", f"--map={context}", f"nbd+unix:///?socket={path}")
                assert told == program("nbdinfo", f"--map={context}", server.uri)
        daemon.remove(ticket)


def test_nbdfuse_shows_it_as_a_file(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    if shutil.which("nbdfuse") is None or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no FUSE here")
    path, point = tmp_path / "s", tmp_path / "mnt"
    point.mkdir()
    with serving(daemon, image, path):
        mounted = subprocess.Popen(["nbdfuse", point, f"nbd+unix:///?socket={path}"])
        try:
            eventually((point / "nbd").exists, "nbdfuse serves")
            assert (point / "nbd").read_bytes() == image.content()
        finally:
            mounted.terminate()
            mounted.wait(20)


def test_more_connections_than_descriptors_wait(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    path = tmp_path / "s"
    limited = ("prlimit", "--nofile=32", *PROGRAM)
    process = start("nbd", "--no-local", "--cafile", daemon.cafile, daemon.url(image.ticket), path, program=limited)
    try:
        stdout, stderr = process.stdout, process.stderr
        assert stdout is not None
        assert stderr is not None
        assert stdout.readline()
        with contextlib.ExitStack() as programs:
            for _ in range(60):
                programs.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
            eventually(lambda: "no more connections" in stderr.readline(), "there is no room")
        with socket.socket(socket.AF_UNIX) as program:
            program.settimeout(20)
            program.connect(str(path))
            assert program.recv(8, socket.MSG_WAITALL) == b"NBDMAGIC"
        process.terminate()
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_end_by_a_signal_ends_connections_and_removes_the_socket(daemon: Daemon, image: Image) -> None:
    process = start("nbd", "--json", "--cafile", daemon.cafile, daemon.url(image.ticket))
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["uri"] == f"nbd+unix:///?socket={told['socket']}"
        with socket.socket(socket.AF_UNIX) as program:
            program.settimeout(20)
            program.connect(told["socket"])
            assert program.recv(18, socket.MSG_WAITALL) == b"NBDMAGICIHAVEOPT\0\3"
            process.terminate()
            assert program.recv(1) == b""
        assert process.wait(20) == 0
        assert not Path(told["socket"]).parent.exists()
    finally:
        process.kill()
        process.communicate()


def test_connection_that_is_refused_ends_and_the_next_one_is_served(
    daemon: Daemon, image: Image, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    process = start("nbd", "--cafile", daemon.cafile, daemon.url(image.ticket), path)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        daemon.control("DELETE", f"/tickets/{image.ticket}")
        with socket.socket(socket.AF_UNIX) as program:
            program.settimeout(20)
            program.connect(str(path))
            assert program.recv(1) == b""
        process.terminate()
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "a connection has ended: the ticket does not allow this" in said
    finally:
        process.kill()
        process.communicate()


def test_connection_that_fails_for_a_moment_is_made_again(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    budgets = iter([1000 * MiB, 0])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{image.ticket}"
        process = start("nbd", "--no-local", "--cafile", daemon.cafile, url, tmp_path / "s")
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with socket.socket(socket.AF_UNIX) as program:
                program.settimeout(20)
                program.connect(str(tmp_path / "s"))
                assert program.recv(18, socket.MSG_WAITALL) == b"NBDMAGICIHAVEOPT\0\3"
        finally:
            process.terminate()
            process.communicate(timeout=20)


# Refused


def test_ticket_that_is_refused_is_told_at_once(daemon: Daemon, tmp_path: Path) -> None:
    done = run("nbd", "--cafile", daemon.cafile, daemon.url("unknown"), tmp_path / "s")
    assert done.status == 3
    assert "the ticket does not allow this" in done.err
    assert not (tmp_path / "s").exists()


def test_socket_that_exists_is_left_alone(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    done = run("nbd", "--cafile", daemon.cafile, daemon.url(image.ticket), tmp_path / "s")
    assert done.status == 5
    assert "can't listen on" in done.err
    assert (tmp_path / "s").read_text() == "mine"


def test_temporary_directory_that_is_not_there_is_told(
    daemon: Daemon, tls: Settings, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(LocalError, match="can't make a directory for the socket: No such file"):
        serve(daemon.url(image.ticket), None, tls, lambda uri, path: None)


class Older(http.server.BaseHTTPRequestHandler):
    """A server of the images API that knows no NBD: it answers as if it was not asked for (RFC 9110 7.8)."""

    protocol_version = "HTTP/1.1"

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_OPTIONS(self) -> None:
        self._answer(b'{"features": ["extents", "zero", "flush"]}')

    def do_GET(self) -> None:
        self._answer(bytes(4096))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_server_without_it_is_named(tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Older) as older:
        thread = threading.Thread(target=older.serve_forever)
        thread.start()
        done = run("nbd", f"http://127.0.0.1:{older.server_port}/images/ticket", tmp_path / "s")
        older.shutdown()
        thread.join()
    assert done.status == 4
    assert "does not serve NBD on connections of HTTP" in done.err


# The relay


def test_relay_passes_on_what_comes_before_an_end() -> None:
    (one, ours), (other, theirs) = socket.socketpair(), socket.socketpair()
    data = pattern(5 * PIECE + 7)
    with ours, other, theirs:

        def pass_on() -> None:
            with one:
                relay(one, other, b"early")

        def send() -> None:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)

        threads = [threading.Thread(target=work) for work in (pass_on, send)]
        for thread in threads:
            thread.start()
        ours.settimeout(20)
        assert b"".join(iter(lambda: ours.recv(PIECE), b"")) == b"early" + data
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def test_relay_ends_with_the_side_that_ends_while_the_other_takes_nothing() -> None:
    (one, ours), (other, theirs) = socket.socketpair(), socket.socketpair()
    with one, other, theirs:
        thread = threading.Thread(target=relay, args=(one, other))
        with ours:
            thread.start()
            ours.sendall(b"question")
            assert theirs.recv(8, socket.MSG_WAITALL) == b"question"
        thread.join(20)
        assert not thread.is_alive()
