# SPDX-License-Identifier: Apache-2.0
"""What an expired ticket lets go of, whatever connections are open, and how it goes on when it is revived."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.places import Device, Trait, needs
from tests.support.polling import eventually
from tests.support.processes import thread_names
from tests.support.realstorage import loop_device, missing

FIRST = {"Range": "bytes=0-9"}
#: Seconds in which an image is closed.
LIMIT = 30


def wait_closed(daemon: Daemon, image: Image) -> None:
    eventually(lambda: not image.place.is_open(daemon), "the image is closed", timeout=LIMIT)


@needs(Trait.HERE)
@pytest.mark.unopened
@pytest.mark.every_kind
def test_an_idle_connection_keeps_no_image_and_goes_on_when_the_ticket_is_revived(
    client: Connection, image: Image, daemon: Daemon
) -> None:
    content = pattern(MiB, seed=3)
    assert client.put_at(image.url, 0, content).status == 200
    assert image.place.is_open(daemon)
    daemon.extend(image.ticket, 0)
    wait_closed(daemon, image)
    daemon.extend(image.ticket, 100)
    assert daemon.status(image.ticket)["connections"] == 1
    assert client.get(image.url).body == content
    assert image.place.is_open(daemon)


@needs(Trait.HERE)
def test_a_ticket_that_expires_by_itself_lets_go_too(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(timeout=1)
    assert client.get(image.url).status == 200
    wait_closed(daemon, image)


@needs(Trait.HERE)
def test_a_running_request_keeps_the_image_until_its_end(
    client: Connection, new_image: MakeImage, daemon: Daemon
) -> None:
    image, others, content = new_image(), [new_image(), new_image()], pattern(MiB, seed=4)
    client.send(encode_request("PUT", image.url, None, content)[: MiB // 2])
    eventually(lambda: daemon.status(image.ticket)["active"], "the upload runs")
    daemon.extend(image.ticket, 0)
    with daemon.connect("unix") as connection:
        for other in others:  # one after the other, so that somebody has looked at both tickets
            assert connection.get(other.url).status == 200
            daemon.extend(other.ticket, 0)
            wait_closed(daemon, other)
    assert image.place.is_open(daemon)
    client.send(encode_request("PUT", image.url, None, content)[MiB // 2 :])
    assert client.receive().status == 200
    wait_closed(daemon, image)
    assert image.content() == content


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(log={"level": "INFO"})


def hand_over(daemon: Daemon, service_name: str, image: Image) -> Connection:
    """Return a connection that C has."""
    connection = daemon.connect(service_name)
    for _ in range(2):
        assert connection.get(image.url, FIRST).status == 206
    return connection


def test_connections_of_lanes_keep_no_image_and_go_on_when_the_ticket_is_revived(own: Daemon, tmp_path: Path) -> None:
    image = make_image(own, tmp_path)()
    with ExitStack() as cleanup:
        connections = [cleanup.enter_context(hand_over(own, name, image)) for name in ("tls", "unix") * 2]
        assert "http-lane" in thread_names(own.pid)
        own.extend(image.ticket, 0)
        wait_closed(own, image)
        own.extend(image.ticket, 100)
        for connection in connections:
            assert connection.get(image.url, FIRST).status == 206


def test_the_space_of_a_deleted_file_is_freed(own: Daemon, tmp_path: Path) -> None:
    image = make_image(own, tmp_path)()
    with hand_over(own, "tls", image), own.connect("unix") as idle:
        assert idle.get(image.url).status == 200
        image.path.unlink()
        own.extend(image.ticket, 0)
        deleted = f"{image.path} (deleted)"
        assert deleted in own.descriptors()
        eventually(lambda: deleted not in own.descriptors(), "nobody has the file", timeout=LIMIT)


def test_a_device_can_be_detached(own: Daemon, tmp_path: Path) -> None:
    if reason := missing("ext4"):
        pytest.skip(reason)
    backing = tmp_path / "backing"
    backing.write_bytes(pattern(MiB))
    with ExitStack() as connections:
        with loop_device(backing) as device:
            image = Image(Device(device), own.add_ticket(device, MiB))
            attached = Path("/sys/block", device.name, "loop")
            connections.enter_context(hand_over(own, "tls", image))
            assert connections.enter_context(own.connect("unix")).get(image.url).status == 200
            own.extend(image.ticket, 0)
            wait_closed(own, image)
            assert attached.exists()
        # Had anybody the device open, it would be attached until he closes it.
        assert not attached.exists()
