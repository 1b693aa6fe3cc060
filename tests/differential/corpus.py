# SPDX-License-Identifier: Apache-2.0
"""Conversations written by hand: each method, range, field, error, and way to send a request, by subject."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product

from tests.differential.conversation import Conversation, End, Round, exchange, one, request, split
from tests.differential.scene import (
    EMPTY,
    EXPIRED,
    FORBIDDEN,
    LARGER,
    MAIN,
    MISSING,
    READ_ONLY,
    SIZE,
    SMALL,
    SMALLER,
    SPARSE,
    UNKNOWN,
)
from tests.support import malformed
from tests.support.images import KiB, MiB, pattern

Conversations = Iterator[Conversation]

URL = f"/images/{MAIN}"
#: A request for one byte, to see that a connection goes on.
PROBE = request("GET", URL, "Range: bytes=0-0")
ORIGIN = "Origin: https://manager.example.org"


def url(ticket: str) -> str:
    """Return the target of a ticket's image."""
    return f"/images/{ticket}"


def zero(offset: int, size: int, more: str = "") -> bytes:
    """Return the body of a PATCH."""
    return b'{"op": "zero", "offset": %d, "size": %d%b}' % (offset, size, more.encode())


def put_at(target: str, offset: int, body: bytes, *lines: str) -> bytes:
    """Return a PUT at an offset."""
    return request("PUT", target, f"Content-Range: bytes {offset}-{offset + len(body) - 1}/*", *lines, body=body)


FLUSH = b'{"op": "flush"}'

RANGES = (
    "bytes=0-0",
    "bytes=0-9999",
    "bytes=4095-4097",
    "bytes=511-513",
    f"bytes={SIZE - 1}-{SIZE - 1}",
    f"bytes={SIZE - 10000}-{SIZE - 1}",
    f"bytes=0-{SIZE - 1}",
    f"bytes=1-{SIZE - 2}",
    f"bytes={2 * MiB - 7}-{4 * MiB + 5}",
    f"bytes=0-{256 * KiB - 1}",
    f"bytes=1-{256 * KiB}",
    f"bytes=0-{4 * MiB - 1}",
    f"bytes=0-{4 * MiB}",
    f"bytes=4095-{4 * MiB + 4095}",
    "bytes=512-",
    "bytes=0-",
    f"bytes={SIZE - 1}-",
    "bytes=-1",
    "bytes=-9999",
    f"bytes=-{SIZE}",
    f"bytes=-{SIZE + 1}",
    "BYTES=0-99",
    "Bytes=0-99",
    "bytes= 0-99",
    "bytes=0-99 ",
    "bytes=0-99\t",
    "bytes=007-0099",
    "bytes=,0-99",
    "bytes=0-99,",
    "sectors=0-1",
    # Outside
    f"bytes=0-{SIZE}",
    f"bytes={SIZE}-",
    f"bytes={SIZE}-{SIZE}",
    f"bytes={SIZE - 1}-{SIZE}",
    "bytes=99999999-",
    "bytes=0-99999999999999999999999999",
    f"bytes=0-{2**63}",
    f"bytes=0-{2**63 - 1}",
    f"bytes={2**64}-",
    f"bytes={2**64}-{2**64}",
    "bytes=" + "1" * 5000 + "-",
    "bytes=-0",
    # Malformed
    *malformed.RANGES,
    "bytes=1 -2",
    "bytes=1- 2",
    "",
    "bytes=" + "0" * 30 + "1-2",
    "bytes=0-" + "0" * 40 + "2",
)


def ranges() -> Conversations:
    """Return reads of every form of Range, on tickets of all kinds."""
    for value in RANGES:
        yield one(f"GET {value[:40]}", request("GET", URL, f"Range: {value}"))
    for name in ("RANGE", "range", "rAnGe"):
        yield one(f"GET with {name}", request("GET", URL, f"{name}: bytes=1-2"))
    for value in ("bytes=0-9", "bytes=5-", "bytes=-5", "bytes=x", f"bytes={SIZE}-", ""):
        yield one(f"HEAD {value}", request("HEAD", URL, *([f"Range: {value}"] if value else [])))
    tickets = {"read-only": READ_ONLY, "sparse": SPARSE, "larger": LARGER, "smaller": SMALLER, "empty": EMPTY}
    of_sizes = (
        "bytes=0-9",
        "bytes=0-",
        "bytes=-10",
        f"bytes=0-{SMALL - 1}",
        f"bytes=0-{SMALL}",
        f"bytes={SMALL - 5001}-{SMALL - 5001}",
        f"bytes={SMALL - 5000}-{SMALL - 5000}",
        f"bytes={SMALL - 10}-{SMALL + 10}",
        f"bytes={SMALL}-{SMALL}",
        f"bytes={SMALL}-",
        f"bytes=0-{3 * MiB + 4}",
        f"bytes=0-{3 * MiB + 5}",
    )
    for (name, ticket), value in product(tickets.items(), of_sizes):
        yield one(f"GET {value} of {name}", request("GET", url(ticket), f"Range: {value}"))
    for name, ticket in tickets.items():
        yield one(f"GET of {name}", request("GET", url(ticket)))
        yield one(f"HEAD of {name}", request("HEAD", url(ticket)))
    yield one("GET", request("GET", URL))
    for query in ("?close=y", "?close=n", "?", "?unknown=1", "?close=y&close=n", "?close", "?flush=n", "?flush=x"):
        yield one(f"GET {query}", request("GET", URL + query, "Range: bytes=0-9"))
        yield one(f"GET all {query}", request("GET", url(READ_ONLY) + query))


def writes() -> Conversations:
    """Return PUT of every form: every kind of offset, length and flush."""
    places = ((0, 1), (1, 1), (511, 2), (4095, 2), (4096, 4096), (100, 10_000), (SIZE - 1, 1), (65_535, 65_537))
    longer = ((0, 256 * KiB), (1, 256 * KiB), (4095, MiB), (0, SIZE), (777, 4 * MiB), (MiB - 1, 4 * MiB + 2))
    for seed, (offset, length) in enumerate(places + longer, 10):
        body = pattern(length, seed)
        yield one(f"PUT {length} at {offset}", put_at(URL, offset, body))
        yield one(f"PUT flush=n {length} at {offset}", put_at(f"{URL}?flush=n", offset, body[::-1]))
        yield one(f"PUT zeros {length} at {offset}", put_at(f"{URL}?flush=n", offset, bytes(length)))
    yield one("PUT without a range", request("PUT", URL, body=pattern(5000, 40)))
    yield one("PUT all without a range", request("PUT", f"{URL}?flush=n", body=pattern(SIZE, 41)))
    for value in (
        "bytes 100-104/*",
        "bytes 100-*/*",
        f"bytes 100-104/{SIZE}",
        "bytes 100-*/5",
        "bytes 100-100/*",
        "bytes 100-9999/*",
        "bytes 100-104/105",
        " bytes 7-11/* ",
        "bytes 0007-00000011/*",
        *malformed.CONTENT_RANGES,
        "BYTES 0-9/*",
        "bytes 0-" + "9" * 38 + "/*",
        "bytes 0-" + "9" * 40 + "/*",
        "bytes 0-4/" + "9" * 38,
        f"bytes {SIZE}-*/*",
        f"bytes {SIZE - 4}-*/*",
        f"bytes {SIZE - 5}-*/*",
        f"bytes {2**62}-*/*",
        f"bytes {2**63 - 5}-*/*",
        f"bytes {2**63}-*/*",
        f"bytes {2**64 - 5}-*/*",
        f"bytes {2**64}-*/*",
        "bytes 99999999999999999999999999-*/*",
    ):
        yield one(f"PUT {value[:40]}", request("PUT", URL, f"Content-Range: {value}", body=b"12345"))
    for query in (
        "?flush=y",
        "?flush=n",
        "?unknown=1",
        "?flush=n&unknown",
        "?flush=x&flush=n",
        "?flush=x",
        "?flush=",
        "?flush=Y",
        "?flush=yes",
        "?flush=n&flush=x",
        "?flush",
        "?close=y",
        "?close=y&flush=n",
        "?flush=n&close=y",
        "?flu%73h=n",
        "?flush=%6e",
        "?" + "&".join(f"a{i}=1" for i in range(40)),
    ):
        yield one(f"PUT {query[:40]}", request("PUT", URL + query, body=b"hello"))
    for value in ("0", "00000", "0000000005"):
        yield one(
            f"PUT of length {value}", request("PUT", URL, f"Content-Length: {value}", body=b"hello"[: int(value)])
        )
    yield one("PUT of nothing at the end", request("PUT", URL, f"Content-Range: bytes {SIZE}-*/*", body=b""))
    yield one("PUT of nothing past the end", request("PUT", URL, f"Content-Range: bytes {SIZE + 1}-*/*", body=b""))
    yield one("PUT without a length", request("PUT", URL))
    for ticket, name in ((SPARSE, "sparse"), (SMALLER, "smaller"), (LARGER, "larger"), (READ_ONLY, "read-only")):
        yield one(f"PUT to {name}", put_at(url(ticket), 1000, b"x" * 5000))
        yield one(f"PUT zeros to {name}", put_at(url(ticket), 4096, bytes(64 * KiB)))
        for offset in (SMALL - 5005, SMALL - 5000, SMALL - 5, SMALL, 3 * MiB, 3 * MiB + 1):
            yield one(f"PUT to {name} at {offset}", put_at(f"{url(ticket)}?flush=n", offset, b"12345"))
        yield one(f"GET of {name} afterwards", request("GET", url(ticket), "Range: bytes=0-"))


def operations() -> Conversations:
    """Return PATCH of every form."""
    zeros = (
        (0, SIZE),
        (0, 1),
        (SIZE - 1, 1),
        (4096, 4096),
        (1, 4095),
        (4095, 2),
        (100, 70_000),
        (0, 0),
        (SIZE, 0),
        (SIZE, 1),
        (0, SIZE + 1),
        (1, SIZE),
        (2**63, 1),
        (0, 2**63),
        (2**64, 1),
        (0, 2**64),
        (2**64 - 1, 2),
        (10**30, 1),
        (0, 10**39),
    )
    for offset, size in zeros:
        yield one(f"zero {size} at {offset}", request("PATCH", URL, body=zero(offset, size)))
        yield one(
            f"zero and flush {size} at {offset}", request("PATCH", URL, body=zero(offset, size, ', "flush": true'))
        )
        yield one(
            f"zero fast {size} at {offset}", request("PATCH", url(SPARSE), body=zero(offset, size, ', "fast": true'))
        )
    documents = (
        '{"op": "flush"}',
        '{"op":"flush"}',
        ' {\t"op"\r\n:"flush" } \n',
        '{"op": "flush", "offset": -1, "size": "x"}',
        '{"op": "zero", "size": 5000}',
        '{"size": 10, "op": "zero", "colour": "red"}',
        '{"op": "zero", "size": 10, "flush": false, "fast": false}',
        '{"op": "zero", "size": 1, "offset": 2, "offset": 3}',
        '{"op": "flush", "op": "zero", "size": 3}',
        '{"op": "z\\u0065ro", "size": 7}',
        '{"o\\u0070": "zero", "size": 7}',
        '{"op": "zero", "size": 0123}',
        '{"op": "zero", "size": 1e3}',
        '{"op": "zero", "size": 10.0}',
        '{"op": "zero", "size": -0}',
        '{"op": "zero", "size": -1}',
        '{"op": "zero", "size": +1}',
        '{"op": "zero", "size": null}',
        '{"op": "zero", "size": "10"}',
        '{"op": "zero", "size": true}',
        '{"op": "zero", "size": 10, "offset": -1}',
        '{"op": "zero", "size": 10, "offset": null}',
        '{"op": "zero", "size": 10, "offset": false}',
        '{"op": "zero", "size": 10, "flush": 1}',
        '{"op": "zero", "size": 10, "flush": "y"}',
        '{"op": "zero", "size": 10, "flush": null}',
        '{"op": "zero", "size": 10, "fast": 1}',
        '{"op": "zero", "size": 10,}',
        '{"op": "zero" "size": 10}',
        "{'op': 'flush'}",
        '{"op": "zero", "size": NaN}',
        '{"op": "zero", "size": Infinity}',
        '{"op": "zero"}',
        '{"op": "zero", "offset": 10}',
        '{"op": "ZERO", "size": 10}',
        '{"op": "trim", "size": 10}',
        '{"op": null}',
        '{"op": 7}',
        '{"op": ["zero"]}',
        '{"op": "flush"} x',
        '{"op": "flush"}{"op": "flush"}',
        '\ufeff{"op": "flush"}',
        "{}",
        "[]",
        '["zero"]',
        "null",
        '"flush"',
        "7",
        "",
        "{",
        "[" * 30_000,
        '{"op": "flush", "padding": "%s"}' % ("x" * 500),
        '{"op": "flush", "padding": "%s"}' % ("x" * 5000),
        '{"op": "flush", "padding": "%s"}' % ("x" * 65_508),
        '{"op": "flush", "padding": "%s"}' % ("x" * 65_509),
        '{"op": "flush", "padding": "%s"}' % ("x" * 70_000),
    )
    for document in documents:
        yield one(f"PATCH {document[:60]}", request("PATCH", URL, body=document.encode()))
    yield one("PATCH of no UTF-8", request("PATCH", URL, body=b'{"op": "fl\xffush"}'))
    yield one("PATCH without a length", request("PATCH", URL))
    yield one("PATCH with a query", request("PATCH", f"{URL}?flush=y", body=FLUSH))
    yield one("PATCH with close", request("PATCH", f"{URL}?close=y", body=FLUSH))
    yield one("PATCH with a range", request("PATCH", URL, "Content-Range: bytes 0-9/*", "Range: bytes=0-9", body=FLUSH))
    yield one("PATCH with an encoding", request("PATCH", URL, "Content-Encoding: gzip", body=FLUSH))
    yield one("PATCH of another type", request("PATCH", URL, "Content-Type: text/plain", body=FLUSH))
    for ticket, name in ((SPARSE, "sparse"), (LARGER, "larger"), (SMALLER, "smaller"), (READ_ONLY, "read-only")):
        yield one(f"flush of {name}", request("PATCH", url(ticket), body=FLUSH))
        for offset, size in ((0, 1000), (4096, 65536), (SMALL - 5000, 1), (SMALL - 1, 2), (SMALL, 1), (SMALL, MiB)):
            yield one(f"zero of {name} {size} at {offset}", request("PATCH", url(ticket), body=zero(offset, size)))
        yield one(f"extents of {name}", request("GET", f"{url(ticket)}/extents"))


PATHS = (
    "/",
    "/images",
    "/images/",
    "/images//extents",
    f"{URL}/",
    f"{URL}/unknown",
    f"{URL}/extents/more",
    f"{URL}//extents",
    "/nothing/here",
    "/info/",
    "/info",
    "/tickets/",
    f"/tickets/{MAIN}",
    "*",
    "/images/*",
    "http://localhost" + URL,
    "https://elsewhere:1" + URL,
    "ftp://localhost" + URL,
    "//localhost" + URL,
    "/images/" + "".join(f"%{ord(char):02x}" for char in MAIN),
    "/images/" + "".join(f"%{ord(char):02X}" for char in MAIN) + "?close=n",
    f"/%69mages/{MAIN}",
    f"/images%2f{MAIN}",
    f"{URL}%00",
    f"{URL}%",
    f"{URL}%zz",
    f"{URL}%ff",
    f"{URL}?%ff=1",
    f"{URL}#fragment",
    f"{URL};a=b",
    "/images/../images/" + MAIN,
    "/images/./" + MAIN,
    "/images/" + "x" * 300,
    "/images/" + "%41" * 300,
    "/" + "a/" * 20,
    url(UNKNOWN),
    url(EXPIRED),
    url(FORBIDDEN),
    url(MISSING),
)
METHODS = ("GET", "HEAD", "PUT", "PATCH", "OPTIONS", "POST", "DELETE", "BREW", "get", "CONNECT", "TRACE")
_BODIES = {"PUT": b"hello", "PATCH": FLUSH, "POST": b"x"}


def paths() -> Conversations:
    """Return each method of each path, and requests with several faults, to see which one is answered."""
    for path, method in product(PATHS, METHODS):
        yield one(f"{method} {path[:60]}", request(method, path, body=_BODIES.get(method)))
    for method in METHODS:
        yield one(f"{method} of an image", request(method, url(SMALLER), body=_BODIES.get(method)))
    for below in ("extents", "checksum", "checksum/algorithms"):
        for method in METHODS:
            yield one(f"{method} of {below}", request(method, f"{url(SMALLER)}/{below}", body=_BODIES.get(method)))
    for query in ("context=zero", "context=dirty", "context=x", "context=", "context=zero&context=x", "x=y"):
        yield one(f"extents ?{query}", request("GET", f"{URL}/extents?{query}"))
    for query in (
        "algorithm=sha256",
        "algorithm=sha1&block_size=1048576",
        "algorithm=x",
        "algorithm=shake_128",
        "block_size=2097152",
        "block_size=4096",
        "block_size=1048577",
        "block_size=0",
        "block_size=x",
        "block_size=16777216",
        "block_size=16781312",
    ):
        yield one(f"checksum ?{query}", request("GET", f"{URL}/checksum?{query}"))
    yield one("checksum of read-only", request("GET", f"{url(READ_ONLY)}/checksum"))
    yield one("checksum of a range", request("GET", f"{URL}/checksum", "Range: bytes=0-9"))
    for ticket in (UNKNOWN, FORBIDDEN):
        yield one("Range before no access", request("GET", url(ticket), "Range: bytes=x"))
        yield one("no access before a range outside", request("GET", url(ticket), "Range: bytes=99999999-"))
        yield one("Content-Range before no access", request("PUT", url(ticket), "Content-Range: x", body=b"x"))
        yield one("no access before room", request("PUT", url(ticket), "Content-Range: bytes 99999999-*/*", body=b"x"))
        yield one("query before no access", request("PUT", f"{url(ticket)}?flush=x", body=b"x"))
        yield one("JSON before no access", request("PATCH", url(ticket), body=b"x"))
        yield one("no access before zero outside", request("PATCH", url(ticket), body=zero(2**50, 1)))
        yield one("context before no access", request("GET", f"{url(ticket)}/extents?context=x"))
        yield one("algorithm before no access", request("GET", f"{url(ticket)}/checksum?algorithm=x"))
        yield one("encoding before no access", request("PUT", url(ticket), "Content-Encoding: gzip", body=b"x"))


def _of_every_kind(*lines: str) -> dict[str, bytes]:
    """Return a request of each kind with these lines in its head."""
    return {
        "GET": request("GET", URL, "Range: bytes=5-99", *lines),
        "all": request("GET", url(READ_ONLY), *lines),
        "HEAD": request("HEAD", URL, *lines),
        "PUT": put_at(URL, 5, b"hello", *lines),
        "PATCH": request("PATCH", URL, *lines, body=zero(6, 2)),
        "OPTIONS": request("OPTIONS", URL, *lines),
        "extents": request("GET", f"{URL}/extents", *lines),
        "refused": request("GET", URL, "Range: bytes=x", *lines),
        "no access": request("GET", url(UNKNOWN), *lines),
    }


FIELDS: tuple[tuple[str, ...], ...] = (
    (ORIGIN,),
    ("Origin: null",),
    ("Origin: ",),
    (ORIGIN, "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: content-range"),
    ("Access-Control-Request-Method: PUT",),
    ("Access-Control-Request-Headers: x",),
    ("Referer: https://ui.example.org/vms/1", "Accept-Language: de,en;q=0.5", "DNT: 1", "Cookie: a=b; c"),
    ("X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "Via: 1.1 proxy"),
    ("!#$%&'*+-.^_`|~: 1",),
    ("X-Empty: ",),
    ("X-L1: \xe9",),
    ("If-None-Match: *",),
    ('If-None-Match: "a", W/"b"',),
    ("If-Match: *",),
    ('If-Match: "a", "b"',),
    ('If-Range: "a"',),
    ("If-Range: Wed, 21 Oct 2015 07:28:00 GMT",),
    ("If-Modified-Since: Wed, 21 Oct 2015 07:28:00 GMT",),
    ("If-Unmodified-Since: Wed, 21 Oct 2015 07:28:00 GMT",),
    ("Accept-Encoding: gzip, deflate, br",),
    ("TE: trailers",),
    ("Accept: text/html",),
    ("Content-Encoding: identity",),
    ("Content-Encoding: gzip",),
    ("Content-Encoding: ",),
    ("Content-Type: multipart/form-data",),
    ("Cookie: a", "Cookie: b", "Accept: c", "Accept: d"),
    ("Content-MD5: x",),
    ("Connection: keep-alive",),
    ("Connection: Keep-Alive",),
    ("Connection: close",),
    ("Connection: Close",),
    ("Connection: keep-alive, close",),
    ("Connection: Keep-Alive, x",),
    ("Connection: x",),
    ("Connection: ",),
    ("Connection: ,",),
    ("Keep-Alive: timeout=5", "Connection: keep-alive"),
    ("Host: ",),
    ("Host: x:y:z",),
    ("Host: [::1",),
    ("Host: elsewhere:54322",),
    ("Upgrade: x", "Connection: close"),
    ("Expect: x",),
    ("Expect: ",),
    ("Trailer: X",),
    ("Content-Range: bytes 5-9/*",),
    ("Range: bytes=0-4",),
    ("Authorization: Basic eA==",),
    ("Max-Forwards: 0",),
    ("X: " + "x" * 8000,),
    ("X: " + "x" * 8190,),
    tuple(f"X-{number}: {number}" for number in range(50)),
    tuple(f"X-{number}: {number}" for number in range(95)),
    tuple(f"X-{number}: {number}" for number in range(110)),
)


def fields() -> Conversations:
    """Return requests of every kind with each field that may matter."""
    for lines in FIELDS:
        for kind, sent in _of_every_kind(*lines).items():
            yield one(f"{kind} with {lines[0][:40]} ({len(lines)})", sent)
    for line in ("Content-Length: 0", "Content-Length: 5"):
        for kind in ("GET", "all", "HEAD", "OPTIONS", "extents", "refused", "no access"):
            sent = _of_every_kind(line)[kind] + b"hello"[: int(line[-1])]
            yield Conversation(f"{kind} with {line}", (exchange(sent),))
    for padding in (15_000, 16_000, 16_500, 20_000, 100_000):
        yield one(f"a head of {padding}", request("GET", URL, "Range: bytes=0-3", "X: " + "x" * padding))
    total = len(request("GET", URL, "Range: bytes=0-3", "X: "))
    for size in (16 * KiB - 1, 16 * KiB, 16 * KiB + 1, 4096, 4097):
        sent = request("GET", URL, "Range: bytes=0-3", "X: " + "x" * (size - total))
        yield one(f"a head of exactly {size}", sent)
    yield one("a long name", request("GET", URL, "x" * 17_000 + ": x"))
    yield one("a long target", request("GET", "/images/" + "x" * 17_000))
    yield one("a head that does not end", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000, end=End.ENDS_SENDING)
    # HTTP/1.0
    for more in ("", "Connection: keep-alive\r\n", "Connection: close\r\n"):
        for line in (f"GET {URL}", f"HEAD {URL}", f"OPTIONS {URL}", f"GET {url(UNKNOWN)}", f"BREW {URL}"):
            sent = f"{line} HTTP/1.0\r\nRange: bytes=0-9\r\n{more}\r\n".encode()
            yield one(f"{line[:10]} HTTP/1.0 {more[:-2]}", sent)
        sent = f"PUT {URL} HTTP/1.0\r\nContent-Length: 5\r\n{more}\r\nhello".encode()
        yield one(f"PUT HTTP/1.0 {more[:-2]}", sent)


_LINES = (
    *malformed.LENGTHS,
    "Content-Length: 5\r\nContent-Length: 5",
    "Content-Length: 5, 5",
    "Transfer-Encoding: ",
    "Transfer-Encoding: identity",
    "Content-Length: 5 5",
    "Content-Length: 9999999999999999999",
    "Content-Length: 999999999999999999",
    "Content-Length: 5\x7f",
    "Content-Length: 5\r\nX\r\nY: 1",
    "Content-Length: 5\r\n: 1",
    "Content-Length: 5\r\nX : 1",
    "Content-Length: 5\r\nX(): 1",
    "Content-Length: 5\r\nTr\xe4nsfer: 1",
    "Content-Length: 5\r\nX: a\x01b",
    "Content-Length: 5\r\nX: a\rb",
    "Content-Length: 5\r\nX: a\nb",
    "Content-Length: 5\nX: a",
    "Content-Length: 5\r\nHost: again",
    "Content-Length: 5\r\nContent-Range: bytes 0-0/*\r\nContent-Range: bytes 9-9/*",
    "Content-Length: 5\r\nRange: bytes=0-0\r\nRange: bytes=9-9",
    "Content-Length: 5\r\nExpect: 100-continue\r\nExpect: 100-continue",
    "Content-Length: 5\r\nConnection: close\r\nConnection: keep-alive",
    "Content-Length: 5\r\nConnection: keep-alive\r\nConnection: close",
    "Content-Length: 5\r\nOrigin: a\r\nOrigin: b",
)
_NO_REQUESTS = (
    b"GET\r\n\r\n",
    b"GET /\r\n\r\n",
    b"/ HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    b"GET / http/1.1\r\nHost: x\r\n\r\n",
    b"GET  /  HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
    b" GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
    b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
    b"GET / HTTP/1.1\r\nA b: c\r\n\r\n",
    b"G\x00T / HTTP/1.1\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"GET /images/\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\n" + PROBE,
    b"\r" + PROBE,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    b"\xff" * 1000 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"x" * 20_000,
    b"\r\n" * 10_000,
    PROBE.replace(b"Host: localhost\r\n", b""),
)


def framing() -> Conversations:
    """Return bytes that are no request, or that could be two."""
    for line in _LINES:
        head = f"PUT {URL} HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n".encode("latin-1")
        yield Conversation(f"PUT {line!r}", (Round((head + b"hello",), ("PUT",)),), End.ENDS_SENDING)
        get = f"GET {URL} HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-9\r\n{line}\r\n\r\n".encode("latin-1")
        yield Conversation(f"GET {line!r}", (Round((get + b"hello",), ("GET",)),), End.ENDS_SENDING)
    for number, sent in enumerate(_NO_REQUESTS):
        yield Conversation(f"no request {number} {sent[:30]!r}", (Round((sent,), ()),), End.ENDS_SENDING)
    for lines in (b"\r\n", b"\r\n\r\n", b"\r\n" * 20):
        yield one(f"{len(lines)} bytes of empty lines before", lines + PROBE)
    after = request("PUT", URL, body=b"12345")
    for lines in (b"\r\n", b"\r\n\r\n"):
        yield Conversation(f"{len(lines)} bytes of empty lines between", (exchange(after, lines + PROBE),))


def _mixed() -> list[bytes]:
    return [
        put_at(f"{URL}?flush=n", 10, b"hello"),
        request("PATCH", URL, body=zero(0, 5)),
        request("GET", URL, "Range: bytes=8-15"),
        request("OPTIONS", URL),
        request("HEAD", URL),
        request("GET", f"{url(READ_ONLY)}/extents"),
        request("PATCH", URL, body=b"nonsense"),
        request("GET", url(SMALLER), "Range: bytes=8-15"),
        request("GET", URL, "Range: bytes=x"),
        request("BREW", URL),
        request("GET", "/unknown"),
        put_at(URL, 77, pattern(70_000, 51)),
        request("GET", URL, "Range: bytes=0-99999"),
    ]


def delivery() -> Conversations:
    """Return requests in pieces, several at once, and cut off."""
    mixed = _mixed()
    for sent in mixed:
        step = max(1, len(sent) // 40)
        name = sent.partition(b"\r\n")[0].decode()
        yield Conversation(f"{name} in many pieces", (split(sent, *range(step, len(sent), step)),))
        for at in (1, 3, len(sent) // 2, len(sent) - 1):
            yield Conversation(f"{name} split at {at}", (split(sent, at),))
        for at in (1, len(sent) // 3, len(sent) - 1):
            yield Conversation(f"{name} cut at {at}", (Round((sent[:at],), ()),), End.ENDS_SENDING)
        yield Conversation(f"{name} and no more", (exchange(sent),), End.ENDS_SENDING)
        yield Conversation(f"{name} three times", (exchange(sent, sent, sent),))
    yield Conversation("all kinds at once", (exchange(*mixed),))
    yield Conversation("all kinds twice at once", (exchange(*mixed, *mixed),), End.ENDS_SENDING)
    yield Conversation("all kinds, one after the other", tuple(exchange(sent) for sent in mixed))
    gets = [request("GET", URL, f"Range: bytes={at}-{at + 9}") for at in range(0, 600, 10)]
    yield Conversation("many GET at once", (exchange(*gets),))
    puts = [put_at(f"{URL}?flush=n", at, b"x" * 5) for at in range(0, 600, 10)]
    yield Conversation(
        "PUT and GET in turns at once", (exchange(*(each for pair in zip(puts, gets, strict=True) for each in pair)),)
    )
    others = [request("GET", url(ticket), "Range: bytes=0-9") for ticket in (MAIN, SMALLER, READ_ONLY, MAIN) * 5]
    yield Conversation("tickets in turns", (exchange(*others),))
    for name, last in {
        "close": request("GET", URL, "Range: bytes=0-3", "Connection: close"),
        "close=y": request("PUT", f"{URL}?close=y", body=b"hello"),
        "no access": request("GET", url(UNKNOWN)),
        "refused": put_at(url(UNKNOWN), 0, b"body"),
        "out of room": put_at(URL, SIZE, b"body"),
        "malformed": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    }.items():
        method = last.partition(b" ")[0].decode()
        pieces = (PROBE + last + put_at(URL, 0, b"late"),)
        yield Conversation(f"nothing after {name}", (Round(pieces, ("GET", method)),), End.ENDS_SENDING)
    first, second = put_at(URL, 0, pattern(200_000, 52)), put_at(URL, 200_000, pattern(200_000, 53))
    both = (first[:150_000], first[150_000:] + second[:50], second[50:])
    yield Conversation("the next one with the end of a body", (Round(both, ("PUT", "PUT")),))
    yield Conversation(
        "more than was said", (exchange(request("PUT", URL, body=b"hello") + b"rest\r\n\r\n"),), End.ENDS_SENDING
    )
    short = request("PUT", URL, "Content-Length: 100000", body=pattern(50_000, 54))
    yield Conversation("less than was said", (Round((short,), ()),), End.ENDS_SENDING)
    short = request("PATCH", URL, "Content-Length: 100", body=FLUSH)
    yield Conversation("a shorter document than was said", (Round((short,), ()),), End.ENDS_SENDING)
    long = put_at(URL, 0, pattern(SIZE, 55))
    yield Conversation("a long body in pieces", (split(long, *range(100, len(long), 60_001)),))
    refused = request("PUT", url(UNKNOWN), body=bytes(3 * MiB))
    yield one("a long refused body", refused)
    yield one("a long body out of room", put_at(URL, SIZE - MiB, bytes(3 * MiB)))
    yield one("a long body for nobody", request("POST", URL, body=bytes(3 * MiB)))


def _expecting(target: str, *lines: str, length: int = 5, method: str = "PUT") -> bytes:
    return request(method, target, "Expect: 100-continue", f"Content-Length: {length}", *lines)


def expectations() -> Conversations:
    """Return requests with Expect: 100-continue, accepted or refused, and clients that do not wait for the answer."""
    hello = Round((b"hello",), ("PUT",))
    yield Conversation("continue", (exchange(_expecting(URL)), hello))
    yield Conversation(
        "continue in any case", (exchange(request("PUT", URL, "expect: 100-Continue", "Content-Length: 5")), hello)
    )
    yield Conversation("continue twice", (exchange(_expecting(URL)), hello) * 2)
    yield Conversation("continue behind others", (exchange(PROBE, PROBE), exchange(_expecting(URL)), hello))
    long = pattern(2 * MiB, 60)
    yield Conversation(
        "continue with a long body", (exchange(_expecting(URL, length=len(long))), Round((long,), ("PUT",)))
    )
    flush = exchange(_expecting(URL, length=len(FLUSH), method="PATCH")), Round((FLUSH,), ("PATCH",))
    yield Conversation("PATCH", flush)
    patch = exchange(_expecting(URL, length=8, method="PATCH")), Round((b"nonsense",), ("PATCH",))
    yield Conversation("PATCH of nonsense", patch)
    yield Conversation("nothing to expect", (Round((_expecting(URL, length=0),), ("PUT",)),))
    yield one("GET that expects", request("GET", URL, "Expect: 100-continue", "Range: bytes=0-9"))
    for name, sent in {
        "no ticket": _expecting(url(UNKNOWN)),
        "read-only": _expecting(url(READ_ONLY)),
        "malformed": _expecting(URL, "Content-Range: x"),
        "out of room": _expecting(URL, f"Content-Range: bytes {SIZE}-*/*"),
        "encoded": _expecting(URL, "Content-Encoding: gzip"),
        "not allowed": _expecting(f"{URL}/extents"),
        "not found": _expecting("/unknown"),
        "PATCH without a ticket": _expecting(url(UNKNOWN), method="PATCH"),
        "PATCH too long": _expecting(URL, length=70_000, method="PATCH"),
        "missing": _expecting(url(MISSING)),
        "another": request("PUT", URL, "Expect: 200-ok", body=b"hello"),
    }.items():
        yield one(f"refused: {name}", sent)
    cut = exchange(_expecting(URL)), Round((b"he",), ())
    yield Conversation("cut", cut, End.ENDS_SENDING)
    yield Conversation("never sent", (exchange(_expecting(URL)),), End.ENDS_SENDING)
    yield one("HTTP/1.0", f"PUT {URL} HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello".encode())


def _chunks(*pieces: bytes, last: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + last


def chunked() -> Conversations:
    """Return requests with bodies in chunks, good and bad. Each ends its connection."""
    line = "Transfer-Encoding: chunked"
    put = request("PUT", URL, line, "Content-Range: bytes 100-*/*")
    for name, body in {
        "nothing": _chunks(),
        "one": _chunks(b"hello"),
        "many": _chunks(*(bytes([number]) * number for number in range(1, 200))),
        "long": _chunks(pattern(MiB, 70), pattern(MiB + 1, 71)),
        "extension": b"5;x=y\r\nhello\r\n0;z\r\n\r\n",
        "capitals": b"A\r\n0123456789\r\n0\r\n\r\n",
        "zeros before": b"0005\r\nhello\r\n000\r\n\r\n",
        "trailer": b"5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        "bad size": b"x\r\nhello\r\n0\r\n\r\n",
        "negative": b"-5\r\nhello\r\n0\r\n\r\n",
        "plus": b"+5\r\nhello\r\n0\r\n\r\n",
        "hexadecimal": b"0x5\r\nhello\r\n0\r\n\r\n",
        "longer": b"5\r\nhello!\r\n0\r\n\r\n",
        "shorter": b"5\r\nhell\r\n0\r\n\r\n",
        "no size": b"\r\nhello\r\n0\r\n\r\n",
        "huge": b"ffffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "line feeds": b"5\nhello\n0\n\n",
        "long line": b"5;x=" + b"y" * 5000 + b"\r\nhello\r\n0\r\n\r\n",
    }.items():
        yield Conversation(f"chunked {name}", (Round((put + body,), ("PUT",)),), End.ENDS_SENDING)
    for name, sent in {
        "cut": put + b"5\r\nhel",
        "cut before the end": put + b"5\r\nhello\r\n",
    }.items():
        yield Conversation(f"chunked {name}", (Round((sent,), ()),), End.ENDS_SENDING)
    for name, sent in {
        "PATCH": request("PATCH", URL, line) + _chunks(b'{"op": "', b'flush"}'),
        "PATCH of nonsense": request("PATCH", URL, line) + _chunks(b"x"),
        "PATCH too long": request("PATCH", URL, line) + _chunks(bytes(70_000)),
        "GET": request("GET", URL, line, "Range: bytes=0-9") + _chunks(b"x"),
        "OPTIONS": request("OPTIONS", URL, line) + _chunks(),
        "out of room": request("PUT", URL, line, f"Content-Range: bytes {SIZE - 2}-*/*") + _chunks(b"hello"),
        "no ticket": request("PUT", url(UNKNOWN), line) + _chunks(b"hello"),
        "read-only": request("PUT", url(READ_ONLY), line) + _chunks(b"hello"),
        "grows": request("PUT", url(LARGER), line, f"Content-Range: bytes {SMALL}-*/*") + _chunks(b"hello"),
        "encoded": request("PUT", URL, line, "Content-Encoding: gzip") + _chunks(b"hello"),
        "old": f"PUT {URL} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + _chunks(b"hello"),
    }.items():
        method = sent.partition(b" ")[0].decode()
        yield Conversation(f"chunked {name}", (Round((sent,), (method,)),), End.ENDS_SENDING)
    expects = request("PUT", URL, line, "Expect: 100-continue")
    yield Conversation(
        "chunked that expects", (exchange(expects), Round((_chunks(b"hello"),), ("PUT",))), End.ENDS_SENDING
    )


#: All conversations, by subject.
GROUPS: Mapping[str, Callable[[], Conversations]] = {
    make.__name__: make
    for make in (ranges, writes, operations, paths, fields, framing, delivery, expectations, chunked)
}
