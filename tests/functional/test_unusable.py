# SPDX-License-Identifier: Apache-2.0
"""What only the manager can mend: images that are not what their tickets say, and bitmaps that tell nothing.

Clients are told so by statuses below 500, and do not ask again.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client import Refused, Settings, download, upload
from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import MiB, pattern
from tests.support.nbdservers import qemu_nbd
from tests.support.places import QCOW2

SIZE = 8 * MiB
#: Seconds for which a client would go on, and in which it is told.
PATIENT, AT_ONCE = 60.0, 20.0

REQUESTS = (
    ("OPTIONS", "", None),
    ("GET", "", None),
    ("HEAD", "", None),
    ("PUT", "", b"x" * 512),
    ("PATCH", "", b'{"op": "zero", "size": 512}'),
    ("PATCH", "", b'{"op": "flush"}'),
    ("GET", "/extents", None),
    ("GET", "/checksum", None),
)


def qemu_img(*arguments: object) -> None:
    subprocess.check_call(["qemu-img", *map(str, arguments)], stdout=subprocess.DEVNULL)


def created(path: Path, *options: str, image_format: str = "qcow2") -> Path:
    qemu_img("create", "-f", image_format, *options, path, SIZE)
    return path


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


# Images


def no_qcow2(path: Path) -> None:
    path.write_bytes(pattern(MiB))


def empty(path: Path) -> None:
    path.touch()


def corrupt(path: Path) -> None:
    patch(created(path), 79, b"\2")  # the bit that qemu sets when it finds that


def table_far_away(path: Path) -> None:
    patch(created(path), 40, b"\xff" * 8)


def unknown_feature(path: Path) -> None:
    patch(created(path), 75, b"\1")


def encrypted(path: Path) -> None:
    patch(created(path), 32, b"\0\0\0\2")


def names_a_protocol(path: Path) -> None:
    qemu_img("create", "-f", "qcow2", "-u", "-b", "nbd://localhost/x", "-F", "raw", path, SIZE)


def directory(path: Path) -> None:
    path.mkdir()


UNUSABLE: dict[Callable[[Path], None], str] = {
    no_qcow2: "this is no qcow2 image",
    empty: "this is no qcow2 image",
    corrupt: "damaged" if QCOW2 == "qemu-nbd" else "marked as corrupt",
    table_far_away: "damaged" if QCOW2 == "qemu-nbd" else "table is not inside of the file",
    unknown_feature: "unknown features",
    encrypted: "encrypted",
    names_a_protocol: "no path",
    directory: "neither a file nor a block device",
}


@pytest.mark.parametrize("make", UNUSABLE)
def test_image_that_is_not_what_the_ticket_says_is_refused(
    daemon: Daemon, client: Connection, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    image = tmp_path / "secret-name"
    make(image)
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    answer = client.get(f"/images/{ticket}")
    assert (answer.status, answer.code) == (422, "image_unusable")
    assert UNUSABLE[make] in answer.text
    assert "secret-name" not in answer.text
    daemon.log.wait_for("storage failed: open .*secret-name")


def test_every_request_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    no_qcow2(tmp_path / "image")
    ticket = daemon.add_ticket(tmp_path / "image", SIZE, format="qcow2")
    for method, below, body in REQUESTS:
        with daemon.connect("tls") as connection:
            answer = connection.request(method, f"/images/{ticket}{below}", {}, body)
            assert (answer.status, answer.code) == (422, "image_unusable"), method


def test_raw_image_that_is_a_directory_is_refused(daemon: Daemon, client: Connection, tmp_path: Path) -> None:
    answer = client.get(f"/images/{daemon.add_ticket(tmp_path, SIZE)}")
    assert (answer.status, answer.code) == (422, "image_unusable")


@pytest.mark.parametrize("name", ["file/below", "n" * 256, "loop"])
def test_name_that_leads_nowhere_is_that_of_nothing(
    daemon: Daemon, client: Connection, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    answer = client.get(f"/images/{daemon.add_ticket(tmp_path / name, SIZE)}")
    assert (answer.status, answer.code) == (500, "storage_gone")


def test_client_does_not_ask_again(daemon: Daemon, tmp_path: Path) -> None:
    no_qcow2(tmp_path / "image")
    (tmp_path / "source").write_bytes(pattern(MiB))
    url = daemon.url(daemon.add_ticket(tmp_path / "image", SIZE, format="qcow2"))
    start = time.monotonic()
    with pytest.raises(Refused, match=r"cannot use the image .*no qcow2") as refused:
        upload(tmp_path / "source", url, settings=Settings(cafile=str(daemon.cafile), retry_for=PATIENT))
    assert refused.value.code == "image_unusable"
    assert time.monotonic() - start < AT_ONCE


def test_image_that_was_mended_is_served(daemon: Daemon, client: Connection, tmp_path: Path) -> None:
    image = tmp_path / "image"
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    no_qcow2(image)
    assert client.get(f"/images/{ticket}").status == 422
    created(image)
    assert client.get(f"/images/{ticket}", {"Range": "bytes=0-9"}).status == 206


@pytest.mark.skipif(QCOW2 != "qemu-nbd", reason="the engine finds it before it writes: tests/qcow2/test_hostile.py")
def test_image_that_is_found_damaged_while_it_is_open_is_refused_from_then_on(
    daemon: Daemon, client: Connection, tmp_path: Path
) -> None:
    image = created(tmp_path / "image")
    patch(image, 2 * 65536, bytes(16))  # its first clusters are said to be free: the next one would be its header
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    assert client.get(f"/images/{ticket}", {"Range": "bytes=0-9"}).status == 206
    assert client.put(f"/images/{ticket}", pattern(MiB)).status in (500, 422)  # EIO comes first, or the message
    daemon.log.wait_for("ERROR.*image.*marked as corrupt")
    with daemon.connect("tls") as again:
        answer = again.put(f"/images/{ticket}", pattern(MiB))
        assert (answer.status, answer.code) == (422, "image_unusable")
        assert "damaged" in answer.text


# Bitmaps


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk with a bitmap, and a change since."""
    disk = created(tmp_path / "disk.qcow2")
    qemu_img("bitmap", "--add", "-f", "qcow2", disk, "since")
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -q -P 7 2M 1M", disk])
    return disk


def crash_with(disk: Path) -> None:
    """Let a program that has opened the disk for writing be killed, which leaves its bitmaps in use."""
    with qemu_nbd(disk, "qcow2") as server:
        subprocess.check_call(["nbdinfo", "--size", server.uri], stdout=subprocess.DEVNULL)  # it is open then
        server.kill()


def bitmap_ticket(daemon: Daemon, disk: Path, bitmap: str = "since", **more: object) -> str:
    return daemon.add_ticket(disk, SIZE, **{"format": "qcow2", "dirty": True, "bitmap": bitmap, "ops": ["read"]} | more)


@pytest.mark.parametrize("ops", [["read"], ["write"]])
def test_only_who_asks_what_has_changed_is_refused_without_the_bitmap(
    daemon: Daemon, client: Connection, disk: Path, ops: list[str]
) -> None:
    url = f"/images/{bitmap_ticket(daemon, disk, 'never', ops=ops)}"
    answer = client.get(f"{url}/extents?context=dirty")
    assert (answer.status, answer.code) == (404, "not_found")
    assert "does not have the bitmap" in answer.text
    assert client.get(url).body == bytes(2 * MiB) + b"\7" * MiB + bytes(5 * MiB)
    assert client.get(f"{url}/extents").status == 200
    daemon.log.wait_for("WARNING.*disk.qcow2 is served without the bitmap never")


@pytest.mark.parametrize("ops", [["read"], ["write"]])
def test_bitmap_that_a_crash_left_in_use_tells_nothing_and_the_image_is_served(
    daemon: Daemon, client: Connection, disk: Path, ops: list[str]
) -> None:
    crash_with(disk)
    url = f"/images/{bitmap_ticket(daemon, disk, ops=ops)}"
    answer = client.get(f"{url}/extents?context=dirty")
    assert (answer.status, answer.code) == (404, "bitmap_in_use")
    assert client.get(url).body == bytes(2 * MiB) + b"\7" * MiB + bytes(5 * MiB)


def test_another_bitmap_of_the_image_still_tells(daemon: Daemon, client: Connection, disk: Path) -> None:
    crash_with(disk)
    qemu_img("bitmap", "--remove", "-f", "qcow2", disk, "since")
    qemu_img("bitmap", "--add", "-f", "qcow2", disk, "anew")
    url = f"/images/{bitmap_ticket(daemon, disk, 'anew')}"
    extents = client.get(f"{url}/extents?context=dirty").json()
    assert not any(extent["dirty"] for extent in extents)


@pytest.mark.parametrize(("bitmap", "words"), [("since", "transfer the whole image"), ("never", "download all")])
def test_client_is_told_to_transfer_all_and_does_not_ask_again(
    daemon: Daemon, disk: Path, tmp_path: Path, bitmap: str, words: str
) -> None:
    crash_with(disk)
    url = daemon.url(bitmap_ticket(daemon, disk, bitmap))
    settings = Settings(cafile=str(daemon.cafile), retry_for=PATIENT)
    start = time.monotonic()
    with pytest.raises(Refused, match=words):
        download(url, tmp_path / "copy.qcow2", format="qcow2", dirty=True, settings=settings)
    assert time.monotonic() - start < AT_ONCE
    download(url, tmp_path / "copy", settings=settings)
    assert (tmp_path / "copy").read_bytes()[2 * MiB : 3 * MiB] == b"\7" * MiB
