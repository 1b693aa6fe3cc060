# SPDX-License-Identifier: Apache-2.0
"""Failures that a retry does not mend end a transfer at once, and say what does."""

import json
import re
from pathlib import Path

import pytest

from imageio_daemon.client import FlushFailed, NoRoom, Refused, Settings, StorageFailed, Temporary, info, upload
from imageio_daemon.client.server.failures import PROXIES, STORAGE_FAILURES
from tests.client.programs import run
from tests.examples.programs import ScriptedServer, answer, features

OK = answer("200 OK")
SIZE = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/7")
#: As long as a test: it would hang.
PATIENT = Settings(retry_for=1000, connections=1)


def test_storage_failures_are_those_that_the_api_does_not_repeat() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "images-api.md"
    final = re.findall(r"^\| 5[0-9]{2} \| `([a-z_]+)` \|.*\| no \|$", page.read_text(), re.MULTILINE)
    assert set(final) == set(STORAGE_FAILURES)


@pytest.mark.parametrize("code", STORAGE_FAILURES)
def test_failure_of_the_storage_is_final(code: str) -> None:
    explanation, hint = STORAGE_FAILURES[code]
    with (
        ScriptedServer(answer("500 Failed", "it failed", f"X-Error-Code: {code}")) as server,
        pytest.raises(StorageFailed) as raised,
    ):
        info(server.url, settings=PATIENT)
    assert str(raised.value) == f"{explanation} (OPTIONS: 500 it failed): {hint}"
    assert raised.value.code == code


def test_status_tells_a_full_storage_without_a_code() -> None:
    with (
        ScriptedServer(answer("507 Insufficient Storage", "full")) as server,
        pytest.raises(NoRoom, match="is full"),
    ):
        info(server.url, settings=PATIENT)


@pytest.mark.parametrize("code", ["storage_io", "internal_error", "server_gone", "unavailable", "new_one"])
def test_other_failures_of_the_server_are_asked_again(code: str) -> None:
    failed = answer("500 Failed", "", f"X-Error-Code: {code}", "Connection: close")
    with ScriptedServer(failed, features(), failed, SIZE) as server:
        assert info(server.url, settings=PATIENT).size == 7


def test_server_that_cannot_flush_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with ScriptedServer(features("zero")) as server, pytest.raises(StorageFailed) as raised:
        upload(source, server.url, settings=PATIENT)
    assert raised.value.code == "cannot_flush"
    assert str(raised.value) == ": ".join(STORAGE_FAILURES["cannot_flush"])


# Proxies before the server


@pytest.mark.parametrize("status", ["408 Request Time-out", "502 Bad Gateway", "504 Gateway Time-out"])
def test_proxy_that_gives_up_is_named_and_asked_again(status: str) -> None:
    busy = answer(status, "<html>\r\n<head>", "Connection: close")
    with ScriptedServer(busy, features(), busy, SIZE) as server:
        assert info(server.url, settings=PATIENT).size == 7
    with ScriptedServer(busy) as server, pytest.raises(Temporary) as raised:
        info(server.url, settings=Settings(retry_for=0))
    explanation, hint = PROXIES[int(status[:3])]
    assert str(raised.value) == f"{explanation} (OPTIONS: {status}): {hint}"


def test_proxy_that_takes_no_large_body_is_named() -> None:
    with (
        ScriptedServer(answer("413 Request Entity Too Large", "<html>")) as server,
        pytest.raises(
            Refused, match=r"no body of this size \(OPTIONS: 413 Request Entity Too Large\): .*client_max_body"
        ),
    ):
        info(server.url, settings=PATIENT)


def test_server_that_refuses_a_large_body_itself_is_no_proxy() -> None:
    with (
        ScriptedServer(answer("413 Content Too Large", "too large", "X-Error-Code: too_large")) as server,
        pytest.raises(Refused, match="the server refuses the request"),
    ):
        info(server.url, settings=PATIENT)


@pytest.mark.parametrize(("told", "code"), [("not_allowed", "not_allowed"), ("No Such Code", None), ("x" * 65, None)])
def test_program_learns_the_code(told: str, code: str | None, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with ScriptedServer(answer("403 Forbidden", "no", f"X-Error-Code: {told}")) as server:
        done = run("upload", "--json", source, server.url)
    assert json.loads(done.out.splitlines()[-1]).get("code") == code


def test_flush_that_finds_the_storage_full_loses_what_was_written(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100_000)
    full = answer("507 Insufficient Storage", "full", "X-Error-Code: storage_full", "Connection: close")
    with (
        ScriptedServer(features("flush", "zero"), OK, OK, full) as server,
        pytest.raises(FlushFailed, match=r"is full .* may be lost: upload anew") as raised,
    ):
        upload(source, server.url, settings=PATIENT, state=False)
    assert (raised.value.code, raised.value.status) == ("storage_full", 3)
    assert [request.partition(" ")[0] for request in server.requests] == ["OPTIONS", "PUT", "PUT", "PATCH"]


def test_code_is_told_when_the_client_gives_up() -> None:
    failed = answer("500 Failed", "", "X-Error-Code: storage_io", "Connection: close")
    with ScriptedServer(failed, failed) as server, pytest.raises(Temporary, match="given up") as raised:
        info(server.url, settings=Settings(retry_for=0.001))
    assert raised.value.code == "storage_io"
