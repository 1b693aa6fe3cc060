# SPDX-License-Identifier: Apache-2.0
"""Exports of NBD servers that others wrote, as sources and as targets."""

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, ServerFailed, Settings, Usage, checksum, download, info, upload
from imageio_daemon.client.errors import Stopped
from imageio_daemon.client.local.nbd_export import NbdSource, NbdTarget
from imageio_daemon.nbdproto.constants import Chunk, Command
from tests.client.programs import run
from tests.support.daemon import Certificates, Daemon
from tests.support.fakenbd import Asked, fake_nbd
from tests.support.images import MakeImage, MiB, pattern
from tests.support.nbdservers import nbdkit, qemu_nbd
from tests.support.polling import eventually
from tests.support.ports import unused_port

SIZE = 20 * MiB


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Data, a hole, data."""
    path = tmp_path / "disk"
    with path.open("wb") as f:
        f.write(pattern(5 * MiB))
        f.seek(12 * MiB)
        f.write(pattern(3 * MiB, 1))
        f.truncate(SIZE)
    return path


@pytest.fixture(params=["nbdkit", "qemu-nbd", "qemu-nbd of one connection"])
def uri(request: pytest.FixtureRequest, disk: Path) -> Iterator[str]:
    """The URI of an export that can be written."""
    if request.param == "nbdkit":
        with nbdkit("file", str(disk)) as server:
            yield server.uri
    elif request.param == "qemu-nbd":
        with qemu_nbd(disk, "raw") as server:
            yield server.uri
    else:
        path = disk.with_name("nbd")
        process = subprocess.Popen(["qemu-nbd", "--socket", path, "--persistent", "--format=raw", disk])
        eventually(path.exists, "qemu-nbd listens")
        yield f"nbd+unix:///?socket={path}"
        process.terminate()
        process.wait()


def test_export_is_uploaded_without_its_holes(
    daemon: Daemon, tls: Settings, new_image: MakeImage, disk: Path, uri: str
) -> None:
    target = new_image(b"\xff" * SIZE)
    done = upload(uri, daemon.url(target.ticket), settings=tls, verify=True)
    assert target.content() == disk.read_bytes()
    assert done.progress.data == 8 * MiB


def test_export_is_written(daemon: Daemon, tls: Settings, new_image: MakeImage, disk: Path, uri: str) -> None:
    image = new_image(pieces={MiB: pattern(2 * MiB, 5), 9 * MiB + 5: b"x"}, size=SIZE - MiB, ops=["read"])
    with disk.open("rb") as f:
        f.seek(SIZE - MiB)
        rest = f.read()
    done = download(daemon.url(image.ticket), uri, settings=tls, verify=True)
    assert disk.read_bytes() == image.content() + rest
    assert done.progress.data < 3 * MiB


def test_export_is_asked(disk: Path, uri: str) -> None:
    assert (info(uri).size, info(uri).data) == (SIZE, 8 * MiB)
    assert checksum(uri) == checksum(disk, shared=True)


def test_server_without_requests_for_zeros_gets_them_sent(
    daemon: Daemon, tls: Settings, new_image: MakeImage, disk: Path
) -> None:
    image = new_image(pieces={7 * MiB: b"x"}, size=SIZE, ops=["read"])
    with nbdkit("--filter=nozero", "file", str(disk)) as server:
        download(daemon.url(image.ticket), server.uri, settings=tls)
    assert disk.read_bytes() == image.content()


def test_by_tcp_and_name(daemon: Daemon, tls: Settings, new_image: MakeImage, disk: Path) -> None:
    port = unused_port()
    target = new_image(b"\xff" * SIZE)
    command: list[str | Path] = [
        "qemu-nbd",
        "--bind=127.0.0.1",
        f"--port={port}",
        "--export-name=a b",
        "--format=raw",
        "-t",
        disk,
    ]
    with running(command, port):
        upload(f"nbd://127.0.0.1:{port}/a%20b", daemon.url(target.ticket), settings=tls)
        with pytest.raises(LocalError, match=r"the server of nbd://127.0.0.1:.*/other failed: "):
            info(f"nbd://127.0.0.1:{port}/other")
    assert target.content() == disk.read_bytes()


@contextlib.contextmanager
def running(command: list[str | Path], port: int) -> Iterator[None]:
    """Run a server until the end of the block."""
    process = subprocess.Popen(command)

    def listens() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(listens, "the server listens")
        yield
    finally:
        process.terminate()
        process.wait()


def test_by_tls(daemon: Daemon, certificates: Certificates, new_image: MakeImage, disk: Path, tmp_path: Path) -> None:
    files = {"ca-cert": certificates.cafile, "server-cert": certificates.certfile, "server-key": certificates.keyfile}
    for name, path in files.items():
        (tmp_path / f"{name}.pem").write_bytes(path.read_bytes())
    port = unused_port()
    target = new_image(b"\xff" * SIZE)
    tls_options = ["--tls=require", f"--tls-certificates={tmp_path}", "--no-fork", "--exit-with-parent"]
    with running(["nbdkit", *tls_options, "--ipaddr=127.0.0.1", f"--port={port}", "file", disk], port):
        uri = f"nbds://localhost:{port}/"
        done = run("upload", "--no-local", "--cafile", daemon.cafile, uri, daemon.url(target.ticket))
        assert done.status == 0, done
        with pytest.raises(ServerFailed, match="can't be verified"):
            info(uri)
    assert target.content() == disk.read_bytes()


def test_export_that_is_read_only_is_no_target(daemon: Daemon, tls: Settings, new_image: MakeImage, disk: Path) -> None:
    url = daemon.url(new_image(size=SIZE, ops=["read"]).ticket)
    with nbdkit("--readonly", "file", str(disk)) as server, pytest.raises(LocalError, match="is read-only"):
        download(url, server.uri, settings=tls)


def test_export_without_flush_is_not_written(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path
) -> None:
    url = daemon.url(new_image(size=SIZE, ops=["read"]).ticket)
    with (
        nbdkit(
            "eval",
            "get_size=echo 20M",
            "pread=head --bytes $3 /dev/zero",
            f"pwrite=cat >> {tmp_path}/written",
            "can_zero=exit 0",
            f"zero=echo >> {tmp_path}/written",
            "can_write=exit 0",
            "can_flush=exit 3",
        ) as server,
        pytest.raises(LocalError, match="has no flush"),
    ):
        download(url, server.uri, settings=tls)
    assert not (tmp_path / "written").exists()


def test_export_that_is_too_small_is_told(daemon: Daemon, tls: Settings, new_image: MakeImage, disk: Path) -> None:
    url = daemon.url(new_image(size=SIZE + 512, ops=["read"]).ticket)
    with nbdkit("file", str(disk)) as server, pytest.raises(LocalError, match="it does not fit"):
        download(url, server.uri, settings=tls)


def test_image_in_an_export_is_told(daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path) -> None:
    image = tmp_path / "image.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "1M"], check=True)
    with nbdkit("file", str(image)) as server, pytest.raises(Usage, match="looks like qcow2"):
        upload(server.uri, daemon.url(new_image(size=MiB).ticket), settings=tls)


@pytest.mark.parametrize("uri", ["nbd://", "nbd+unix:///", "nbds+unix:///?socket=/x", "nbd://host:0/"])
def test_uri_that_is_none_is_told(daemon: Daemon, tls: Settings, uri: str) -> None:
    for transfer in (lambda: upload(uri, daemon.url("x"), settings=tls), lambda: info(uri)):
        with pytest.raises(Usage, match="Invalid NBD url"):
            transfer()


@pytest.mark.parametrize("how", [{"format": "qcow2"}, {"decompress": "gz"}, {"member": "x"}, {"size": 1}])
def test_export_is_raw(daemon: Daemon, tls: Settings, how: dict[str, object]) -> None:
    with pytest.raises(Usage, match="an export of an NBD server is raw"):
        upload("nbd://localhost/", daemon.url("x"), settings=tls, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [{"format": "qcow2"}, {"compress": True}, {"update": True}])
def test_export_gets_a_raw_image(daemon: Daemon, tls: Settings, how: dict[str, object]) -> None:
    with pytest.raises(Usage):
        download(daemon.url("x"), "nbd://localhost/", settings=tls, **how)  # type: ignore[arg-type]


def test_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"the server of nbd.*no-such failed: No such file"):
        info(f"nbd+unix:///?socket={tmp_path}/no-such")


async def test_server_that_tells_no_extents_is_told() -> None:
    async with fake_nbd() as server:

        async def answer(asked: Asked) -> bytes:
            is_status = asked.header.command == Command.BLOCK_STATUS
            return server.chunk(asked, Chunk.NONE, b"") if is_status else server.success(asked)

        server.answer = answer
        await server.start()
        with pytest.raises(LocalError, match=r"the server of nbd.* failed: status chunk of 0 bytes"):
            await asyncio.to_thread(info, f"nbd+unix:///?socket={server.socket}", format="raw")


async def test_stop_is_no_failure_of_the_server() -> None:
    async with fake_nbd() as server:
        held = server.hold_back(Command.READ)
        await server.start()
        source = await asyncio.to_thread(NbdSource, f"nbd+unix:///?socket={server.socket}", None)
        reading = asyncio.create_task(asyncio.to_thread(source.read, 0, memoryview(bytearray(1))))
        await held.reached.wait()
        source.stop()
        with pytest.raises(Stopped):
            await reading
        source.close()


def test_nothing_moves_after_a_stop(disk: Path) -> None:
    with nbdkit("file", str(disk)) as server:
        source, target = NbdSource(server.uri, None), NbdTarget(server.uri, None)
        source.stop()
        target.stop()
        with pytest.raises(Stopped):
            source.read(0, memoryview(bytearray(1)))
        with pytest.raises(Stopped):
            target.write(0, memoryview(b"x"))
        with pytest.raises(Stopped):
            target.zero(0, 1)
        source.close()
        target.abandon()
