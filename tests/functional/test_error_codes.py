# SPDX-License-Identifier: Apache-2.0
"""Codes of errors: a field of each answer, and a document for a program that asks for one."""

import re
from pathlib import Path

import pytest

from imageio_daemon.frontends.http.errors import ENTRIES, MISMATCH, NOT_READY
from tests.support.daemon import Daemon
from tests.support.http_client import Connection
from tests.support.images import Image
from tests.support.places import Trait, needs

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "images-api.md"

JSON = {"Accept": "application/json"}

#: Requests of images that fail. Other codes are in the tests of what they are for.
REFUSED: tuple[tuple[str, str, dict[str, str], bytes | None, int, str], ...] = (
    ("PATCH", "{url}", {}, b"x", 400, "invalid_request"),
    ("GET", "/images/unknown", {}, None, 403, "not_allowed"),
    ("PUT", "/images/unknown", {}, b"x", 403, "not_allowed"),
    ("GET", "{url}/unknown", {}, None, 404, "not_found"),
    ("DELETE", "{url}", {}, None, 405, "method_not_allowed"),
    ("BREW", "{url}", {}, None, 405, "method_not_allowed"),
    ("GET", "{url}", {"Range": "bytes=99999999-"}, None, 416, "out_of_range"),
)


@pytest.mark.parametrize(("method", "path", "fields", "body", "status", "code"), REFUSED)
def test_error_is_a_document_for_who_accepts_one(
    client: Connection,
    image: Image,
    method: str,
    path: str,
    fields: dict[str, str],
    body: bytes | None,
    status: int,
    code: str,
) -> None:
    answer = client.request(method, path.format(url=image.url), fields | JSON, body)
    document = answer.json()
    assert (answer.status, answer.code) == (status, code)
    assert (document["code"], document["status"], set(document)) == (code, status, {"code", "message", "status"})


def test_message_of_the_document_is_the_text(client: Connection, image: Image) -> None:
    unknown = f"{image.url}/unknown"
    text = client.get(unknown).text
    for accept in ("application/json", "text/html, APPLICATION/JSON ;q=0.5", "a/b,,application/json,"):
        assert client.get(unknown, {"Accept": accept}).json()["message"] == text.rstrip("\n")


@pytest.mark.parametrize("accept", ["*/*", "application/*", "application/jsonx", "text/plain;a=application/json", ""])
def test_error_is_text_for_who_does_not_ask(client: Connection, accept: str) -> None:
    answer = client.get("/images/unknown", {"Accept": accept})
    assert answer.text == "You are not allowed to access this resource\n"


def test_answer_to_the_next_request_is_what_that_asks_for(client: Connection, image: Image) -> None:
    unknown = f"{image.url}/unknown"
    assert client.get(unknown, JSON).json()["status"] == 404
    assert client.get(unknown).text == "No such resource\n"


def test_head_has_the_code_of_what_get_answers(client: Connection) -> None:
    answer = client.request("HEAD", "/images/unknown", JSON)
    assert (answer.status, answer.code, answer.body) == (403, "not_allowed", b"")


def test_head_that_cannot_be_read_is_answered_in_text(client: Connection) -> None:
    client.send(b"GET / HTTP/1.1\r\nAccept: application/json\r\nbad line\r\n\r\n")
    answer = client.receive()
    assert (answer.code, answer.headers["Content-Type"]) == ("invalid_request", "text/plain; charset=UTF-8")


@needs(Trait.OWN)
def test_image_that_has_changed(client: Connection, image: Image) -> None:
    answer = client.get(image.url, JSON | {"If-Match": '"other"'})
    if answer.status != 200:  # a ticket that may write has no tag
        assert (answer.status, answer.json()["code"]) == (412, "changed")


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code"),
    [
        ("PUT", "/tickets/x", b"{}", 400, "invalid_request"),
        ("GET", "/tickets/unknown", None, 404, "not_found"),
        ("POST", "/tickets/x", None, 405, "method_not_allowed"),
        ("PUT", "/tickets/x", b"[" + b" " * 65536 + b"]", 413, "too_large"),
    ],
)
def test_control_service_has_the_same_codes(
    daemon: Daemon, method: str, target: str, body: bytes | None, status: int, code: str
) -> None:
    answer = daemon.control(method, target, body)
    assert (answer.status, answer.code) == (status, code)


def test_each_code_is_explained_and_answered_in_a_test() -> None:
    answered = {"internal_error"}  # a defect: tests/frontends/http/test_responses.py has it
    for folder in ("functional", "faults"):
        for path in (TESTS / folder).glob("test_*.py"):
            answered.update(re.findall(r'"([a-z_]+)"', path.read_text()))
    explained = re.findall(r"^\| [1-5][0-9]{2} \| `([a-z_]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert set(explained) == {*(entry.code for entry in ENTRIES), MISMATCH, NOT_READY}
    assert set(explained) <= answered
