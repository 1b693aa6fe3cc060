# SPDX-License-Identifier: Apache-2.0
"""What a browser needs to be told, errors included."""

import pytest

from tests.support.http_client import Answer, Connection
from tests.support.images import Image

ORIGIN = {"Origin": "https://manager.example.org"}
PREFLIGHT = ORIGIN | {
    "Access-Control-Request-Method": "PUT",
    "Access-Control-Request-Headers": "content-range, content-type",
}

#: What a page of another origin gets with each answer.
ALLOWED = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": (
        "Accept-Ranges, Allow, Content-Disposition, Content-Length, Content-Range, Date, ETag, "
        "Retry-After, X-Error-Code"
    ),
    "access-control-max-age": "86400",
}

#: Every resource and method that a browser may use, with a path below the image and a body.
REQUESTS = [
    ("GET", "", None),
    ("HEAD", "", None),
    ("PUT", "", b"x"),
    ("PATCH", "", b'{"op": "flush"}'),
    ("OPTIONS", "", None),
    ("GET", "/extents", None),
    ("GET", "/checksum", None),
    ("GET", "/checksum/algorithms", None),
]


def cors(answer: Answer) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.fields if name.lower().startswith("access-control")}


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=str)
def test_a_request_with_an_origin(client: Connection, image: Image, method: str, path: str, body: bytes | None) -> None:
    answer = client.request(method, image.url + path, ORIGIN, body)
    assert answer.status == 200
    assert cors(answer) == ALLOWED


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=str)
def test_a_request_without_an_origin(
    client: Connection, image: Image, method: str, path: str, body: bytes | None
) -> None:
    assert cors(client.request(method, image.url + path, None, body)) == {}


def test_a_preflight_of_an_image(client: Connection, image: Image) -> None:
    answer = client.request("OPTIONS", image.url, PREFLIGHT)
    assert answer.status == 200
    assert cors(answer) == ALLOWED | {
        "access-control-allow-headers": "*",
        "access-control-allow-methods": "OPTIONS,GET,PUT,PATCH",
    }


@pytest.mark.parametrize(
    ("request_headers", "answered"),
    [
        ({"Access-Control-Request-Headers": "x"}, "access-control-allow-headers"),
        ({"Access-Control-Request-Method": "PUT"}, "access-control-allow-methods"),
    ],
)
def test_each_question_is_answered_by_itself(
    client: Connection, image: Image, request_headers: dict[str, str], answered: str
) -> None:
    answer = client.request("OPTIONS", image.url, request_headers)
    assert set(cors(answer)) == {answered, "access-control-max-age"}


def test_an_upload_of_a_preflighted_browser(client: Connection, image: Image) -> None:
    assert client.request("OPTIONS", image.url, PREFLIGHT).status == 200
    answer = client.put(image.url + "?close=y", b"hello", ORIGIN | {"Content-Range": "bytes 0-4/*"})
    assert answer.status == 200
    assert cors(answer)["access-control-allow-origin"] == "*"
    assert image.read(0, 5) == b"hello"


def test_a_range_with_an_origin(client: Connection, image: Image) -> None:
    answer = client.get(image.url, ORIGIN | {"Range": "bytes=0-9"})
    assert (answer.status, cors(answer)["access-control-allow-origin"]) == (206, "*")


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/images/unknown", {}, None, 403),
        ("OPTIONS", "/images/unknown", {}, None, 403),
        ("PUT", "/images/unknown", {}, b"x", 403),
        ("GET", "{url}", {"Range": "bytes=5000000-"}, None, 416),
        ("PUT", "{url}", {"Content-Range": "nonsense"}, b"x", 400),
        ("PATCH", "{url}", {}, b"nonsense", 400),
        ("GET", "{url}/extents?context=x", {}, None, 400),
        ("GET", "{url}/extents?context=dirty", {}, None, 404),
        ("GET", "{url}/checksum?algorithm=x", {}, None, 400),
    ],
)
def test_errors_can_be_read_by_a_browser(
    client: Connection, image: Image, method: str, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    answer = client.request(method, path.format(url=image.url), ORIGIN | headers, body)
    assert answer.status == status
    assert cors(answer)["access-control-allow-origin"] == "*"


#: Of each answer, whoever makes it: of a whole image, of what is refused, of what no resource has.
ANSWERED = pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "{url}", 200),
        ("HEAD", "{url}", 200),
        ("OPTIONS", "{url}", 200),
        ("GET", "{url}/extents", 200),
        ("GET", "/images/unknown", 403),
        ("GET", "/unknown", 404),
        ("BREW", "{url}", 405),
        ("GET", "/info/", 200),
    ],
)


@ANSWERED
def test_no_answer_is_taken_for_a_page(client: Connection, image: Image, method: str, path: str, status: int) -> None:
    answer = client.request(method, path.format(url=image.url))
    assert (answer.status, answer.headers["X-Content-Type-Options"]) == (status, "nosniff")


def test_no_short_answer_is_taken_for_a_page(client: Connection, image: Image) -> None:
    """Three times: the third comes from C, where C serves."""
    for _ in range(3):
        for answer in (client.get(image.url, {"Range": "bytes=0-9"}), client.put(image.url, b"x")):
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@ANSWERED
def test_no_answer_is_kept_by_a_cache(client: Connection, image: Image, method: str, path: str, status: int) -> None:
    """A cache would answer with what was there before a write, and after the ticket has ended."""
    answer = client.request(method, path.format(url=image.url))
    assert (answer.status, answer.headers["Cache-Control"]) == (status, "no-store")
    assert answer.headers["X-Accel-Buffering"] == "no"


def test_no_short_answer_is_kept_by_a_cache(client: Connection, image: Image) -> None:
    """Three times: the third comes from C, where C serves."""
    for _ in range(3):
        part, whole = client.get(image.url, {"Range": "bytes=0-9"}), client.get(image.url)
        for answer in (part, whole, client.put(image.url, b"x")):
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Accel-Buffering"] == "no"


def test_info_can_be_read_by_a_browser(client: Connection) -> None:
    assert cors(client.get("/info/", ORIGIN))["access-control-allow-origin"] == "*"
    preflight = client.request("OPTIONS", "/info/", PREFLIGHT)
    assert preflight.status == 200
    assert cors(preflight)["access-control-allow-origin"] == "*"
