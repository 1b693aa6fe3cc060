# SPDX-License-Identifier: Apache-2.0
"""examples/download against the daemon, and against servers that misbehave."""

from pathlib import Path

import pytest

from tests.examples.programs import Result, ScriptedServer, answer, features, run, run_on_terminal
from tests.support.daemon import Daemon
from tests.support.images import Image, KiB, MakeImage, MiB, pattern
from tests.support.realstorage import missing, mounted

READABLE = features("extents")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The file to create."""
    return tmp_path / "copy.raw"


@pytest.fixture
def sparse(new_image: MakeImage) -> Image:
    """An image with holes around its data."""
    image = new_image(size=8 * MiB, ops=["read"])
    with image.path.open("r+b") as f:
        f.seek(MiB + 1)
        f.write(pattern(MiB))
    return image


def size(total: int) -> bytes:
    """Make the answer to the question for the image's size, whose first byte is read."""
    return answer("206 Partial Content", "h", f"Content-Range: bytes 0-0/{total}")


def failure(copy: Path, *answers: bytes) -> Result:
    """Download from a scripted server, and check that nothing is left behind."""
    with ScriptedServer(*answers) as server:
        result = run("download", server.url, copy)
    assert list(copy.parent.iterdir()) == []
    return result


def test_copy_equals_the_image(daemon: Daemon, sparse: Image, copy: Path) -> None:
    result = run("download", "--cafile", daemon.cafile, daemon.url(sparse.ticket), copy)
    assert result.status == 0, result
    assert copy.read_bytes() == sparse.content()
    assert result.text.startswith("downloaded 8.0 MiB in ")


def test_copy_has_holes_for_zeros(daemon: Daemon, sparse: Image, copy: Path) -> None:
    assert run("download", "--cafile", daemon.cafile, daemon.url(sparse.ticket), copy).status == 0
    assert copy.stat().st_size == 8 * MiB
    assert copy.stat().st_blocks * 512 < 2 * MiB


def test_unix_socket_serves_as_well(daemon: Daemon, sparse: Image, copy: Path) -> None:
    result = run("download", "--unix-socket", daemon.local_socket, daemon.url(sparse.ticket), copy)
    assert result.status == 0, result
    assert copy.read_bytes() == sparse.content()


@pytest.mark.parametrize("size", [0, 1, 4095, 64 * KiB + 1])
def test_odd_size_is_kept(daemon: Daemon, new_image: MakeImage, copy: Path, size: int) -> None:
    image = new_image(pattern(size))
    result = run("download", "--cafile", daemon.cafile, daemon.url(image.ticket), copy)
    assert result.status == 0, result
    assert copy.read_bytes() == pattern(size)


def test_older_copy_is_replaced(daemon: Daemon, sparse: Image, copy: Path) -> None:
    copy.write_bytes(b"older" * MiB)
    assert run("download", "--cafile", daemon.cafile, daemon.url(sparse.ticket), copy).status == 0
    assert copy.read_bytes() == sparse.content()


def test_extents_of_zeros_are_not_read(copy: Path) -> None:
    extents = [
        {"start": 0, "length": 3, "zero": True, "hole": False},
        {"start": 3, "length": 2, "zero": False, "hole": False},
    ]
    data = answer("206 Partial Content", "ab", "Content-Range: bytes 3-4/5")
    with ScriptedServer(READABLE, size(5), answer("200 OK", extents), data) as server:
        assert run("download", server.url, copy).status == 0
    assert copy.read_bytes() == b"\0\0\0ab"


def test_server_without_extents_is_read_whole(copy: Path) -> None:
    first = answer("206 Partial Content", "h", "Content-Range: bytes 0-0/5")
    whole = answer("206 Partial Content", "hello", "Content-Range: bytes 0-4/5")
    with ScriptedServer(features(), first, whole) as server:
        assert run("download", server.url, copy).status == 0
    assert copy.read_bytes() == b"hello"


def test_server_without_extents_may_have_an_empty_image(copy: Path) -> None:
    refusal = answer("416 Range Not Satisfiable", "empty", "Content-Range: bytes */0")
    with ScriptedServer(features(), refusal) as server:
        assert run("download", server.url, copy).status == 0
    assert copy.read_bytes() == b""


def test_terminal_shows_a_bar(daemon: Daemon, sparse: Image, copy: Path) -> None:
    result = run_on_terminal("download", "--cafile", daemon.cafile, daemon.url(sparse.ticket), copy)
    assert result.status == 0, result
    assert "\r[" in result.text
    assert "downloaded 8.0 MiB" in result.text


# What can go wrong, and the one line that tells


def test_unknown_ticket_leaves_no_file(daemon: Daemon, copy: Path) -> None:
    result = run("download", "--cafile", daemon.cafile, daemon.url("no-such-ticket"), copy)
    result.failed_with("the ticket does not allow this .*403")
    assert list(copy.parent.iterdir()) == []


def test_transfer_cut_short_leaves_the_older_copy(copy: Path) -> None:
    copy.write_bytes(b"older")
    first = answer("206 Partial Content", "h", "Content-Range: bytes 0-0/5")
    cut = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\n\r\nhel"
    with ScriptedServer(features(), first, cut) as server:
        run("download", server.url, copy).failed_with("cut the transfer off, 2 bytes before the end")
    assert copy.read_bytes() == b"older"
    assert list(copy.parent.iterdir()) == [copy]


def test_answer_longer_than_the_range_is_told(copy: Path) -> None:
    first = answer("206 Partial Content", "h", "Content-Range: bytes 0-0/5")
    longer = answer("200 OK", "hello, world")
    failure(copy, features(), first, longer).failed_with("sent another range")


def test_unknown_size_is_told(copy: Path) -> None:
    failure(copy, features(), answer("206 Partial Content", "h", "Content-Range: bytes 0-0/*")).failed_with(
        "did not tell the size"
    )


@pytest.mark.parametrize("extents", ["text", {}, [1], [{"start": 0}], [{"start": 0, "length": None, "zero": False}]])
def test_malformed_extents_are_told(copy: Path, extents: object) -> None:
    failure(copy, READABLE, size(5), answer("200 OK", extents)).failed_with("extents that are not those of 5 bytes")


def test_extents_with_a_gap_are_told(copy: Path) -> None:
    extents = [{"start": start, "length": 10, "zero": True} for start in (0, 11)]
    failure(copy, READABLE, size(21), answer("200 OK", extents)).failed_with("extents that are not those of 21 bytes")


def test_device_is_no_target(daemon: Daemon, sparse: Image) -> None:
    run("download", "--cafile", daemon.cafile, daemon.url(sparse.ticket), "/dev/full").failed_with(
        "/dev/full is not a regular file"
    )


def test_missing_directory_is_told(daemon: Daemon, sparse: Image) -> None:
    run("download", "--cafile", daemon.cafile, daemon.url(sparse.ticket), "/no/such/copy").failed_with(
        "can't write /no/such/copy.part: No such file"
    )


def test_full_disk_is_told(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with mounted("tmpfs", tmp_path, MiB // 2) as directory:
        result = run("download", "--cafile", daemon.cafile, daemon.url(image.ticket), directory / "copy")
        result.failed_with("can't write .*copy.part: No space left on device")
        assert list(directory.iterdir()) == []
