# SPDX-License-Identifier: Apache-2.0
"""Anything at all is sent to a running daemon: it never crashes, never answers 500, and holds nothing afterwards."""

import json
import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.daemon import Baseline, Daemon
from tests.support.http_client import encode_request
from tests.support.images import Image, MakeImage, make_image, pattern

#: A ticket is used only to see that it works.
pytestmark = pytest.mark.unopened

STATUS = re.compile(rb"HTTP/1\.[01] (\d\d\d) ")


@pytest.fixture(params=["tls", "unix", "control"])
def target(
    request: pytest.FixtureRequest, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Target"]:
    image = make_image(daemon, tmp_path_factory.mktemp("fuzz"))(pattern(100_000))
    with daemon.connect("unix") as connection:
        assert connection.request("OPTIONS", image.url).status == 200, "it is open, so that C can serve it"
    baseline = Baseline(daemon)
    yield Target(daemon, request.param, image)
    assert daemon.running
    # The control service may have been asked to remove the ticket, and did.
    again = daemon.add_ticket(image.path, 100_000)
    with daemon.connect("unix") as connection:
        assert connection.get(f"/images/{again}").status == 200, "the daemon still serves"
    daemon.control("DELETE", "/tickets/")
    baseline.check()


class Target:
    """A service of a daemon, and an image that it serves."""

    def __init__(self, daemon: Daemon, service: str, image: Image) -> None:
        self._daemon = daemon
        self._service = service
        self.url = image.url if service != "control" else f"/tickets/{image.ticket}"

    def send(self, *pieces: bytes) -> list[int]:
        """Send the pieces on a connection of their own and return the statuses of all answers."""
        with self._daemon.connect(self._service) as connection:
            for piece in pieces:
                connection.send_while_accepted(piece)
            connection.end_sending()
            received = connection.drain()
        return [int(status) for status in STATUS.findall(received)]


def check(statuses: list[int]) -> None:
    assert not [status for status in statuses if status >= 500 and status not in (501, 503, 505)], statuses


@given(data=st.binary(max_size=5000))
@example(data=b"\r\n" * 5000)
@example(data=b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 3000)
def test_bytes(target: Target, data: bytes) -> None:
    check(target.send(data))


@given(
    method=st.sampled_from(["GET", "PUT", "PATCH", "OPTIONS", "HEAD", "DELETE", "POST", "", "G ET"]),
    path=st.text(max_size=50),
    fields=st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30)), max_size=5),
    body=st.binary(max_size=200),
)
def test_requests_of_any_fields(
    target: Target, method: str, path: str, fields: list[tuple[bytes, bytes]], body: bytes
) -> None:
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    line = f"{method} {target.url}{path} HTTP/1.1\r\n".encode(errors="surrogateescape")
    check(target.send(line + lines + b"\r\n" + body))


FIELD_VALUES = {
    "Range": ["bytes=0-", "bytes=-1", "bytes=5-1", "bytes=0-99999999999999999999", "x"],
    "Content-Range": ["bytes 0-9/*", "bytes 99999-*/*", "bytes */*", f"bytes {2**64}-*/*"],
    "Content-Length": ["0", "10", "-1", "99999999999999999999", "1, 1"],
    "Transfer-Encoding": ["chunked", "identity", "gzip, chunked"],
    "Content-Encoding": ["gzip", "identity"],
    "Expect": ["100-continue", "x"],
    "Connection": ["close", "keep-alive", "upgrade"],
    "Upgrade": ["websocket", "h2c"],
    "Origin": ["https://x", "null"],
    "Access-Control-Request-Method": ["PUT"],
    "Host": ["", "x:y:z", "[::1"],
    "Cookie": ["a=b; c", ";;;"],
    "Content-Type": ["multipart/form-data", "application/json; charset=nonsense", "x"],
}
KNOWN_FIELDS = st.lists(
    st.sampled_from(list(FIELD_VALUES)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(FIELD_VALUES[name]))
    ),
    max_size=5,
)
TAILS = [
    "",
    "/",
    "/extents",
    "/checksum",
    "/checksum/algorithms",
    "?flush=n",
    "?close=y",
    "/extents?context=dirty",
    "/checksum?block_size=0",
    "?%00",
    "%2e%2e/",
    "/%ff",
]


@given(
    method=st.sampled_from(["GET", "PUT", "PATCH", "OPTIONS", "HEAD", "DELETE"]),
    tail=st.sampled_from(TAILS),
    fields=KNOWN_FIELDS,
    body=st.sampled_from(
        [b"", b"x" * 10, b'{"op": "zero", "size": 10}', b"a\r\n0123456789\r\n0\r\n\r\n", b"0\r\n\r\n"]
    ),
    version=st.sampled_from(["1.0", "1.1"]),
)
def test_requests_of_known_fields(
    target: Target, method: str, tail: str, fields: list[tuple[str, str]], body: bytes, version: str
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    check(target.send(f"{method} {target.url}{tail} HTTP/{version}\r\n{lines}\r\n".encode() + body))


@given(seed=st.integers(0, 2**32))
def test_good_requests_with_a_few_wrong_bytes(target: Target, seed: int) -> None:
    choose = random.Random(seed)
    good = b"".join(
        [
            encode_request("PUT", target.url, {"Content-Range": "bytes 10-19/*"}, b"0123456789"),
            encode_request("PATCH", target.url, None, b'{"op": "zero", "offset": 1, "size": 5}'),
            encode_request("GET", target.url, {"Range": "bytes=0-9"}),
            encode_request("PUT", target.url, {"Transfer-Encoding": "chunked"}) + b"3\r\nabc\r\n0\r\n\r\n",
        ]
    )
    wrong = bytearray(good)
    for _ in range(choose.randrange(1, 5)):
        at = choose.randrange(len(wrong))
        match choose.randrange(3):
            case 0:
                wrong[at] = choose.randrange(256)
            case 1:
                del wrong[at : at + choose.randrange(1, 20)]
            case 2:
                wrong[at:at] = choose.randbytes(choose.randrange(1, 20))
    cut = choose.randrange(len(wrong))
    check(target.send(bytes(wrong[:cut]), bytes(wrong[cut:])))


OPERATION = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["zero", "flush"]),
    lambda children: (
        st.lists(children, max_size=5)
        | st.dictionaries(st.sampled_from(["op", "offset", "size", "flush", "x"]), children)
    ),
    max_leaves=10,
)


@given(operation=OPERATION)
def test_operations(target: Target, operation: object) -> None:
    check(target.send(encode_request("PATCH", target.url, None, json.dumps(operation).encode())))


def test_a_fuzzed_image_is_never_written_outside_of_its_ticket(new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image(pattern(100_000), ticket_size=50_000)
    choose = random.Random(3)
    for _ in range(300):
        offset, length = choose.randrange(49_000, 51_000), choose.randrange(2000)
        with daemon.connect("unix") as connection:
            status = connection.put(
                f"{image.url}?flush=n", b"x" * length, {"Content-Range": f"bytes {offset}-*/*"}
            ).status
        assert status == (200 if offset + length <= 50_000 else 416)
    assert image.content()[50_000:] == pattern(100_000)[50_000:]
