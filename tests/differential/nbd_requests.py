# SPDX-License-Identifier: Apache-2.0
"""Bytes that NBD clients send: options, and ends of a connection."""

from collections.abc import Iterator, Mapping
from struct import pack

from imageio_daemon.nbdproto.constants import Command
from tests.differential.scene import EXPIRED, MAIN, SIZE, SMALL, UNKNOWN
from tests.support.images import MiB

# Options


def option(number: int, payload: bytes = b"") -> bytes:
    """Return an option."""
    return b"IHAVEOPT" + pack(">II", number, len(payload)) + payload


def info(name: str, *infos: int) -> bytes:
    """Return the payload of INFO and GO."""
    return pack(">I", len(name)) + name.encode() + pack(f">H{len(infos)}H", len(infos), *infos)


def contexts(name: str, *queries: str) -> bytes:
    """Return the payload of LIST_META_CONTEXT and SET_META_CONTEXT."""
    told = b"".join(pack(">I", len(query)) + query.encode() for query in queries)
    return pack(">I", len(name)) + name.encode() + pack(">I", len(queries)) + told


EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO, STRUCTURED, LIST_META, SET_META, EXTENDED = 1, 2, 3, 5, 6, 7, 8, 9, 10, 11

#: Options that a client sends after the flags. Each value is a whole negotiation.
OPTIONS: Mapping[str, bytes] = {
    "nothing": b"",
    "half an option": option(ABORT)[:10],
    "no option": b"x" * 100,
    "abort": option(ABORT),
    "abort with a payload": option(ABORT, b"x"),
    "unknown": option(99, b"data") + option(12345),
    "list": option(LIST) + option(LIST, b"x"),
    "tls": option(STARTTLS, b"x"),
    "structured": option(STRUCTURED) + option(STRUCTURED) + option(STRUCTURED, b"x"),
    "extended": option(EXTENDED) + option(EXTENDED) + option(STRUCTURED) + option(EXTENDED, b"x"),
    "structured, then extended": option(STRUCTURED) + option(EXTENDED),
    "info": option(INFO, info(MAIN)) + option(INFO, info(MAIN, 0, 1, 2, 3, 77)) + option(INFO, info(MAIN, 3, 3)),
    "info of none": option(INFO, info(UNKNOWN)) + option(INFO, info("")) + option(INFO, info(EXPIRED)),
    "malformed info": option(INFO, b"") + option(INFO, b"\0\0\0\xff") + option(INFO, info(MAIN) + b"x"),
    "a name with a NUL": option(INFO, info("a\0b")),
    "a long name": option(INFO, info("x" * 4096)) + option(INFO, info("x" * 4097)),
    "a long option": option(INFO, b"x" * 70_000),
    "a longer option": option(INFO, b"x" * 200_000),
    "contexts": option(LIST_META, contexts(MAIN)) + option(LIST_META, contexts(MAIN, "base:")),
    "contexts of none": option(STRUCTURED) + option(LIST_META, contexts(UNKNOWN)) + option(SET_META, contexts(UNKNOWN)),
    "contexts before chunks": option(SET_META, contexts(MAIN, "base:allocation")),
    "contexts in chunks": option(STRUCTURED)
    + option(SET_META, contexts(MAIN, "base:allocation", "x-y:z"))
    + option(SET_META, contexts(MAIN))
    + option(SET_META, contexts(MAIN, "base:allocation", "base:allocation"))
    + option(LIST_META, contexts(MAIN, "qemu:", "base:x")),
    "malformed contexts": option(STRUCTURED) + option(SET_META, contexts(MAIN, "base:allocation")[:-1]),
    "export of none": option(EXPORT_NAME, UNKNOWN.encode()),
    "go to none": option(GO, info(UNKNOWN)) + option(GO, info(EXPIRED)),
    "go": option(GO, info(MAIN)),
    "go, structured": option(STRUCTURED)
    + option(SET_META, contexts(MAIN, "base:allocation"))
    + option(GO, info(MAIN, 3)),
    "go, extended": option(EXTENDED) + option(SET_META, contexts(MAIN, "base:allocation")) + option(GO, info(MAIN, 0)),
    "export name": option(EXPORT_NAME, MAIN.encode()),
}

#: The client's flags.
FLAGS = (0, 1, 2, 3, 4, 7, 0xFFFFFFFF)

#: Offsets at which the storage of these images changes.
PLACES = (0, MiB, 2 * MiB, SMALL, SIZE)

# Requests


def _request(command: int, flags: int, offset: int, length: int, *, extended: bool) -> bytes:
    if extended:
        return pack(">IHHQQQ", 0x21E41C71, flags, command, 7, offset, length)
    return pack(">IHHQQI", 0x25609513, flags, command, 7, offset, length)


def endings(form: str) -> Iterator[tuple[str, bytes]]:
    """Yield bytes that end a connection in the transmission phase, with names."""
    extended = form == "extended"

    def ask(command: int, flags: int = 0, offset: int = 0, length: int = 0) -> bytes:
        return _request(command, flags, offset, length, extended=extended)

    read = ask(Command.READ, 0, 0, 512)
    yield "goodbye", ask(Command.DISC)
    yield "goodbye behind a read", read + ask(Command.DISC)
    yield "goodbye with more", ask(Command.DISC) + read
    yield "goodbye with flags", ask(Command.DISC, 1, 5, 5)
    yield "a bad magic", b"x" * 64
    yield "a bad magic behind a read", read + b"x" * 64
    yield "the magic of the other form", _request(Command.READ, 0, 0, 512, extended=not extended) + bytes(64)
    yield "zeros", bytes(200)


#: Bytes after which a client ends its sending.
def cuts(form: str) -> Iterator[tuple[str, bytes]]:
    """Yield incomplete requests, with names."""
    extended = form == "extended"
    write = _request(Command.WRITE, 32 if extended else 0, 4096, 5000, extended=extended)
    read = _request(Command.READ, 0, 0, 512, extended=extended)
    yield "nothing", b""
    yield "half a header", read[:13]
    yield "a read and half a header", read + read[:13]
    yield "half a write", write + bytes(100)
    for length in (2**25 + 1, 2**32 - 1):
        long = _request(Command.WRITE, 32 if extended else 0, 0, length, extended=extended)
        yield f"a write of {length}", long + bytes(1000)
    yield "a whole write", write + b"x" * 5000
