# SPDX-License-Identifier: Apache-2.0
import errno
import json
import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from imageio_daemon import errors as kinds
from imageio_daemon.frontends.http import errors
from imageio_daemon.frontends.http.request import name_of, query_of, waits_for_continue
from imageio_daemon.frontends.http.responses import EXPOSED, MAX_AGE, cors_headers, encode, json_response, text_response
from imageio_daemon.frontends.http.routes import PATTERN, Resource, Routes, preflight


def request(method: str = "GET", path: str = "/images/id", **headers: str) -> web.Request:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request(method, path, headers=fields, match_info={})


# Requests


@pytest.mark.parametrize(("value", "waits"), [("100-continue", True), ("100-Continue", True), ("200-ok", False)])
def test_client_that_waits_says_so(value: str, waits: bool) -> None:
    assert waits_for_continue(request(expect=value)) is waits


def test_of_a_query_the_last_of_a_key_counts() -> None:
    assert query_of(request(path="/images/a?flush=y&close=y&flush=n")) == {"flush": "n", "close": "y"}


# Answers


def test_reason_is_one_line_whatever_it_holds() -> None:
    assert text_response(400, "a\r\nb: c\x00\u2028d\udc80ä").body == "a??b: c??d?ä\n".encode()


def test_json_is_told_as_such() -> None:
    answer = json_response({"a": [1]}, {"Allow": "GET"})
    assert (answer.status, answer.body) == (200, b'{"a": [1]}')
    assert dict(answer.headers) == {"Content-Type": "application/json", "Allow": "GET"}


def test_answer_is_encoded() -> None:
    head, _, body = encode(web.Response(status=405, headers={"Allow": "GET"}, body=b"no\n"), close=True).partition(
        b"\r\n\r\n"
    )
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 405 Method Not Allowed"
    assert {"Allow: GET", "Content-Length: 3", "Connection: close", "Server: imageio-daemon"} < set(lines)
    assert body == b"no\n"


def test_kept_connection_is_not_announced() -> None:
    assert b"Connection" not in encode(web.Response(), close=False)


def test_answer_that_is_no_bytes_has_no_wire_form() -> None:
    with pytest.raises(TypeError):
        encode(web.Response(body="text"), close=False)


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
        (kinds.StorageError(errno.EIO, "read", "pread"), 500, False),
        (kinds.StorageError(errno.ENOSPC, "write", "pwrite"), 507, False),
        (kinds.WayGone("PUT https://host:1/images/...", "reset"), 502, True),
        (kinds.WaySilent("PUT https://host:1/images/...", "SocketTimeoutError"), 504, True),
        (kinds.ServerGone("NBD server x", "reset"), 502, False),
        (kinds.TooManyTransfers("why"), 503, True),
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
    assert (answer.status, answer.keep_alive is False) == (status, close)
    assert isinstance(answer.body, bytes)
    assert answer.body.endswith(b"\n")


@pytest.mark.parametrize(
    "error", [kinds.StorageError(errno.EIO, "write /secret", "pwrite"), kinds.Error("x"), ValueError("x")]
)
def test_fault_of_the_server_is_told_without_detail(error: Exception) -> None:
    assert errors.answer(error, "somebody").body == errors.SERVER_FAILED.encode() + b"\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "storage_full"),
        (errno.EDQUOT, "storage_full"),
        (errno.EFBIG, "storage_full"),
        (errno.EACCES, "storage_permission"),
        (errno.EPERM, "storage_permission"),
        (errno.EROFS, "storage_permission"),
        (errno.ENODEV, "storage_gone"),
        (errno.ENXIO, "storage_gone"),
        (errno.ESTALE, "storage_gone"),
        (errno.ENOENT, "storage_gone"),
        (errno.ENOTDIR, "storage_gone"),
        (errno.ELOOP, "storage_gone"),
        (errno.ENAMETOOLONG, "storage_gone"),
        (errno.ENOMEDIUM, "storage_gone"),
        (errno.ENOTBLK, "image_unusable"),
        (errno.EIO, "storage_io"),
        (errno.ETIMEDOUT, "storage_io"),
        (4095, "storage_io"),
    ],
)
def test_failure_of_storage_has_the_code_of_its_meaning(number: int, code: str) -> None:
    answer = errors.answer(kinds.StorageError(number, "write /secret", "pwrite"), "somebody")
    assert answer.headers["X-Error-Code"] == code
    assert b"secret" not in bytes(answer.body or b"")  # type: ignore[arg-type]


def test_what_somebody_has_to_mend_is_told_in_words_without_names() -> None:
    answer = errors.answer(kinds.Unusable("The image is damaged", "open /secret", "qemu-nbd", "(why)"), "somebody")
    assert (answer.status, answer.headers["X-Error-Code"]) == (422, "image_unusable")
    assert answer.body == b"The image is damaged\n"


def test_refusal_of_a_server_that_may_pass_is_told_as_that_it_is_gone() -> None:
    answer = errors.answer(kinds.ServerRefuses("NBD server x", "secret", "It is not there"), "somebody")
    assert (answer.status, answer.headers["X-Error-Code"]) == (502, "server_gone")
    assert b"secret" not in bytes(answer.body or b"")  # type: ignore[arg-type]


def test_bug_has_a_code_of_its_own() -> None:
    assert errors.code(ValueError("bug")) == errors.code(kinds.Error("new")) == "internal_error"


def test_error_that_was_asked_for_in_json_is_a_document() -> None:
    answer = errors.answer(kinds.Forbidden("no"), "somebody", json=True)
    assert (answer.status, answer.keep_alive, answer.headers["Content-Type"]) == (403, False, "application/json")
    assert json.loads(bytes(answer.body or b"")) == {"code": "not_allowed", "message": "no", "status": 403}  # type: ignore[arg-type]


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


async def _echo(wanted: web.Request) -> web.Response:
    return web.Response(body=f"{wanted.match_info[PATTERN]} {name_of(wanted)}".encode())


ROUTES = Routes(
    {
        "/images/": Resource({"GET": _echo}, ("GET",)),
        "/images/{}": Resource({"GET": _echo, "PUT": _echo}, ("GET", "PUT"), ("GET",)),
        "/images/{}/extents": Resource({"GET": _echo, "OPTIONS": preflight}, ("GET",)),
    }
)


async def answer_of(method: str = "GET", path: str = "/images/id") -> web.Response:
    answer = await ROUTES.answer(request(method, path))
    assert isinstance(answer, web.Response)
    return answer


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/images/", b"/images/ "),
        ("/images/a", b"/images/{} a"),
        ("/images/a%2Fb", b"/images/{} a/b"),
        ("http://host/images/a?x", b"/images/{} a"),
        ("/images/a/extents", b"/images/{}/extents a"),
    ],
)
async def test_resource_is_found_by_path(path: str, found: bytes) -> None:
    assert (await answer_of(path=path)).body == found


@pytest.mark.parametrize("path", ["/", "/images", "/images/a/", "/images/a/other", "/other/a", "//images/a"])
async def test_other_paths_are_not_found(path: str) -> None:
    with pytest.raises(kinds.NotFound):
        await answer_of(path=path)


async def test_empty_name_is_refused() -> None:
    with pytest.raises(kinds.InvalidRequest):
        await answer_of(path="/images//extents")


async def test_other_methods_are_not_allowed() -> None:
    with pytest.raises(kinds.MethodNotAllowed) as refused:
        await answer_of("POST")
    assert refused.value.allowed == ("GET", "PUT")


async def test_preflight_tells_the_methods() -> None:
    answer = await answer_of("OPTIONS", "/images/a/extents")
    assert (answer.status, answer.headers["Allow"], answer.body) == (200, "OPTIONS,GET", None)


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


def test_resource_says_whether_it_is_for_pages() -> None:
    assert ROUTES.cors("/images/{}") == ("GET",)
    assert ROUTES.cors("/images/") is None
    assert ROUTES.cors("/other") is None
