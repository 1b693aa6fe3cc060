# SPDX-License-Identifier: Apache-2.0
"""Dirty bitmaps as metadata contexts: what programs of others read of them, beside qemu-nbd and beside HTTP."""

import hashlib
import json
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.image.extents import Extent, ExtentList
from imageio_daemon.nbdproto.constants import (
    BASE_ALLOCATION,
    Command,
    CommandFlag,
    ErrorNumber,
    ExportFlag,
    OptionType,
    Reply,
)
from imageio_daemon.nbdproto.option_payloads import ContextRequest, InfoRequest
from imageio_daemon.storage.backend import Backend
from imageio_daemon.storage.nbd.backend import NbdBackend
from imageio_daemon.storage.nbd.client_handshake import ConnectOptions
from imageio_daemon.transfers.ticket import Access, Ticket
from imageio_daemon.urls.nbd import NbdAddress
from tests.frontends.nbd.client import Client, Refused
from tests.frontends.nbd.conftest import MakeWorld
from tests.frontends.nbd.test_interop import run
from tests.frontends.nbd.world import World
from tests.support.daemon import Certificates, Daemon, Section
from tests.support.fakenbd import FakeNbd, fake_nbd
from tests.support.nbdservers import NbdServer, make_qcow2, qemu_nbd

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
SIZE = 64 * MiB
A, B = "qemu:dirty-bitmap:a", "qemu:dirty-bitmap:b"
PYTHON = "/usr/bin/python3"  # whose module nbd comes with nbdsh, whatever python3 is first in PATH
FORMS = [{"structured": True}, {"extended": True}]


def qemu_io(image: Path, *commands: str) -> None:
    lines = "\n".join([*commands, "quit\n"])
    subprocess.run(["qemu-io", "-f", "qcow2", image], input=lines, text=True, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with two bitmaps: b has what has changed since a later time. There are changes to zeros, and fragments."""
    disk = make_qcow2(tmp_path_factory.mktemp("bitmaps") / "disk.qcow2", SIZE)
    qemu_io(disk, "write -q -P 1 0 8M")
    run("qemu-img", "bitmap", "--add", "-g", "4k", "-f", "qcow2", disk, "a")
    qemu_io(disk, "write -q -P 2 1M 1M", "write -q -z 3M 1M", "discard -q 5M 64k", "write -q -P 3 63M 1M")
    run("qemu-img", "bitmap", "--add", "-f", "qcow2", disk, "b")
    qemu_io(disk, *(f"write -q -P 4 {16 * MiB + 8 * KiB * number} 4k" for number in range(2000)))
    return disk


@pytest.fixture(scope="module")
def server(disk: Path) -> Iterator[NbdServer]:
    """What is compared with: qemu-nbd, which also has the image of tickets."""
    with qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=a", "--bitmap=b", "--shared=200") as qemu:
        yield qemu


def nbd_config() -> dict[str, Section]:
    socket = Path("/tmp") / f"nbd-{uuid.uuid4().hex[:8]}"
    return {"nbd": {"enable": True, "host": "localhost", "port": 0, "socket": socket}}


@pytest.fixture(scope="module")
def nbd_daemon(certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(certificates, nbd_config()) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def qemu_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon that has a qemu-nbd open images in the format qcow2."""
    with Daemon(certificates, nbd_config() | {"backend_file": {"qcow2": "qemu-nbd"}}) as daemon:
        yield daemon


@dataclass(frozen=True)
class Served:
    """A ticket, and how clients name its export."""

    daemon: Daemon
    ticket: str

    @property
    def socket(self) -> str:
        match = self.daemon.log.find(r"service=nbd-local address=(\S+)")
        assert match is not None
        return match[1]

    @property
    def uri(self) -> str:
        return f"nbd+unix:///{self.ticket}?socket={self.socket}"


def serve(daemon: Daemon, image: Path | str, **fields: Any) -> Served:
    url = image if isinstance(image, str) else f"file://{image}"
    return Served(daemon, daemon.add_ticket("", SIZE, **{"url": url, "ops": ["read"], "dirty": True} | fields))


def require_refused(served: Served, bitmap: str, words: str) -> None:
    """Fail unless programs that ask for the bitmap are refused. Those of libnbd do not print the words."""
    assert "handshake" in run("nbdinfo", f"--map={bitmap}", served.uri, fails=True)
    options = f"driver=nbd,server.type=unix,server.path={served.socket},export={served.ticket}"
    assert words in run("qemu-img", "map", "--image-opts", f"{options},x-dirty-bitmap={bitmap}", fails=True)


@pytest.fixture(params=["file", "file of qemu-nbd", "server"])
def served(
    request: pytest.FixtureRequest, nbd_daemon: Daemon, qemu_daemon: Daemon, disk: Path, server: NbdServer
) -> Served:
    """The disk by a ticket for its file, which has bitmap a, or for a server, which has both."""
    if request.param != "server":
        daemon = nbd_daemon if request.param == "file" else qemu_daemon
        return serve(daemon, disk, format="qcow2", bitmap="a")
    return serve(nbd_daemon, server.url)


# Beside qemu-nbd


def test_nbdinfo_lists_the_bitmaps(served: Served) -> None:
    (export,) = json.loads(run("nbdinfo", "--json", served.uri))["exports"]
    assert export["contexts"] in (["base:allocation", A], ["base:allocation", A, B])


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_map_of_nbdinfo_is_that_of_qemu_nbd_to_the_byte(
    served: Served, server: NbdServer, form: tuple[str, ...]
) -> None:
    ours = run("nbdinfo", *form, f"--map={A}", served.uri)
    assert ours == run("nbdinfo", *form, f"--map={A}", server.uri)
    assert ours.count("dirty") > 2000


def test_each_bitmap_of_a_server_is_told_by_itself(nbd_daemon: Daemon, server: NbdServer) -> None:
    served = serve(nbd_daemon, server.url)
    maps = [run("nbdinfo", f"--map={name}", served.uri) for name in (A, B)]
    assert maps == [run("nbdinfo", f"--map={name}", server.uri) for name in (A, B)]
    assert maps[0] != maps[1]


def test_a_server_of_one_connection_tells_the_same(nbd_daemon: Daemon, server: NbdServer, disk: Path) -> None:
    with qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=a", "--bitmap=b", "--shared=1") as alone:
        served = serve(nbd_daemon, alone.url)
        for name in (A, B, BASE_ALLOCATION):
            assert run("nbdinfo", f"--map={name}", served.uri) == run("nbdinfo", f"--map={name}", server.uri)


def test_qemu_reads_a_bitmap_in_place_of_the_allocation(served: Served, server: NbdServer) -> None:
    def mapped(socket: str, export: str) -> str:
        options = f"driver=nbd,server.type=unix,server.path={socket},export={export},x-dirty-bitmap={A}"
        return run("qemu-img", "map", "--output=json", "--image-opts", options)

    ours = mapped(served.socket, served.ticket)
    assert ours == mapped(str(server.socket), "")
    assert len(json.loads(ours)) > 4000


def test_unknown_bitmap_is_not_supported(served: Served) -> None:
    assert "does not support" in run("nbdinfo", "--map=qemu:dirty-bitmap:other", served.uri, fails=True)


def test_ticket_that_does_not_ask_has_no_bitmaps(nbd_daemon: Daemon, server: NbdServer) -> None:
    served = serve(nbd_daemon, server.url, dirty=False)
    (export,) = json.loads(run("nbdinfo", "--json", served.uri))["exports"]
    assert export["contexts"] == ["base:allocation"]
    assert "does not support" in run("nbdinfo", f"--map={A}", served.uri, fails=True)


# Beside HTTP

INCREMENT = """
import json, sys
h.add_meta_context("base:allocation")
h.add_meta_context(A)
h.connect_uri(URI)
size, offset, found = h.get_size(), 0, []
while offset < size:
    told = {}
    def add(context, start, entries, error):
        told[context] = list(zip(entries[::2], entries[1::2]))
        return 0
    h.block_status(size - offset, offset, add)
    assert set(told) == {"base:allocation", A}, told
    pieces, ends = {}, []
    for context, extents in told.items():
        at = offset
        for length, status in extents:
            pieces.setdefault(context, []).append((at, at + length, status))
            at += length
        ends.append(at)
    end = min(*ends, size)
    edges = sorted({edge for part in pieces.values() for piece in part for edge in piece[:2] if edge <= end} | {end})
    for first, last in zip(edges, edges[1:]):
        zero, dirty = (
            next(status for start, stop, status in pieces[context] if start <= first < stop)
            for context in ("base:allocation", A)
        )
        found.append((first, last - first, bool(dirty), bool(zero & 2)))
    offset = end
data = b"".join(h.pread(length, start) for start, length, dirty, zero in found if dirty and not zero)
print(json.dumps([found, __import__("hashlib").sha256(data).hexdigest()]))
"""


def test_increment_of_a_libnbd_program_is_that_over_http(served: Served, disk: Path, tmp_path: Path) -> None:
    script = f"A = {A!r}\nURI = {served.uri!r}\n{INCREMENT}"
    told, digest = json.loads(run(PYTHON, "-m", "nbd", "-c", script))
    ours = list(ExtentList.of(Extent(start, length, zero, dirty=dirty) for start, length, dirty, zero in told))
    with served.daemon.connect("tls") as client:
        extents = client.get(f"/images/{served.ticket}/extents?context=dirty").json()
        if "file" in served.daemon.control("GET", f"/tickets/{served.ticket}").json()["url"]:  # which has one bitmap
            assert ours == [Extent(e["start"], e["length"], e["zero"], dirty=e["dirty"]) for e in extents]
        wanted = [extent for extent in ours if extent.dirty and not extent.zero]
        assert sum(extent.length for extent in wanted) > 9 * MiB
        data = b"".join(
            client.get(f"/images/{served.ticket}", {"Range": f"bytes={extent.start}-{extent.end - 1}"}).body
            for extent in wanted
        )
    assert hashlib.sha256(data).hexdigest() == digest


# Refused


def broken(disk: Path, path: Path) -> Path:
    """Return a disk whose bitmap a crash has left in use."""
    make_qcow2(path, SIZE)
    qemu_io(path, "write -q -P 1 0 1M")
    run("qemu-img", "bitmap", "--add", "-f", "qcow2", path, "a")
    with qemu_nbd(path, "qcow2") as server:
        run("nbdinfo", "--size", server.uri)  # it is open then
        server.kill()
    return path


def test_bitmap_that_a_crash_left_in_use_is_refused_and_the_image_is_read(
    nbd_daemon: Daemon, disk: Path, tmp_path: Path
) -> None:
    served = serve(nbd_daemon, broken(disk, tmp_path / "broken.qcow2"), format="qcow2", bitmap="a")
    require_refused(served, A, "in use, or was left so by a crash")
    (export,) = json.loads(run("nbdinfo", "--json", served.uri))["exports"]
    assert export["contexts"] == ["base:allocation"]
    run("nbdcopy", served.uri, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"\1" * MiB + bytes(SIZE - MiB)
    lines = [line for line in nbd_daemon.log.text().splitlines() if "served without the bitmap a" in line]
    assert len([line for line in lines if "broken.qcow2" in line]) == 1


def test_missing_bitmap_of_a_file_is_refused(nbd_daemon: Daemon, disk: Path) -> None:
    served = serve(nbd_daemon, disk, format="qcow2", bitmap="never")
    require_refused(served, "qemu:dirty-bitmap:never", "does not have the bitmap")
    run("nbdinfo", "--map", served.uri)


def test_server_and_files_without_a_bitmap_are_refused(nbd_daemon: Daemon, disk: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(SIZE))
    with qemu_nbd(disk, "qcow2", "--read-only") as server:
        for served in (serve(nbd_daemon, server.url), serve(nbd_daemon, raw)):
            require_refused(served, A, "has no dirty bitmap")
            run("nbdinfo", "--map", served.uri)
    assert nbd_daemon.log.find("WARNING.*offers no dirty bitmap") is not None


# In all forms


@asynccontextmanager
async def world_of(
    lane_world: MakeWorld, server: NbdServer | FakeNbd, size: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """Make a world whose image is that of a server with bitmaps."""
    async with lane_world(size=SIZE) as world:
        address, options = NbdAddress(socket=str(server.socket)), ConnectOptions(True, None, 10, 10)

        async def open_backend(_: Ticket) -> Backend:
            return await NbdBackend.open(world.engine, address, options, connections=4, writable=False)

        world.disk = world.add("changed", size=size, ops=(Access.READ,), dirty=True)
        monkeypatch.setattr(world.disk._image, "_open_backend", open_backend)
        yield world


@pytest.fixture
async def world(lane_world: MakeWorld, server: NbdServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with world_of(lane_world, server, SIZE, monkeypatch) as world:
        yield world


@pytest.fixture
async def large_world(lane_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A disk whose length does not fit into 32 bits."""
    disk = make_qcow2(tmp_path / "large.qcow2", 6 * GiB)
    for name, at in (("a", "1M"), ("b", "5G")):
        run("qemu-img", "bitmap", "--add", "-f", "qcow2", disk, name)
        qemu_io(disk, f"write -q {at} 64k")
    with qemu_nbd(disk, "qcow2", "--read-only", "--bitmap=a", "--bitmap=b") as server:
        async with world_of(lane_world, server, 6 * GiB, monkeypatch) as world:
            yield world


async def entered(world: World, form: dict[str, bool], *bitmaps: str, allocation: bool = True) -> Client:
    client = await Client.connect(world.address)
    world.clients.append(client)
    client.contexts = (*([BASE_ALLOCATION] if allocation else []), *bitmaps)
    return await client.go("changed", **form)


def at(extents: list[tuple[int, int]], offset: int, start: int = 0) -> int:
    """Return the status of an offset."""
    for length, status in extents:
        start += length
        if offset < start:
            return status
    raise AssertionError("nothing is told of it")


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_contexts_come_in_one_reply_a_chunk_for_each(world: World, form: dict[str, bool]) -> None:
    client = await entered(world, form, A, B)
    result = await client.request(Command.BLOCK_STATUS, 0, SIZE)
    assert (result.error, list(result.statuses)) == (0, [1, 2, 3])
    assert result.statuses[1][0] == (3 * MiB, 0)
    assert result.statuses[2][:3] == [(MiB, 0), (MiB, 1), (MiB, 0)]
    assert [at(extents, 3 * MiB + 512 * KiB) for extents in result.statuses.values()] == [3, 1, 0]
    assert [at(extents, 16 * MiB + 512) for extents in result.statuses.values()] == [0, 1, 1]
    assert all(sum(length for length, _ in extents) == SIZE for extents in result.statuses.values())


@pytest.mark.parametrize(
    ("bitmaps", "allocation", "asked"),
    [
        ([A], False, [A, B]),
        ([A, B], False, [A, B]),
        ([], True, [BASE_ALLOCATION]),
        ([A], True, [BASE_ALLOCATION, A, B]),
    ],
)
async def test_the_server_is_asked_where_it_looks_for_little_else(
    lane_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, bitmaps: list[str], allocation: bool, asked: list[str]
) -> None:
    async with fake_nbd() as fake:
        fake.contexts = (BASE_ALLOCATION, A, B)
        fake.flags |= ExportFlag.CAN_MULTI_CONN
        await fake.start()
        async with world_of(lane_world, fake, fake.size, monkeypatch) as world:
            client = await entered(world, FORMS[0], *bitmaps, allocation=allocation)
            result = await client.request(Command.BLOCK_STATUS, 0, fake.size)
            told = list(result.statuses.values())
    assert told == [*([[(fake.size, 3)]] if allocation else []), *([[(fake.size, 1)]] * len(bitmaps))]
    (question,) = fake.commands(Command.BLOCK_STATUS)
    assert fake.selected[question.connection] == asked


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_one_extent_of_each_context_is_told_when_one_is_asked_for(world: World, form: dict[str, bool]) -> None:
    client = await entered(world, form, A)
    result = await client.request(Command.BLOCK_STATUS, MiB + 7, SIZE - MiB - 7, CommandFlag.REQ_ONE)
    assert list(result.statuses) == [1, 2]
    for (extent,) in result.statuses.values():
        assert 0 < extent[0] <= MiB - 7
    assert [extents[0][1] for extents in result.statuses.values()] == [0, 1]


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_every_part_is_told_as_the_whole(world: World, form: dict[str, bool]) -> None:
    client = await entered(world, form, A, B)
    whole = (await client.request(Command.BLOCK_STATUS, 0, SIZE)).statuses
    for offset, length in ((1, 1), (SIZE - 1, 1), (16 * MiB - 1, 10 * KiB), (5 * MiB, 64 * KiB + 1)):
        part = (await client.request(Command.BLOCK_STATUS, offset, length)).statuses
        for place in {offset, offset + length // 2, offset + length - 1}:
            told = [at(extents, place, offset) for extents in part.values()]
            assert told == [at(extents, place) for extents in whole.values()]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("bitmaps", [(), (A,), (A, B)], ids=len)
async def test_ranges_that_end_about_4_gib_are_told_as_far_as_they_go(
    large_world: World, form: dict[str, bool], bitmaps: tuple[str, ...]
) -> None:
    client = await entered(large_world, form, *bitmaps)
    lengths = [2**32 - 1, 2**32 - 512, 2**32 - 64 * KiB]
    for offset in (0, 1, 511, 2**32 - 512, 6 * GiB - 2**32 + 1):
        for length in (min(length, 6 * GiB - offset) for length in lengths):
            result = await client.request(Command.BLOCK_STATUS, offset, length)
            assert (result.error, list(result.statuses)) == (0, list(range(1, 2 + len(bitmaps))))
            for extents in result.statuses.values():
                assert 0 < sum(length for length, _ in extents) <= length
            if A in bitmaps and offset <= MiB:
                assert at(result.statuses[2], MiB + 512, offset) == 1


async def test_a_range_outside_and_an_empty_one_have_no_status(world: World) -> None:
    client = await entered(world, FORMS[0], A)
    for offset, length in ((0, 0), (SIZE, 1), (1, SIZE), (2**63, 4096)):
        result = await client.request(Command.BLOCK_STATUS, offset, length)
        assert (result.error, result.statuses) == (ErrorNumber.EINVAL, {})


async def test_server_that_is_gone_is_an_error_and_no_bitmap(world: World, server: NbdServer) -> None:
    client = await entered(world, FORMS[0], A)
    server.kill()
    try:
        result = await client.request(Command.BLOCK_STATUS, 0, SIZE)
        assert (result.error, result.statuses) == (ErrorNumber.EIO, {})
    finally:
        server.start()


async def test_refused_bitmap_refuses_the_export_until_the_client_goes_without(world: World) -> None:
    world.add("unchanged", size=SIZE, ops=(Access.READ,), dirty=True)
    client = await Client.connect(world.address)
    world.clients.append(client)
    await client.ask(OptionType.STRUCTURED_REPLY)
    for option, payload in (
        (OptionType.SET_META_CONTEXT, ContextRequest("unchanged", (A, "base:allocation")).pack()),
        (OptionType.GO, InfoRequest("unchanged", ()).pack()),
    ):
        with pytest.raises(Refused, match="has no dirty bitmap") as refused:
            await client.ask(option, payload)
        assert refused.value.reply == Reply.ERR_UNKNOWN
    await client.ask(OptionType.SET_META_CONTEXT, ContextRequest("unchanged", ("base:allocation",)).pack())
    await client.ask(OptionType.GO, InfoRequest("unchanged", ()).pack())
    client.structured = True
    assert list((await client.request(Command.BLOCK_STATUS, 0, SIZE)).statuses) == [1]
