# SPDX-License-Identifier: Apache-2.0
import logging

import pytest

from imageio_daemon import errors as kinds
from imageio_daemon.frontends.http import errors
from imageio_daemon.frontends.http.cors import EXPOSED, MAX_AGE, cors_headers
from imageio_daemon.frontends.http.headers import MAX_JSON
from imageio_daemon.frontends.http.messages import Request, Response, encode, preflight, text_response
from imageio_daemon.frontends.http.routes import Resource, Routes
from imageio_daemon.transfers import Transfer


class FakeClient:
    peer = "somebody"
    must_close = False

    def use(self, transfer: Transfer) -> None:
        """Do nothing."""


class FakeBody:
    """A body that comes in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.taken = 0

    @property
    def ended(self) -> bool:
        return not self._pieces

    async def readinto(self, view: memoryview) -> int:
        piece = self._pieces.pop(0)
        count = min(len(piece), len(view))
        view[:count] = piece[:count]
        self.taken += count
        return count


def request(
    method: str = "GET",
    path: str = "/images/id",
    *,
    body: FakeBody | None = None,
    length: int | None = None,
    **headers: str,
) -> Request:
    return Request(
        method,
        path[1:].split("/"),
        {},
        {name.replace("_", "-"): value for name, value in headers.items()},
        length,
        False,
        body or FakeBody(),
        FakeClient(),
    )


# JSON bodies


async def test_json_comes_in_pieces() -> None:
    assert await request(body=FakeBody(b'{"a"', b": 1", b"}"), length=8).read_json() == {"a": 1}


async def test_json_may_be_as_large_as_the_limit() -> None:
    body = FakeBody(b'"' + b"x" * (MAX_JSON - 2), b'"')
    assert len(str(await request(body=body).read_json())) == MAX_JSON - 2


async def test_announced_body_that_is_too_large_is_not_read() -> None:
    body = FakeBody(b"1")
    with pytest.raises(kinds.TooLarge):
        await request(body=body, length=MAX_JSON + 1).read_json()
    assert body.taken == 0


async def test_body_that_becomes_too_large_is_refused() -> None:
    with pytest.raises(kinds.TooLarge):
        await request(body=FakeBody(b" " * MAX_JSON, b"1", b"2")).read_json()


@pytest.mark.parametrize(("value", "waits"), [("100-continue", True), ("100-Continue", True), ("200-ok", False)])
def test_client_that_waits_says_so(value: str, waits: bool) -> None:
    assert request(expect=value).waits_for_continue is waits


# Answers


def test_reason_is_one_line_whatever_it_holds() -> None:
    assert text_response(400, "a\r\nb: c\x00\u2028d\udc80ä").body == "a??b: c??d?ä\n".encode()


def test_answer_is_encoded() -> None:
    head, _, body = encode(Response(405, {"Allow": "GET"}, b"no\n"), close=True).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 405 Method Not Allowed"
    assert {"Allow: GET", "Content-Length: 3", "Connection: close", "Server: imageio-daemon"} < set(lines)
    assert body == b"no\n"


def test_kept_connection_is_not_announced() -> None:
    assert b"Connection" not in encode(Response(), close=False)


# Errors


@pytest.mark.parametrize(
    ("error", "status", "close"),
    [
        (kinds.InvalidRequest("why"), 400, False),
        (kinds.Truncated("why"), 400, True),
        (kinds.PeerGone("why"), 400, True),
        (kinds.Forbidden("why"), 403, True),
        (kinds.Canceled("why"), 403, True),
        (kinds.NotFound("why"), 404, False),
        (kinds.MethodNotAllowed("PUT", ("GET",)), 405, False),
        (kinds.InUse("why"), 409, False),
        (kinds.TooLarge("why"), 413, False),
        (kinds.UnsupportedEncoding("why"), 415, False),
        (kinds.Changed("why"), 412, False),
        (kinds.OutOfRange("why"), 416, False),
        (kinds.HeadTooLarge("why"), 431, True),
        (kinds.StorageError(5, "read", "pread"), 500, False),
        (kinds.CannotFlush("NBD server x"), 500, False),
        (kinds.Error("why"), 500, False),
        (KeyError("why"), 500, False),
        (kinds.NotFast("why"), 422, False),
        (kinds.TooManyConnections("why"), 503, True),
        (kinds.TooManyTickets("why"), 503, False),
        (kinds.Unavailable("why"), 503, True),
    ],
)
def test_each_error_has_its_answer(error: Exception, status: int, close: bool) -> None:
    answer = errors.answer(error, "somebody")
    assert (answer.status, answer.close) == (status, close)
    assert answer.body.endswith(b"\n")


@pytest.mark.parametrize(
    "error", [kinds.StorageError(28, "write /secret", "pwrite"), kinds.Error("x"), ValueError("x")]
)
def test_fault_of_the_server_is_told_without_detail(error: Exception) -> None:
    assert errors.answer(error, "somebody").body == errors.SERVER_FAILED.encode() + b"\n"


def test_range_error_tells_the_size() -> None:
    assert errors.answer(kinds.OutOfRange("x", 100), "").headers["Content-Range"] == "bytes */100"
    assert "Content-Range" not in errors.answer(kinds.OutOfRange("x"), "").headers


def test_method_error_tells_the_methods() -> None:
    assert errors.answer(kinds.MethodNotAllowed("X", ("GET", "PUT")), "").headers["Allow"] == "GET,PUT"


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (
            kinds.StorageError(28, "write /disk", "pwrite"),
            logging.ERROR,
            "write /disk: pwrite: No space left on device",
        ),
        (kinds.PeerGone("reset"), logging.INFO, "the client is gone"),
        (kinds.Forbidden("no"), logging.DEBUG, "request refused"),
        (ValueError("bug"), logging.ERROR, "request failed"),
    ],
)
def test_errors_are_logged_by_whose_they_are(
    error: Exception, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        errors.answer(error, "somebody")
    (record,) = caplog.records
    assert record.levelno == level
    assert text in record.getMessage()
    assert (record.exc_info is not None) == isinstance(error, ValueError)


# Routes


async def _echo(wanted: Request) -> Response:
    return Response(body=f"{wanted.resource} {wanted.name}".encode())


async def _fail(_: Request) -> Response:
    raise kinds.NotFound("not there")


ROUTES = Routes(
    {
        "/images/": Resource({"GET": _echo}, ("GET",)),
        "/images/{}": Resource({"GET": _echo, "PUT": _fail}, ("GET", "PUT"), ("GET",)),
        "/images/{}/extents": Resource({"GET": _echo, "OPTIONS": preflight(("GET",))}, ("GET",)),
    }
)


@pytest.mark.parametrize(
    ("path", "found"),
    [("/images/", "/images/ "), ("/images/a", "/images/{} a"), ("/images/a/extents", "/images/{}/extents a")],
)
async def test_resource_is_found_by_path(path: str, found: str) -> None:
    assert (await ROUTES.answer(request(path=path))).body.decode() == found


@pytest.mark.parametrize("path", ["/", "/images", "/images/a/", "/images/a/other", "/other/a", "//images/a"])
async def test_other_paths_are_not_found(path: str) -> None:
    assert (await ROUTES.answer(request(path=path))).status == 404


async def test_empty_name_is_refused() -> None:
    assert (await ROUTES.answer(request(path="/images//extents"))).status == 400


async def test_other_methods_are_not_allowed() -> None:
    answer = await ROUTES.answer(request("POST"))
    assert (answer.status, answer.headers["Allow"]) == (405, "GET,PUT")


async def test_preflight_tells_the_methods() -> None:
    answer = await ROUTES.answer(request("OPTIONS", "/images/a/extents"))
    assert (answer.status, answer.headers["Allow"], answer.body) == (200, "GET", b"")


# CORS


def test_no_origin_no_headers() -> None:
    assert cors_headers({"host": "x"}, "GET") == {}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("origin", {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": EXPOSED}),
        ("access-control-request-headers", {"Access-Control-Allow-Headers": "*"}),
        ("access-control-request-method", {"Access-Control-Allow-Methods": "GET,PUT"}),
    ],
)
def test_each_question_is_answered(asked: str, told: dict[str, str]) -> None:
    assert cors_headers({asked: "x"}, "GET,PUT") == {**told, "Access-Control-Max-Age": MAX_AGE}


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_errors_are_readable_for_other_origins(method: str) -> None:
    answer = await ROUTES.answer(request(method, origin="https://ui"))
    assert answer.headers["Access-Control-Allow-Origin"] == "*"


async def test_failed_stream_is_readable_for_other_origins() -> None:
    answer = ROUTES.failed(request(origin="https://ui"), kinds.NotFound("x"))
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (404, "*")


async def test_resource_that_is_not_for_pages_says_nothing() -> None:
    assert "Access-Control-Allow-Origin" not in (await ROUTES.answer(request(path="/images/", origin="x"))).headers
