# SPDX-License-Identifier: Apache-2.0
"""GET and HEAD of a qcow2 file of an image, which is made as it is sent."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Connection, DisconnectedError
from tests.support.images import Image, KiB, MakeImage, MiB, pattern
from tests.support.places import Trait, needs
from tests.support.polling import eventually
from tests.support.services import Connect

CLUSTER = 64 * KiB
#: Data, a hole of several clusters, data that ends inside of a sector.
CONTENT = pattern(100_000) + bytes(5 * CLUSTER) + pattern(12_345, seed=1)


def packed(image: Image) -> str:
    return f"{image.url}?format=qcow2"


def check(data: bytes, expected: bytes | Path, directory: Path) -> None:
    """Fail unless qemu finds nothing wrong with a qcow2 file, and finds the content, or that of a raw file, in it."""
    path = directory / "downloaded"
    path.write_bytes(data)
    if isinstance(expected, bytes):
        (directory / "expected").write_bytes(expected)
    raw = expected if isinstance(expected, Path) else directory / "expected"
    subprocess.run(["qemu-img", "check", "-q", "-f", "qcow2", path], check=True)
    subprocess.run(["qemu-img", "compare", "-q", "-f", "qcow2", "-F", "raw", path, raw], check=True)


def holed(pieces: dict[int, bytes], size: int) -> bytes:
    content = bytearray(size)
    for offset, data in pieces.items():
        content[offset : offset + len(data)] = data
    return bytes(content)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for name in ("downloaded", "expected"):
        (tmp_path / name).unlink(missing_ok=True)


@pytest.mark.every_kind
@needs(Trait.HERE)
def test_the_whole_file(client: Connection, new_image: MakeImage, directory: Path) -> None:
    answer = client.get(packed(new_image(CONTENT)))
    assert answer.status == 200
    assert answer.headers["Content-Length"] == str(len(answer.body))
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    check(answer.body, CONTENT, directory)


@pytest.mark.every_kind
@needs(Trait.HERE)
def test_any_range_is_that_of_the_whole(client: Connection, new_image: MakeImage) -> None:
    url, rng = packed(new_image(CONTENT)), random.Random(1)
    whole = client.get(url).body
    for _ in range(30):
        first = rng.randrange(len(whole))
        last = min(len(whole) - 1, first + rng.choice((0, 100, 70_000, len(whole))))
        answer = client.get(url, {"Range": f"bytes={first}-{last}"})
        assert answer.status == 206
        assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{len(whole)}"
        assert answer.body == whole[first : last + 1]
    assert client.get(url, {"Range": "bytes=-100"}).body == whole[-100:]
    assert client.get(url, {"Range": f"bytes={len(whole)}-"}).headers["Content-Range"] == f"bytes */{len(whole)}"


@pytest.mark.every_kind
@needs(Trait.HERE)
@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=1000-300000"}], ids=str)
def test_head_has_the_fields_of_get(client: Connection, new_image: MakeImage, headers: dict[str, str]) -> None:
    url = packed(new_image(CONTENT))
    head, answer = (client.request(method, url, headers) for method in ("HEAD", "GET"))
    assert head.status == answer.status
    for name in ("Content-Length", "Content-Range", "Content-Type", "Content-Disposition", "ETag"):
        assert head.headers.get(name) == answer.headers.get(name)


@pytest.mark.every_kind
@needs(Trait.HERE)
def test_an_empty_image(client: Connection, new_image: MakeImage, directory: Path) -> None:
    check(client.get(packed(new_image(b""))).body, b"", directory)


@needs(Trait.HERE)
@pytest.mark.parametrize("size", [1, 511, 512, 513, CLUSTER - 1, CLUSTER, CLUSTER + 1, MiB])
def test_images_of_each_size(client: Connection, new_image: MakeImage, size: int, directory: Path) -> None:
    content = pattern(size, seed=size)
    check(client.get(packed(new_image(content))).body, content, directory)


@needs(Trait.HERE, Trait.RAW_FILE)
def test_zeros_take_no_space(client: Connection, new_image: MakeImage, directory: Path) -> None:
    pieces = {100 * MiB: b"x", 700 * MiB: pattern(100_000)}
    image = new_image(size=1024 * MiB, pieces=pieces)
    answer = client.get(packed(image))
    # Header, counts (2), L1, L2 of two parts of 512 MiB, and data of 1 and 3 clusters at most.
    assert len(answer.body) <= 10 * CLUSTER
    check(answer.body, image.path, directory)


@needs(Trait.HERE, Trait.PATH)
def test_many_extents(client: Connection, new_image: MakeImage, directory: Path) -> None:
    """More than one call of C tells. The file is in memory: file systems of disks take long to remove it."""
    with TemporaryDirectory(dir="/dev/shm") as memory:
        path = Path(memory) / "image"
        with path.open("wb") as file:
            for number in range(9000):
                file.seek(number * 8 * KiB)
                file.write(number.to_bytes(4) * KiB)
        check(client.get(packed(new_image(path=path, ops=["read"]))).body, path, directory)


def test_a_chain_of_qcow2_files(client: Connection, daemon: Daemon, directory: Path, tmp_path: Path) -> None:
    base, top = tmp_path / "base", tmp_path / "top"
    for words in (
        ("qemu-img", "create", "-q", "-f", "qcow2", base, "4M"),
        ("qemu-io", "-f", "qcow2", "-c", "write -P 1 0 3M", base),
        ("qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", top, "5M"),
        ("qemu-io", "-f", "qcow2", "-c", "write -z 1M 64k", "-c", "write -P 2 4M 10k", top),
    ):
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    image = daemon.add_ticket(top, 5 * MiB, format="qcow2", ops=["read"], backing_chain=False)
    alone = holed({4 * MiB: b"\2" * 10 * KiB}, 5 * MiB)
    check(client.get(f"/images/{image}?format=qcow2").body, alone, directory)


@needs(Trait.HERE)
def test_a_ticket_of_a_part_gives_that_part(client: Connection, new_image: MakeImage, directory: Path) -> None:
    image = new_image(CONTENT, ticket_size=100_001)
    check(client.get(packed(image)).body, CONTENT[:100_001], directory)


def test_raw_is_the_default(client: Connection, new_image: MakeImage) -> None:
    assert client.get(new_image(CONTENT).url + "?format=raw").body == CONTENT


@pytest.mark.parametrize("name", ["vmdk", "QCOW2", ""])
def test_another_format_is_refused(client: Connection, new_image: MakeImage, name: str) -> None:
    image = new_image(CONTENT)
    answer = client.get(f"{image.url}?format={name}")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert client.get(image.url).body == CONTENT, "the connection stays usable"


def test_an_unknown_ticket(client: Connection) -> None:
    assert client.get("/images/unknown?format=qcow2").status == 403


def test_a_disk_that_is_too_large_is_refused(client: Connection, daemon: Daemon, tmp_path: Path) -> None:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", tmp_path / "large", "65T"], check=True)
    ticket = daemon.add_ticket(tmp_path / "large", 65 << 40, format="qcow2", ops=["read"])
    answer = client.get(f"/images/{ticket}?format=qcow2")
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_large_disks_have_larger_clusters(client: Connection, daemon: Daemon, tmp_path: Path) -> None:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", tmp_path / "large", "64T"], check=True)
    ticket = daemon.add_ticket(tmp_path / "large", 64 << 40, format="qcow2", ops=["read"])
    answer = client.get(f"/images/{ticket}?format=qcow2")
    assert int.from_bytes(answer.body[20:24]) == 21
    (tmp_path / "downloaded").write_bytes(answer.body)
    subprocess.run(["qemu-img", "check", "-q", "-f", "qcow2", tmp_path / "downloaded"], check=True)


# Continuing


@pytest.mark.every_kind
@needs(Trait.HERE, Trait.TAGGED)
@pytest.mark.parametrize("ops", [["read"], ["write"]], ids=str)
def test_a_download_goes_on_while_the_image_is_the_same(
    client: Connection, new_image: MakeImage, ops: list[str]
) -> None:
    url = packed(new_image(CONTENT, ops=ops))
    first = client.get(url, {"Range": "bytes=0-99999"})
    rest = client.get(url, {"Range": "bytes=100000-", "If-Range": first.headers["ETag"]})
    assert rest.status == 206
    assert first.body + rest.body == client.get(url).body
    assert client.get(url, {"If-None-Match": first.headers["ETag"]}).status == 304


@needs(Trait.HERE, Trait.TAGGED)
@pytest.mark.parametrize("ops", [["read"], ["write"]], ids=str)
@pytest.mark.parametrize("where", [10, 200_000], ids=["in place", "in a hole"])
def test_a_download_begins_anew_when_the_image_has_changed(
    client: Connection, new_image: MakeImage, ops: list[str], where: int, directory: Path
) -> None:
    image = new_image(CONTENT, ops=ops)
    writer = new_image(of=image)
    before = client.get(packed(image), {"Range": "bytes=0-99999"}).headers["ETag"]
    assert client.put_at(writer.url, where, b"changed").status == 200
    answer = client.get(packed(image), {"Range": "bytes=100000-", "If-Range": before})
    assert answer.status == 200
    assert answer.headers["ETag"] != before
    check(answer.body, holed({0: CONTENT, where: b"changed"}, len(CONTENT)), directory)
    assert client.get(packed(image), {"If-Match": before}).status == 412


@needs(Trait.HERE, Trait.RAW_FILE)
def test_a_map_that_others_have_changed_has_another_tag(client: Connection, new_image: MakeImage) -> None:
    """What other programs write is not seen, but that a hole was filled is."""
    image = new_image(size=MiB, pieces={0: CONTENT[:100_000]}, ops=["read"])
    before = client.get(packed(image)).headers["ETag"]
    with image.path.open("r+b") as file:
        file.seek(500_000)
        file.write(b"changed")
    answer = client.get(packed(image), {"Range": "bytes=100000-", "If-Range": before})
    assert (answer.status, answer.headers["ETag"] != before) == (200, True)


@needs(Trait.HERE, Trait.TAGGED)
def test_the_tag_is_not_that_of_the_raw_image(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ops=["read"])
    assert client.get(packed(image)).headers["ETag"] != client.get(image.url).headers["ETag"]


@pytest.mark.every_kind
@needs(Trait.HERE)
def test_without_a_tag_the_whole_is_sent_again(client: Connection, new_image: MakeImage) -> None:
    answer = client.get(packed(new_image(CONTENT)), {"Range": "bytes=100000-", "If-Range": '"other"'})
    assert answer.status == 200


# While it is sent


def begin(client: Connection, daemon: Daemon, image: Image) -> int:
    """Begin to get a file, and return how long it will be. The client reads the answer later."""
    length = int(client.request("HEAD", packed(image)).headers["Content-Length"])
    client.send(f"GET {packed(image)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    eventually(lambda: daemon.status(image.ticket)["read"], "the file is being sent")
    return length


@needs(Trait.HERE, Trait.TAGGED)
def test_a_writer_does_not_spoil_the_file(
    client: Connection, daemon: Daemon, connect: Connect, new_image: MakeImage, directory: Path
) -> None:
    """Data of holes of the map is left out, other data is old or new; tables and length are those of the map."""
    size = 64 * MiB
    image = new_image(size=size, pieces={0: pattern(24 * MiB)}, ops=["read"])
    writer = new_image(of=image)
    length = begin(client, daemon, image)
    assert connect().put_at(writer.url, 23 * MiB, b"n" * 2 * MiB).status == 200
    body = client.receive().body
    assert len(body) == length
    (directory / "downloaded").write_bytes(body)
    subprocess.run(["qemu-img", "check", "-q", "-f", "qcow2", directory / "downloaded"], check=True)


@needs(Trait.HERE, Trait.RAW_FILE)
def test_an_image_that_was_cut_is_no_whole_answer(client: Connection, daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(pattern(64 * MiB), ops=["read"])
    begin(client, daemon, image)
    os.truncate(image.path, MiB)
    with pytest.raises(DisconnectedError):
        client.receive()


@needs(Trait.OWN)
def test_the_image_is_closed_when_the_ticket_is_removed(
    client: Connection, daemon: Daemon, new_image: MakeImage
) -> None:
    image = new_image(pattern(64 * MiB), ops=["read"])
    begin(client, daemon, image)
    assert daemon.has_open(image.path)
    daemon.remove(image.ticket)
    assert not daemon.has_open(image.path)


@needs(Trait.HERE)
def test_progress_is_that_of_the_file(client: Connection, daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ops=["read"])
    length = len(client.get(packed(image)).body)
    status = daemon.status(image.ticket)
    assert (status["transferred"], status["read"]) == (length, length)


@needs(Trait.HERE)
def test_options_tells_it(client: Connection, new_image: MakeImage) -> None:
    assert "qcow2" in client.request("OPTIONS", new_image(CONTENT).url).json()["features"]
    assert "qcow2" in client.request("OPTIONS", "/images/*").json()["features"]
