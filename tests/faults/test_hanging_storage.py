# SPDX-License-Identifier: Apache-2.0
"""Storage that does not answer for a while, as a paused device: a frozen file system, where each write waits."""

import fcntl
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.functional.test_lanes import LANES
from tests.support.daemon import DECIDED_PROGRAM, Daemon, MakeDaemon, ticket
from tests.support.http_client import Connection, encode_request
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.manager import Manager
from tests.support.polling import eventually
from tests.support.processes import times_slept
from tests.support.realstorage import allocated, missing, mounted

#: linux/fs.h: FIFREEZE, FITHAW.
FREEZE, THAW = 0xC0045877, 0xC0045878
#: What a socket holds: a lane that waits in a call of a frozen file system does not read further.
SHORT = pattern(128 * 1024, seed=1)


@contextmanager
def frozen(directory: Path) -> Iterator[None]:
    """Let every write to the file system wait until the end of the block."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FREEZE, 0)
        try:
            yield
        finally:
            with suppress(OSError):  # EINVAL: the test has thawed it
                fcntl.ioctl(fd, THAW, 0)
    finally:
        os.close(fd)


def thaw(directory: Path) -> None:
    """Let the writes go on before the end of the block."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, THAW, 0)
    finally:
        os.close(fd)


@pytest.fixture
def filesystem(tmp_path: Path) -> Iterator[Path]:
    """A file system that nobody else uses."""
    if reason := missing("ext4"):
        pytest.skip(reason)
    with mounted("ext4", tmp_path, 64 * MiB) as directory:
        yield directory


@pytest.fixture
def own(filesystem: Path, make_daemon: MakeDaemon) -> Daemon:
    # After the file system: the daemon ends before it is unmounted.
    config = {"inactivity_timeout": 1, "shutdown_timeout": 2}
    return make_daemon(daemon=config, control={"remove_timeout": 1})


@pytest.fixture
def image(own: Daemon, filesystem: Path) -> Image:
    return make_image(own, filesystem)()


@pytest.fixture
def elsewhere(own: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(own, tmp_path)


def test_an_answer_goes_out_before_the_next_request_waits(own: Daemon, image: Image, filesystem: Path) -> None:
    read = encode_request("GET", image.url, {"Range": "bytes=0-9"})
    write = encode_request("PUT", image.url, {"Content-Length": "10"}, b"0123456789")
    with own.connect("unix") as connection:
        connection.send(read)
        assert connection.receive().status == 206
        with frozen(filesystem):
            connection.send(read + write)
            assert connection.receive().status == 206
        assert connection.receive().status == 200


def test_a_write_that_waits_is_seen_and_ends_with_the_wait(own: Daemon, image: Image, filesystem: Path) -> None:
    content = SHORT
    with own.connect("tls") as connection:
        with frozen(filesystem):
            connection.send(encode_request("PUT", image.url, None, content))
            # More than the inactivity_timeout: it is not the client that is slow.
            eventually(lambda: own.status(image.ticket)["storage_wait"] >= 2, "the status tells the wait")
            status = own.status(image.ticket)
            assert status["active"]
            assert status["slowest_operation"]["kind"] == "write"
            assert status["slowest_operation"]["seconds"] >= 1
            assert connection.is_silent()
        assert connection.receive().status == 200
    assert image.read(0, len(content)) == content
    eventually(lambda: own.status(image.ticket)["storage_wait"] == 0, "the wait is over")


def test_a_write_that_waits_is_no_reason_for_a_restart(
    make_daemon: MakeDaemon, filesystem: Path, service_name: str
) -> None:
    with Manager(watchdog=0.6) as manager:
        own = make_daemon(manager=manager)
        image = make_image(own, filesystem)()
        with own.connect(service_name) as connection:
            with frozen(filesystem):
                connection.send(encode_request("PUT", image.url, None, SHORT))
                eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "a write waits")
                signs = manager.states.count("WATCHDOG=1")
                eventually(lambda: manager.states.count("WATCHDOG=1") >= signs + 3, "the daemon is alive")
                assert own.status(image.ticket)["storage_wait"] >= 1
            assert connection.receive().status == 200
        own.stop()


def test_a_request_that_waited_for_storage_leaves_a_line(make_daemon: MakeDaemon, filesystem: Path) -> None:
    own = make_daemon(program="tests.support.slowrequests")
    image = make_image(own, filesystem)()
    with own.connect("unix") as connection:
        with frozen(filesystem):
            connection.send(encode_request("PUT", image.url, None, SHORT))

            def waits() -> bool:
                status = own.status(image.ticket)
                request = status["clients"][0].get("request", {"waits_for": ""})
                slowest = status.get("slowest_operation", {"seconds": 0})
                return bool(request["waits_for"] == "storage" and slowest["seconds"] > 0.5)

            eventually(waits, "the request waits for storage")
        assert connection.receive().status == 200
    line = own.log.wait_for(r"INFO .*slow request.*")[0]
    assert re.search(r" seconds=\S+ .*\bwait_storage=(0\.[3-9]|[1-9])", line)


def test_removal_without_waiting_answers_409_while_something_runs(
    make_daemon: MakeDaemon, filesystem: Path, service_name: str
) -> None:
    own = make_daemon(control={"remove_timeout": 0})
    image = make_image(own, filesystem)()
    with own.connect(service_name) as connection:
        with frozen(filesystem):
            connection.send(encode_request("PUT", image.url, None, SHORT))
            eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "a write waits")
            answer = own.control("DELETE", f"/tickets/{image.ticket}")
            assert answer.status == 409
            assert image.ticket not in answer.text
        # The caller tries again.
        eventually(lambda: own.control("DELETE", f"/tickets/{image.ticket}").status == 204, "the ticket is removed")
        assert own.control("GET", f"/tickets/{image.ticket}").status == 404
    own.stop()


def has_noticed(own: Daemon, start: int, slept: int) -> bool:
    """Tell whether the client of a request that waits for storage is known to be gone.

    The thread of a lane sleeps, and wakes for the end of its client. Python's connections, not those of the control
    socket, end at once.
    """
    ended = own.log.find(r"connection ended client=(?!unix requests=1 )", start=start)
    return ended is not None or times_slept(own.pid, "http-lane") > slept


@pytest.mark.parametrize("lane", LANES)
def test_a_long_zero_ends_when_its_client_vanishes(
    make_daemon: MakeDaemon, tmp_path: Path, service_name: str, lane: str
) -> None:
    """On ext2 zeros are written, 4 MiB at a time. The first of them waits until the client is gone."""
    if reason := missing("ext2"):
        pytest.skip(reason)
    with mounted("ext2", tmp_path, 64 * MiB) as directory:
        own = make_daemon(program=LANES[lane])
        image = make_image(own, directory)(size=48 * MiB, sparse=False)
        with frozen(directory):
            with own.connect(service_name) as connection:
                for _ in range(2):  # C takes over
                    assert connection.get(image.url, {"Range": "bytes=0-0"}).status == 206
                connection.send(encode_request("PATCH", image.url, None, b'{"op": "zero", "size": %d}' % (48 * MiB)))
                eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "the zero waits")
                start, slept = own.log.end(), times_slept(own.pid, "http-lane")
            eventually(lambda: has_noticed(own, start, slept), "the daemon has noticed")
            assert own.status(image.ticket)["active"], "the storage has not let go of it"
        eventually(lambda: not own.status(image.ticket)["active"], "the zero has ended")
        assert allocated(image.path) < 16 * MiB
        own.stop()


def test_other_transfers_go_on(own: Daemon, image: Image, filesystem: Path, elsewhere: MakeImage) -> None:
    other = elsewhere()
    waiting = [own.connect("unix") for _ in range(8)]
    try:
        with frozen(filesystem):
            for connection in waiting:
                connection.send(encode_request("PUT", image.url, None, SHORT))
            eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "the writes wait")
            with own.connect("tls") as connection:
                for number in range(20):
                    assert connection.put(other.url, pattern(MiB, seed=number)).status == 200
                assert connection.get(other.url).body == pattern(MiB, seed=19)
        assert [connection.receive().status for connection in waiting] == [200] * 8
    finally:
        for connection in waiting:
            connection.close()


def test_removal_answers_409_in_time_and_succeeds_later(own: Daemon, image: Image, filesystem: Path) -> None:
    with own.connect("unix") as connection:
        with frozen(filesystem):
            connection.send(encode_request("PUT", image.url, None, SHORT))
            eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "the write waits")
            assert own.control("DELETE", f"/tickets/{image.ticket}").status == 409
            status = own.status(image.ticket)
            assert (status["canceled"], status["active"]) == (True, True)
        eventually(lambda: own.control("DELETE", f"/tickets/{image.ticket}").status == 204, "the ticket is removed")
        assert not own.has_open(image.path)
        assert connection.status_or_end() in (403, None)


def remove_all(own: Daemon, image: Image, elsewhere: MakeImage) -> str:
    assert own.control("DELETE", "/tickets/").status == 204
    return image.ticket


def replace_twice(own: Daemon, image: Image, elsewhere: MakeImage) -> str:
    for _ in range(2):
        elsewhere(uuid=image.ticket)
    return image.ticket


def remove_in_vain(own: Daemon, image: Image, elsewhere: MakeImage) -> str:
    assert own.control("DELETE", f"/tickets/{image.ticket}").status == 409
    return image.ticket


def link_hard(own: Daemon, image: Image, elsewhere: MakeImage) -> str:
    return of_another_name(own, image, "hard")


def link_softly(own: Daemon, image: Image, elsewhere: MakeImage) -> str:
    return of_another_name(own, image, "soft")


def of_another_name(own: Daemon, image: Image, name: str) -> str:
    """Return a ticket, not used yet, of the image by another name; that of the image itself is cancelled."""
    assert own.control("DELETE", f"/tickets/{image.ticket}").status == 409
    return own.add_ticket(image.path.with_name(name), MiB)


WAYS = (remove_all, replace_twice, remove_in_vain, link_hard, link_softly)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_removal_tells_the_truth_whatever_came_before(
    filesystem: Path, tmp_path: Path, make_daemon: MakeDaemon, way: Callable[..., str], lane: str
) -> None:
    own = make_daemon(control={"remove_timeout": 1}, program=LANES[lane])
    image, content = make_image(own, filesystem)(), SHORT
    image.path.with_name("hard").hardlink_to(image.path)
    image.path.with_name("soft").symlink_to(image.path)
    with own.connect("unix") as connection:
        for _ in range(2):  # C takes over
            assert connection.get(image.url, {"Range": "bytes=0-0"}).status == 206
        with frozen(filesystem):
            connection.send(encode_request("PUT", image.url, None, content))
            eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "the write waits")
            removed = way(own, image, make_image(own, tmp_path))
            assert own.control("DELETE", f"/tickets/{removed}").status == 409
        eventually(lambda: own.control("DELETE", f"/tickets/{removed}").status == 204, "the ticket is removed")
        seen = image.content()
        assert not own.has_open(image.path)
    assert image.content() == seen
    own.stop()


def test_a_ticket_whose_image_waits_to_be_opened_is_removed_at_once(filesystem: Path, make_daemon: MakeDaemon) -> None:
    # Of the threads a device gets one, which zeroes for Python; those of C's connections are others.
    own = make_daemon(backend_file={"io_threads": 4}, program=DECIDED_PROGRAM)
    images = make_image(own, filesystem)
    image, waiting = images(), images()
    with own.connect("unix") as connection, own.connect("tls") as second:
        with frozen(filesystem):
            connection.send(encode_request("PATCH", image.url, None, b'{"op": "zero", "size": 4096}'))
            eventually(lambda: own.status(image.ticket)["storage_wait"], "the zero waits")
            second.send(encode_request("GET", waiting.url))
            eventually(lambda: own.status(waiting.ticket)["active"], "the request has begun")
            own.remove(waiting.ticket)
            assert second.receive().status == 403
        assert connection.receive().status == 200
    own.stop()


def test_a_first_request_whose_image_waits_to_be_opened_ends_as_any_other(
    own: Daemon, image: Image, filesystem: Path
) -> None:
    """C serves it only when the image is open; until then it is seen, and ends with its client or its ticket."""
    fields = {"Range": "bytes=0-9"}
    with own.connect("unix") as holder:
        with frozen(filesystem), ExitStack() as cleanup:
            holder.send(encode_request("PUT", image.url, None, SHORT))
            eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "the write waits")
            assert own.control("DELETE", f"/tickets/{image.ticket}").status == 409
            left, removed, served = (own.add_ticket(image.path, MiB) for _ in range(3))
            leaving, refused = (cleanup.enter_context(own.connect("unix")) for _ in range(2))
            leaving.send(encode_request("GET", f"/images/{left}", fields))
            refused.send(encode_request("GET", f"/images/{removed}", fields))
            eventually(lambda: own.status(left)["active"] and own.status(removed)["active"], "the requests wait")
            own.control("DELETE", f"/tickets/{removed}")
            assert refused.receive().status == 403
            leaving.close()
        with own.connect("unix") as connection:
            assert connection.get(f"/images/{served}", fields).status == 206
        eventually(lambda: own.status(left)["connections"] == 0, "it has gone")
        assert not own.status(left)["active"]


def test_a_new_ticket_waits_for_the_same_file_by_another_name(own: Daemon, image: Image, filesystem: Path) -> None:
    link = filesystem / "link"
    link.symlink_to(image.path)
    content = pattern(4096, seed=2)
    with own.connect("unix") as first, ExitStack() as cleanup:
        with frozen(filesystem):
            first.send(encode_request("PUT", image.url, None, SHORT))
            eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "the write waits")
            own.put_ticket({**ticket(link, MiB), "uuid": image.ticket})
            second = cleanup.enter_context(own.connect("unix"))
            second.send(encode_request("PUT", image.url, None, content))
            eventually(lambda: own.status(image.ticket)["active"], "the second write has begun")
            assert second.is_silent(timeout=1.5)
            assert own.status(image.ticket)["storage_wait"] == 0, "the storage was not asked yet"
        assert second.receive().status == 200
    assert image.read(0, 4096) == content


def test_the_daemon_ends_in_time_and_says_what_hangs(own: Daemon, image: Image, filesystem: Path) -> None:
    with own.connect("unix") as connection, frozen(filesystem):
        connection.send(encode_request("PUT", image.url, None, SHORT))
        eventually(lambda: own.status(image.ticket)["storage_wait"] >= 1, "the write waits")
        own.send_signal(signal.SIGTERM)
        own.log.wait_for("does not end.*write.*offset=0", timeout=18)
    # The process itself can end only when the kernel lets go of its thread.
    assert own.wait() == 1


# Memory


@pytest.fixture
def scarce(filesystem: Path, make_daemon: MakeDaemon) -> Daemon:
    # The least that C can work with: three huge pages for a file system.
    return make_daemon(daemon={"inactivity_timeout": 3, "buffer_memory": 28 * MiB})


@contextmanager
def without_memory(daemon: Daemon, filesystem: Path) -> Iterator[tuple[Connection, Image]]:
    """Return a connection that C serves, which has no memory for this image until the end of the block."""
    new = make_image(daemon, filesystem)
    images = [new(size=8 * MiB) for _ in range(8)]
    with ExitStack() as cleanup:
        hogs = [cleanup.enter_context(daemon.connect("unix")) for _ in images]
        for hog, image in zip(hogs, images, strict=True):  # pieces grow with what has been moved
            for _ in range(2):
                assert hog.put(image.url, bytes(MiB)).status == 200
        other = cleanup.enter_context(daemon.connect("unix"))
        for _ in range(2):
            assert other.get(images[0].url, {"Range": "bytes=0-9"}).status == 206
        with frozen(filesystem):
            for hog, image in zip(hogs, images, strict=True):
                hog.sock.settimeout(0.05)
                with suppress(TimeoutError):
                    hog.sock.sendall(encode_request("PUT", image.url, None, bytes(8 * MiB)))
            yield other, images[0]


def test_request_that_finds_no_memory_waits_for_it(scarce: Daemon, filesystem: Path) -> None:
    with ExitStack() as freezing:
        connection, image = freezing.enter_context(without_memory(scarce, filesystem))
        connection.send(encode_request("GET", image.url, {"Range": "bytes=5-9"}))
        assert connection.is_silent()
        thaw(filesystem)
        assert connection.receive().body == bytes(5)


def test_request_that_waits_for_memory_in_vain_is_told_so(scarce: Daemon, filesystem: Path) -> None:
    with without_memory(scarce, filesystem) as (connection, image):
        connection.send(encode_request("GET", image.url, {"Range": "bytes=5-9"}))
        answer = connection.receive()
        assert (answer.status, answer.closes) == (503, True)
