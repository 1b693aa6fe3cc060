# SPDX-License-Identifier: Apache-2.0
"""Uploads by the library, against the daemon."""

import contextlib
import errno
import gzip
import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imageio_daemon.client import (
    ChecksumMismatch,
    LocalError,
    NoRoom,
    Progress,
    Refused,
    ServerFailed,
    Settings,
    StorageFailed,
    Usage,
    checksum,
    upload,
)
from imageio_daemon.client import open as open_image
from imageio_daemon.client.errors import Stopped
from imageio_daemon.client.local.qemu_img import run_qemu_img
from imageio_daemon.client.local.source import FileSource
from imageio_daemon.client.local.stream import Input, StreamSource
from tests.client.conftest import SIZE
from tests.client.programs import run
from tests.examples.programs import ScriptedServer, answer, features
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.images import KiB, MakeImage, MiB, pattern
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType, allocated


def test_target_reads_as_the_source(daemon: Daemon, settings: Settings, source: Path, new_image: MakeImage) -> None:
    target = new_image(b"\xff" * (SIZE + 1))
    done = upload(source, daemon.url(target.ticket), settings=settings)
    assert target.content() == source.read_bytes()
    assert done.local is settings.local
    assert done.progress.done == done.progress.total == SIZE + 1


def test_only_data_goes_over_the_wire(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage) -> None:
    done = upload(source, daemon.url(new_image(size=SIZE + 1).ticket), settings=tls)
    # The edges of holes and of zeros are found in steps of 64 KiB.
    assert 5 * MiB < done.progress.data < 5 * MiB + 6 * 64 * KiB


def test_sparse_target_stays_sparse(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage) -> None:
    target = new_image(size=SIZE + 1, sparse=True)
    upload(source, daemon.url(target.ticket), settings=tls)
    assert allocated(target.path) < 6 * MiB


@pytest.mark.parametrize("size", [1, 511, 64 * KiB, 4 * MiB + 1])
def test_any_size_is_uploaded(
    daemon: Daemon, settings: Settings, tmp_path: Path, new_image: MakeImage, size: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(pattern(size))
    target = new_image(b"\xff" * size)
    upload(source, daemon.url(target.ticket), settings=settings, verify=True)
    assert target.content() == pattern(size)


def test_empty_8_tib_is_uploaded_in_a_few_requests(
    daemon: Daemon, tls: Settings, tmp_path: Path, new_image: MakeImage
) -> None:
    size = 8 * 1024**4
    source = tmp_path / "source"
    source.touch()
    os.truncate(source, size)
    target = new_image(size=0, ticket_size=size, sparse=True)
    done = upload(source, daemon.url(target.ticket), settings=tls)
    assert (done.progress.data, done.progress.zero) == (0, size)
    assert target.path.stat().st_size == size
    assert allocated(target.path) < MiB


def test_rest_of_a_larger_target_stays(daemon: Daemon, tls: Settings, tmp_path: Path, new_image: MakeImage) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 1001)
    target = new_image(pattern(MiB))
    upload(source, daemon.url(target.ticket), settings=tls)
    assert target.content() == b"x" * 1001 + pattern(MiB)[1001:]


@pytest.mark.parametrize("connections", [1, 3, 8])
def test_connections_share_the_work(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, connections: int
) -> None:
    target = new_image(size=SIZE + 1)
    settings = Settings(cafile=tls.cafile, local=False, connections=connections)
    done = upload(source, daemon.url(target.ticket), settings=settings)
    assert target.content() == source.read_bytes()
    assert done.connections == connections


def test_server_limits_the_connections(make_daemon: MakeDaemon, source: Path, tmp_path: Path) -> None:
    daemon = make_daemon(daemon={"max_connections": 2})
    target = tmp_path / "target"
    target.touch()
    url = daemon.url(daemon.add_ticket(target, SIZE + 1))
    assert upload(source, url, settings=Settings(cafile=str(daemon.cafile))).connections == 2


def test_checksums_are_compared(daemon: Daemon, settings: Settings, source: Path, new_image: MakeImage) -> None:
    target = new_image(size=SIZE + 1)
    done = upload(source, daemon.url(target.ticket), settings=settings, verify=True)
    assert done.checksum is not None
    assert len(done.checksum) == 64


def test_part_of_a_larger_target_is_verified(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage) -> None:
    target = new_image(b"\xff" * (SIZE + MiB))
    done = upload(source, daemon.url(target.ticket), settings=tls, verify=True)
    assert (done.checksum, done.verified) == (checksum(source), None)
    assert target.content() == source.read_bytes() + b"\xff" * (MiB - 1)
    upload(source, daemon.url(target.ticket), settings=tls)  # the ticket still writes


def test_part_of_a_larger_target_that_differs_is_told(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage
) -> None:
    target = new_image(size=SIZE + MiB)
    url = daemon.url(target.ticket)

    def damage(progress: Progress) -> None:
        if progress.done == SIZE + 1:
            with open_image(url, settings=tls) as image:
                image.write(SIZE, b"x")

    with pytest.raises(ChecksumMismatch, match="the target reads as"):
        upload(source, url, settings=tls, verify=True, progress=damage)


def test_larger_target_cant_be_verified_by_a_server_without_checksums_of_parts(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    total = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/2")
    with (
        ScriptedServer(features("checksum", "flush", "zero"), total) as server,
        pytest.raises(ChecksumMismatch, match="make it as large as the source"),
    ):
        upload(source, server.url, settings=Settings(connections=1), state=False, verify=True)
    assert [request.partition(" ")[0] for request in server.requests] == ["OPTIONS", "GET"]


def test_stream_is_uploaded_in_order(daemon: Daemon, settings: Settings, source: Path, new_image: MakeImage) -> None:
    target = new_image(b"\xff" * (SIZE + 1))
    with source.open("rb") as stream:
        done = upload(stream, daemon.url(target.ticket), settings=settings, size=SIZE + 1, verify=True)
    assert target.content() == source.read_bytes()
    assert done.progress.zero > 15 * MiB  # zeros are found without extents


@pytest.mark.parametrize(("size", "reason"), [(SIZE + 2, "ended at byte 25165825"), (SIZE, "longer than the 25165824")])
def test_stream_of_another_size_is_an_error(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, size: int, reason: str
) -> None:
    target = new_image(size=SIZE + 2)
    with source.open("rb") as stream, pytest.raises(LocalError, match=reason):
        upload(stream, daemon.url(target.ticket), settings=tls, size=size)


def test_stream_is_read_through_its_own_methods(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, tmp_path: Path
) -> None:
    target = new_image(b"\xff" * (SIZE + 1))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(source.read_bytes(), 1))
    with gzip.open(packed) as stream:
        upload(stream, daemon.url(target.ticket), settings=tls, size=SIZE + 1)  # type: ignore[arg-type]
    assert target.content() == source.read_bytes()


def test_stream_that_is_broken_is_told(daemon: Daemon, tls: Settings, new_image: MakeImage) -> None:
    broken = io.BytesIO(gzip.compress(pattern(KiB))[:-9])
    with gzip.open(broken) as stream, pytest.raises(LocalError, match="can't read the input: Compressed file ended"):
        upload(stream, daemon.url(new_image().ticket), settings=tls, size=KiB)  # type: ignore[arg-type]


def test_wait_for_silent_input_ends() -> None:
    end, other = os.pipe()
    with (
        open(end, "rb", buffering=0) as stream,
        open(other, "wb"),
        contextlib.closing(StreamSource(Input(stream), KiB)) as opened,
        ThreadPoolExecutor(1) as pool,
    ):
        reading = pool.submit(opened.read, 0, memoryview(bytearray(KiB)))
        opened.stop()
        with pytest.raises(Stopped):
            reading.result(60)


def test_stream_needs_a_size(daemon: Daemon, tls: Settings) -> None:
    with pytest.raises(Usage, match="--size"):
        upload(io.BytesIO(), daemon.url("ticket"), settings=tls)


def test_file_has_its_own_size(daemon: Daemon, tls: Settings, source: Path) -> None:
    with pytest.raises(Usage, match="for streams"):
        upload(source, daemon.url("ticket"), settings=tls, size=1)


def test_progress_is_told_to_the_end(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage) -> None:
    told: list[Progress] = []
    done = upload(source, daemon.url(new_image(size=SIZE + 1).ticket), settings=tls, progress=told.append)
    assert told[-1].done == done.progress.total
    assert [one.done for one in told] == sorted(one.done for one in told)


def test_no_state_is_left(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, states: Path) -> None:
    upload(source, daemon.url(new_image(size=SIZE + 1).ticket), settings=tls, checkpoint=0)
    assert not list(states.iterdir())


# What can go wrong


def test_small_target_is_refused_before_data_is_sent(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage
) -> None:
    small = new_image(b"\xff" * MiB)
    with pytest.raises(Refused, match=rf"does not fit .*416 .*ticket's {MiB} bytes.*; the image has {SIZE + 1} bytes"):
        upload(source, daemon.url(small.ticket), settings=tls)
    assert small.content() == b"\xff" * MiB


def test_ticket_for_reading_is_refused(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage) -> None:
    with pytest.raises(Refused, match="does not allow writing"):
        upload(source, daemon.url(new_image(ops=["read"]).ticket), settings=tls)


def test_expired_ticket_is_refused(daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage) -> None:
    target = new_image()
    daemon.extend(target.ticket, 0)
    with pytest.raises(Refused, match=r"403 .* it may have expired, ask for a new one"):
        upload(source, daemon.url(target.ticket), settings=tls)


def test_unknown_authority_is_not_trusted(daemon: Daemon, source: Path) -> None:
    with pytest.raises(ServerFailed, match=r"can't be verified: .* --cafile FILE trusts"):
        upload(source, daemon.url("ticket"))


def test_wrong_host_name_is_not_trusted(daemon: Daemon, tls: Settings, source: Path) -> None:
    # 127.0.0.2 reaches the same daemon, and is not in its certificate.
    with pytest.raises(ServerFailed, match="can't be verified"):
        upload(source, daemon.url("ticket", host="127.0.0.2"), settings=tls)


def test_insecure_trusts_anyone(daemon: Daemon, source: Path, new_image: MakeImage) -> None:
    target = new_image(size=SIZE + 1)
    upload(source, daemon.url(target.ticket), settings=Settings(insecure=True, local=False))
    assert target.content() == source.read_bytes()


def test_full_storage_is_told(daemon: Daemon, tls: Settings, full_filesystem: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(pattern(MiB))
    url = daemon.url(daemon.add_ticket(full_filesystem, MiB))
    with pytest.raises(StorageFailed, match=r"is full \((PUT|PATCH): 507 .*: make room there") as raised:
        upload(source, url, settings=tls, room_check=False)
    assert (type(raised.value), raised.value.code) == (NoRoom, "storage_full")
    run("upload", "--no-room-check", "--cafile", daemon.cafile, source, url).failed_with("is full", 3)


def test_storage_without_room_is_told_before_data_is_sent(
    daemon: Daemon, tls: Settings, full_filesystem: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(pattern(MiB))
    target = full_filesystem
    before = target.stat().st_mtime_ns
    with pytest.raises(NoRoom, match=r"has 1.0 MiB of data, and the storage of the target has room for 0 B: make room"):
        upload(source, daemon.url(daemon.add_ticket(target, MiB)), settings=tls)
    assert target.stat().st_mtime_ns == before


def test_holes_need_no_room(daemon: Daemon, tls: Settings, full_filesystem: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.touch()
    os.truncate(source, MiB)
    upload(source, daemon.url(daemon.add_ticket(full_filesystem, MiB, sparse=True)), settings=tls)


def test_unreadable_source_is_told(
    daemon: Daemon, tls: Settings, unreadable_device: Path, new_image: MakeImage
) -> None:
    target = new_image(size=8 * MiB)
    with pytest.raises(LocalError, match=r"can't read .* at byte [0-9]+: Input/output error"):
        upload(unreadable_device, daemon.url(target.ticket), settings=tls)


def test_block_device_has_no_state(
    daemon: Daemon,
    tls: Settings,
    new_image: MakeImage,
    states: Path,
    make_storage: Callable[[StorageType], Storage],
) -> None:
    device = make_storage(next(t for t in STORAGE_TYPES if t.is_block)).make(MiB)
    for format_name in ("raw", "qcow2"):
        if format_name == "qcow2":
            run_qemu_img("create", "-q", "-f", "qcow2", str(device), "64K")
        upload(device, daemon.url(new_image(size=MiB).ticket), settings=tls, checkpoint=0, format=format_name)
    assert not states.exists()


def test_file_that_the_kernel_does_not_send_is_read(
    daemon: Daemon, source: Path, new_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "a filter of system calls")

    monkeypatch.setattr(os, "sendfile", refuse)
    target = new_image(size=SIZE + 1)
    assert upload(source, daemon.url(target.ticket), settings=Settings(cafile=str(daemon.cafile))).local
    assert target.content() == source.read_bytes()


def test_source_that_became_shorter_is_told(daemon: Daemon, tls: Settings, new_image: MakeImage) -> None:
    # Claims 4096 bytes, has a few.
    with pytest.raises(LocalError, match="became shorter"):
        upload("/sys/kernel/uevent_seqnum", daemon.url(new_image(size=4 * KiB).ticket), settings=tls)


def test_sparse_source_that_became_shorter_is_told(source: Path) -> None:
    opened = FileSource(source)
    with contextlib.closing(opened):
        extents = opened.extents()
        next(extents)
        os.truncate(source, 2 * MiB)
        with pytest.raises(LocalError, match=f"became shorter while it was read: it ends at byte {2 * MiB}"):
            list(extents)


@pytest.mark.parametrize("format_name", ["raw", "qcow2"])
def test_source_that_was_changed_is_told(
    daemon: Daemon, tls: Settings, tmp_path: Path, new_image: MakeImage, states: Path, format_name: str
) -> None:
    source = tmp_path / "source"
    run_qemu_img("create", "-q", "-f", format_name, str(source), "1M")

    def change(_: Progress) -> None:
        os.utime(source, ns=(1, 1))

    with pytest.raises(LocalError, match="source was changed while it was read: start anew"):
        upload(source, daemon.url(new_image(size=MiB).ticket), settings=tls, format=format_name, progress=change)
    assert not list(states.glob("*"))
