# SPDX-License-Identifier: Apache-2.0
"""Real requests, from which fuzzing begins: `python -m tests.fuzz.seeds DIRECTORY` writes them, by their targets."""

import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from imageio_daemon.client.local.compressed import zstd

Seeds = Iterator[tuple[str, bytes]]


def request(line: str, *fields: str, body: bytes = b"") -> bytes:
    """Return an HTTP request for the one image that targets have."""
    head = [f"{line} HTTP/1.1", "Host: localhost", *fields, *([f"Content-Length: {len(body)}"] if body else []), "", ""]
    return "\r\n".join(head).encode() + body


def patch(body: str) -> bytes:
    """Return a PATCH as programs send it."""
    return request("PATCH /images/x", "Content-Type: application/json", body=body.encode())


HEADS = {
    "get": request("GET /images/x", "Range: bytes=0-4095", "Accept-Encoding: identity", "User-Agent: x/1"),
    "get-keep-alive": request("GET /images/x", "Connection: keep-alive", "range:bytes=5-5", "Authorization: x"),
    "get-open": request("GET /images/x", "Range: bytes=0-"),
    "get-past-the-end": request("GET /images/x", "Range: bytes=69999-70000"),
    "get-past-all": request("GET /images/x", f"Range: bytes=1-{2**64}"),
    "get-many-digits": request("GET /images/x", "Range: bytes=1-" + "9" * 4000),
    "get-zeros": request("GET /images/x", "Range: bytes=1-" + "0" * 400 + "1"),
    "get-whole": request("GET /images/x", "Origin: https://ui", "Connection: Keep-Alive"),
    "put-expect": request("PUT /images/x", "Expect: 100-Continue", "Content-Length: 4096"),
    "put": request("PUT /images/x", "Content-Range: bytes 4096-8191/*", "Content-Length: 4096"),
    "put-no-flush": request("PUT /images/x?flush=n", "content-range: bytes 0-*/*", "Content-Length: 1"),
    "put-flush": request("PUT /images/x?flush=y", "Content-Range: bytes 1-2/70000", "Content-Length: 2"),
    "put-encoded": request(
        "PUT /images/x", "Content-Encoding: zstd", "Content-Range: bytes 1-2/*", "Content-Length: 9"
    ),
    "put-encoded-open": request("PUT /images/x", "content-encoding: ZSTD", "Content-Range: bytes 1-*/*"),
    "patch": request("PATCH /images/x", "Content-Length: 44", "Content-Type: application/json"),
    "options": request("OPTIONS /images/x"),
    "browser": request("GET /images/x", "Range: bytes=0-1", "Referer: x", "Sec-Fetch-Mode: cors", "If-Range: x"),
    "twice": request("GET /images/x", "Range: bytes=0-1", "Range: bytes=0-2"),
    "long": request("GET /images/x", "Range: bytes=0-1", "User-Agent: " + "x" * 4000),
    "many-fields": request("GET /images/x", "Range: bytes=0-1", *["Accept: x"] * 40),
    "too-long": request("GET /images/x", "Range: bytes=0-1", "User-Agent: " + "x" * 4050),
    "too-long-for-anyone": request("GET /images/x", "User-Agent: " + "x" * 16384),
    "chunked": request("PUT /images/x", "Transfer-Encoding: chunked"),
    "two-lengths": request("PUT /images/x", "Transfer-Encoding: chunked", "Content-Length: 1"),
    "upgrade": request("GET /images/x", "Connection: keep-alive, Upgrade", "Upgrade: websocket", "connection: close"),
    "bare-line-feed": b"GET /images/x HTTP/1.1\nHost: x\r\n",
    "old": b"GET http://host/images/x HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
    "fields-of-nobody": request("GET /images/x", *["A: b"] * 101),
    "large-numbers": request("PUT /images/x", f"Content-Range: bytes {2**64}-*/*", "Content-Length: 9" + "9" * 17),
}

CHUNKS = {
    "one": b"5\r\nhello\r\n0\r\n\r\nmore",
    "extensions": b"00A;x=y;z\r\n0123456789\r\n0;last\r\nTrailer: 1\r\nOther:\r\n\r\n",
    "short": b"1\r\na\r\n" * 40 + b"0\r\n\r\n",
    "no-size": b"5\r\nhello\r\nx\r\n",
    "wrong-end": b"5\r\nhello!\r\n",
    "bare-line-feed": b"5\nhello",
    "long-line": b"5;" + b"x" * 300,
    "long-trailer": b"0\r\n" + b"A: b\r\n" * 100,
    "no-trailer": b"0\r\nnonsense\r\n",
    "large": b"fffffffffffffff\r\n" + bytes(100),
}

PATCHES = {
    "zero": '{"op": "zero", "offset": 0, "size": 4096, "flush": false}',
    "zero-fast": '{"size":70000,"op":"zero","fast":true}',
    "flush": '{"op": "flush"}',
    "spaces": ' {\t"op"\r\n:"zero" , "size" : 1,"flush" : true }\n',
    "twice": '{"op": "zero", "size": 1, "offset": 2, "offset": 3}',
    "number": '{"op": "zero", "size": 0123, "offset": 1e3}',
}

BODY = bytes(range(1, 200))
LONG = b"\xff"  # and two bytes: a payload of the stream, see targets/fuzz.h

STREAMS = {
    "mixed": b"\x20\0\0"
    + request("PUT /images/x", "Content-Range: bytes 100-298/*", body=BODY)
    + request("GET /images/x", "Range: bytes=0-8191")
    + patch('{"op": "zero", "offset": 50, "size": 9000}')
    + request("GET /images/x", "Range: bytes=0-69999")
    + patch('{"op": "flush"}'),
    "in-pieces": b"\x30\x03\x07"
    + request("PUT /images/x?flush=n", "Content-Length: 199") + BODY
    + request("GET /images/x", "Range: bytes=10-300")
    + patch('{"op": "zero", "size": 4096, "flush": true}'),
    "long": b"\x04\0\x01" + request("PUT /images/x", "Content-Length: 2097152") + LONG + b"\x80\0"
    + request("GET /images/x", "Range: bytes=4095-3145730"),
    "long-secure": b"\x14\x08\x05" + request("PUT /images/x", "Content-Length: 1310720") + LONG + b"\x50\0"
    + request("GET /images/x", "Range: bytes=1-1310719"),
    "grows": b"\x08\0\0" + request("PUT /images/x", "Content-Range: bytes 69000-*/*", "Content-Length: 1000")
    + bytes(1000) + request("GET /images/x", "Range: bytes=0-69999"),
    "given-back": b"\x02\0\x02" + patch('{"op": "zero", "size": 70000}') + request("OPTIONS /images/x"),
    "whole": b"\0\0\x04" + request("GET /images/x", "Origin: x") + request("GET /images/x", "Range: bytes=69000-"),
    "expects": b"\0\x02\x05" + request("PUT /images/x", "Expect: 100-continue", "Origin: x", body=BODY)
    + request("PUT /images/x", "Expect: 100-continue", "Content-Length: 300") + BODY,
    "fast": b"\0\0\0" + patch('{"op": "zero", "size": 65536, "fast": true}') + patch('{"op": "flush"}'),
    "past-the-end": b"\0\0\0" + request("PUT /images/x", "Content-Range: bytes 69999-*/*", "Content-Length: 2") + b"xy",
    "get-past-the-end": b"\0\0\0" + request("GET /images/x", "Range: bytes=69990-70000")
    + request("GET /images/x", f"Range: bytes=69999-{2**64}") + request("GET /images/x", "Range: bytes=9-" + "9" * 40)
    + request("GET /images/x", "Range: bytes=70000-70000"),
    "read-only": b"\x01\0\0" + request("GET /images/x", "Range: bytes=0-9") + patch('{"op": "flush"}'),
    "cut-off": b"\0\0\x03" + request("PUT /images/x", "Content-Length: 300") + BODY,
}  # fmt: skip

READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)
COMPACT, EXTENDED = 0x25609513, 0x21E41C71


def ask(command: int, offset: int, size: int, payload: bytes = b"", *, flags: int = 0, extended: bool = False) -> bytes:
    """Return a request of NBD."""
    if extended:
        return struct.pack(">IHHQQQ", EXTENDED, flags, command, 1, offset, size) + payload
    return struct.pack(">IHHQQI", COMPACT, flags, command, 1, offset, size) + payload


def session(*, extended: bool) -> bytes:
    """Return requests of all kinds, then the goodbye."""
    writing = 32 if extended else 0
    asked = [
        (WRITE, 100, 199, BODY, writing | 1),
        (READ, 0, 140000, b"", 0),
        (ZEROES, 4096, 8192, b"", 2),
        (TRIM, 65536, 65536, b"", 0),
        (CACHE, 0, 4096, b"", 0),
        (STATUS, 0, 140000, b"", 0),
        (STATUS, 1, 100, b"", 8),
        (ZEROES, 8192, 4096, b"", 16),
        (READ, 50, 100, b"", 4),
        (FLUSH, 0, 0, b"", 0),
        (READ, 139999, 2, b"", 0),
        (DISC, 0, 0, b"", 0),
    ]
    return b"".join(ask(c, o, n, p, flags=f, extended=extended) for c, o, n, p, f in asked)


def long_session(*, extended: bool) -> bytes:
    """Return requests with payloads of several pieces."""
    flags = 32 if extended else 0
    write = ask(WRITE, 4000, 4 * 1024 * 1024, flags=flags, extended=extended) + LONG + b"\xff\xff" + LONG + b"\x00\x01"
    return write + ask(READ, 0, 4 * 1024 * 1024 + 5000, extended=extended) + write


NBD_STREAMS = {
    "simple": b"\x10\x01\0\0" + session(extended=False),
    "structured": b"\x15\x01\0\x05" + session(extended=False),
    "structured-at-once": b"\x15\x00\x10\0" + session(extended=False),
    "extended": b"\x16\x03\0\0" + session(extended=True),
    "bitmaps": b"\x15\x09\0\x05" + session(extended=False),
    "bitmaps-extended": b"\x16\x0b\0\0" + session(extended=True),
    "bitmaps-simple": b"\x10\x09\0\0" + session(extended=False),
    "extended-short-image": b"\x56\x01\x02\x03" + session(extended=True),
    "read-only": b"\x1d\0\0\x02" + session(extended=False),
    "long": b"\x91\x01\0\x01" + long_session(extended=False),
    "long-extended": b"\x96\0\0\x01" + long_session(extended=True),
    "long-secure": b"\x91\x03\0\x04" + long_session(extended=False),
    "garbage": b"\x11\0\0\0" + ask(READ, 0, 10) + b"GET / HTTP/1.1\r\n" + bytes(40),
    "busy": b"\x95\0\0\0" + (ask(WRITE, 5, 200000) + LONG + b"\x0c\x35") * 16 + ask(READ, 0, 9),
    "busy-mixed": b"\x95\0\0\x01"
    + (ask(WRITE, 0, 2**18) + LONG + b"\x10\0" + ask(READ, 0, 9) + ask(WRITE, 70000, 64) + LONG + b"\0\1") * 12
    + ask(WRITE, 0, 2**18) + LONG + b"\x10\0" + ask(WRITE, 0, 2**18) + LONG + b"\x08\0",
    "refused": b"\x11\0\0\x02" + (ask(WRITE, 2**40, 70016) + LONG + b"\x04\x46" + ask(READ, 0, 10)) * 2,
    "oversize": b"\x11\0\0\0" + ask(READ, 0, 10) + ask(WRITE, 0, 2**27) + bytes(100),
}  # fmt: skip

SIMPLE, CHUNK, EXTENDED_CHUNK = 0x67446698, 0x668E33EF, 0x6E8A278C
#: The requests of targets/nbdclient.c, by their cookies: command, offset, bytes.
ASKED = {1: (READ, 4096, 512), 2: (READ, 0, 70016), 3: (WRITE, 0, 4096), 4: (STATUS, 4096, 65536), 5: (ZEROES, 0, 9)}


def chunk(cookie: int, kind: int, payload: bytes, *, done: bool = True, extended: bool = False) -> bytes:
    """Return a chunk of a reply to one of them."""
    if extended:
        return struct.pack(">IHHQQQ", EXTENDED_CHUNK, done, kind, cookie, ASKED[cookie][1], len(payload)) + payload
    return struct.pack(">IHHQI", CHUNK, done, kind, cookie, len(payload)) + payload


def replies(*, extended: bool) -> bytes:
    """Return good replies to all, out of order and in parts."""
    head = struct.pack(">II", 1, 2) if extended else struct.pack(">I", 1)
    other = struct.pack(">II", 2, 1) if extended else struct.pack(">I", 2)
    extent = struct.Struct(">QQ" if extended else ">II")
    sent = [
        chunk(3, 0, b"", extended=extended),
        chunk(
            4, 6 if extended else 5, head + extent.pack(4096, 3) + extent.pack(61440, 0), done=False, extended=extended
        ),
        chunk(1, 1, struct.pack(">Q", 4096 + 256) + bytes(256), done=False, extended=extended),
        chunk(4, 6 if extended else 5, other + extent.pack(70000, 0), extended=extended),
        chunk(1, 2, struct.pack(">QI", 4096, 256), extended=extended),
        chunk(2, 2, struct.pack(">QI", 0, 65536), done=False, extended=extended),
        chunk(5, 0x8001, struct.pack(">IH", 95, 3) + b"no!", extended=extended),
        chunk(2, 0x8002, struct.pack(">IHQ", 5, 0, 70000), extended=extended),
    ]
    return b"".join(sent)


def bitmaps(*, extended: bool) -> bytes:
    """Return what four contexts tell, each of which goes on from another place."""
    extent, sent = struct.Struct(">QQ" if extended else ">II"), b""
    for context, step in ((4, 8192), (1, 65536), (3, 4096), (2, 70000)):
        count = max(65536 // step, 1)
        head = struct.pack(">II", context, count) if extended else struct.pack(">I", context)
        payload = head + b"".join(extent.pack(step, number % 2) for number in range(count))
        sent += chunk(4, 6 if extended else 5, payload, done=context == 2, extended=extended)
    return sent


NBD_REPLIES = {
    "bitmaps": b"\x05\0" + bitmaps(extended=False),
    "bitmaps-apart": b"\x0d\x05" + bitmaps(extended=False),
    "bitmaps-extended": b"\x0f\x09" + bitmaps(extended=True),
    "bitmaps-not-all": b"\x0d\0" + bitmaps(extended=False)[:-40],
    "simple": b"\0\0" + b"".join(struct.pack(">IIQ", SIMPLE, 0, n) + bytes(512 * (n == 1)) for n in (3, 1, 5)),
    "structured": b"\x01\0" + replies(extended=False),
    "structured-in-pieces": b"\x01\x07" + replies(extended=False),
    "extended": b"\x03\0" + replies(extended=True),
    "long": b"\x01\xff"
    + struct.pack(">IHHQIQ", CHUNK, 1, 1, 2, 70024, 0)
    + LONG
    + b"\x0c\x35"
    + replies(extended=False),
    "failed": b"\0\0" + b"".join(struct.pack(">IIQ", SIMPLE, 5, n) for n in range(1, 6)),
}

DELIVER, ANSWER, SERVE, KEEP, KEYS, TAMPER, MAKE_UP, END = range(8)
HANDS = bytes([ANSWER, 0, DELIVER, 255, SERVE, 0, ANSWER, 0, DELIVER, 255, SERVE, 0])
SAY = bytes([KEEP, 100, DELIVER, 255, SERVE, 200])

SCENES = {
    "plain": b"\0" + HANDS + SAY * 2,
    "old": b"\x01" + HANDS + bytes([ANSWER, 0, DELIVER, 255, SERVE, 0]) + SAY * 2,
    "in-pieces": b"\0" + bytes([ANSWER, 0]) + bytes([DELIVER, 40, SERVE, 0]) * 20 + HANDS + SAY,
    "keys": b"\0" + HANDS + SAY + bytes([KEYS, 0, KEYS, 1, DELIVER, 255, SERVE, 100, ANSWER, 0]) + SAY,
    "renegotiates": b"\x01" + HANDS + bytes([ANSWER, 0, DELIVER, 255, SERVE, 0, KEYS, 0, DELIVER, 255, SERVE, 9]) + SAY,
    "refused": b"\x03" + HANDS + bytes([ANSWER, 0, DELIVER, 255, SERVE, 0, KEYS, 0, DELIVER, 255, SERVE, 9]) + SAY,
    "changed": b"\0" + HANDS + bytes([KEEP, 10, TAMPER, 20, 1, DELIVER, 255, SERVE, 99, SERVE, 99]),
    "changed-hello": b"\0" + bytes([ANSWER, 0, TAMPER, 50, 1, DELIVER, 255, SERVE, 0]),
    "made-up": b"\0" + bytes([MAKE_UP, 11]) + b"\x16\x03\x01\x00\x06\x01\x00\x00\x02\x03\x03" + bytes([SERVE, 0]),
    "http": b"\0" + bytes([MAKE_UP, 16]) + b"GET / HTTP/1.1\r\n" + bytes([SERVE, 0, SERVE, 0]),
    "farewell": b"\0" + HANDS + SAY + bytes([END, 3, DELIVER, 255, SERVE, 9, SERVE, 9, END, 8]),
    "client": b"\x04" + bytes([SERVE, 0]) + HANDS + SAY + bytes([KEYS, 1, DELIVER, 255, SERVE, 9]) + SAY,
    "old-client": b"\x05" + bytes([SERVE, 0]) + HANDS * 2 + SAY + bytes([KEYS, 0]) + SAY,
    "client-of-another": b"\x04" + bytes([SERVE, 0, ANSWER, 0, TAMPER, 255, 9, DELIVER, 255, SERVE, 0]),
    "flood": b"\0" + HANDS + bytes([KEYS, 0]) * 100 + SAY + bytes([SERVE, 0]) + SAY,
    "writes": b"\0" + HANDS + SAY + bytes([SERVE, 15, ANSWER, 0, SERVE, 7, END, 7, SERVE, 7]),
}


def _streamed(data: bytes) -> bytes:
    encoder = zstd.ZstdCompressor(options={zstd.CompressionParameter.checksum_flag: 1})
    return encoder.compress(data) + encoder.flush()


#: What a frame decodes to has as many bytes as the first two of the input tell: one more than 16 times so many.
FRAMES: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "text": (4097, lambda data: zstd.compress(data, 3)),
    "zeros": (1_000_001, lambda data: zstd.compress(bytes(len(data)), 1)),
    "streamed": (65_537, _streamed),
    "checksum": (17, _streamed),
    "cut": (4097, lambda data: zstd.compress(data)[:-3]),
    "longer": (4097, lambda data: zstd.compress(data + b"x")),
    "behind": (17, lambda data: zstd.compress(data) + b"x"),
    "skippable": (17, lambda data: b"\x50\x2a\x4d\x18" + bytes(4) + zstd.compress(data)),
    "window": (1, lambda _: b"\x28\xb5\x2f\xfd\0\xff" + bytes(9)),
    "nothing": (17, lambda _: b"\x28\xb5\x2f\xfd\0\x50" + bytes(300)),
}


def frames() -> Iterator[tuple[str, bytes, int]]:
    """Yield name and bytes of frames, and what their content is said to be long."""
    for name, (length, encode) in FRAMES.items():
        yield name, encode(((b"content " * 10 + BODY) * (length // 100 + 1))[:length]), length


def encoded_put(frame: bytes, length: int) -> bytes:
    """Return a stream for a lane: a PUT with an encoded body."""
    fields = ("Content-Encoding: zstd", f"Content-Range: bytes 10-{10 + length - 1}/*")
    return request("PUT /images/x", *fields, body=frame).replace(LONG, LONG + bytes(2))


WRITES, READS = 4, 3  # the kinds of operations, less one, that an instruction has
FLUSHES, EXPECTS, IN_CHUNKS, ENCODED, UNBOUNDED, ALL_OF_IT = 1, 2, 4, 8, 16, 32


def chunks(data: bytes, size: int) -> bytes:
    """Return a body in chunks of this size."""
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nA: b\r\n\r\n"


def instruction(
    kind: int, flags: int, stream: bytes = b"", *, offset: int = 0, length: int = 0, body: int = 0, cut: int = 0
) -> bytes:
    """Return an input: options, what the lane has at first, how the stream is cut, the instruction, the stream."""
    numbers = b"".join(struct.pack(">HB", number, 0) for number in (offset, length, body))
    return bytes([4 | (cut & 1) << 4, cut, cut, kind, flags]) + numbers + stream.replace(LONG, LONG + bytes(2))


def instructions() -> Seeds:
    """Yield name and bytes of instructions."""
    data = bytes(range(1, 250)) * 200
    for cut in range(4):
        for size in (1, 100, 4096, 60000, 100000):
            body = chunks(data[: 3000 if size == 1 else None], size) + b"behind"
            yield f"chunks-{size}-{cut}", instruction(WRITES, IN_CHUNKS | UNBOUNDED, body, offset=100, cut=cut)
        yield f"long-{cut}", instruction(WRITES, FLUSHES | ALL_OF_IT, LONG + b"\x80\0", offset=5, cut=cut)
        for name, frame, length in frames():
            both = ENCODED | IN_CHUNKS | EXPECTS
            if length < 65536:
                yield f"{name}-{cut}", instruction(WRITES, ENCODED, frame, length=length, body=len(frame), cut=cut)
                yield f"{name}-{cut}-chunks", instruction(WRITES, both, chunks(frame, 50), length=length, cut=cut)
    yield "read", instruction(READS, 0, b"more", offset=10, length=50000)
    yield "read-nothing", instruction(READS, 0)
    yield "write-nothing", instruction(WRITES, FLUSHES)
    yield "write-no-chunks", instruction(WRITES, IN_CHUNKS | UNBOUNDED, b"0\r\n\r\n", offset=70)
    yield "not-whole", instruction(WRITES, IN_CHUNKS | UNBOUNDED, b"5\r\nabc")
    yield "bad-chunk", instruction(WRITES, IN_CHUNKS | UNBOUNDED, b"5\r\nabcdefg\r\n")
    yield "contradicts-itself", instruction(WRITES, IN_CHUNKS, length=5)
    yield "too-far", b"\0" + instruction(WRITES, IN_CHUNKS | UNBOUNDED, chunks(data, 100), offset=50000)[1:]


#: Images with clusters of 512 bytes, by the options of qemu-img create, and what qemu-io does with them.
QCOW2 = {
    "plain": ("64k", ["cluster_size=512"], ["write -P 5 1k 3k", "write -z 8k 4k"]),
    "v2": ("64k", ["cluster_size=512", "compat=0.10"], ["write -P 5 1k 3k", "discard 1k 1k"]),
    "narrow": ("32k", ["cluster_size=512", "refcount_bits=1"], ["write -P 5 1k 3k"]),
    "wide": ("32k", ["cluster_size=512", "refcount_bits=64"], ["write -P 5 1k 3k"]),
    "compressed": ("32k", ["cluster_size=512"], ["write -c -P 5 1k 512", "write -c -P 6 4k 512", "write 8k 512"]),
    "zstd": ("32k", ["cluster_size=512", "compression_type=zstd"], ["write -c -P 5 1k 512", "write -c 4k 512"]),
    "overlay": ("32k", ["cluster_size=512", "backing_file=nothing", "backing_fmt=raw"], []),
    "larger": ("1G", ["cluster_size=4k"], []),
}
OPERATIONS = bytes(byte for what in range(16) for byte in (what, 3 * what, 41 * what % 256, 7 * what + 1))


def qcow2_images() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "image")
        for name, (size, options, commands) in QCOW2.items():
            subprocess.run(
                ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-o", ",".join(options), path, size], check=True
            )
            for command in commands:
                subprocess.run(["qemu-io", "-f", "qcow2", "-c", command, path], check=True, stdout=subprocess.DEVNULL)
            yield name, path.read_bytes()
            path.unlink()
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=512", path, "32k"], check=True)
        changed = ["qemu-io", "-f", "qcow2", str(path), "-c"]
        for name, words, command in (
            ("snapshot", ["snapshot", "-c", "s", str(path)], "write -q -P 6 2k 1k"),
            ("bitmap", ["bitmap", "--add", "-g", "512", str(path), "b"], "write -q 8k 5k"),
        ):
            subprocess.run([*changed, "write -q -P 5 1k 3k"], check=True)
            subprocess.run(["qemu-img", *words], check=True)
            subprocess.run([*changed, command], check=True)
            yield name, path.read_bytes()


def seeds() -> Seeds:
    """Yield `target/name` and the bytes of all."""
    for name, data in HEADS.items():
        yield f"http_head/{name}", data
    for name, data in CHUNKS.items():
        yield f"http_chunks/{name}", data
    for name, text in PATCHES.items():
        yield f"http_patch/{name}", text.encode()
    for name, frame, length in frames():
        yield f"zstd/{name}", struct.pack(">HB", length // 16, 6) + frame
        yield (
            f"http_lane/{name}",
            b"\x04\0\x07" + encoded_put(frame, length) + request("GET /images/x", "Range: bytes=0-9"),
        )
    for name, data in instructions():
        yield f"http_instruction/{name}", data
    for name, data in NBD_REPLIES.items():
        yield f"nbd_client/{name}", data
    for name, image in qcow2_images():
        yield f"qcow2/{name}", bytes([len(OPERATIONS)]) + OPERATIONS + image
    for command in range(9):
        for flags in (0, 1, 2, 4, 8, 16, 32):
            yield f"nbd_wire/{command}-{flags}", b"\x15\x04" + ask(command, 512, 4096, flags=flags)
            yield f"nbd_wire/{command}-{flags}-extended", b"\x06\x05" + ask(command, 1, 9, flags=flags, extended=True)
    yield "nbd_wire/wraps", b"\x15\x04" + ask(WRITE, 2**64 - 4096, 4096)
    yield "nbd_wire/wraps-extended", b"\x16\x04" + ask(READ, 4096, 2**64 - 4096, extended=True)
    for target, streams in (("http_lane", STREAMS), ("nbd_lane", NBD_STREAMS), ("tls", SCENES)):
        for name, data in streams.items():
            yield f"{target}/{name}", data
    for cut in range(1, 9):
        yield f"nbd_lane/fault-{cut}", bytes([0x11, 4, 0, 0, cut]) + session(extended=False)
        yield f"http_lane/fault-{cut}", bytes([0x40, 0, 0, cut]) + STREAMS["mixed"][3:]
        yield f"http_lane/long-fault-{cut}", bytes([0x44, 0, 0, cut]) + STREAMS["long"][3:]
        yield f"http_lane/cut-{cut}", bytes([0, cut, cut]) + STREAMS["mixed"][3:]
        yield f"nbd_lane/cut-{cut}", bytes([0x11, cut % 2, cut, cut]) + session(extended=False)


def main() -> None:
    directory = Path(sys.argv[1])
    for name, data in seeds():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
