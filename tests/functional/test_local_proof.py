# SPDX-License-Identifier: Apache-2.0
"""How a client knows that a unix socket is the daemon's: what OPTIONS tells by TLS, and what the socket answers."""

import re
from typing import Any

import pytest

from imageio_daemon.net import service_sockets
from imageio_daemon.net.unix_places import place_of
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import Image


def told(daemon: Daemon, url: str, service: str = "tls") -> dict[str, Any] | None:
    """Return what OPTIONS tells about it."""
    with daemon.connect(service) as connection:
        proof: dict[str, Any] | None = connection.request("OPTIONS", url).json().get("unix_socket_proof")
        return proof


def asked(daemon: Daemon, question: str, service: str = "unix") -> tuple[int, str | None]:
    with daemon.connect(service) as connection:
        answer = connection.request("GET", f"/local/{question}")
        return answer.status, answer.json()["answer"] if answer.status == 200 else None


def test_socket_answers_what_tls_has_told(daemon: Daemon, image: Image) -> None:
    proof = told(daemon, image.url)
    assert proof is not None
    assert asked(daemon, proof["question"]) == (200, proof["answer"])


def test_connection_serves_images_after_the_answer(daemon: Daemon, image: Image) -> None:
    with daemon.connect("unix") as connection:
        answer = connection.request("GET", f"/local/{'0' * 32}")
        assert (answer.status, answer.headers["Cache-Control"], answer.closes) == (200, "no-store", False)
        assert connection.get(image.url).body == image.content()


def test_no_question_is_answered_by_tcp(daemon: Daemon, image: Image) -> None:
    """Another program on the client's host could pass it on."""
    proof = told(daemon, image.url)
    assert proof is not None
    assert asked(daemon, proof["question"], "tls") == (404, None)


def test_nothing_is_told_on_a_unix_socket(daemon: Daemon, image: Image) -> None:
    """A proxy may be before it."""
    assert told(daemon, image.url, "unix") is None


def test_each_client_gets_a_question_of_its_own(daemon: Daemon, image: Image) -> None:
    first, second = told(daemon, image.url), told(daemon, image.url)
    assert first is not None
    assert second is not None
    assert first["question"] != second["question"]
    assert first["answer"] != second["answer"]
    assert first["place"] == second["place"]


def test_other_process_gives_other_answers(daemon: Daemon, make_daemon: MakeDaemon) -> None:
    question = "0" * 32
    assert asked(daemon, question) != asked(make_daemon(), question)


@pytest.mark.parametrize("question", ["", "0" * 31, "0" * 33, "G" * 32, "%30" * 31, "0" * 32 + "%0A"])
def test_what_is_no_question_gets_no_answer(daemon: Daemon, question: str) -> None:
    assert asked(daemon, question)[0] in (400, 404)


def test_no_other_method_is_served(client: Connection) -> None:
    answer = client.request("PUT", f"/local/{'0' * 32}", None, b"")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")


def test_place_is_that_of_the_file_or_of_the_namespace(daemon: Daemon, make_daemon: MakeDaemon) -> None:
    for each in (daemon, make_daemon(local={"socket": "@imageio-test-place"})):
        proof = told(each, "/images/*")
        assert proof is not None
        assert proof["place"] == place_of(each.local_socket)
        assert re.fullmatch("[0-9a-f]{64}", proof["place"])


def test_place_that_nobody_knows_is_told_to_the_administrator(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def place_of(_: str) -> str:
        raise PermissionError(13, "Permission denied", "/proc/sys/kernel/random/boot_id")

    monkeypatch.setattr(service_sockets, "place_of", place_of)
    assert service_sockets._known_place("\0name") is None
    assert "clients on this host can't know the local socket, and use TLS: " in caplog.text
