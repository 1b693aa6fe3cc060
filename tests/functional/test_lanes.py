# SPDX-License-Identifier: Apache-2.0
"""The two ways to serve a request give the same answers, and neither sends bytes of another request."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.http_client import Answer, Connection, DisconnectedError, encode_request
from tests.support.images import Image, MiB, make_image, pattern


@pytest.fixture(scope="module")
def lanes(certificates: Certificates) -> Iterator[list[Daemon]]:
    with (
        Daemon(certificates, {"remote": {"fast_lane": "true"}}) as fast,
        Daemon(certificates, {"remote": {"fast_lane": "false"}}) as general,
    ):
        yield [fast, general]


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
        "all general": [options, extents, chunked, unknown],
        "there and back": [put, options, get, extents, zero, unknown, flush, chunked, get],
        "back and there": [unknown, put, chunked, get, options, zero, extents, get],
        "bad range": [("GET", encode_request("GET", url, {"Range": "bytes=9-1"})), get],
        "range past the end": [("GET", encode_request("GET", url, {"Range": "bytes=99999999-"})), get],
        "bad content range": [("PUT", encode_request("PUT", url, {"Content-Range": "bytes 5-1/*"}, b"x")), get],
        "bad query": [("PUT", encode_request("PUT", f"{url}?flush=maybe", None, b"x")), get],
        "bad json": [("PATCH", encode_request("PATCH", url, None, b"[1")), zero, get],
        "empty body": [("PUT", encode_request("PUT", url, None, b"")), get],
        "whole image": [("GET", encode_request("GET", url)), get],
        "origin": [("GET", encode_request("GET", url, {"Range": "bytes=0-0", "Origin": "https://ui"})), get],
        "encoded": [("PUT", encode_request("PUT", url, {"Content-Encoding": "gzip"}, b"x"))],
        "unknown ticket": [("GET", encode_request("GET", "/images/none", {"Range": "bytes=0-0"}))],
        "wish to close": [("GET", encode_request("GET", f"{url}?close=y", {"Range": "bytes=0-3"}))],
    }


def seen(answer: Answer) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return what a client sees of an answer; servers and dates apart."""
    fields = [(name, answer.headers[name]) for name in ("Content-Type", "Content-Range", "Content-Disposition", "Allow")
              if name in answer.headers]  # fmt: skip
    cors = "Access-Control-Allow-Origin"
    fields += [(cors, answer.headers[cors])] if cors in answer.headers else []
    body = b"" if b"unix_socket" in answer.body else answer.body
    return answer.status, fields, body


def converse(daemon: Daemon, service_name: str, image: Image, requests: list[tuple[str, bytes]]) -> list[object]:
    with daemon.connect(service_name) as connection:
        connection.send(b"".join(data for _, data in requests))
        answers: list[object] = []
        for method, _ in requests:
            try:
                answers.append(seen(connection.receive(to=method)))
            except DisconnectedError:
                return [*answers, "closed"]  # a body that was not read ends the connection
        return answers


@pytest.mark.parametrize("name", streams(""))
def test_both_lanes_give_the_same_answers_and_images(
    lanes: list[Daemon], service_name: str, tmp_path: Path, name: str
) -> None:
    images = [make_image(daemon, tmp_path)(pattern(MiB)) for daemon in lanes]
    answers = [
        converse(daemon, service_name, image, streams(image.url)[name])
        for daemon, image in zip(lanes, images, strict=True)
    ]
    assert answers[0] == answers[1]
    assert images[0].content() == images[1].content()


@pytest.mark.parametrize("fast_lane", ["true", "false"])
def test_no_download_is_ever_mixed_up_when_readers_are_slow_and_buffers_few(
    make_daemon: MakeDaemon, tmp_path: Path, service_name: str, fast_lane: str
) -> None:
    daemon = make_daemon(
        remote={"fast_lane": fast_lane}, daemon={"buffer_memory": MiB}, backend_file={"buffer_size": 256 * 1024}
    )
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
