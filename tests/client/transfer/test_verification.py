# SPDX-License-Identifier: Apache-2.0
"""Uploads that are verified at their end, by servers that finalize and by others."""

from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.client import (
    ChecksumMismatch,
    FlushFailed,
    Progress,
    Refused,
    ServerFailed,
    Settings,
    checksum,
    download,
    upload,
)
from imageio_daemon.client.transfer import sender, verification
from tests.client.transfer.test_continued_download import without
from tests.examples.programs import ScriptedServer, answer, features
from tests.support.daemon import Daemon
from tests.support.images import MakeImage, MiB, pattern

SIZE = 3 * MiB + 77


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.write_bytes(pattern(SIZE))
    return source


# Servers that take long, fail, or do not finalize

OK = answer("200 OK")
TOTAL = answer("206 Partial Content", "x", f"Content-Range: bytes 0-0/{SIZE}")


def verify(source: Path, *answers: bytes, **options: Any) -> list[str]:
    """Upload to a server that answers so when all was sent, and return the requests after that."""
    sent = [features("checksum", "finalize", "flush", "zero"), TOTAL, OK, OK, OK]
    with ScriptedServer(*sent, *answers) as server:
        upload(source, server.url, settings=Settings(connections=1), state=False, verify=True, **options)
    return [request.replace("/images/some-ticket", "") for request in server.requests[len(sent) :]]


@pytest.fixture
def one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "FIRST_REQUEST", 8 * MiB)
    monkeypatch.setattr(verification, "POLL", 0)


def report(source: Path, **keys: object) -> bytes:
    return answer("200 OK", {"checksum": checksum(source), "verified": "received", **keys})


VERIFYING = {"state": "verifying", "done": 4 * MiB, "size": SIZE}


@pytest.mark.usefixtures("one_request")
def test_long_verification_is_asked_for_until_it_ends(source: Path) -> None:
    told: list[Progress] = []
    long, later = answer("202 Accepted", VERIFYING), answer("200 OK", VERIFYING)
    requests = verify(source, long, later, report(source, state="finalized"), progress=told.append)
    assert requests == ["PATCH ", "GET /finalize", "GET /finalize"]
    assert told[-1].phase == "verifying"


@pytest.mark.usefixtures("one_request")
def test_verification_that_a_restart_has_ended_begins_anew(source: Path) -> None:
    long, lost = answer("202 Accepted", VERIFYING), answer("200 OK", {"state": "open"})
    assert verify(source, long, lost, report(source)) == ["PATCH ", "GET /finalize", "PATCH "]


@pytest.mark.usefixtures("one_request")
def test_verification_that_never_ends_is_given_up(source: Path) -> None:
    with pytest.raises(ServerFailed, match="has ended 10 verifications"):
        verify(source, *[answer("200 OK", {"state": "open"})] * verification.TRIES)


@pytest.mark.usefixtures("one_request")
def test_mismatch_of_a_long_verification_is_told(source: Path) -> None:
    differs = answer("200 OK", {"state": "mismatch", "checksum": "x", "mismatch": [0, 1, 2, 3, 4, 5]})
    with pytest.raises(ChecksumMismatch, match=r"reads as x, .* from 0 to 4194304, .* and 2 more places"):
        verify(source, answer("202 Accepted", VERIFYING), differs)


@pytest.mark.usefixtures("one_request")
@pytest.mark.parametrize(
    ("told", "message"),
    [
        (answer("200 OK", {"state": "failed", "reason": "gone"}), "could not verify the image: gone"),
        (answer("200 OK", {"checksum": "x", "verified": "read"}), "malformed report"),
        (answer("200 OK", "[]"), "no JSON object"),
        (answer("409 Conflict", "The image is being\a compared"), "The image is being compared"),
    ],
)
def test_answer_that_is_no_success_is_none(source: Path, told: bytes, message: str) -> None:
    with pytest.raises((ServerFailed, Refused), match=message):
        verify(source, told)


@pytest.mark.usefixtures("one_request")
def test_flush_that_fails_in_the_end_is_final(source: Path) -> None:
    with pytest.raises(FlushFailed):
        verify(source, answer("500 Internal Server Error", "failed"))


@pytest.mark.usefixtures("one_request")
def test_verification_that_runs_is_waited_for(source: Path) -> None:
    busy = answer("200 OK", {"features": ["checksum", "finalize"]})
    later, done = answer("200 OK", VERIFYING), report(source, state="finalized")
    with ScriptedServer(busy, later, done, busy, TOTAL, report(source)) as server:
        told = upload(source, server.url, settings=Settings(connections=1), verify=True)
    assert told.verified == "received"
    assert [request.partition(" ")[0] for request in server.requests] == [
        "OPTIONS", "GET", "GET", "OPTIONS", "GET", "PATCH",
    ]  # fmt: skip


CHECKSUMS = ("checksum", "checksum_blocks", "checksum_range")


def test_upload_to_a_server_without_checksums_is_not_begun(
    daemon: Daemon, tls: Settings, source: Path, new_image: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, *CHECKSUMS, "finalize")
    target = new_image(b"\xff" * SIZE)
    with pytest.raises(ChecksumMismatch, match=r"can't verify: .* computes no checksums"):
        upload(source, daemon.url(target.ticket), settings=tls, verify=True)
    assert target.content() == b"\xff" * SIZE


@pytest.mark.parametrize("options", [{"verify": True}, {"manifest": "manifest"}])
def test_download_from_a_server_without_checksums_is_not_begun(
    daemon: Daemon, tls: Settings, new_image: MakeImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    without(monkeypatch, *CHECKSUMS)
    monkeypatch.chdir(tmp_path)
    url, told = daemon.url(new_image(pattern(SIZE), ops=["read"]).ticket), list[Progress]()
    with pytest.raises(ChecksumMismatch, match=r"can't verify: .* computes no checksums"):
        download(url, tmp_path / "copy", settings=tls, progress=told.append, **options)
    assert not any(progress.data for progress in told)


@pytest.mark.usefixtures("one_request")
def test_many_blocks_are_not_listed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MAX_BLOCKS", 0)
    sent = [features("finalize", "flush", "zero"), TOTAL, OK, OK, OK, report(source)]
    with ScriptedServer(*sent) as server:
        upload(source, server.url, settings=Settings(connections=1), state=False, verify=True)
    assert b"blocks" not in server.bodies[-1]
    assert checksum(source).encode() in server.bodies[-1]
