# SPDX-License-Identifier: Apache-2.0
"""Tickets of images that an NBD server has: formats, dirty extents, and servers that leave."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection, DisconnectedError
from tests.support.images import KiB, MiB, pattern
from tests.support.nbdservers import NbdServer, make_qcow2, nbdkit, qemu_nbd
from tests.support.polling import eventually
from tests.support.services import Service

SIZE = 8 * MiB

AddTicket = Callable[..., str]


@pytest.fixture(scope="module")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """One lane is enough: what differs from other images lies below them."""
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture
def service(daemon: Daemon) -> Service:
    return Service(daemon, "tls")


@pytest.fixture
def add_ticket(daemon: Daemon, request: pytest.FixtureRequest) -> AddTicket:
    """Install a ticket for what a server has, and return the path of its image in the service."""

    def add(server: NbdServer | str, size: int = SIZE, **fields: object) -> str:
        url = server if isinstance(server, str) else server.url
        ticket_id = daemon.add_ticket("/nowhere", size, **{"url": url, **fields})
        request.addfinalizer(lambda: daemon.control("DELETE", f"/tickets/{ticket_id}"))
        return f"/images/{ticket_id}"

    return add


def qemu_img(*arguments: object) -> str:
    return subprocess.check_output(["qemu-img", *map(str, arguments)], text=True)


def qemu_io(image: Path, *commands: str) -> None:
    arguments = [part for command in commands for part in ("-c", command)]
    subprocess.check_call(["qemu-io", "-f", "qcow2", *arguments, str(image)], stdout=subprocess.DEVNULL)


def test_an_upload_to_qcow2_is_the_same_disk(client: Connection, add_ticket: AddTicket, tmp_path: Path) -> None:
    raw = tmp_path / "disk.raw"
    raw.write_bytes(bytes(MiB) + pattern(3 * MiB + 100) + bytes(4 * MiB - 100))
    image = make_qcow2(tmp_path / "disk.qcow2", SIZE)
    with qemu_nbd(image, "qcow2") as server:
        url = add_ticket(server, sparse=True)
        assert client.put_at(f"{url}?flush=n", MiB, pattern(3 * MiB + 100)).status == 200
        assert client.patch(url, {"op": "zero", "size": MiB, "flush": False}).status == 200
        assert client.patch(url, {"op": "flush"}).status == 200
        assert client.get(url).body == raw.read_bytes()
        server.stop()
    assert "identical" in qemu_img("compare", "-f", "raw", "-F", "qcow2", raw, image)
    assert "No errors" in qemu_img("check", image)


def test_a_download_of_compressed_qcow2(client: Connection, add_ticket: AddTicket, tmp_path: Path) -> None:
    raw, image = tmp_path / "disk.raw", tmp_path / "disk.qcow2"
    raw.write_bytes(pattern(2 * MiB) + b"compress me " * 87381 + bytes(5 * MiB + 4))
    qemu_img("convert", "-f", "raw", "-O", "qcow2", "-c", raw, image)
    with qemu_nbd(image, "qcow2", "--read-only") as server:
        url = add_ticket(server, ops=["read"])
        assert client.get(url).body[: raw.stat().st_size] == raw.read_bytes()
        assert client.get(url, {"Range": "bytes=1000-1999"}).body == raw.read_bytes()[1000:2000]


def test_extents_of_qcow2_are_its_clusters(client: Connection, add_ticket: AddTicket, tmp_path: Path) -> None:
    image = make_qcow2(tmp_path / "disk.qcow2", SIZE)
    qemu_io(image, "write 1M 64k")
    with qemu_nbd(image, "qcow2") as server:
        assert client.get(f"{add_ticket(server)}/extents").json() == [
            {"start": 0, "length": MiB, "zero": True, "hole": False},
            {"start": MiB, "length": 65536, "zero": False, "hole": False},
            {"start": MiB + 65536, "length": 7 * MiB - 65536, "zero": True, "hole": False},
        ]


def test_an_incremental_backup_has_all_changes(client: Connection, add_ticket: AddTicket, tmp_path: Path) -> None:
    image, full, backup = make_qcow2(tmp_path / "disk", SIZE), tmp_path / "full", tmp_path / "backup"
    qemu_io(image, "write -P 1 0 4M")
    qemu_img("bitmap", "--add", "-f", "qcow2", image, "since-full")
    qemu_img("convert", "-f", "qcow2", "-O", "qcow2", image, full)
    qemu_io(image, "write -P 2 1M 300k", "write -P 3 6M 1M", "write -z 2M 1M")
    with qemu_nbd(image, "qcow2", "--read-only", "--bitmap=since-full") as server:
        url = add_ticket(server, ops=["read"], dirty=True)
        extents = client.get(f"{url}/extents?context=dirty").json()
        qemu_img("create", "-q", "-f", "qcow2", backup, SIZE)
        with qemu_nbd(backup, "qcow2") as target:
            target_url = add_ticket(target, sparse=True)
            for extent in (extent for extent in extents if extent["dirty"]):
                start, length = extent["start"], extent["length"]
                if extent["zero"]:
                    client.patch(target_url, {"op": "zero", "offset": start, "size": length})
                else:
                    data = client.get(url, {"Range": f"bytes={start}-{start + length - 1}"}).body
                    assert client.put_at(target_url, start, data).status == 200
            assert client.patch(target_url, {"op": "flush"}).status == 200
            target.stop()
    assert sum(extent["length"] for extent in extents) == SIZE
    assert sum(extent["length"] for extent in extents if extent["dirty"]) < 3 * MiB
    qemu_img("rebase", "-u", "-f", "qcow2", "-b", full, "-F", "qcow2", backup)
    assert "identical" in qemu_img("compare", "-f", "qcow2", "-F", "qcow2", image, backup)


def test_a_server_without_bitmaps_has_no_dirty_extents(client: Connection, add_ticket: AddTicket) -> None:
    with nbdkit("memory", "8M") as server:
        answer = client.get(f"{add_ticket(server, dirty=True)}/extents?context=dirty")
    assert answer.status == 404


def test_a_raw_image_with_a_header_of_qcow2_stays_raw(
    client: Connection, add_ticket: AddTicket, tmp_path: Path
) -> None:
    raw = tmp_path / "disk.raw"
    raw.write_bytes(bytes(SIZE))
    poisoned = make_qcow2(tmp_path / "poisoned", SIZE)
    subprocess.check_call(["qemu-img", "rebase", "-u", "-b", "/etc/passwd", "-F", "raw", str(poisoned)])
    header = poisoned.read_bytes()
    with qemu_nbd(raw, "raw") as server:
        assert client.put(add_ticket(server), header).status == 200
    with qemu_nbd(raw, "raw") as server:
        body = client.get(add_ticket(server, ops=["read"])).body
    assert body == header + bytes(SIZE - len(header))


def test_options_tell_what_the_server_can_do(client: Connection, add_ticket: AddTicket) -> None:
    with nbdkit("memory", "8M") as server:
        options = client.request("OPTIONS", add_ticket(server, 2 * SIZE)).json()
    assert options["zero_state"] == "unknown"
    assert options["fast_zero"] is False
    assert options["max_readers"] == options["max_writers"] == 8


def test_a_server_that_cannot_flush_is_told_and_no_flush_is_answered_with_success(
    client: Connection, add_ticket: AddTicket, daemon: Daemon, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(MiB))
    read = f"dd if={disk} skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none"
    write = f"dd of={disk} seek=$4 oflag=seek_bytes conv=notrunc status=none"
    start = daemon.log.end()
    with nbdkit("eval", "get_size=echo 1M", f"pread={read}", f"pwrite={write}") as server:
        url = add_ticket(server, MiB)
        told = client.request("OPTIONS", url).json()
        assert told["features"] == ["checksum", "checksum_blocks", "checksum_range", "extents", "nbd", "qcow2", "zero"]
        assert client.put(f"{url}?flush=n", b"data").status == 200
        for answer in (
            client.put(url, b"data"),
            client.put(f"{url}?flush=y", pattern(512 * KiB)),
            client.patch(url, {"op": "flush"}),
            client.patch(url, {"op": "zero", "size": 4096, "flush": True}),
        ):
            assert (answer.status, answer.code) == (500, "cannot_flush")
            assert answer.text.strip() == "The server that has the image cannot put it on stable storage"
        assert client.patch(url, {"op": "zero", "size": 4096}).status == 200
    warnings = [line for line in daemon.log.lines()[start:] if "cannot flush" in line]
    assert len(warnings) == 1
    assert client.request("OPTIONS", "/images/*").json()["features"] == [
        "checksum",
        "checksum_blocks",
        "checksum_range",
        "extents",
        "nbd",
        "qcow2",
        "flush",
        "zero",
        "finalize",
    ]


def test_a_ticket_larger_than_the_export_serves_what_the_export_has(client: Connection, add_ticket: AddTicket) -> None:
    with nbdkit("memory", "8M") as server:
        url = add_ticket(server, 2 * SIZE)
        assert len(client.get(url).body) == SIZE
        assert client.patch(url, {"op": "zero", "offset": SIZE, "size": 1}).status == 416
        assert client.put_at(url, SIZE - 1, b"ab").status == 416


def test_a_server_that_is_not_there_is_told(client: Connection, add_ticket: AddTicket, daemon: Daemon) -> None:
    start = daemon.log.end()
    answer = client.get(add_ticket("nbd:unix:/nowhere/socket"))
    assert (answer.status, answer.code) == (502, "server_gone")
    assert "nowhere" not in answer.text
    daemon.log.wait_for("nowhere/socket.*No such file", start=start)


def test_a_server_killed_in_mid_upload_fails_it_and_the_next_request_connects_again(
    client: Connection, add_ticket: AddTicket, daemon: Daemon, tmp_path: Path
) -> None:
    image = make_qcow2(tmp_path / "disk.qcow2", 64 * MiB)
    with qemu_nbd(image, "qcow2") as server:
        url = add_ticket(server, 64 * MiB)
        with daemon.connect("tls") as upload:
            head = f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: {64 * MiB}\r\n\r\n"
            upload.send(head.encode() + pattern(9 * MiB))
            eventually(lambda: daemon.status(url.rpartition("/")[2])["transferred"] >= 4 * MiB, "4 MiB are written")
            server.kill()
            with contextlib.suppress(OSError):  # the answer may come, and the connection end, in the middle of it
                upload.send(pattern(55 * MiB))
            with contextlib.suppress(DisconnectedError, OSError):
                assert upload.receive().status == 502
        assert client.get(url, {"Range": "bytes=0-9"}).status == 502
        server.start()
        assert client.put_at(f"{url}?flush=n", 0, b"again").status == 200
        assert client.get(url, {"Range": "bytes=0-4"}).body == b"again"
        # What was answered before, and never flushed, is lost: that is not hidden.
        assert client.patch(url, {"op": "flush"}).status == 502
    assert "No errors" in qemu_img("check", image)


def test_a_full_file_system_below_the_server_fails_the_upload_only(
    client: Connection, add_ticket: AddTicket, daemon: Daemon, small_filesystem: Path
) -> None:
    image = make_qcow2(small_filesystem / "disk.qcow2", 64 * MiB)
    with qemu_nbd(image, "qcow2") as server:
        url = add_ticket(server, 64 * MiB)
        start = daemon.log.end()
        assert client.put(url, pattern(32 * MiB)).status == 507
        daemon.log.wait_for("ENOSPC", start=start)
        with daemon.connect("tls") as other:
            assert other.get(url, {"Range": "bytes=0-9"}).status == 206


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    directory = tmp_path / "small"
    directory.mkdir()
    subprocess.check_call(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)])
    yield directory
    subprocess.check_call(["umount", str(directory)])


def test_a_ticket_is_removed_when_its_server_is_gone(daemon: Daemon, client: Connection, tmp_path: Path) -> None:
    with nbdkit("memory", "8M") as server:
        ticket_id = daemon.add_ticket("/nowhere", SIZE, url=server.url)
        assert client.put(f"/images/{ticket_id}", pattern(MiB)).status == 200
    daemon.remove(ticket_id)


def test_no_connection_is_left_after_the_ticket(daemon: Daemon, client: Connection) -> None:
    with nbdkit("memory", "8M") as server:

        def use() -> None:
            ticket_id = daemon.add_ticket("/nowhere", SIZE, url=server.url)
            assert client.put(f"/images/{ticket_id}", pattern(MiB)).status == 200
            assert server.connections() == 4
            daemon.remove(ticket_id)
            eventually(lambda: server.connections() == 0, "the connections are closed")

        use()  # what storage has from its first use on stays
        before = len(daemon.descriptors())
        for _ in range(3):
            use()
        eventually(lambda: len(daemon.descriptors()) <= before, "the connections are closed")


def test_several_connections_share_an_image(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    with nbdkit("memory", "8M") as server, contextlib.ExitStack() as stack:
        url = f"/images/{daemon.add_ticket('/nowhere', SIZE, url=server.url)}"
        connections = [stack.enter_context(daemon.connect("unix")) for _ in range(6)]
        for i, connection in enumerate(connections):
            assert connection.put_at(url, i * MiB + 5, pattern(MiB, seed=i)).status == 200
        for i, connection in enumerate(connections[::-1]):
            expected = pattern(MiB, seed=i)
            assert connection.get(url, {"Range": f"bytes={i * MiB + 5}-{(i + 1) * MiB + 4}"}).body == expected
            assert json.dumps(connection.get(f"{url}/extents").json())


def test_requests_are_served_by_c(client: Connection, daemon: Daemon, add_ticket: AddTicket) -> None:
    data = pattern(300 * KiB)
    with nbdkit("memory", "8M") as server:
        url = add_ticket(server)
        assert client.get(url, {"Range": "bytes=0-9"}).status == 206  # the image is open from here on
        before = daemon.served_by_lane()
        assert client.put_at(f"{url}?flush=n", 5, data).status == 200
        assert client.get(url, {"Range": f"bytes=5-{4 + len(data)}"}).body == data
        assert client.patch(url, {"op": "zero", "offset": 7, "size": 10}).status == 200
        assert client.get(url, {"Range": "bytes=0-19"}).body == bytes(5) + data[:2] + bytes(10) + data[12:15]
        assert client.patch(url, {"op": "flush"}).status == 200
        assert daemon.served_by_lane() == before + 5


@pytest.mark.parametrize("others", [0, 1])
def test_long_writes_are_as_long_as_suits_the_server(
    daemon: Daemon, add_ticket: AddTicket, tmp_path: Path, others: int
) -> None:
    log = tmp_path / "log"
    with nbdkit("--filter=log", "memory", "64M", f"logfile={log}") as server, contextlib.ExitStack() as stack:
        url = add_ticket(server, 64 * MiB)
        clients = [stack.enter_context(daemon.connect("tls")) for _ in range(1 + others)]
        data = pattern(16 * MiB)
        for client in clients:  # C has served enough of each to lend it long pieces
            assert client.put_at(f"{url}?flush=n", 0, data).status == 200
        for client in clients:
            assert client.patch(url, {"op": "flush"}).status == 200
        seen = log.stat().st_size
        assert clients[-1].put_at(f"{url}?flush=n", 16 * MiB, data).status == 200
        assert clients[0].get(url, {"Range": f"bytes={16 * MiB}-{32 * MiB - 1}"}).body == data
    written = [
        int(line.partition("count=")[2].split()[0], 16)
        for line in log.read_text()[seen:].splitlines()
        if " Write id=" in line
    ]
    assert set(written) == {2 * MiB}
    assert sum(written) == len(data)
