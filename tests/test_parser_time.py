# SPDX-License-Identifier: Apache-2.0
"""What others send is parsed in a time that its length bounds, whatever it says: one request must not stop the daemon.

Each row is a parser, and the inputs that are worst for it. A parser that takes only so many bytes gets half of them and
all of them, the others 64 and 128 KiB.
"""

import ast
import contextlib
import ctypes
import functools
import hashlib
import io
import itertools
import json
import logging
import socket
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

import imageio_daemon
from imageio_daemon.client.errors import ServerFailed, Usage
from imageio_daemon.client.local import layers, marks
from imageio_daemon.client.local.compressed import zstd
from imageio_daemon.client.server import failures as client_failures
from imageio_daemon.client.server import web
from imageio_daemon.client.server.address import ImageUrl, is_image
from imageio_daemon.client.server.client_connection import ClientConnection
from imageio_daemon.client.server.failures import error_code, retry_after
from imageio_daemon.client.server.local_socket import LocalSocket
from imageio_daemon.client.server.proxy import MAX_HEAD as MAX_PROXY_HEAD
from imageio_daemon.client.server.proxy import HttpProxy
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.commands.printable import quoted
from imageio_daemon.errors import Error, InvalidRequest, MethodNotAllowed
from imageio_daemon.frontends.http import conditions
from imageio_daemon.frontends.http import errors as http_errors
from imageio_daemon.frontends.http.connection.framing import MAX_HEAD, ChunkedBody, read_head
from imageio_daemon.frontends.http.connection.incoming import Incoming
from imageio_daemon.frontends.http.headers import (
    MAX_FINALIZE,
    MAX_JSON,
    parse_content_range,
    parse_encoded_range,
    parse_json,
    parse_number,
    parse_patch,
    parse_range,
    parse_target,
)
from imageio_daemon.frontends.http.proxy.passed_answers import parse_answered_range
from imageio_daemon.frontends.http.resources import local
from imageio_daemon.frontends.http.resources.finalize import parse_finalize
from imageio_daemon.frontends.http.responses import content_disposition
from imageio_daemon.image import chain, journal, magics, qcow2
from imageio_daemon.image.block_list import ListReader
from imageio_daemon.image.extents import ExtentList
from imageio_daemon.image.extents_json import MAX_EXTENT_TEXT, ExtentReader
from imageio_daemon.image.formats import MAX_DESCRIPTOR, MAX_ENTRIES, METADATA_REGION, PARSERS
from imageio_daemon.nbdproto import constants, messages, option_payloads
from imageio_daemon.nbdproto.client_negotiation import Agreed, ClientNegotiation, ExportRefused, ServerViolation
from imageio_daemon.nbdproto.client_replies import ClientReplies, ClientRequest
from imageio_daemon.nbdproto.constants import Command, OptionType
from imageio_daemon.nbdproto.server_negotiation import ServerNegotiation
from imageio_daemon.runtime import logs
from imageio_daemon.storage.nbd import reasons
from imageio_daemon.storage.nbd.changes import PIECE, DiffParser
from imageio_daemon.transfers.kept_ticket import MAX_TICKET_FILE, Clocks, KeptTicket
from imageio_daemon.transfers.keys import MAX_FILENAME, MAX_URL
from imageio_daemon.transfers.ticket import Ticket
from imageio_daemon.units import KiB, MiB
from imageio_daemon.urls import hosts
from imageio_daemon.urls import http as http_url
from imageio_daemon.urls import nbd as nbd_url
from imageio_daemon.urls import rbd as rbd_url
from ioutil_ext import ffi, lib
from tests.support import nbd_payloads
from tests.support.decoder import Decoder
from tests.support.fakeceph import diff
from tests.support.nbd_replies import Replies, Request

pytestmark = pytest.mark.alone  # processors have caches and frequencies that other processes change

#: Processor seconds that each 64 KiB of input may cost, and how much longer twice the input may take.
MOST_SECONDS = 0.005
MOST_GROWTH = 2.5
#: Below this a time is that of the call itself, and says nothing on how it grows.
NOTHING = MOST_SECONDS / 10
TRIES = 5
ROUNDS = 4
#: Processor seconds of reference() on the machine that the bounds are of, when it does nothing else: 1.00 to 1.06 ms.
REFERENCE_SECONDS = 0.001

#: Parameters of mallopt(3), with what they are at the start.
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
USUAL, NEVER = 128 * KiB, 32 * MiB  # no more is allowed


@pytest.fixture(autouse=True, scope="module")
def memory_stays() -> Iterator[None]:
    """Have free memory stay with the process. To map it anew takes as long as to parse what is in it, or not at all."""
    libc = ctypes.CDLL(None)
    assert all(libc.mallopt(each, NEVER) for each in (MMAP_THRESHOLD, TRIM_THRESHOLD))
    # Python's own arenas of 1 MiB, for what is small, stay as long as anything in them does.
    arenas = [bytes(400) for _ in range(32 * MiB // 400)]
    arenas[:] = arenas[::1000]
    yield
    assert all(libc.mallopt(each, USUAL) for each in (MMAP_THRESHOLD, TRIM_THRESHOLD))


Make = Callable[[int], bytes]


class Row(NamedTuple):
    """A parser. limit: the longest input that it looks at; 0: any. most: seconds for each 64 KiB."""

    name: str
    parse: Callable[[bytes], object]
    inputs: dict[str, Make]
    limit: int = 0
    most: float = MOST_SECONDS


def cut(text: bytes, before: bytes = b"", after: bytes = b"") -> Make:
    """Return what makes inputs of the text, over and over, between two others."""

    def make(size: int) -> bytes:
        room = size - len(before) - len(after)
        return before + (text * (room // len(text) + 1))[:room] + after

    return make


ROWS: list[Row] = []


def row(
    name: str, inputs: dict[str, Make], limit: int = 0, most: float = MOST_SECONDS
) -> Callable[[Callable[[bytes], object]], None]:
    """Add the function as a parser."""
    return lambda parse: ROWS.append(Row(name, parse, inputs, limit, most))


#: What no parser should be slow at, whatever it looks for.
COMMON: dict[str, Make] = {
    "blanks": cut(b" "),
    "blanks, then a control character": cut(b" ", b"a", b"\x01"),
    "blanks, then a letter": cut(b" ", b"a", b"a"),
    "blanks between letters": cut(b" a"),
    "many blanks between letters": cut(b" " * 99 + b"a"),
    "tabs": cut(b"\t"),
    "letters": cut(b"a"),
    "letters, then a control character": cut(b"a", b"", b"\x01"),
    "digits": cut(b"9"),
    "minus signs": cut(b"-"),
    "percent signs": cut(b"%"),
    "escapes": cut(b"%41"),
    "commas": cut(b","),
    "colons": cut(b":"),
    "slashes": cut(b"/"),
    "equals signs": cut(b"="),
    "ampersands": cut(b"&"),
    "question marks": cut(b"?"),
    "dots": cut(b"."),
    "letters and dots": cut(b"a."),
    "quotes": cut(b'"'),
    "backslashes": cut(b"\\"),
    "open brackets": cut(b"["),
    "open braces": cut(b'{"a":'),
    "semicolons": cut(b";"),
    "line feeds": cut(b"\n"),
    "carriage returns": cut(b"\r"),
    "line ends": cut(b"\r\n"),
    "zeros": cut(b"\0"),
    "no ASCII": cut("é".encode()),
    "no UTF-8": cut(b"\xff"),
}


def each(before: bytes, after: bytes = b"") -> dict[str, Make]:
    """Return the common inputs between two texts."""

    def between(make: Make) -> Make:
        return lambda size: before + make(size - len(before) - len(after)) + after

    return {name: between(make) for name, make in COMMON.items()}


def refusing(*kinds: type[Exception]) -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(*kinds)


# HTTP: heads

_GET = b"GET /images/a HTTP/1.1\r\nHost: x\r\n"
_HEADS = {
    **{f"a field of {name}": make for name, make in each(_GET + b"X: ", b"\r\n\r\n").items()},
    **{f"Connection of {name}": make for name, make in each(_GET + b"Connection: ", b"\r\n\r\n").items()},
    **{f"Content-Length of {name}": make for name, make in each(_GET + b"Content-Length: ", b"\r\n\r\n").items()},
    **{f"Range of {name}": make for name, make in each(_GET + b"Range: bytes=", b"\r\n\r\n").items()},
    "Range to a long number": cut(b"9", _GET + b"Range: bytes=0-", b"\r\n\r\n"),
    "Content-Range of a long number": cut(b"9", _GET + b"Content-Range: bytes 0-", b"/*\r\n\r\n"),
    **{f"If-Match of {name}": make for name, make in each(_GET + b"If-Match: ", b"\r\n\r\n").items()},
    **{f"If-None-Match of {name}": make for name, make in each(_GET + b"If-None-Match: ", b"\r\n\r\n").items()},
    **{f"Content-Range of {name}": make for name, make in each(_GET + b"Content-Range: bytes ", b"\r\n\r\n").items()},
    **{f"a field's name of {name}": make for name, make in each(_GET, b": x\r\n\r\n").items()},
    **{f"a path of {name}": make for name, make in each(b"GET /", b" HTTP/1.1\r\nHost: x\r\n\r\n").items()},
    **{f"a query of {name}": make for name, make in each(b"GET /images/a?", b" HTTP/1.1\r\nHost: x\r\n\r\n").items()},
    **{f"a method of {name}": make for name, make in each(b"", b" / HTTP/1.1\r\nHost: x\r\n\r\n").items()},
    "fields": cut(b"a:b\r\n", _GET, b"\r\n\r\n"),
    "100 fields": lambda size: _GET + b"".join(b"%d:%s\r\n" % (i, b" " * (size // 105)) for i in range(99)) + b"\r\n",
}


@row("the head of a request", _HEADS, MAX_HEAD)
def parse_request(data: bytes) -> None:
    """Do all that is done with a head before it is known who asks."""
    with refusing(Error):
        head = read_head(bytearray(data))
        assert head is not None
        head.body()
        parse_target(head.target)
        parse_range(head.fields.get("range"))
        parse_content_range(head.fields.get("content-range"))
        parse_encoded_range(head.fields.get("content-range"))
        conditions._members(head.fields.get("if-match", ""))
        conditions._members(head.fields.get("if-none-match", ""))
        http_errors.answer(MethodNotAllowed(head.method, ("GET",)), "unix")


def incoming() -> Incoming:
    return Incoming(memoryview(bytearray(1)), cast(Any, SimpleNamespace(received=lambda _: None)))


@row("heads that come in pieces", COMMON, MAX_HEAD)
def receive_heads(data: bytes) -> None:
    received = incoming()
    with refusing(Error):
        for start in range(0, len(data), 64):
            received.ahead += data[start : start + 64]
            received.next_head()


@row("empty lines before a head", {"line ends": COMMON["line ends"]})
def receive_empty_lines(data: bytes) -> None:
    received = incoming()
    received.ahead += data
    received.next_head()


_CHUNKED = {
    **COMMON,
    "chunks of a byte": cut(b"1\r\na\r\n"),
    "chunks of 16 bytes": cut(b"10\r\n" + b"a" * 16 + b"\r\n"),
    "chunks of a byte, and extensions": cut(b"1;" + b"a" * 250 + b"\r\na\r\n"),
    "chunks of a byte, and many extensions": cut(b"1" + b";a" * 125 + b"\r\na\r\n"),
    "chunks of a byte, and blanks": cut(b"1" + b" " * 250 + b"\r\na\r\n"),
    "an endless trailer": cut(b"a: b\r\n", b"0\r\n"),
    "lines that are too long": cut(b"0" * 300 + b"\r\n"),
}


@row("a body in chunks", _CHUNKED)
def count_chunks(data: bytes) -> None:
    with refusing(Error):
        ChunkedBody().take(data)


@row("a number", COMMON)
def read_number(data: bytes) -> None:
    with refusing(Error):
        parse_number(data.decode("latin-1"), "number")


# HTTP in C


@functools.cache
def in_c() -> ctypes.CDLL:
    """Return the parsers of lanes."""
    tree = Path(__file__).resolve().parents[1]
    names = ("tests/ioutil/parsers.c", "ioutil_ext/http/head.c", "ioutil_ext/http/plain.c")
    sources = [str(tree / name) for name in names]
    with tempfile.TemporaryDirectory() as directory:
        library = f"{directory}/parsers.so"
        command = ["cc", "-O2", "-std=gnu11", "-shared", "-fPIC", f"-I{tree}/ioutil_ext", *sources, "-o", library]
        subprocess.check_call(command)
        return ctypes.CDLL(library)


#: A lane has so much room for a head; see http.h.
_LANE_HEAD, _LANE_PATCH = 4 * KiB, KiB


@row("a head that comes to C in pieces", _HEADS, _LANE_HEAD)
def parse_pieces_in_c(data: bytes) -> None:
    for length in range(64, len(data), 64):
        lib.iou_head_read(data, length, 0, ffi.new("iou_head *"))


@row("a PATCH, in C", each(b'{"op": "zero", "size": ', b"}") | each(b"{", b"}") | each(b'{"op"'), _LANE_PATCH)
def parse_patch_in_c(data: bytes) -> None:
    in_c().parse_patch(data, len(data))


# JSON

_DOCUMENTS: dict[str, Make] = {
    **COMMON,
    "open brackets, closed": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "long integers": cut(b"9" * 4300 + b",", b"[", b"1]"),
    "an integer": cut(b"9", b"[", b"]"),
    "a fraction": cut(b"9", b"[1.", b"]"),
    "a small fraction": cut(b"0", b"[0.", b"1]"),
    "an exponent": cut(b"9", b"[1e", b"]"),
    "fractions": cut(b"0.1,", b"[", b"1]"),
    "escapes in a string": cut(b"\\u0041", b'["', b'"]'),
    "surrogates": cut(b"\\ud800", b'["', b'"]'),
    "objects": cut(b"{},", b"[", b"{}]"),
    "keys": cut(b'"a":1,', b"{", b'"b":1}'),
    "other keys": lambda size: json.dumps({str(i): 0 for i in range(size // 11)}).encode(),
}


def field(name: str, text: bytes, before: str = "", after: str = "") -> Make:
    """Return what makes a ticket, or a PATCH, with a long string in one field."""
    known = {"uuid": "a", "size": 1, "url": "file:///a", "timeout": 1, "ops": ["read"], "op": "zero"}

    def make(size: int) -> bytes:
        room = size - len(json.dumps({**known, name: before + after}))
        return json.dumps({**known, name: before + (text.decode() * room)[:room] + after}).encode()

    return make


_TICKETS: dict[str, Make] = {
    **_DOCUMENTS,
    **{
        f"{name} of {kind}": field(name, text)
        for name in ("uuid", "url", "transfer_id", "filename", "bitmap", "since", "format")
        for kind, text in {"letters": b"a", "colons": b":", "blanks": b" ", "dots": b"a."}.items()
    },
    "an nbd host of dots": field("url", b"a.", "nbd://", "/b"),
    "an nbd query": field("url", b"a&", "nbd://a/b?"),
    "an https host": field("url", b"a.", "https://", "/images/a"),
    "operations": cut(b'"read",', b'{"uuid": "a", "size": 1, "url": "file:///a", "timeout": 1, "ops": [', b'"read"]}'),
    "digits of a size": cut(b"9", b'{"uuid":"a","url":"file:///a","timeout":1,"ops":[],"size":', b"}"),
    "most digits of a size": lambda _: (
        b'{"uuid":"a","url":"file:///a","timeout":1,"ops":[],"size":' + b"9" * 4300 + b"}"
    ),
    "digits of an offset": lambda _: b'{"op": "zero", "size": 1, "offset": ' + b"9" * 4300 + b"}",
}


@row("the JSON of a ticket or a PATCH", _TICKETS, MAX_JSON)
def read_json(data: bytes) -> None:
    with refusing(Error):
        document = parse_json(data)
        with refusing(Error):
            parse_patch(document)
        Ticket.from_json(document, inactivity_timeout=1)


_NOW = Clocks.read()
_KEPT = KeptTicket(Ticket("id", "file:///a", 1, (), 1, 1), 1.0, {}).encode(_NOW).partition(b"\n")[2]
_KEPT_TICKETS = {
    **COMMON,
    **each(b'{"ticket": ', b"}"),
    **{f"a url of {name}": make for name, make in each(*_KEPT.split(b"file:///a")).items()},
    **{f"a state of {name}": make for name, make in each(_KEPT[:-1], b"}").items()},
}


@row("the file of a kept ticket", _KEPT_TICKETS, MAX_TICKET_FILE)
def read_kept(data: bytes) -> None:
    with refusing(Error):
        KeptTicket.decode(hashlib.sha256(data).hexdigest().encode() + b"\n" + data, _NOW)


_DIGEST = b'"' + b"0" * 64 + b'",'
_FINALIZES = {
    "blocks": cut(_DIGEST, b'{"checksum": {"checksum": "' + b"0" * 64 + b'", "blocks": [', _DIGEST[:-1] + b"]}}"),
    "letters of a checksum": cut(b"a", b'{"checksum": {"checksum": "', b'"}}'),
    "letters of an algorithm": cut(b"a", b'{"checksum": {"algorithm": "', b'"}}'),
    "blocks that are none": cut(b'"",', b'{"checksum": {"checksum": "' + b"0" * 64 + b'", "blocks": [', b'""]}}'),
}


@row("the JSON of a finalize", _FINALIZES, MAX_FINALIZE)
def read_finalize(data: bytes) -> None:
    with refusing(Error):
        parse_finalize(cast("dict[str, Any]", parse_json(data)))


# Names of other servers

for _name, _before, _after in (
    ("an NBD url", b"nbd:", b""),
    ("an NBD url of a host", b"nbd://", b"/a"),
    ("an NBD url of an export", b"nbd://a/", b""),
    ("an NBD url with a query", b"nbds+unix:///a?socket=", b"&tls-hostname=a"),
    ("an NBD url with a socket", b"nbd:unix:", b":exportname=a"),
    ("an NBD url with an address", b"nbd:[", b"]:1"),
):

    @row(_name, each(_before, _after), MAX_URL)
    def parse_nbd_url(data: bytes) -> None:
        with refusing(Error):
            nbd_url.parse(data.decode("latin-1"))


@row(
    "an rbd url",
    {**each(b"rbd:", b"/a"), **each(b"rbd:a/"), **each(b"rbd:a/b/", b"@a"), **each(b"rbd:a/b@", b"/")},
    MAX_URL,
)
def parse_rbd_url(data: bytes) -> None:
    with refusing(Error):
        rbd_url.parse(data.decode("latin-1"))


@row(
    "an answer of rbd diff",
    {
        **COMMON,
        "ends": cut(b"}"),
        "spaces before an end": cut(b" " * 900 + b"}"),
        "extents in order": lambda size: diff(*((2 * n, 1, True) for n in range(size // 45))).encode(),
    },
    most=0.02,  # 64 KiB have 1400 extents
)
def parse_diff(data: bytes) -> None:
    parser = DiffParser()
    with contextlib.suppress(ValueError, TypeError, KeyError):
        for start in range(0, len(data), PIECE):
            for _ in parser.feed(data[start : start + PIECE]):
                pass


@row("the name of an image", COMMON, MAX_FILENAME)
def tell_name(data: bytes) -> None:
    content_disposition(data.decode(errors="replace"))


@row("an https url", {**each(b"https://", b"/images/a"), **each(b"https://a/images/")}, MAX_URL)
def parse_https_url(data: bytes) -> None:
    with refusing(Error):
        http_url.parse(data.decode("latin-1"))


@row("the name of a host", COMMON)
def is_host(data: bytes) -> None:
    hosts.is_host(data.decode("latin-1"))


@row("a question to the local service", COMMON)
def question_of_a_client(data: bytes) -> None:
    local.QUESTION.fullmatch(data.decode("latin-1"))


@row("what a server tells of its socket", COMMON)
def told_socket(data: bytes) -> None:
    text = data.decode("latin-1")
    LocalSocket.told(text, {"place": text, "question": text, "answer": text})


@row("a url of the client", {**each(b"https://", b"/images/a"), **each(b"https://a/images/"), **each(b"https://a:")})
def parse_client_url(data: bytes) -> None:
    is_image(data.decode("latin-1"))
    with refusing(Usage):
        ImageUrl.parse(data.decode("latin-1"))


@row("the name of a backing file", COMMON)
def is_protocol(data: bytes) -> None:
    chain._PROTOCOL.match(data.decode("latin-1"))


# Headers of images

_QCOW2 = struct.pack(">4sIQIIQI", magics.QCOW2, 3, 0, 0, 21, 0, 0).ljust(72, b"\0") + struct.pack(
    ">QQQII", 0, 0, 0, 4, 104
)
_NAMED_QCOW2 = struct.pack(">4sIQIIQI", magics.QCOW2, 2, 80, 1023, 21, 0, 0).ljust(80, b"\0")
_VMDK = struct.pack("<4s8xQ8xQQ", magics.VMDK, 1, 1, MAX_DESCRIPTOR).ljust(512, b"\0")
_TABLE = struct.pack("<4s4xI4x", b"regi", MAX_ENTRIES) + bytes(32 * MAX_ENTRIES)
_METADATA = struct.pack("<8s2xH20x", b"metadata", MAX_ENTRIES) + bytes(32 * MAX_ENTRIES)
_REGION = struct.pack("<16sQII", METADATA_REGION, 512 * 1024, 0, 0)


def vhdx_image(_: int) -> bytes:
    regions = struct.pack("<4s4xI4x", b"regi", MAX_ENTRIES) + bytes(32 * (MAX_ENTRIES - 1)) + _REGION
    return magics.VHDX.ljust(192 * 1024, b"\0") + regions.ljust(320 * 1024, b"\0") + _METADATA


for _format, _beginning in (
    ("qcow2", _QCOW2),
    ("qcow2", _NAMED_QCOW2),
    ("vmdk", _VMDK),
    ("vhdx", magics.VHDX.ljust(192 * 1024, b"\0") + _TABLE),
    ("vpc", b"conectix"),
    ("vdi", bytes(64)),
):

    def parse_image(data: bytes, image_format: str = _format) -> None:
        with refusing(ValueError):
            PARSERS[image_format](lambda offset, length: data[offset : offset + length])

    row(f"the header of {_format}, {len(_beginning)} bytes", each(_beginning))(parse_image)

row("the tables of vhdx", {"full": vhdx_image})(lambda data: parse_image(data, "vhdx"))
row("the extensions of qcow2", {"empty ones": cut(struct.pack(">II", 1, 0), _QCOW2)})(
    lambda data: parse_image(data, "qcow2")
)


# What other servers of the images API send


_LISTS: dict[str, Make] = {
    **_DOCUMENTS,
    "extents": lambda size: _extents(size, '{"zero":true,"start":%d,"length":1}'),
    "extents with more in them": lambda size: _extents(size, '{"zero":true,"a":[[[1e5]]],"start":%d,"length":1}'),
    "braces": cut(b"}"),
    "empty extents": cut(b"{}", b"["),
    "a long extent": cut(b"9" * 4000, b'[{"zero":true,"start":', b"}"),
}


def _extents(size: int, form: str) -> bytes:
    text: list[str] = []
    length = 0
    for number in itertools.count():
        length += len(form) - 1 + len(str(number))
        if length > size:
            return ("[" + ",".join(text) + "]").encode()
        text.append(form % number)
    raise AssertionError


@row("extents of another server", _LISTS)
def read_extents(data: bytes) -> None:
    reader = ExtentReader(2**40, "zero", ValueError("malformed"))
    with refusing(ValueError):
        for start in range(0, len(data), 4 * MAX_EXTENT_TEXT):
            ExtentList.of(reader.feed(data[start : start + 4 * MAX_EXTENT_TEXT]), reader._position)
        reader.end()


BLOCK_HEAD = b'{"algorithm": "sha256", "block_size": 1048576, "offset": 0}\n'
BLOCK_LINE = b'{"start": 0, "length": 1048576, "zero": true}\n'


@row("a list of digests", {**COMMON, "heads": cut(BLOCK_HEAD), **each(BLOCK_LINE)})
def parse_digests(data: bytes) -> None:
    reader = ListReader(ValueError("malformed"), 2**40)
    with refusing(ValueError):
        for start in range(0, len(data), 1000):
            for _ in reader.feed(data[start : start + 1000]):
                pass
        reader.end()


QEMU_NAMED = b'"read-only": false}\': '


@row(
    "the messages of qemu-nbd",
    {**COMMON, **each(b"Bitmap '"), **each(QEMU_NAMED), **each(b"not in "), "names of images": cut(QEMU_NAMED)},
)
def read_messages(data: bytes) -> None:
    reasons.not_opened(data.decode("latin-1"), "/image", "bitmap")


@row("a Content-Range of another server", {**COMMON, **each(b"bytes 0-0/"), **each(b"bytes ", b"-0/1")})
def read_total(data: bytes) -> None:
    parse_answered_range(data.decode("latin-1"))


class Sent:
    """A socket from which an answer is read, by recv() in small pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(self._data)

    def sendall(self, _: bytes) -> None:
        pass

    def settimeout(self, _: float) -> None:
        pass

    def recv(self, _: int) -> bytes:
        piece, self._data = self._data[:256], self._data[256:]
        return piece


@row("the answer of a proxy", {**each(b"HTTP/1.1 200 ", b"\r\n\r\n"), **each(b"HTTP/1.1 ")}, MAX_PROXY_HEAD)
def make_tunnel(data: bytes) -> None:
    with refusing(ServerFailed, ConnectionResetError):
        HttpProxy("proxy", 1).tunnel(cast(socket.socket, Sent(data)), "host", 1, 60)


_ANSWERS = {
    **{f"a field of {name}": make for name, make in each(b"HTTP/1.1 200 OK\r\nX: ", b"\r\n\r\n").items()},
    **{f"a length of {name}": make for name, make in each(b"HTTP/1.1 200 OK\r\nContent-Length: ", b"\r\n\r\n").items()},
    "fields": cut(b"a:b\r\n", b"HTTP/1.1 200 OK\r\n", b"\r\n"),
    "a status": cut(b"9", b"HTTP/1.1 ", b"\r\n\r\n"),
    "a chunk's length": cut(b"9", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"\r\n"),
}


@row("an answer, as the client reads it", _ANSWERS)
def read_answer(data: bytes) -> None:
    with refusing(HTTPException, OSError):
        response = HTTPResponse(cast(socket.socket, Sent(data)))
        response.begin()
        response.read(KiB)


@row("a size, as the client reads it", {**COMMON, **each(b"bytes 0-0/")})
def read_size(data: bytes) -> None:
    image = object.__new__(RemoteImage)
    image._peer = "a"
    answer = SimpleNamespace(headers={"Content-Range": data.decode("latin-1")})
    image._repeated = lambda _: answer  # type: ignore
    with refusing(Exception):
        image.size()


@row("a time to try again, as the client reads it", COMMON)
def read_retry_after(data: bytes) -> None:
    retry_after(SimpleNamespace(headers={"Retry-After": data.decode("latin-1")}))  # type: ignore[arg-type]


@row("an error code, as the client reads it", COMMON)
def read_error_code(data: bytes) -> None:
    error_code(SimpleNamespace(headers={"X-Error-Code": data.decode("latin-1")}, status=500))  # type: ignore[arg-type]


@row("an alert of a server, as the client finds it", each(b"tlsv1 alert "))
def find_alert(data: bytes) -> None:
    client_failures._ALERT.search(data.decode("latin-1"))


@row("the url of a file on a web server", each(b"https://") | each(b"https://a/"))
def read_web_url(data: bytes) -> None:
    with refusing(Usage):
        web.FileUrl.parse(data.decode("latin-1"))


@row("the range that a web server sends", each(b"bytes ") | each(b"bytes 0-"))
def read_web_range(data: bytes) -> None:
    fields = {"ETag": "", "Last-Modified": "", "Content-Range": data.decode("latin-1")}
    with refusing(ServerFailed):
        web._version_of(SimpleNamespace(status=206, headers=fields), 0)  # type: ignore[arg-type]


@row("a reason, as the client shows it", COMMON, KiB)
def show_reason(data: bytes) -> None:
    connection = object.__new__(ClientConnection)
    connection._secret = "a%20b"
    connection._printable(data.decode("latin-1"))


# Images of the client

_DESCRIPTORS = {
    "comments": cut(b"#\n"),
    "one comment": cut(b"#"),
    "empty lines": cut(b" \n"),
    "extents": cut(b'RW 1 FLAT "a" 0\n'),
    "extents without an end": cut(b'RW 1 FLAT "'),
    "an extent with a long name": cut(b"a", b'RW 1 FLAT "'),
    "begun extents": cut(b"RW 1\n"),
}


@row("the head of an image", COMMON | _DESCRIPTORS, marks.HEAD)
def look_at_head(data: bytes) -> None:
    with contextlib.suppress(Usage):
        marks.check_raw("disk", marks.FILE, data, data)


row("a descriptor of a vmdk", COMMON | _DESCRIPTORS, layers.MAX_DESCRIPTOR)(layers._FLAT.findall)
row("the name of a layer", COMMON, qcow2.MAX_NAME)(lambda data: layers._PROTOCOL.match(data.decode("latin-1")))


# The log

row("a field of a log line", COMMON, 4 * KiB)(lambda data: quoted(data.decode("latin-1")))
row("a log line", COMMON, 4 * KiB)(
    lambda data: logs.TextFormatter().format(
        logging.LogRecord("a", logging.INFO, "", 0, data.decode("latin-1"), None, None)
    )
)


# NBD: what clients send


def option(number: int, payload: bytes) -> bytes:
    return option_payloads.OptionHeader(number, len(payload)).pack() + payload


_FLAGS = struct.pack(">I", 3)
_OPTIONS = {
    **each(_FLAGS),
    "INFO": lambda size: (
        _FLAGS + option(OptionType.INFO, struct.pack(">IH", 0, size // 2 - 30) + bytes(2 * (size // 2 - 30)))
    ),
    "queries": lambda size: (
        _FLAGS
        + option(OptionType.SET_META_CONTEXT, struct.pack(">II", 0, size // 4 - 30) + bytes(4 * (size // 4 - 30)))
    ),
    "small options": cut(option(OptionType.STRUCTURED_REPLY, b""), _FLAGS),
    "unknown options": cut(option(99, b""), _FLAGS),
    "an option that is too long": lambda size: _FLAGS + option(99, bytes(size)),
    "a name": lambda size: _FLAGS + option(OptionType.EXPORT_NAME, b"a" * (size - 20)),
}


@row("options of NBD", _OPTIONS)
def negotiate(data: bytes) -> None:
    negotiation = ServerNegotiation(preferred=4096, listed=tuple)
    for start in range(0, len(data), 1024):
        negotiation.feed(data[start : start + 1024])
        while event := negotiation.next_event():
            if isinstance(event, type(None)):
                return
            with refusing(RuntimeError):
                negotiation.refused(constants.Reply.ERR_UNKNOWN, "no")
    negotiation.take_output()


# NBD: what servers send

_GREETING = option_payloads.pack_greeting(3)


def reply(number: int, kind: int, payload: bytes = b"") -> bytes:
    return option_payloads.OptionReply(number, kind, len(payload)).pack() + payload


_REPLIES = {
    **each(_GREETING),
    "replies": cut(reply(OptionType.EXTENDED_HEADERS, constants.Reply.INFO), _GREETING),
    "refusals": cut(b"a" * 4096, _GREETING + struct.pack(">QIII", constants.OPTION_REPLY, 11, 0x80000001, 8000)),
    "contexts": lambda size: (
        _GREETING
        + reply(OptionType.EXTENDED_HEADERS, constants.Reply.ACK)
        + cut(
            reply(
                OptionType.LIST_META_CONTEXT,
                constants.Reply.META_CONTEXT,
                option_payloads.pack_context(1, constants.DIRTY_BITMAP + "a" * 40),
            )
        )(size)
    ),
}


@row("option replies of NBD", _REPLIES)
def negotiate_as_client(data: bytes) -> None:
    negotiation = ClientNegotiation("a", dirty=True)
    with refusing(ServerViolation, ExportRefused, messages.BadMagic):
        for start in range(0, len(data), 1024):
            negotiation.feed(data[start : start + 1024])


def chunk(kind: int, payload: bytes) -> bytes:
    return nbd_payloads.ChunkHeader(kind, 0, 1, len(payload)).pack() + payload


def _holes(size: int, order: Callable[[int], list[int]]) -> bytes:
    count = size // len(chunk(constants.Chunk.OFFSET_HOLE, nbd_payloads.pack_hole(0, 1)))
    return b"".join(chunk(constants.Chunk.OFFSET_HOLE, nbd_payloads.pack_hole(2 * i, 1)) for i in order(count))


_CHUNKS: dict[str, Make] = {
    **COMMON,
    "holes": lambda size: _holes(size, lambda count: list(range(count))),
    "holes, the last one first": lambda size: _holes(size, lambda count: list(range(count))[::-1]),
    "errors": cut(chunk(constants.Chunk.ERROR, nbd_payloads.pack_error(22, ""))),
    "data": lambda size: b"".join(
        chunk(constants.Chunk.OFFSET_DATA, messages.OFFSET.pack(2 * i) + b"a") for i in range(size // 29)
    ),
}


# A chunk takes 5 us whatever is in it, as a request does. Only a server that a ticket names can send chunks of a byte.
@row("replies of NBD", _CHUNKS, most=3 * MOST_SECONDS)
def take_replies_in_python(data: bytes) -> None:
    replies = ClientReplies(Agreed(2**40, 1, structured=True), lambda _: None)
    replies.begin(ClientRequest(Command.READ, 0, len(data), view=memoryview(bytearray(len(data)))))
    with refusing(ServerViolation):
        rest = memoryview(data)
        while rest:
            room = replies.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            replies.received(count)


@row("replies of NBD, in C", _CHUNKS)
def take_replies(data: bytes) -> None:
    replies = Replies(structured=True, extended=False)
    replies.begin(Request(Command.READ, 0, len(data), memory=bytearray(len(data))))
    with refusing(ServerViolation):
        replies.feed(data)


def take_statuses(data: bytes, contexts: int) -> None:
    replies, size = Replies(structured=True, extended=False, contexts=contexts), 0
    request = Request(Command.BLOCK_STATUS, 0, 2**31)
    replies.begin(request, most=2**17)
    size = len(data) // contexts // 8 * 8
    with refusing(ServerViolation):
        for number in range(1, contexts + 1):
            payload = struct.pack(">I", number) + data[:size]
            header = struct.pack(">IHHQI", constants.CHUNK, number == contexts, 5, 1, len(payload))
            replies.feed(header + payload)
        with refusing(ValueError):
            replies.extents(request, 0, 2**31, 2**17)


_STATUSES = {
    "of a block": cut(struct.pack(">II", 512, 0) + struct.pack(">II", 512, 3)),
    "that end at once": cut(struct.pack(">II", 0, 0)),
}


@row("extents of NBD, in C", _STATUSES)
def take_one_status(data: bytes) -> None:
    take_statuses(data, 1)


@row("extents of NBD in many contexts, in C", _STATUSES)
def take_many_statuses(data: bytes) -> None:
    take_statuses(data, 64)


# Bodies that are frames of zstd

#: A frame with a window of 1 MiB, and no content size.
_FRAME = b"\x28\xb5\x2f\xfd\0\x50"


def block_of(content: bytes) -> bytes:
    """Return a compressed block, with tables of its own, whose content comes once more each time that it is decoded."""
    encoder = zstd.ZstdCompressor(level=19)
    encoded = encoder.compress(content, encoder.FLUSH_BLOCK)
    return encoded[len(_FRAME) :]


@row(
    "a body of zstd",
    {
        "blocks of nothing": cut(b"\0\0\0", _FRAME),
        "blocks of a byte": cut(b"\x08\0\0x", _FRAME),
        "repeated bytes": cut(b"\x42\0\0x", _FRAME),
        "short compressed blocks": cut(block_of(b"".join(b"%x" % (i * i * 7919) for i in range(30))), _FRAME),
        "compressed blocks": cut(block_of(b"".join(b"%x" % (i * i * 7919) for i in range(3000))), _FRAME),
        "no blocks": cut(b"\xff", _FRAME),
    },
    most=4 * MOST_SECONDS,
)
def decode_body(data: bytes) -> None:
    decoder, view = Decoder(4 * len(data)), memoryview(data)
    room = memoryview(bytearray(64 * KiB))
    taken, _ = decoder.head(view)
    assert decoder.admit(0)
    with refusing(InvalidRequest):
        while taken < len(view):
            taken += decoder.decode(view[taken : taken + 64 * KiB], room)[0]
    decoder.close()


# Journals of what is durable

_JOURNAL = b"imageio-durable 1 x"


def journal_of(*lines: Callable[[int], tuple[str, int, int]]) -> Make:
    """Return what makes journals whose lines are those of the functions, in turn, by their number."""

    def make(size: int) -> bytes:
        crc, text, count = zlib.crc32(_JOURNAL), bytearray(), 0
        while len(text) < size - 100:
            line = b"%b %d %d" % ((signed := lines[count % len(lines)](count))[0].encode(), *signed[1:])
            crc = zlib.crc32(line, crc)
            text += b"%b %08x\n" % (line, crc)
            count += 1
        number = b"%010d" % count
        return b"%b %08x\n%b %08x\n%b" % (_JOURNAL, zlib.crc32(_JOURNAL), number, zlib.crc32(number), bytes(text))

    return make


_JOURNALS = {
    "ranges in order": journal_of(lambda n: ("+", 2 * n, 2 * n + 1)),
    "ranges from the end on": journal_of(lambda n: ("+", 10**9 - 2 * n, 10**9 - 2 * n + 1)),
    "holes in a range": journal_of(lambda n: ("-", 10**9 - 2 * n, 10**9 - 2 * n + 1) if n else ("+", 0, 10**9)),
    "ranges around each other": journal_of(lambda n: ("+" if n % 2 else "-", 10**8 - n, 10**8 + n + 1)),
    "the same range": journal_of(lambda _: ("+", 0, 10**9), lambda _: ("-", 0, 10**9)),
    **each(b"imageio-durable 1 "),
    **{f"lines of {name}": make for name, make in each(journal_of(lambda n: ("+", n, n + 1))(1000)).items()},
}


@row("a journal of what is durable", _JOURNALS, journal.MAX_JOURNAL, most=2 * MOST_SECONDS)
def parse_journal(data: bytes) -> None:
    with refusing(journal.Damaged):
        journal.read(data, "x")


# The check itself


def reference(_: bytes) -> None:
    """Do what parsers do, always as much of it: a busy or slow machine takes as many times longer for both."""
    json.loads(json.dumps([{"start": i, "length": 512, "zero": False} for i in range(2000)]))


def seconds(*works: tuple[Callable[[bytes], object], bytes]) -> list[float]:
    """Return the processor seconds of the fastest try of each work, which take turns."""
    best = [float("inf")] * len(works)
    for _ in range(TRIES):
        for number, (parse, data) in enumerate(works):
            best[number] = min(best[number], once(parse, data))
        if max(best) > 1:
            break
    return best


def once(parse: Callable[[bytes], object], data: bytes) -> float:
    """Return the processor seconds of one try."""
    started = time.thread_time()
    parse(data)
    return time.thread_time() - started


@pytest.mark.parametrize("parser", [pytest.param(row, id=row.name) for row in ROWS])
def test_time_grows_with_the_input_and_no_faster(parser: Row) -> None:
    largest = parser.limit or 128 * KiB
    slow = {}
    for name, make in parser.inputs.items():
        inputs = make(largest // 2), make(largest)
        # What half of it and the reference take can only allow more. Most inputs are done then.
        if once(parser.parse, inputs[1]) <= min(parser.most, MOST_GROWTH * NOTHING):
            continue
        # Again, if need be: on a busy machine, memory and caches are slower for a while. What is slow is so each time.
        for _ in range(ROUNDS):
            half, whole, unit = seconds((parser.parse, inputs[0]), (parser.parse, inputs[1]), (reference, b""))
            most = parser.most * max(1.0, len(inputs[1]) / (64 * KiB)) * max(1.0, unit / REFERENCE_SECONDS)
            if whole <= min(most, MOST_GROWTH * max(half, NOTHING)):
                break
        else:
            slow[name] = f"{half * 1000:.2f} ms, twice the input {whole * 1000:.2f} ms, reference {unit * 1000:.2f} ms"
    assert not slow


# Whether all have a row

_USER = "of the user or the administrator, who may wait"
#: Where each regular expression of the project gets its worst input, by file and name.
PATTERNS = {
    "client/local/in_use.py:_unescaped": _USER,
    "client/local/layers.py:_FLAT": "a descriptor of a vmdk",
    "client/local/layers.py:_PROTOCOL": "the name of a layer",
    "client/local/marks.py:_DESCRIPTOR": "the head of an image",
    "client/local/marks.py:_MARKUP": "the head of an image",
    "client/local/marks.py:_is_tar": "the head of an image",
    "client/server/address.py:is_image": "a url of the client",
    "client/server/address.py:parse": "a url of the client",
    "client/argument_groups.py:_URL": _USER,
    "client/argument_groups.py:_format": _USER,
    "client/transfer/record.py:_NAME": _USER,
    "client/server/failures.py:_ALERT": "an alert of a server, as the client finds it",
    "client/server/web.py:parse": "the url of a file on a web server",
    "client/server/web.py:_version_of": "the range that a web server sends",
    "commands/amounts.py:parse_seconds": _USER,
    "client/server/local_socket.py:_TOLD": "what a server tells of its socket",
    "frontends/http/resources/local.py:QUESTION": "a question to the local service",
    "client/server/failures.py:error_code": "an error code, as the client reads it",
    "client/server/failures.py:retry_after": "a time to try again, as the client reads it",
    "control/certificate.py:_LABEL": _USER,
    "control/tickets.py": _USER,
    "client/server/proxy.py:_STATUS": "the answer of a proxy",
    "client/server/proxy.py:is_exempt": _USER,
    "client/server/trust.py:_PIN": _USER,
    "client/server/remote_image.py:size": "a size, as the client reads it",
    "frontends/http/responses.py:_NOT_PLAIN": "the name of an image",
    "frontends/http/responses.py:_TOKEN": "the name of an image",
    "frontends/http/headers.py:_CONTENT_RANGE": "the head of a request",
    "frontends/http/headers.py:_DIGITS": "a number",
    "frontends/http/headers.py:_RANGE": "the head of a request",
    "frontends/http/headers.py:_RANGES": "the head of a request",
    "image/journal.py:_HEAD": "a journal of what is durable",
    "image/journal.py:_COUNT": "a journal of what is durable",
    "image/journal.py:_LINE": "a journal of what is durable",
    "urls/http.py:_URL": "an https url",
    "commands/printable.py:_BARE_VALUE": "a field of a log line",
    "urls/nbd.py:_OLD": "an NBD url",
    "urls/rbd.py:_WHOLE_NAME": "an rbd url",
    "urls/rbd.py:_ADDRESS": "an rbd url",
    "config/options.py": _USER,
    "image/chain.py:_PROTOCOL": "the name of a backing file",
    "frontends/http/proxy/passed_answers.py:_RANGE": "a Content-Range of another server",
    "image/qcow2.py:_CONTROL": f"the header of qcow2, {len(_NAMED_QCOW2)} bytes",
    "storage/nbd/reasons.py": "the messages of qemu-nbd",
    "transfers/keys.py:_CONTROL": "the JSON of a ticket or a PATCH",
}


def patterns(path: Path) -> set[str]:
    """Return where a module uses regular expressions: names of its variables, and of functions."""
    module = ast.parse(path.read_text())
    variables = {ast.unparse(node.targets[0]): node for node in module.body if isinstance(node, ast.Assign)}
    functions = {node.name: node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    return {name for name, node in (variables | functions).items() if any(map(uses_pattern, ast.walk(node)))}


def uses_pattern(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re"


def test_each_regular_expression_has_a_row() -> None:
    package = Path(imageio_daemon.__file__).parent
    unknown, stale = set(), set(PATTERNS)
    for path in package.rglob("*.py"):
        file = str(path.relative_to(package))
        for name in patterns(path):
            rows = {file, f"{file}:{name}"}
            unknown |= set() if rows & PATTERNS.keys() else {f"{file}:{name}"}
            stale -= rows
    assert not unknown
    assert not stale
    assert {row for row in PATTERNS.values() if row != _USER} <= {row.name for row in ROWS}
