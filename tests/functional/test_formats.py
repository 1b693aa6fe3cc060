# SPDX-License-Identifier: Apache-2.0
"""Tickets of image files with a format, and the qemu-nbd of those that the daemon does not open itself."""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import KiB, MiB, pattern
from tests.support.polling import eventually
from tests.support.processes import open_files

SIZE = 8 * MiB

FORMATS = ["qcow2", "vmdk", "vhdx", "vpc", "vdi"]


def qemu_img(*arguments: object) -> None:
    subprocess.check_call(["qemu-img", *map(str, arguments)], stdout=subprocess.DEVNULL)


def create(path: Path, image_format: str = "qcow2", *, size: int = SIZE) -> Path:
    # vpc rounds sizes to cylinders unless it is told not to.
    options = ["-o", "force_size=on"] if image_format == "vpc" else []
    qemu_img("create", "-f", image_format, *options, path, size)
    return path


def converted(raw: Path, path: Path, *options: str) -> Path:
    qemu_img("convert", "-f", "raw", "-O", "qcow2", *options, raw, path)
    return path


def check_equal(image: Path, raw: Path, image_format: str = "qcow2") -> None:
    qemu_img("compare", "-f", image_format, "-F", "raw", image, raw)
    if image_format in ("qcow2", "vhdx", "vmdk", "vdi"):
        qemu_img("check", "-f", image_format, image)


def children(daemon: Daemon) -> dict[int, list[str]]:
    """Return the daemon's processes with their arguments."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == daemon.pid:
                    found[int(entry.name)] = (entry / "cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def server_of(daemon: Daemon, image: Path) -> int:
    """Return the process that has the image."""
    (found,) = [pid for pid, command in children(daemon).items() if any(str(image) in word for word in command)]
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which images may name each other."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def formats_daemon(certificates: Certificates, images: Path) -> Iterator[Daemon]:
    with Daemon(certificates, {"backend_nbd": {"allowed_paths": images}}) as daemon:
        yield daemon


@pytest.fixture
def daemon(formats_daemon: Daemon) -> Iterator[Daemon]:
    yield formats_daemon
    formats_daemon.control("DELETE", "/tickets/")
    eventually(lambda: not children(formats_daemon), "all servers are stopped")
    formats_daemon.check_log()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Connection]:
    with daemon.connect("tls") as connection:
        yield connection


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw disk with a file system and files on it."""
    directory = tmp_path_factory.mktemp("disk")
    tree = directory / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"file-{number}").write_bytes(pattern(100 * KiB * number, seed=number))
    path = directory / "disk.raw"
    with path.open("wb") as file:
        file.truncate(64 * MiB)
    subprocess.check_call(["mke2fs", "-q", "-t", "ext4", "-d", tree, path])
    return path


def upload(client: Connection, url: str, disk: Path) -> None:
    """Upload as clients do: data in pieces, zeros as such, one flush."""
    content = disk.read_bytes()
    for start in range(0, len(content), MiB):
        piece = content[start : start + MiB]
        if any(piece):
            assert client.put_at(f"{url}?flush=n", start, piece).status == 200
        else:
            assert client.patch(url, {"op": "zero", "offset": start, "size": len(piece)}).status == 200
    assert client.patch(url, {"op": "flush"}).status == 200


def test_a_disk_is_uploaded_into_qcow2(client: Connection, daemon: Daemon, images: Path, disk: Path) -> None:
    image = create(images / "upload.qcow2", size=64 * MiB)
    ticket = daemon.add_ticket(image, 64 * MiB, format="qcow2", sparse=True)
    upload(client, f"/images/{ticket}", disk)
    daemon.remove(ticket)
    check_equal(image, disk)
    assert image.stat().st_size < 40 * MiB


def zero_state(client: Connection, ticket: str) -> object:
    return client.request("OPTIONS", f"/images/{ticket}").json()["zero_state"]


@pytest.mark.parametrize("image_format", [each for each in FORMATS if each != "vhdx"])  # of which qemu tells no holes
def test_new_image_is_zero_until_it_is_written(
    client: Connection, daemon: Daemon, images: Path, image_format: str
) -> None:
    image = create(images / f"zero.{image_format}", image_format)
    ticket = daemon.add_ticket(image, SIZE, format=image_format, sparse=True)
    assert [zero_state(client, ticket) for _ in range(2)] == ["zero", "zero"]
    assert client.put_at(f"/images/{ticket}", MiB, pattern(MiB)).status == 200
    assert zero_state(client, ticket) == "unknown"


@pytest.mark.parametrize("change", [{"op": "zero", "size": 4096}, {"op": "zero", "size": 4096, "flush": True}])
def test_new_image_that_was_zeroed_is_unknown(
    client: Connection, daemon: Daemon, images: Path, change: dict[str, object]
) -> None:
    image = create(images / f"zeroed{len(change)}.qcow2")
    ticket = daemon.add_ticket(image, SIZE, format="qcow2", sparse=True)
    assert client.patch(f"/images/{ticket}", change).status == 200
    assert zero_state(client, ticket) == "unknown"


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1], ids=["begin", "middle", "end"])
def test_image_with_data_anywhere_is_unknown(client: Connection, daemon: Daemon, images: Path, place: int) -> None:
    image = create(images / f"data{place}.qcow2")
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", f"write -q -P 7 {place} 1", image])
    ticket = daemon.add_ticket(image, SIZE, format="qcow2", sparse=True)
    assert zero_state(client, ticket) == "unknown"


@pytest.mark.parametrize(
    "fields",
    [{"sparse": False}, {"shared": True}, {"ops": ["read"]}],
    ids=["space stays allocated", "shared", "read"],
)
def test_new_image_is_unknown_of_which_zeros_count_or_others_may_write(
    client: Connection, daemon: Daemon, images: Path, fields: dict[str, object]
) -> None:
    image = create(images / f"unknown-{'-'.join(fields)}.qcow2")
    ticket = daemon.add_ticket(image, SIZE, format="qcow2", **{"sparse": True, **fields})
    assert zero_state(client, ticket) == "unknown"


def test_new_image_whose_data_is_in_another_file_is_unknown(client: Connection, daemon: Daemon, images: Path) -> None:
    image, data = images / "zero-data-file.qcow2", images / "data"
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={data},data_file_raw=on", image, SIZE)
    ticket = daemon.add_ticket(image, SIZE, format="qcow2", sparse=True)
    assert zero_state(client, ticket) == "unknown"


@pytest.mark.parametrize("backing_chain", [True, False])
def test_new_image_over_another_is_unknown(
    client: Connection, daemon: Daemon, images: Path, tmp_path: Path, *, backing_chain: bool
) -> None:
    create(images / f"zeros{backing_chain}.qcow2")
    top = images / f"over-zeros{backing_chain}.qcow2"
    qemu_img("create", "-f", "qcow2", "-b", f"zeros{backing_chain}.qcow2", "-F", "qcow2", top)
    ticket = daemon.add_ticket(top, SIZE, format="qcow2", sparse=True, backing_chain=backing_chain)
    assert zero_state(client, ticket) == "unknown"


@pytest.mark.parametrize("options", [(), ("-c",)], ids=["plain", "compressed"])
def test_a_disk_is_downloaded_from_qcow2(
    client: Connection, daemon: Daemon, images: Path, disk: Path, options: tuple[str, ...]
) -> None:
    image = converted(disk, images / f"download{len(options)}.qcow2", *options)
    before = image.read_bytes()
    ticket = daemon.add_ticket(image, 64 * MiB, format="qcow2", ops=["read"])
    assert client.get(f"/images/{ticket}").body == disk.read_bytes()
    daemon.remove(ticket)
    assert image.read_bytes() == before


@pytest.mark.parametrize("image_format", FORMATS)
def test_every_format_is_written_and_read(
    client: Connection, daemon: Daemon, images: Path, tmp_path: Path, image_format: str
) -> None:
    image = create(images / f"image.{image_format}", image_format)
    content = bytes(MiB) + pattern(3 * MiB) + bytes(SIZE - 4 * MiB)
    ticket = daemon.add_ticket(image, SIZE, format=image_format)
    assert client.put_at(f"/images/{ticket}", MiB, content[MiB : 4 * MiB]).status == 200
    assert client.get(f"/images/{ticket}").body == content
    daemon.remove(ticket)
    (tmp_path / "expected").write_bytes(content)
    check_equal(image, tmp_path / "expected", image_format)


def test_extents_and_checksum(client: Connection, daemon: Daemon, images: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(MiB) + pattern(MiB) + bytes(6 * MiB))
    ticket = daemon.add_ticket(converted(raw, images / "extents.qcow2"), SIZE, format="qcow2", ops=["read"])
    plain = daemon.add_ticket(raw, SIZE, ops=["read"])
    found = client.get(f"/images/{ticket}/extents").json()
    assert [(each["start"], each["length"], each["zero"]) for each in found] == [
        (0, MiB, True),
        (MiB, MiB, False),
        (2 * MiB, 6 * MiB, True),
    ]
    assert client.get(f"/images/{ticket}/checksum").json() == client.get(f"/images/{plain}/checksum").json()


def test_the_chain_is_read_through(client: Connection, daemon: Daemon, images: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(pattern(SIZE))
    converted(tmp_path / "raw", images / "base.qcow2")
    top = images / "top.qcow2"
    qemu_img("create", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", top)
    ticket = daemon.add_ticket(top, SIZE, format="qcow2")
    assert client.put_at(f"/images/{ticket}", 0, bytes(MiB)).status == 200
    assert client.get(f"/images/{ticket}").body == bytes(MiB) + pattern(SIZE)[MiB:]


def test_the_top_layer_alone(client: Connection, daemon: Daemon, images: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(pattern(SIZE))
    converted(tmp_path / "raw", images / "below.qcow2")
    top = images / "above.qcow2"
    qemu_img("create", "-f", "qcow2", "-b", "below.qcow2", "-F", "qcow2", top)
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -q -P 7 0 1M", top])
    ticket = daemon.add_ticket(top, SIZE, format="qcow2", backing_chain=False, ops=["read"])
    assert client.get(f"/images/{ticket}").body == b"\7" * MiB + bytes(SIZE - MiB)
    extents = client.get(f"/images/{ticket}/extents").json()
    assert [(each["start"], each["length"], each["hole"]) for each in extents] == [
        (0, MiB, False),
        (MiB, SIZE - MiB, True),
    ]


def test_what_changed_since_a_bitmap_is_told(client: Connection, daemon: Daemon, images: Path) -> None:
    image = create(images / "bitmap.qcow2")
    qemu_img("bitmap", "--add", "-f", "qcow2", image, "since-monday")
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -q -P 7 2M 1M", image])
    fields = {"format": "qcow2", "dirty": True, "bitmap": "since-monday", "ops": ["read"]}
    ticket = daemon.add_ticket(image, SIZE, **fields)
    extents = client.get(f"/images/{ticket}/extents?context=dirty").json()
    assert [(each["start"], each["length"]) for each in extents if each["dirty"]] == [(2 * MiB, MiB)]
    assert daemon.status(ticket)["bitmap"] == "since-monday"


def test_what_a_killed_daemon_left_is_removed_at_the_next_start(make_daemon: MakeDaemon, images: Path) -> None:
    daemon = make_daemon()
    ticket = daemon.add_ticket(create(images / "left.vmdk", "vmdk"), SIZE, format="vmdk")
    with daemon.connect("tls") as client:
        assert client.get(f"/images/{ticket}").status == 200
    daemon.kill()
    assert list(daemon.directory.glob("qemu-nbd-*"))
    daemon.restart()
    assert not list(daemon.directory.glob("qemu-nbd-*"))


def test_what_a_killed_daemon_left_is_waited_for_by_the_next(make_daemon: MakeDaemon, images: Path) -> None:
    daemon = make_daemon()
    image = create(images / "late.vmdk", "vmdk")
    ticket = daemon.add_ticket(image, SIZE, format="vmdk")
    with daemon.connect("tls") as client:
        assert client.put(f"/images/{ticket}", pattern(MiB)).status == 200
    pid = server_of(daemon, image)
    os.kill(pid, signal.SIGSTOP)  # as one that has to write much before it ends
    daemon.kill()
    daemon.restart()
    ticket = daemon.add_ticket(image, SIZE, format="vmdk")
    with daemon.connect("tls") as client, ThreadPoolExecutor(1) as pool:
        read = pool.submit(client.get, f"/images/{ticket}", {"Range": f"bytes=0-{MiB - 1}"})
        daemon.log.wait_for("WARNING.*still used by 1 qemu-nbd of a daemon that was killed")
        assert not read.done()
        os.kill(pid, signal.SIGCONT)
        assert read.result().body == pattern(MiB)
    assert is_gone(pid)


def test_a_raw_image_that_begins_like_qcow2_stays_raw(
    client: Connection, daemon: Daemon, images: Path, tmp_path: Path
) -> None:
    image = create(tmp_path / "like-qcow2")
    ticket = daemon.add_ticket(image, image.stat().st_size)
    assert client.get(f"/images/{ticket}").body == image.read_bytes()
    assert not children(daemon)


def test_the_server_runs_as_it_should(client: Connection, daemon: Daemon, images: Path) -> None:
    image = create(images / "options.vmdk", "vmdk")
    ticket = daemon.add_ticket(image, SIZE, format="vmdk", ops=["read"])
    assert client.get(f"/images/{ticket}", {"Range": "bytes=0-9"}).status == 206
    pid = server_of(daemon, image)
    command = children(daemon)[pid]
    assert {"--persistent", "--read-only", "--discard=unmap", "--detect-zeroes=off"} <= set(command)
    (socket,) = [word.partition("=")[2] for word in command if word.startswith("--socket")]
    assert Path(socket).stat().st_mode & 0o777 == 0o600
    assert Path(socket).parent.stat().st_mode & 0o777 == 0o700
    assert os.getpgid(pid) == pid
    opened = open_files(pid).values()
    assert not any("/imageio-" in name and "qemu-nbd-" not in name for name in opened), opened


def test_removing_the_ticket_stops_the_server(client: Connection, daemon: Daemon, images: Path) -> None:
    image = create(images / "removed.vmdk", "vmdk")
    ticket = daemon.add_ticket(image, SIZE, format="vmdk")
    assert client.put(f"/images/{ticket}?flush=n", pattern(MiB)).status == 200
    pid = server_of(daemon, image)
    daemon.remove(ticket)
    assert is_gone(pid)
    assert not list(daemon.directory.glob("qemu-nbd-*"))
    qemu_img("check", image)


def test_stopping_the_daemon_stops_its_servers(make_daemon: MakeDaemon, images: Path) -> None:
    daemon = make_daemon()
    image = create(images / "stopped.vmdk", "vmdk")
    ticket = daemon.add_ticket(image, SIZE, format="vmdk")
    with daemon.connect("tls") as client:
        assert client.put(f"/images/{ticket}?flush=n", pattern(MiB)).status == 200
        pid = server_of(daemon, image)
        daemon.stop()
    assert is_gone(pid)
    qemu_img("check", image)


def test_killing_the_daemon_stops_its_servers(make_daemon: MakeDaemon, images: Path) -> None:
    daemon = make_daemon()
    image = create(images / "killed.vmdk", "vmdk")
    ticket = daemon.add_ticket(image, SIZE, format="vmdk")
    with daemon.connect("tls") as client:
        assert client.put(f"/images/{ticket}?flush=n", pattern(MiB)).status == 200
    pid = server_of(daemon, image)
    daemon.kill()
    eventually(lambda: is_gone(pid), "the server ends with the daemon")
    qemu_img("check", image)


def test_the_server_is_killed_in_mid_upload(daemon: Daemon, images: Path) -> None:
    image = create(images / "crashed.vmdk", "vmdk", size=64 * MiB)
    ticket = daemon.add_ticket(image, 64 * MiB, format="vmdk")
    with daemon.connect("tls") as client:
        client.send(f"PUT /images/{ticket} HTTP/1.1\r\nHost: x\r\nContent-Length: {64 * MiB}\r\n\r\n".encode())
        client.send(pattern(16 * MiB))
        eventually(lambda: daemon.status(ticket)["transferred"] > 0, "the server writes")
        os.kill(server_of(daemon, image), signal.SIGKILL)
        client.send_while_accepted(bytes(48 * MiB))
        assert client.receive(to="PUT").status >= 500
    with daemon.connect("tls") as client:
        assert client.get(f"/images/{ticket}").status >= 500
    daemon.log.wait_for("qemu-nbd for .*crashed.vmdk ended with status -9")
    daemon.remove(ticket)


def test_a_poisoned_image_is_refused(client: Connection, daemon: Daemon, images: Path) -> None:
    image = images / "poisoned.qcow2"
    qemu_img("create", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw", image, "1M")
    ticket = daemon.add_ticket(image, MiB, format="qcow2")
    for answer in (client.get(f"/images/{ticket}"), client.request("OPTIONS", f"/images/{ticket}")):
        assert answer.status == 500
        assert "passwd" not in answer.text
    daemon.log.wait_for("poisoned.qcow2.*'/etc/passwd'.*allowed_paths")
    assert not children(daemon)


def test_an_image_whose_data_is_elsewhere_is_refused(
    client: Connection, daemon: Daemon, images: Path, tmp_path: Path
) -> None:
    image, secret = images / "data-elsewhere.qcow2", tmp_path / "secret"
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={secret},data_file_raw=on", image, "1M")
    secret.write_bytes(pattern(MiB))
    ticket = daemon.add_ticket(image, MiB, format="qcow2")
    for answer in (client.get(f"/images/{ticket}"), client.put(f"/images/{ticket}", b"overwritten")):
        assert answer.status == 500
        assert "secret" not in answer.text
    assert secret.read_bytes() == pattern(MiB)
    daemon.log.wait_for("data-elsewhere.qcow2.*secret'.*allowed_paths")
    assert not children(daemon)


def test_what_qemu_nbd_says_is_logged(make_daemon: MakeDaemon, images: Path) -> None:
    daemon = make_daemon(backend_file={"qcow2": "qemu-nbd"})
    image = create(images / "broken.qcow2")
    with image.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff" * 8)  # the offset of its first table
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    with daemon.connect("tls") as client:
        assert client.get(f"/images/{ticket}").status == 422
    daemon.log.wait_for("storage failed: open .*broken.qcow2.*qemu-nbd: .*L1")
    assert not list(daemon.directory.glob("qemu-nbd-*"))


def test_the_disk_is_full(daemon: Daemon, small_filesystem: Path) -> None:
    image = create(small_filesystem / "image.qcow2", size=64 * MiB)
    ticket = daemon.add_ticket(image, 64 * MiB, format="qcow2")
    with daemon.connect("tls") as client:
        assert client.put(f"/images/{ticket}", pattern(MiB)).status == 200
        assert client.put_at(f"/images/{ticket}", MiB, pattern(16 * MiB)).status == 507
    with daemon.connect("tls") as client:
        assert client.get(f"/images/{ticket}", {"Range": f"bytes=0-{MiB - 1}"}).body == pattern(MiB)
    daemon.log.wait_for("ENOSPC")
    daemon.remove(ticket)
