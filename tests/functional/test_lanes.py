# SPDX-License-Identifier: Apache-2.0
"""C alone, and Python and C, give a request the same answer, and neither sends bytes of another request."""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from email.utils import parsedate
from pathlib import Path

import pytest

from tests.support import malformed
from tests.support.daemon import DECIDED_PROGRAM, PROGRAM, Certificates, Daemon, MakeDaemon
from tests.support.http_client import Answer, Connection, DisconnectedError, encode_request
from tests.support.images import Image, MiB, make_image, pattern

#: Who decides requests: C those that are plain; Python all. The programs of daemons.
LANES = {"plain": PROGRAM, "decided": DECIDED_PROGRAM}


@pytest.fixture(scope="module")
def lanes(certificates: Certificates) -> Iterator[list[Daemon]]:
    with ExitStack() as cleanup:
        yield [cleanup.enter_context(Daemon(certificates, {}, program=program)) for program in LANES.values()]


def streams(url: str) -> dict[str, list[tuple[str, bytes]]]:
    """Return byte streams of (method, request) by what is special about them."""
    put = ("PUT", encode_request("PUT", f"{url}?flush=n", {"Content-Range": "bytes 10-14/*"}, b"hello"))
    get = ("GET", encode_request("GET", url, {"Range": "bytes=5-20"}))
    zero = ("PATCH", encode_request("PATCH", url, None, b'{"op": "zero", "offset": 11, "size": 2}'))
    flush = ("PATCH", encode_request("PATCH", url, None, b'{"op": "flush"}'))
    options = ("OPTIONS", encode_request("OPTIONS", url))
    extents = ("GET", encode_request("GET", f"{url}/extents"))
    chunked = ("PUT", encode_request("PUT", url, {"Transfer-Encoding": "chunked"}) + b"3\r\nabc\r\n0\r\n\r\n")
    unknown = ("GET", encode_request("GET", url, {"X-Unknown": "1", "Range": "bytes=0-3"}))
    return {
        "all fast": [put, get, zero, flush, get],
        "all general": [options, extents, unknown, chunked],
        "there and back": [put, options, get, extents, zero, unknown, flush, get],
        "back and there": [unknown, put, get, options, zero, extents, get, chunked, get],
        "fields of browsers": [
            (
                "GET",
                encode_request("GET", url, {"Range": "bytes=0-3", "Referer": "https://ui", "Sec-Fetch-Mode": "cors"}),
            ),
            ("PUT", encode_request("PUT", url, {"X-Forwarded-For": "192.0.2.1", "traceparent": "00-1-2-03"}, b"hello")),
            get,
        ],
        "bad range": [("GET", encode_request("GET", url, {"Range": "bytes=9-1"})), get],
        "range past the end": [("GET", encode_request("GET", url, {"Range": "bytes=99999999-"})), get],
        "bad content range": [("PUT", encode_request("PUT", url, {"Content-Range": "bytes 5-1/*"}, b"x")), get],
        "bad query": [("PUT", encode_request("PUT", f"{url}?flush=maybe", None, b"x")), get],
        "bad json": [("PATCH", encode_request("PATCH", url, None, b"[1")), zero, get],
        "empty body": [("PUT", encode_request("PUT", url, None, b"")), get],
        "whole image": [("GET", encode_request("GET", url)), get],
        "whole image of a page": [put, ("GET", encode_request("GET", url, {"Origin": "https://ui"})), get],
        "rest of the image": [
            ("GET", encode_request("GET", url, {"Range": f"bytes={first}-"})) for first in (0, 1000, MiB - 1, MiB)
        ],
        "origin": [("GET", encode_request("GET", url, {"Range": "bytes=0-0", "Origin": "https://ui"})), get],
        "origin of changes": [
            ("PUT", encode_request("PUT", url, {"Origin": "https://ui"}, b"hello")),
            ("PATCH", encode_request("PATCH", url, {"Origin": "https://ui"}, b'{"op": "zero", "size": 2}')),
            ("PUT", encode_request("PUT", url, {"Origin": "https://ui", "Content-Range": "bytes 5-1/*"}, b"x")),
            get,
        ],
        "expect": [
            ("PUT", encode_request("PUT", url, {"Expect": "100-continue", "Origin": "https://ui"}, b"hello")),
            ("PUT", b""),  # the second answer
            get,
            ("PATCH", encode_request("PATCH", url, {"Expect": "100-continue"}, b'{"op": "zero", "size": 2}')),
            ("PATCH", b""),
            ("GET", encode_request("GET", url, {"Range": "bytes=0-9", "Expect": "100-continue"})),
        ],
        "unknown expectation": [("PUT", encode_request("PUT", url, {"Expect": "x"}, b"hello")), get],
        "encoded": [("PUT", encode_request("PUT", url, {"Content-Encoding": "gzip"}, b"x"))],
        "unknown ticket": [("GET", encode_request("GET", "/images/none", {"Range": "bytes=0-0"}))],
        "wish to close": [("GET", encode_request("GET", f"{url}?close=y", {"Range": "bytes=0-3"}))],
    }


def seen(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return what a client sees of an answer; servers and dates apart."""
    fields = [(name, answer.headers[name]) for name in ("Content-Type", "Content-Range", "Content-Disposition", "Allow")
              if name in answer.headers]  # fmt: skip
    more = ("Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "X-Content-Type-Options")
    fields += [(name, answer.headers[name]) for name in more if name in answer.headers]
    body = b"" if b"unix_socket" in answer.body else answer.body
    return answer.status, fields, body


def converse(daemon: Daemon, service_name: str, image: Image, requests: list[tuple[str, bytes]]) -> list[object]:
    with handed_over(daemon, service_name, image) as connection:
        connection.send(b"".join(data for _, data in requests))
        return receive_all(connection, requests)


def converse_long(daemon: Daemon, image: Image, requests: list[tuple[str, bytes]], pieces: int) -> list[object]:
    """Send and receive at the same time: a client that does not read what is answered is not read, either."""
    with handed_over(daemon, "unix", image) as connection:
        data = b"".join(data for _, data in requests)
        sender = threading.Thread(target=send, args=(connection, data, pieces))
        sender.start()
        answers = receive_all(connection, requests)
        sender.join()
        return answers


def handed_over(daemon: Daemon, service_name: str, image: Image) -> Connection:
    """Return a connection that C has where it takes over: plain requests came first."""
    connection = daemon.connect(service_name)
    for _ in range(2):
        assert connection.get(image.url, {"Range": "bytes=0-0"}).status == 206
    return connection


def send(connection: Connection, data: bytes, pieces: int) -> None:
    step = -(-len(data) // pieces)
    with suppress(OSError):  # what is seen of it is that answers are missing
        for start in range(0, len(data), step):
            connection.send(data[start : start + step])


def receive_all(connection: Connection, requests: list[tuple[str, bytes]]) -> list[object]:
    answers: list[object] = []
    try:
        for method, _ in requests:
            answers.append(seen(connection.receive(to=method)))
    except DisconnectedError:
        answers.append("closed")  # a body that was not read ends the connection
    return answers


@pytest.mark.parametrize("name", streams(""))
def test_all_lanes_give_the_same_answers_and_images(
    lanes: list[Daemon], service_name: str, tmp_path: Path, name: str
) -> None:
    images = [make_image(daemon, tmp_path)(pattern(MiB)) for daemon in lanes]
    answers = [
        converse(daemon, service_name, image, streams(image.url)[name])
        for daemon, image in zip(lanes, images, strict=True)
    ]
    check_equal(answers, images)


@pytest.mark.parametrize("name", ["all fast", "there and back", "range past the end", "whole image"])
def test_all_lanes_serve_a_ticket_without_a_limit(
    lanes: list[Daemon], service_name: str, tmp_path: Path, name: str
) -> None:
    images = [make_image(daemon, tmp_path)(pattern(MiB), ticket_size=2**64) for daemon in lanes]
    answers = [
        converse(daemon, service_name, image, streams(image.url)[name] * 3)
        for daemon, image in zip(lanes, images, strict=True)
    ]
    check_equal(answers, images)


def check_equal(answers: list[list[object]], images: list[Image]) -> None:
    assert answers[0] == answers[1]
    assert images[0].content() == images[1].content()


def random_stream(url: str, choose: random.Random) -> list[tuple[str, bytes]]:
    """Return requests of which most are plain, so that C has the connection again and again."""
    names = ("Content-Range", "content-range", "CONTENT-RANGE")
    requests: list[tuple[str, bytes]] = []
    for _ in range(60):
        offset, length = choose.randrange(MiB), choose.choice((1, 100, 5000, 70_000, 1_200_000))
        kind = choose.randrange(16)
        if kind < 5:
            total = choose.choice(("*", "9999999"))
            fields = {choose.choice(names): f"bytes {offset}-{choose.choice(('*', '9999998'))}/{total}"}
            flush = choose.choice(("", "?flush=n", "?flush=y"))
            requests.append(("PUT", encode_request("PUT", url + flush, fields, choose.randbytes(length))))
        elif kind < 10:
            fields = {"Range": f"bytes={offset}-{offset + length - 1}"}
            requests.append(("GET", encode_request("GET", url, fields)))
        elif kind < 14:
            form = choose.choice((b'{"op": "zero", "offset": %d, "size": %d}', b'{"offset":%d,"size":%d,"op":"zero"}'))
            requests.append(("PATCH", encode_request("PATCH", url, None, form % (offset, length))))
        elif kind < 15:
            requests.append(("PATCH", encode_request("PATCH", url, None, b'{"op": "flush"}')))
        else:
            requests.append(choose.choice(list(streams(url).values()))[0])
    return requests


@pytest.mark.parametrize("seed", range(6))
def test_all_lanes_give_the_same_answers_to_long_streams(lanes: list[Daemon], tmp_path: Path, seed: int) -> None:
    images = [make_image(daemon, tmp_path)(pattern(4 * MiB)) for daemon in lanes]
    answers = [
        converse_long(daemon, image, random_stream(image.url, random.Random(seed)), pieces=1 + 50 * seed)
        for daemon, image in zip(lanes, images, strict=True)
    ]
    check_equal(answers, images)


def test_c_answers_what_went_well_byte_for_byte_as_python_does(lanes: list[Daemon], tmp_path: Path) -> None:
    found = []
    for daemon in lanes[:2]:
        image = make_image(daemon, tmp_path)(pattern(MiB), filename="größe.raw")
        with handed_over(daemon, "unix", image) as connection:
            answers = [
                answer
                for fields in ({}, {"Origin": "https://ui"})
                for answer in (
                    connection.get(image.url, {"Range": "bytes=5-20", **fields}),
                    connection.get(image.url, {"Range": "bytes=5000-", **fields}),
                    connection.get(image.url, fields),
                    connection.put(image.url, b"hello", {"Content-Range": "bytes 10-14/*", **fields}),
                    connection.request("PATCH", image.url, fields, b'{"op": "zero", "size": 10}'),
                    connection.request("PATCH", image.url, fields, b'{"op": "flush"}'),
                )
            ]
        fields = [[field for field in answer.headers.fields if field[0] != "Date"] for answer in answers]
        found.append((fields, [answer.status for answer in answers], [answer.body for answer in answers]))
        assert all(parsedate(answer.headers["Date"]) for answer in answers)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "fields",
    [*malformed.LENGTHS, "Content-Length: 5\r\nContent-Range: bytes 0-4/*\r\nContent-Range: bytes 9-13/*",
     "Content-Length: 5\r\nContent-Range: bytes 0-4", "Content-Length: 5\r\nHost: other", "Content-Length: 5\n",
     "Content-Length: 5\r\nContent-Range: bytes=0-4/*", "Content-Length: 5\r\nExpect: x\r\nX: y"],
)  # fmt: skip
def test_all_lanes_understand_a_doubtful_head_alike(lanes: list[Daemon], tmp_path: Path, fields: str) -> None:
    images = [make_image(daemon, tmp_path)(pattern(MiB)) for daemon in lanes]
    answers = []
    for daemon, image in zip(lanes, images, strict=True):
        hidden = encode_request("GET", image.url, {"Range": "bytes=0-9"})
        head = f"PUT {image.url} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n".encode()
        found = converse(daemon, "unix", image, [("PUT", head + b"hello" + hidden), ("GET", b"")])
        # What is refused because nobody knows where it ends is refused in several words.
        answers.append([answer if isinstance(answer, str) else answer[0] for answer in found])  # type: ignore[index]
    check_equal(answers, images)


@pytest.mark.parametrize("lane", LANES)
def test_no_download_is_ever_mixed_up_when_readers_are_slow_and_buffers_few(
    make_daemon: MakeDaemon, tmp_path: Path, service_name: str, lane: str
) -> None:
    daemon = make_daemon(daemon={"buffer_memory": 28 * MiB}, program=LANES[lane])
    images = [make_image(daemon, tmp_path)(pattern(4 * MiB, seed=seed)) for seed in range(4)]
    failures: list[str] = []

    def download(image: Image) -> None:
        content = image.content()
        with daemon.connect(service_name) as connection:
            for at in range(0, 4 * MiB, MiB):
                if not same_slowly(connection, image, at, content):
                    failures.append(f"{image.path} at {at}")

    threads = [threading.Thread(target=download, args=(image,)) for image in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def same_slowly(connection: Connection, image: Image, at: int, content: bytes) -> bool:
    """Read a range in small pieces, looking at each before the next is asked of the kernel."""
    connection.send(encode_request("GET", image.url, {"Range": f"bytes={at}-{at + MiB - 1}"}))
    return connection.receive().body == content[at : at + MiB]
