# SPDX-License-Identifier: Apache-2.0
"""Tickets of qcow2 images that the daemon opens itself."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Certificates, Daemon
from tests.support.heldcalls import build_library
from tests.support.http_client import Connection
from tests.support.images import KiB, MiB, pattern
from tests.support.metrics import Metrics
from tests.support.polling import eventually
from tests.support.realstorage import missing, mounted

SIZE = 8 * MiB
VERDICTS = ("native", "fallback", "refused")


def qemu_img(*arguments: object) -> None:
    subprocess.check_call(["qemu-img", *map(str, arguments)], stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which images may name each other."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def daemon(certificates: Certificates, images: Path) -> Iterator[Daemon]:
    with Daemon(certificates, {"backend_nbd": {"allowed_paths": images}}) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Connection]:
    with daemon.connect("tls") as connection:
        yield connection


def create(path: Path, *options: object) -> Path:
    qemu_img("create", "-f", "qcow2", *options, path, SIZE)
    return path


def children(daemon: Daemon) -> list[str]:
    tasks = Path(f"/proc/{daemon.pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


def content(image: Path) -> bytes:
    raw = image.with_suffix(".raw")
    qemu_img("convert", "-f", "qcow2", "-O", "raw", image, raw)
    return raw.read_bytes()


def test_an_image_is_written_and_read_without_another_process(client: Connection, daemon: Daemon, images: Path) -> None:
    image = create(images / "plain")
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    data = pattern(3 * MiB + 100, seed=1)
    assert client.put_at(f"/images/{ticket}", MiB + 50, data).status == 200
    assert (
        client.patch(f"/images/{ticket}", {"op": "zero", "offset": 2 * MiB, "size": MiB, "flush": True}).status == 200
    )
    expected = bytes(MiB + 50) + data + bytes(SIZE - MiB - 50 - len(data))
    expected = expected[: 2 * MiB] + bytes(MiB) + expected[3 * MiB :]
    assert client.get(f"/images/{ticket}").body == expected
    assert not children(daemon)
    daemon.log.wait_for(f"{image} is opened by the daemon itself")
    daemon.remove(ticket)
    qemu_img("check", image)
    assert content(image) == expected


def test_another_program_cannot_open_it(daemon: Daemon, client: Connection, images: Path) -> None:
    image = create(images / "locked")
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    assert client.get(f"/images/{ticket}").status == 200
    refused = subprocess.run(["qemu-img", "check", image], capture_output=True, check=False)
    assert refused.returncode
    assert b"lock" in refused.stderr
    second = daemon.add_ticket(image, SIZE, format="qcow2")
    assert client.get(f"/images/{second}").status == 409
    daemon.remove(ticket)
    assert client.get(f"/images/{second}").status == 200
    daemon.remove(second)


def test_extents_of_an_overlay(daemon: Daemon, client: Connection, images: Path) -> None:
    base = create(images / "base")
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -P 1 0 1M", base], stdout=subprocess.DEVNULL)
    top = create(images / "top", "-b", base, "-F", "qcow2")
    subprocess.check_call(["qemu-io", "-f", "qcow2", "-c", "write -z 512k 128k", top], stdout=subprocess.DEVNULL)

    def told(ticket: str) -> list[tuple[int, bool, bool]]:
        extents = client.get(f"/images/{ticket}/extents").json()
        daemon.remove(ticket)
        return [(extent["length"] // 1024, extent["zero"], extent["hole"]) for extent in extents]

    whole = daemon.add_ticket(top, SIZE, format="qcow2", ops=["read"])
    assert told(whole) == [
        (512, False, False),
        (128, True, False),
        (384, False, False),
        (7 * 1024, True, True),
    ]
    alone = daemon.add_ticket(top, SIZE, format="qcow2", ops=["read"], backing_chain=False)
    assert told(alone) == [(512, True, True), (128, True, False), (7 * 1024 + 384, True, True)]


@pytest.mark.parametrize(
    ("chain", "expected"),
    [(True, [(4 * 1024, True, True), (4 * 1024, True, False)]), (False, [(8 * 1024, True, True)])],
    ids=["chain", "alone"],
)
def test_zeros_behind_the_end_of_a_shorter_file_below_are_no_hole(
    daemon: Daemon, client: Connection, images: Path, *, chain: bool, expected: list[tuple[int, bool, bool]]
) -> None:
    base, top = images / f"short-{chain}", images / f"long-{chain}"
    qemu_img("create", "-f", "qcow2", base, SIZE // 2)
    qemu_img("create", "-f", "qcow2", "-b", base, "-F", "qcow2", top, SIZE)
    ticket = daemon.add_ticket(top, SIZE, format="qcow2", ops=["read"], backing_chain=chain)
    extents = client.get(f"/images/{ticket}/extents").json()
    assert [(each["length"] // 1024, each["zero"], each["hole"]) for each in extents] == expected
    daemon.remove(ticket)


def test_an_image_has_no_tag_as_the_files_below_it_may_change(daemon: Daemon, client: Connection, images: Path) -> None:
    base = images / "tagged-base"
    base.write_bytes(bytes(SIZE))
    top = create(images / "tagged", "-b", base, "-F", "raw")
    ticket = daemon.add_ticket(top, SIZE, format="qcow2", ops=["read"])
    etags = [client.request(method, f"/images/{ticket}").headers.get("ETag") for method in ("GET", "HEAD")]
    assert etags == [None, None]
    assert client.get(f"/images/{ticket}", {"If-Match": '"a"'}).status == 412
    daemon.remove(ticket)


def test_an_image_that_is_locked_for_a_moment_is_waited_for(daemon: Daemon, client: Connection, images: Path) -> None:
    image = create(images / "for-a-moment")
    command = ["qemu-io", "-f", "qcow2", "-c", "sleep 300", str(image)]
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as program:
        eventually(lambda: program.poll() is not None or is_locked(image), "qemu has the image")
        assert client.get(f"/images/{ticket}").status == 200
    daemon.remove(ticket)


def is_locked(image: Path) -> bool:
    """Tell whether somebody has locked a byte of a file (proc(5), /proc/locks)."""
    return f":{image.stat().st_ino} " in Path("/proc/locks").read_text()


def test_a_daemon_that_ends_leaves_a_sound_image(certificates: Certificates, images: Path) -> None:
    """Its ticket is there, nobody has flushed; the next daemon opens the image itself, too."""
    image = create(images / "ended")
    for number in range(2):
        with Daemon(certificates) as daemon, daemon.connect("tls") as client:
            ticket = daemon.add_ticket(image, SIZE, format="qcow2")
            assert client.put_at(f"/images/{ticket}?flush=n", number * MiB, pattern(MiB)).status == 200
            daemon.log.wait_for(f"{image} is opened by the daemon itself")
    qemu_img("check", image)
    assert content(image)[: 2 * MiB] == 2 * pattern(MiB)


def test_bitmaps_are_read_here_and_kept_by_qemu(daemon: Daemon, client: Connection, images: Path) -> None:
    image = create(images / "bitmaps")
    qemu_img("bitmap", "--add", image, "b")
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    assert client.put_at(f"/images/{ticket}", 0, b"x" * 4096).status == 200
    daemon.log.wait_for(f"{image} is left to qemu-nbd: it has bitmaps, and is to be written")
    assert children(daemon)
    daemon.remove(ticket)
    ticket = daemon.add_ticket(image, SIZE, format="qcow2", ops=["read"], dirty=True, bitmap="b")
    assert client.get(f"/images/{ticket}/extents?context=dirty").json()[0] == {
        "start": 0,
        "length": 4096,
        "dirty": True,
        "zero": False,
    }
    assert not children(daemon)
    daemon.remove(ticket)


def test_a_damaged_image_is_refused(daemon: Daemon, client: Connection, images: Path) -> None:
    image = create(images / "damaged")
    with image.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff" * 8)  # the offset of its first table
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    answer = client.get(f"/images/{ticket}")
    assert answer.status == 422
    assert b"the L1 table is not inside of the file" in answer.body
    daemon.remove(ticket)


def test_verdicts_are_counted(daemon: Daemon, client: Connection, images: Path) -> None:
    def counted() -> dict[str, float]:
        metrics = Metrics(daemon)
        return {verdict: metrics.sum("qcow2_images_total", verdict=verdict) for verdict in VERDICTS}

    before = counted()
    image = create(images / "counted")
    ticket = daemon.add_ticket(image, SIZE, format="qcow2")
    assert client.get(f"/images/{ticket}").status == 200
    daemon.remove(ticket)
    assert counted() == before | {"native": before["native"] + 1}


def test_a_file_below_in_another_format(daemon: Daemon, client: Connection, images: Path) -> None:
    base = images / "base.vmdk"
    qemu_img("create", "-f", "vmdk", base, SIZE)
    image = create(images / "over-vmdk", "-b", base, "-F", "vmdk")
    ticket = daemon.add_ticket(image, SIZE, format="qcow2", ops=["read"])
    assert client.get(f"/images/{ticket}").status == 200
    daemon.log.wait_for(f"{image} is left to qemu-nbd: a file below it has another format")
    daemon.remove(ticket)


def test_a_read_past_its_end_and_a_write(daemon: Daemon, client: Connection, images: Path) -> None:
    image = create(images / "end")
    ticket = daemon.add_ticket(image, 2 * SIZE, format="qcow2")
    assert client.put_at(f"/images/{ticket}", SIZE - 100, b"x" * 100).status == 200
    assert client.put_at(f"/images/{ticket}", SIZE - 100, b"y" * 200).status == 416
    daemon.remove(ticket)
    assert content(image)[-101:] == b"\0" + b"x" * 100


def written_by_lanes(daemon: Daemon) -> int:
    """Return the bytes that the threads of lanes have written by system calls of their own."""
    tasks = [task for task in Path(f"/proc/{daemon.pid}/task").iterdir() if "lane" in (task / "comm").read_text()]
    return sum(int((task / "io").read_text().split("wchar: ")[1].split()[0]) for task in tasks)


def test_a_lane_does_not_wait_for_copies(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files have no holes, free clusters hold data: if a part of one is written, the rest is, too."""
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    monkeypatch.setenv("LD_PRELOAD", str(build_library(tmp_path)))
    monkeypatch.setenv("IMAGEIO_TEST_NO_HOLES", "1")
    # On tmpfs all calls of a lane are its own: elsewhere most are asynchronous, and nobody counts them.
    with mounted("tmpfs", tmp_path) as place, Daemon(certificates) as daemon, daemon.connect("tls") as client:
        ticket = daemon.add_ticket(create(place / "image"), SIZE, format="qcow2", sparse=True)
        url = f"/images/{ticket}"
        assert client.put_at(url, 0, pattern(6 * MiB)).status == 200
        zero = {"op": "zero", "offset": 0, "size": 6 * MiB, "flush": True}
        assert client.patch(url, zero).status == 200
        before = written_by_lanes(daemon)
        for offset in range(0, 2 * MiB, 64 * KiB):
            assert client.put_at(url, offset, pattern(4 * KiB)).status == 200
        assert written_by_lanes(daemon) - before < 64 * KiB
        daemon.remove(ticket)
