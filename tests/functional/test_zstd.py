# SPDX-License-Identifier: Apache-2.0
"""PUT with `Content-Encoding: zstd`: the content of one frame is written, and whatever is wrong with it is refused."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client.local.compressed import zstd
from imageio_daemon.image.zstd import WINDOWS
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Answer, Connection, encode_request
from tests.support.images import Image, KiB, MakeImage, MiB, make_image, pattern
from tests.support.metrics import Metrics
from tests.support.places import Trait, needs
from tests.support.polling import eventually
from tests.support.services import Connect

#: Half of it can be compressed.
CONTENT = pattern(MiB // 2, seed=1) + b"the same again. " * (MiB // 32)
FRAME = zstd.compress(CONTENT, 1)
MAGIC = b"\x28\xb5\x2f\xfd"


def changed(before: bytes, offset: int, data: bytes) -> bytes:
    return before[:offset] + data + before[offset + len(data) :]


def headers(offset: int, length: int) -> dict[str, str]:
    return {"Content-Encoding": "zstd", "Content-Range": f"bytes {offset}-{offset + length - 1}/*"}


def put(client: Connection, image: Image, offset: int, length: int, body: bytes, query: str = "") -> Answer:
    return client.put(image.url + query, body, headers(offset, length))


def streamed(content: bytes, *, checksum: bool = True, window: int = 20) -> bytes:
    """Return a frame that does not tell how much it has."""
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: window,
        zstd.CompressionParameter.checksum_flag: int(checksum),
    }
    encoder = zstd.ZstdCompressor(options=options)
    return encoder.compress(content) + encoder.flush()


def raw_block(data: bytes, *, last: bool = False) -> bytes:
    return struct.pack("<I", len(data) << 3 | last)[:3] + data


def frame(*blocks: bytes, window: int = 0x50) -> bytes:
    """Return a frame of these blocks, with a window of 1 MiB, and no content size."""
    return MAGIC + bytes([0, window]) + b"".join(blocks)


@pytest.mark.every_kind
@pytest.mark.parametrize(("offset", "length"), [(0, MiB), (0, 1), (511, 2), (4096, 65536), (100, 700_001)])
def test_content_is_written_where_its_range_begins(client: Connection, image: Image, offset: int, length: int) -> None:
    before = image.content()
    answer = put(client, image, offset, length, zstd.compress(CONTENT[:length], 3))
    assert (answer.status, answer.body) == (200, b"")
    assert image.content() == changed(before, offset, CONTENT[:length])


@pytest.mark.every_kind
def test_content_of_many_buffers(client: Connection, new_image: MakeImage) -> None:
    content = pattern(9 * MiB, seed=3) + bytes(8 * MiB) + b"ab" * (8 * MiB) + pattern(333, seed=4)
    image = new_image(size=len(content))
    assert put(client, image, 0, len(content), streamed(content, window=23)).status == 200
    assert image.content() == content


@pytest.mark.parametrize("level", [-5, 1, 3, 12, 19])
def test_each_level_is_decoded(client: Connection, image: Image, level: int) -> None:
    assert put(client, image, 0, MiB, zstd.compress(CONTENT, level)).status == 200
    assert image.content() == CONTENT


def test_requests_follow_each_other_on_one_connection(client: Connection, image: Image, daemon: Daemon) -> None:
    before = image.content()
    part = zstd.compress(CONTENT[:5000], 1)
    client.send(encode_request("PUT", image.url + "?flush=n", headers(0, 5000), part))
    client.send(encode_request("PUT", image.url + "?flush=n", headers(5000, 5000), part))
    client.send(encode_request("PUT", image.url, {"Content-Range": "bytes 10000-*/*"}, b"plain"))
    assert [client.receive().status for _ in range(3)] == [200] * 3
    assert image.content() == changed(before, 0, 2 * CONTENT[:5000] + b"plain")


def test_a_body_in_pieces_is_decoded(client: Connection, image: Image) -> None:
    request = encode_request("PUT", image.url, headers(0, MiB), FRAME)
    for start in range(0, len(request), 40_001):
        client.send(request[start : start + 40_001])
        client.is_silent(0.06)  # longer than a lane keeps memory for bytes that do not come
    assert client.receive().status == 200
    assert image.content() == CONTENT


def test_the_end_of_a_frame_may_come_late(client: Connection, image: Image) -> None:
    before = image.content()
    body = streamed(CONTENT[: 64 * KiB])
    request = encode_request("PUT", image.url, headers(0, 64 * KiB), body)
    client.send(request[:-2])
    assert client.is_silent()
    client.send(request[-2:])
    assert client.receive().status == 200
    assert image.content() == changed(before, 0, CONTENT[: 64 * KiB])


def test_a_client_that_waits_for_continue_gets_it(client: Connection, image: Image) -> None:
    client.send(encode_request("PUT", image.url, headers(0, MiB) | {
        "Expect": "100-continue", "Content-Length": str(len(FRAME))}))  # fmt: skip
    assert client.receive().status == 100
    client.send(FRAME)
    assert client.receive().status == 200
    assert image.content() == CONTENT


def test_a_chunked_body_is_decoded(client: Connection, image: Image) -> None:
    client.send(encode_request("PUT", image.url, headers(0, MiB) | {"Transfer-Encoding": "chunked"}))
    client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(FRAME), FRAME))
    assert client.receive().status == 200
    assert image.content() == CONTENT


def test_the_name_of_the_coding_has_no_case(client: Connection, image: Image) -> None:
    assert client.put(image.url, FRAME, headers(0, MiB) | {"Content-Encoding": "ZSTD"}).status == 200


def test_written_bytes_are_those_of_the_image(client: Connection, image: Image, daemon: Daemon) -> None:
    assert put(client, image, 0, MiB, FRAME).status == 200
    client.close()
    eventually(lambda: daemon.status(image.ticket)["transferred"] == MiB, "bytes of the image are counted")


@needs(Trait.GROWS)
def test_content_may_let_an_image_grow(client: Connection, new_image: MakeImage) -> None:
    image = new_image(b"start", ticket_size=MiB)
    assert put(client, image, 10_000, 3, zstd.compress(b"end")).status == 200
    assert image.content() == b"start" + bytes(9995) + b"end"


def test_content_outside_of_the_ticket_is_refused(connect: Connect, image: Image) -> None:
    before = image.content()
    for offset, length in ((MiB - 10, 11), (0, 2**63), (2**64, 1)):
        assert put(connect(), image, offset, length, zstd.compress(bytes(11))).status == 416
    assert image.content() == before


# What is wrong with a frame


def empty_blocks(count: int) -> bytes:
    return frame(raw_block(b"x"), *[raw_block(b"")] * count, raw_block(b"y", last=True))


BAD: dict[str, tuple[int, Callable[[], bytes], str]] = {
    "nothing like a frame": (8, lambda: b"no frame", "does not begin with a frame"),
    "a part of the magic number": (8, lambda: MAGIC[:3], "ends before its frame"),
    "a part of the head": (8, lambda: zstd.compress(bytes(300))[:6], "ends before its frame"),
    "a skippable frame": (8, lambda: b"\x50\x2a\x4d\x18" + bytes(4) + zstd.compress(b"12345678"), "begin with a frame"),
    "a skippable frame behind": (8, lambda: zstd.compress(b"12345678") + b"\x50\x2a\x4d\x18" + bytes(4), "bytes after"),
    "two frames": (8, lambda: zstd.compress(b"1234") * 2, "as many bytes as Content-Range"),
    "a byte behind": (8, lambda: zstd.compress(b"12345678") + b"x", "bytes after its frame"),
    "a reserved bit": (8, lambda: MAGIC + b"\x08" + bytes(20), "reserved bits"),
    "a dictionary": (8, lambda: MAGIC + b"\x21\x07\x08" + raw_block(b"12345678", last=True), "dictionary"),
    "a window of 16 MiB": (MiB, lambda: frame(raw_block(b"x"), window=14 << 3), "window is larger"),
    "one byte more": (len(CONTENT) - 1, lambda: FRAME, "as many bytes as Content-Range"),
    "one byte less": (len(CONTENT) // 2 + 1, lambda: zstd.compress(CONTENT[: MiB // 2]), "as many bytes"),
    "one byte more than is told": (9_999, lambda: streamed(CONTENT[:10_000]), "as many bytes as Content-Range"),
    "one byte less than is told": (10_001, lambda: streamed(CONTENT[:10_000]), "as many bytes as Content-Range"),
    "a bomb": (64 * KiB, lambda: streamed(bytes(256 * MiB)), "as many bytes as Content-Range"),
    "no end": (MiB, lambda: FRAME[:-1], "ends before its frame"),
    "half of it": (MiB, lambda: FRAME[: len(FRAME) // 2], "ends before its frame"),
    "another checksum": (9, lambda: streamed(b"123456789")[:-1] + b"\0", "damaged"),
    "a block of the reserved kind": (8, lambda: frame(b"\x07\0\0"), "damaged"),
    "blocks of nothing": (2, lambda: empty_blocks(1000), "much longer than its content"),
}


def test_bad_frames_are_refused(connect: Connect, image: Image) -> None:
    for name, (length, body, why) in BAD.items():
        client = connect()
        answer = put(client, image, 0, length, body())
        assert (answer.status, answer.code) == (400, "invalid_request"), f"{name}: {answer}"
        assert why in answer.text, f"{name}: {answer.text}"
        if not answer.closes:  # its rest was read: the connection goes on
            assert put(client, image, 0, MiB, FRAME).status == 200, name
        client.close()


def test_a_bad_frame_of_one_piece_writes_nothing(client: Connection, image: Image) -> None:
    before = image.content()
    body = streamed(CONTENT[: 60 * KiB])
    assert put(client, image, 0, 60 * KiB, body[:-1] + bytes([body[-1] ^ 1])).status == 400
    assert image.content() == before


def test_some_blocks_of_nothing_are_fine(client: Connection, image: Image) -> None:
    assert put(client, image, 0, 2, empty_blocks(100)).status == 200
    assert image.read(0, 2) == b"xy"


@pytest.mark.parametrize("value", [None, "bytes 0-*/*", "bytes 0-*/1048576", "bytes 5-4/*"])
def test_the_range_needs_its_last_byte(client: Connection, image: Image, value: str | None) -> None:
    fields = {"Content-Encoding": "zstd"} | ({} if value is None else {"Content-Range": value})
    answer = client.put(image.url, FRAME, fields)
    assert answer.status == 400
    assert "last byte" in answer.text


def test_an_empty_body_is_no_frame(client: Connection, image: Image) -> None:
    answer = put(client, image, 0, MiB, b"")
    assert (answer.status, "ends before its frame" in answer.text) == (400, True)


@pytest.mark.parametrize("coding", ["gzip", "zstd, gzip", "zstd,zstd", "x-zstd"])
def test_another_coding_is_told_what_is_served(client: Connection, image: Image, coding: str) -> None:
    answer = client.put(image.url, FRAME, headers(0, MiB) | {"Content-Encoding": coding})
    assert (answer.status, answer.headers["Accept-Encoding"]) == (415, "zstd")


def test_two_codings_are_refused(client: Connection, image: Image) -> None:
    request = encode_request("PUT", image.url, headers(0, MiB), FRAME)
    client.send(request.replace(b"\r\n\r\n", b"\r\ncontent-encoding: zstd\r\n\r\n", 1))
    assert client.receive().status == 400


@needs(Trait.HERE)
@pytest.mark.parametrize("content", [b"x", b"xyz"], ids=["no content", "no end"])
def test_blocks_of_nothing_are_no_progress(connect: Connect, new_image: MakeImage, content: bytes) -> None:
    image, client = new_image(inactivity_timeout=1), connect()
    length = 3 if content == b"xyz" else 60 * KiB
    body = frame(raw_block(content))
    fields = headers(0, length) | {"Content-Length": str(len(body) + 600)}
    client.send(encode_request("PUT", image.url, fields) + body)
    try:
        while client.is_silent(0.1):
            client.send(raw_block(b""))
    except OSError:
        return  # it was cut off
    assert client.status_or_end() in (400, None)


def test_slow_content_is_progress(connect: Connect, new_image: MakeImage) -> None:
    image, client = new_image(size=1600, inactivity_timeout=1), connect()
    blocks = [raw_block(CONTENT[at : at + 100], last=at == 1500) for at in range(0, 1600, 100)]
    fields = headers(0, 1600) | {"Content-Length": str(len(frame(*blocks)))}
    client.send(encode_request("PUT", image.url, fields) + frame())
    for block in blocks:
        client.send(block)
        client.is_silent(0.1)
    assert client.receive().status == 200
    assert image.content() == CONTENT[:1600]


def test_a_client_that_vanishes_writes_no_more(connect: Connect, image: Image) -> None:
    client = connect()
    client.send(encode_request("PUT", image.url, headers(0, MiB), FRAME)[:-1])
    client.reset()
    assert put(connect(), image, 0, MiB, zstd.compress(bytes(MiB))).status == 200
    assert image.content() == bytes(MiB)


def test_many_connections_share_the_memory_for_windows(connect: Connect, new_image: MakeImage) -> None:
    """Each of these frames has a window of 8 MiB; a ticket may have two of them at a time."""
    image = new_image(size=6 * MiB)
    connections = [connect() for _ in range(6)]
    contents = [pattern(MiB, seed=seed) for seed in range(6)]
    for number, (client, content) in enumerate(zip(connections, contents, strict=True)):
        body = streamed(content, window=23)
        client.send(encode_request("PUT", image.url + "?flush=n", headers(number * MiB, MiB), body))
    assert [client.receive().status for client in connections] == [200] * 6
    assert image.content() == b"".join(contents)


def begun(connect: Connect, image: Image, frame: bytes, sent: int) -> Connection:
    """Return a connection on which the first bytes of a frame were sent, with a MiB of content."""
    client = connect()
    fields = headers(0, MiB) | {"Content-Length": str(len(frame))}
    client.send(encode_request("PUT", image.url + "?flush=n", fields) + frame[:sent])
    assert client.is_silent(0.05)
    return client


def test_all_requests_share_the_memory_for_windows(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(remote={"port": 0})
    clients, body = [], streamed(CONTENT, window=23)
    for _ in range(9):
        image = make_image(daemon, tmp_path)(size=MiB)
        clients.append(begun(lambda: daemon.connect("tls"), image, body, 1000))
        eventually(lambda: Metrics(daemon).sum("decoder_memory_bytes") > 0, "there is a decoder")
        assert Metrics(daemon).sum("decoder_memory_bytes") <= WINDOWS
    for client in clients:
        client.reset()


def have_windows(daemon: Daemon, count: int) -> None:
    """Wait until so many decoders have a window of 8 MiB."""
    least = count * (8 * MiB + MiB // 2)
    eventually(lambda: Metrics(daemon).sum("decoder_memory_bytes") >= least, "they have their memory")


@needs(Trait.HERE)
def test_who_pauses_is_ended_for_others(connect: Connect, new_image: MakeImage, daemon: Daemon) -> None:
    body = streamed(CONTENT, window=23)
    slow = [begun(connect, new_image(inactivity_timeout=60), body, 1000) for _ in range(7)]
    have_windows(daemon, 7)
    image = new_image()
    assert put(connect(), image, 0, MiB, body).status == 200
    assert image.content() == CONTENT
    eventually(lambda: any(not client.is_silent(0.01) for client in slow), "one of them is told")
    answers = [client.receive() for client in slow if not client.is_silent(0.1)]
    for answer in answers:
        assert (answer.status, answer.code) == (503, "too_many_decoders")
        assert answer.headers["Retry-After"] == "1"
    for client in slow:
        client.close()


def test_who_pauses_goes_on_if_nobody_waits(connect: Connect, image: Image) -> None:
    body = streamed(CONTENT, window=23)
    client = begun(connect, image, body, 1000)
    assert client.is_silent(0.5)
    client.send(body[1000:])
    assert client.receive().status == 200
    assert image.content() == CONTENT


@needs(Trait.HERE)
def test_without_memory_a_request_is_refused_soon(connect: Connect, new_image: MakeImage, daemon: Daemon) -> None:
    """All that there is is used by a single ticket, whose decoders are not ended for its own requests."""
    image, body = new_image(inactivity_timeout=60), streamed(CONTENT, window=23)
    slow = [begun(connect, image, body, 1000) for _ in range(5)]
    have_windows(daemon, 5)
    answer = put(connect(), image, 0, MiB, body)
    assert (answer.status, answer.code) == (503, "too_many_decoders")
    assert put(connect(), new_image(), 0, MiB, body).status == 200
    for client in slow:
        client.close()


def test_all_but_the_end_is_written_while_the_end_of_a_frame_is_awaited(connect: Connect, image: Image) -> None:
    """No memory waits for it. The last page is written when all is known to be good."""
    body = streamed(CONTENT)
    client = begun(connect, image, body, len(body) - 2)
    eventually(lambda: image.read(0, MiB - 4096) == CONTENT[:-4096], "all is written that can be")
    assert image.read(MiB - 1, 1) != CONTENT[-1:]
    client.send(body[-2:])
    assert client.receive().status == 200
    assert image.content() == CONTENT


def test_a_bad_end_that_comes_late_is_refused(connect: Connect, image: Image) -> None:
    body = streamed(CONTENT)
    client = begun(connect, image, body, len(body) - 2)
    assert client.is_silent(0.3)
    client.send(b"\0\0")
    assert client.receive().status == 400


# What a server says


def test_options_name_the_coding_to_who_may_write(client: Connection, new_image: MakeImage) -> None:
    assert client.request("OPTIONS", "/images/*").json()["encodings"] == ["zstd"]
    assert client.request("OPTIONS", new_image().url).json()["encodings"] == ["zstd"]
    assert "encodings" not in client.request("OPTIONS", new_image(ops=["read"]).url).json()
