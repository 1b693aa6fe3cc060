# SPDX-License-Identifier: Apache-2.0
"""What the remote service answers for the page, as a browser sees it. What the page does is in tests/ui."""

import re
from collections.abc import Iterator

import pytest

from tests.support.daemon import Certificates, Daemon
from tests.support.http_client import Connection

#: In each answer of the page.
STRICT = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@pytest.fixture(scope="module")
def page_daemon(certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(certificates, {"ui": {"enable": True}}) as daemon:
        yield daemon


@pytest.fixture
def browser(page_daemon: Daemon) -> Iterator[Connection]:
    with page_daemon.connect("tls") as connection:
        yield connection


def files(browser: Connection) -> list[str]:
    return [f"/ui/{name}" for name in re.findall(r'(?:href|src)="([^"]+)"', browser.get("/ui/").body.decode())]


def test_page_is_off_by_default(certificates: Certificates) -> None:
    with Daemon(certificates) as daemon, daemon.connect("tls") as connection:
        assert connection.get("/ui/").status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_page_is_asked_for_each_time(browser: Connection, method: str) -> None:
    answer = browser.request(method, "/ui/")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["Cache-Control"] == "no-cache"


def test_files_are_kept_under_a_name_that_changes_with_them(browser: Connection) -> None:
    found = files(browser)
    assert {name.rpartition(".")[2] for name in found} == {"css", "js", "svg"}
    for name in found:
        assert re.fullmatch(r"/ui/[0-9a-f]{16}/[\w.]+", name)
        for method in ("GET", "HEAD"):
            answer = browser.request(method, name)
            assert answer.status == 200
            assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"


def test_each_answer_is_strict(browser: Connection) -> None:
    for name in ["/ui/", *files(browser)]:
        headers = browser.get(name).headers
        assert {field: headers[field] for field in STRICT} == STRICT
        policy = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


@pytest.mark.parametrize(
    "name", ["/ui/0123456789abcdef/page.js", "/ui/{version}/no.js", "/ui/{version}/", "/ui/x", "/ui"]
)
def test_what_is_no_file_of_the_page_is_not_found(browser: Connection, name: str) -> None:
    version = files(browser)[0].split("/")[2]
    assert browser.get(name.format(version=version)).status == 404


@pytest.mark.parametrize("name", ["/ui/..%2Fserver.py", "/ui/{version}/..%2Fserver.py", "/ui/{version}/index.html"])
def test_no_other_file_is_served(browser: Connection, name: str) -> None:
    version = files(browser)[0].split("/")[2]
    assert browser.get(name.format(version=version)).status == 404


def test_page_of_another_origin_may_use_nothing(browser: Connection) -> None:
    for name in ["/ui/", *files(browser)]:
        for method in ("GET", "OPTIONS"):
            answer = browser.request(method, name, {"Origin": "https://elsewhere.example"})
            assert not [field for field, _ in answer.headers.fields if field.startswith("Access-Control-")]


def test_methods_are_told(browser: Connection) -> None:
    for name in ["/ui/", *files(browser)]:
        assert browser.request("OPTIONS", name).headers["Allow"] == "OPTIONS,GET"
        assert browser.request("PATCH", name).status == 405


def test_page_fits_a_small_host(browser: Connection) -> None:
    assert sum(len(browser.get(name).body) for name in files(browser)) < 100_000


def test_page_names_the_operator(certificates: Certificates) -> None:
    config = {"ui": {"enable": True, "operator": 'A & "B" <i>Ltd</i>'}}
    with Daemon(certificates, config) as daemon, daemon.connect("tls") as connection:
        document = connection.get("/ui/").body.decode()
    assert '<span id="operator">A &amp; &quot;B&quot; &lt;i&gt;Ltd&lt;/i&gt;</span>' in document


def test_page_without_an_operator_has_nothing_in_its_place(browser: Connection) -> None:
    assert '<span id="operator"></span>' in browser.get("/ui/").body.decode()
