# SPDX-License-Identifier: Apache-2.0
"""Storage that fails: the client learns that it failed, the log says how, and everybody else goes on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.http_client import Answer, Connection, DisconnectedError
from tests.support.images import Image, MakeImage, MiB, pattern


def check_full(answer: Answer, daemon: Daemon, start: int) -> None:
    assert (answer.status, answer.code) == (507, "storage_full")
    daemon.log.wait_for("ENOSPC", start=start)


def check_others_work(daemon: Daemon, new_image: MakeImage) -> None:
    other = new_image()
    with daemon.connect("unix") as connection:
        assert connection.put(other.url, pattern(MiB, seed=1)).status == 200
        assert connection.get(other.url).body == pattern(MiB, seed=1)


@pytest.fixture
def full_image(new_image: MakeImage, full_filesystem: Path) -> Image:
    return new_image(path=full_filesystem)


def test_a_write_to_a_full_file_system(
    client: Connection, full_image: Image, daemon: Daemon, new_image: MakeImage
) -> None:
    start = daemon.log.end()
    answer = client.put(full_image.url, pattern(MiB))
    check_full(answer, daemon, start)
    assert answer.text == "The storage of the image has no room left\n"
    check_others_work(daemon, new_image)


def test_a_write_of_an_edge_to_a_full_file_system(client: Connection, full_image: Image, daemon: Daemon) -> None:
    start = daemon.log.end()
    check_full(client.put_at(full_image.url, 1001, b"hello"), daemon, start)


def test_a_file_that_could_not_grow_holds_zeros_up_to_the_end_of_the_request(
    client: Connection, new_image: MakeImage, full_filesystem: Path, daemon: Daemon
) -> None:
    """It is not made shorter again: another connection may have written there meanwhile."""
    image, start = new_image(path=full_filesystem, ticket_size=8 * MiB), daemon.log.end()
    check_full(client.put_at(image.url, MiB, pattern(MiB)), daemon, start)
    content = image.content()
    assert len(content) <= 2 * MiB
    assert not any(content)


def test_the_connection_stays_usable_after_a_failed_write(client: Connection, full_image: Image) -> None:
    assert client.put(full_image.url, pattern(4096)).status == 507
    answer = client.get(full_image.url)
    assert (answer.status, answer.body) == (200, bytes(MiB))


def test_zeroing_a_hole_of_a_full_file_system(client: Connection, new_image: MakeImage, full_filesystem: Path) -> None:
    image = new_image(path=full_filesystem, sparse=True)
    assert client.patch(image.url, {"op": "zero", "size": MiB}).status == 200


def test_allocating_on_a_full_file_system(client: Connection, full_image: Image, daemon: Daemon) -> None:
    start = daemon.log.end()
    answer = client.patch(full_image.url, {"op": "zero", "size": MiB})
    check_full(answer, daemon, start)
    assert client.get(full_image.url).body == bytes(MiB), "the connection stays usable"


def test_a_failed_transfer_can_be_ended(client: Connection, full_image: Image, daemon: Daemon) -> None:
    assert client.put(full_image.url, pattern(MiB)).status == 507
    daemon.remove(full_image.ticket)
    assert not daemon.has_open(full_image.path)


def test_a_write_to_a_broken_device(
    client: Connection, new_image: MakeImage, unwritable_device: Path, daemon: Daemon
) -> None:
    image, start = new_image(path=unwritable_device), daemon.log.end()
    # Depending on the page cache below, the write itself or the flush after it fails.
    answer = client.put(image.url, pattern(4 * MiB))
    assert (answer.status, answer.code) in ((500, "storage_io"), (507, "storage_full"))
    daemon.log.wait_for("EIO|ENOSPC", start=start)
    check_others_work(daemon, new_image)


def test_a_read_that_fails_in_mid_body_is_cut_short_and_never_padded(
    client: Connection, new_image: MakeImage, unreadable_device: Path, daemon: Daemon
) -> None:
    image, start = new_image(path=unreadable_device, ops=["read"]), daemon.log.end()
    with pytest.raises(DisconnectedError) as end:
        client.get(image.url)
    assert len(end.value.received) <= 4 * MiB
    daemon.log.wait_for("EIO", start=start)


def test_a_read_that_fails_at_once(
    client: Connection, new_image: MakeImage, unreadable_device: Path, daemon: Daemon
) -> None:
    image, start = new_image(path=unreadable_device, ops=["read"]), daemon.log.end()
    # The head says 206 only when the first bytes are there, or the connection ends.
    status = client_status(client, image.url, {"Range": f"bytes={6 * MiB}-{6 * MiB + 4095}"})
    assert status in (500, None)
    daemon.log.wait_for("EIO", start=start)


def client_status(client: Connection, url: str, headers: dict[str, str]) -> int | None:
    try:
        return client.get(url, headers).status
    except DisconnectedError:
        return None


def test_the_good_part_of_a_broken_device_is_served(
    client: Connection, new_image: MakeImage, unreadable_device: Path
) -> None:
    image = new_image(path=unreadable_device, ops=["read"])
    answer = client.get(image.url, {"Range": f"bytes=0-{4 * MiB - 1}"})
    assert (answer.status, len(answer.body)) == (206, 4 * MiB)


def test_the_checksum_of_a_broken_device_is_an_error(
    client: Connection, new_image: MakeImage, unreadable_device: Path, daemon: Daemon
) -> None:
    image, start = new_image(path=unreadable_device, ops=["read"]), daemon.log.end()
    answer = client.get(f"{image.url}/checksum")
    assert (answer.status, answer.code) == (500, "storage_io")
    daemon.log.wait_for("EIO", start=start)


@pytest.mark.unopened
def test_a_file_that_is_immutable_is_an_error(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image()
    chattr = shutil.which("chattr")
    if chattr is None or subprocess.run([chattr, "+i", image.path], check=False, capture_output=True).returncode:
        pytest.skip("cannot make a file immutable here")
    try:
        before, start = image.content(), daemon.log.end()
        answer = client.put(image.url, b"hello")
        assert (answer.status, answer.code) == (500, "storage_permission")
        daemon.log.wait_for("EPERM|EACCES", start=start)
        assert image.content() == before
        readable = daemon.add_ticket(image.path, MiB, ops=["read"])
        with daemon.connect("unix") as connection:
            assert connection.get(f"/images/{readable}").body == before
    finally:
        subprocess.run([chattr, "-i", image.path], check=True)


@pytest.mark.unopened
@pytest.mark.parametrize("kind", ["directory", "missing", "fifo", "link to nowhere"])
def test_what_is_no_image_is_an_error(
    client: Connection, daemon: Daemon, new_image: MakeImage, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "odd"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to nowhere":
        path.symlink_to("/does/not/exist")
    ticket_id = daemon.add_ticket(path, MiB)
    gone = kind in ("missing", "link to nowhere")
    for method, body in (("GET", None), ("PATCH", b'{"op": "flush"}'), ("OPTIONS", None)):
        answer = client.request(method, f"/images/{ticket_id}", None, body)
        assert (answer.status, answer.code) == ((500, "storage_gone") if gone else (422, "image_unusable"))
    daemon.remove(ticket_id)
    check_others_work(daemon, new_image)
