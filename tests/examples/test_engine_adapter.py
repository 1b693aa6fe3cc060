# SPDX-License-Identifier: Apache-2.0
"""The adapter that registers transfers as CloudStack's agent does, beside a daemon and qemu-nbd."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.examples.programs import PROJECT
from tests.support.daemon import Certificates, Daemon
from tests.support.http_client import encode_request
from tests.support.images import KiB, MiB, pattern
from tests.support.nbdservers import make_qcow2, qemu_nbd
from tests.support.polling import eventually

SIZE = MiB


@pytest.fixture(scope="module")
def daemon(certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def engine(daemon: Daemon) -> Iterator["Engine"]:
    engine = Engine(daemon.directory / "engine")
    program = PROJECT / "examples" / "engine_adapter.py"
    command = [sys.executable, str(program), "--listen", str(engine.path), "--control", daemon.control_socket]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert "listening" in process.stderr.readline()
            yield engine
        finally:
            process.terminate()


@pytest.fixture(autouse=True)
def no_transfers(engine: "Engine") -> Iterator[None]:
    """Every test begins without transfers of the engine."""
    yield
    for transfer in engine.registered:
        assert engine.ask(action="unregister", transfer_id=transfer)["status"] == "ok"
    engine.registered.clear()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(pattern(SIZE))
    return path


class Engine:
    """An engine: one request on each connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registered: set[str] = set()

    def send(self, text: bytes) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(str(self.path))
            sock.sendall(text)
            sock.shutdown(socket.SHUT_WR)
            with sock.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.read())
        return answer

    def ask(self, **request: object) -> dict[str, Any]:
        return self.send(json.dumps(request).encode() + b"\n")

    def register(self, transfer: str, **config: object) -> dict[str, Any]:
        self.registered.add(transfer)
        return self.ask(action="register", transfer_id=transfer, config=config)


def test_registered_image_of_an_nbd_server_is_read_in_ranges(engine: Engine, daemon: Daemon, disk: Path) -> None:
    with qemu_nbd(disk, "raw", "--read-only", "--export-name=disk a") as server:
        answer = engine.register("reads", backend="NBD", socket=str(server.socket), export="disk a")
        assert answer == {"status": "ok", "active_transfers": 1}
        with daemon.connect("tls") as client:
            assert client.get("/images/reads").body == pattern(SIZE)
            assert client.get("/images/reads", {"Range": "bytes=100-299"}).body == pattern(SIZE)[100:300]
            assert client.request("OPTIONS", "/images/reads").headers["Allow"] == "OPTIONS,GET"
            assert engine.ask(action="unregister", transfer_id="reads") == {"status": "ok", "active_transfers": 0}
            assert client.get("/images/reads").status == 403


def test_server_that_may_be_written_is(engine: Engine, daemon: Daemon, disk: Path) -> None:
    with qemu_nbd(disk, "raw") as server, daemon.connect("tls") as client:
        assert engine.register("writes", socket=str(server.socket), export=None)["status"] == "ok"
        assert client.put_at("/images/writes", 512, b"x" * 512).status == 200
        assert client.patch("/images/writes", {"op": "zero", "offset": 4096, "size": 4096}).status == 200
        assert engine.ask(action="unregister", transfer_id="writes")["status"] == "ok"
    content = bytearray(pattern(SIZE))
    content[512:1024], content[4096:8192] = b"x" * 512, bytes(4096)
    assert disk.read_bytes() == content


def test_file_is_read_and_written(engine: Engine, daemon: Daemon, disk: Path) -> None:
    assert engine.register("file", backend="file", file=str(disk))["status"] == "ok"
    with daemon.connect("tls") as client:
        assert client.put("/images/file", b"a qcow2 file").status == 200
        assert client.get("/images/file", {"Range": "bytes=0-11"}).body == b"a qcow2 file"


def test_bitmap_tells_what_is_dirty(engine: Engine, daemon: Daemon, tmp_path: Path) -> None:
    image = make_qcow2(tmp_path / "disk.qcow2", SIZE)
    subprocess.check_call(["qemu-img", "bitmap", "--add", "-f", "qcow2", str(image), "since"])
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -q 128k 64k", str(image)])
    with qemu_nbd(image, "qcow2", "--read-only", "--bitmap=since") as server, daemon.connect("tls") as client:
        engine.register("dirty", socket=str(server.socket), export_bitmap="since")
        extents = client.get("/images/dirty/extents?context=dirty").json()
        assert [e["start"] for e in extents if e["dirty"]] == [128 * KiB]
        engine.register("full", socket=str(server.socket), export_bitmap=None)
        assert client.get("/images/full/extents?context=dirty").status == 404


def test_same_transfer_again_replaces_it(engine: Engine, daemon: Daemon, disk: Path) -> None:
    for _ in range(2):
        assert engine.register("twice", backend="file", file=str(disk))["active_transfers"] == 1
    assert engine.ask(action="status") == {"status": "ok", "active_transfers": 1}


@pytest.mark.parametrize(("told", "seconds"), [(None, 600), (30, 30), (0, 86400), (-5, 86400), (10**9, 86400)])
def test_idle_time_is_that_of_the_ticket(
    engine: Engine, daemon: Daemon, disk: Path, told: int | None, seconds: int
) -> None:
    engine.register("idle", backend="file", file=str(disk), **({} if told is None else {"idle_timeout_seconds": told}))
    status = daemon.status("idle")
    assert (status["timeout"], status["inactivity_timeout"]) == (seconds, seconds)


def test_unknown_transfer_is_removed_already(engine: Engine) -> None:
    assert engine.ask(action="unregister", transfer_id="never")["status"] == "ok"


def test_removal_waits_for_a_request_that_runs(engine: Engine, daemon: Daemon, disk: Path) -> None:
    engine.register("slow", backend="file", file=str(disk))
    request = encode_request("PUT", "/images/slow", None, b"y" * SIZE)
    with daemon.connect("tls") as client, ThreadPoolExecutor() as pool:
        client.send(request[: SIZE // 2])
        eventually(lambda: daemon.status("slow")["active"], "the request runs")
        removed = pool.submit(engine.ask, action="unregister", transfer_id="slow")
        eventually(lambda: daemon.status("slow")["expired"], "it is being removed")
        assert not removed.done()
        client.send(request[SIZE // 2 :])
        assert client.receive(to="PUT").status == 200
        assert removed.result()["status"] == "ok"
    assert disk.read_bytes() == b"y" * SIZE


def test_many_register_at_once(engine: Engine, disk: Path) -> None:
    with ThreadPoolExecutor(20) as pool:
        told = pool.map(lambda n: engine.register(f"many-{n}", backend="file", file=str(disk)), range(20))
        assert all(answer["status"] == "ok" for answer in told)
    assert engine.ask(action="status")["active_transfers"] == 20


FILE = {"backend": "file", "file": "/nowhere"}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"action": "foobar"}, "unknown action"),
        ({}, "unknown action"),
        ([], "unknown action"),
        ({"action": "unregister"}, "transfer_id"),
        ({"action": "register", "config": FILE}, "transfer_id"),
        *(
            ({"action": "register", "transfer_id": name, "config": FILE}, "transfer_id")
            for name in ("", "..", ".", "a/b", "../etc/passwd", "a\\b", "a b", "x" * 256, 7)
        ),
        ({"action": "register", "transfer_id": "a"}, "config is missing"),
        ({"action": "register", "transfer_id": "a", "config": {"backend": "tape"}}, "neither nbd nor file"),
        ({"action": "register", "transfer_id": "a", "config": {"backend": "file"}}, "file is missing"),
        ({"action": "register", "transfer_id": "a", "config": {}}, "socket is missing"),
        ({"action": "register", "transfer_id": "a", "config": {"socket": "/nowhere"}}, "does not have the export"),
        ({"action": "register", "transfer_id": "a", "config": FILE | {"idle_timeout_seconds": "9"}}, "no integer"),
        ({"action": "register", "transfer_id": "a", "config": {"backend": "file", "file": "not/absolute"}}, "400"),
    ],
    ids=str,
)
def test_refused_request(engine: Engine, request_: object, words: str) -> None:
    answer = engine.send(json.dumps(request_).encode())
    assert answer["status"] == "error"
    assert words in answer["message"]
    assert engine.ask(action="status")["active_transfers"] == 0


@pytest.mark.parametrize("text", [b"", b"no json\n", b"[" * 50_000, b'"' + b"x" * 65_535], ids=len)
def test_what_is_no_json_is_refused(engine: Engine, text: bytes) -> None:
    assert engine.send(text)["status"] == "error"


def test_export_that_the_server_does_not_have_is_refused(engine: Engine, disk: Path) -> None:
    with qemu_nbd(disk, "raw", "--read-only", "--export-name=one") as server:
        answer = engine.ask(action="register", transfer_id="a", config={"socket": str(server.socket), "export": "two"})
    assert "does not have the export" in answer["message"]


def test_daemon_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    program = PROJECT / "examples" / "engine_adapter.py"
    command = [sys.executable, str(program), "--listen", str(path), "--control", str(tmp_path / "nowhere")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            process.stderr.readline()
            assert "imageio-daemon: " in Engine(path).ask(action="status")["message"]
            assert path.stat().st_mode & 0o777 == 0o660
        finally:
            process.terminate()
