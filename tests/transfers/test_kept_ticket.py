# SPDX-License-Identifier: Apache-2.0
"""The file of a kept ticket, and what remains of the ticket's life when it is read."""

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from imageio_daemon.errors import InvalidRequest
from imageio_daemon.transfers.kept_ticket import MAX_TICKET_FILE, Clocks, KeptTicket, file_name
from imageio_daemon.transfers.ticket import Access, Ticket

TICKET = Ticket(
    ticket_id="secret", url="file:///disk", size=100, ops=(Access.WRITE,), timeout=300, inactivity_timeout=60
)
THEN = Clocks("boot", 1000.0, 5000.0)


def encoded(content: object) -> bytes:
    """Return a file with a correct checksum."""
    text = json.dumps(content).encode()
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def content() -> dict[str, Any]:
    """Return the content of a good file."""
    read: dict[str, Any] = json.loads(KeptTicket(TICKET, 300.0, {}).encode(THEN).split(b"\n", 1)[1])
    return read


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"transfer_id": "t"},
        {"transfer_id": ""},
        {"filename": "f", "sparse": True, "dirty": True},
        {"format": "qcow2", "backing_chain": False, "bitmap": "b"},
        {"ops": (Access.READ, Access.WRITE)},
        {"declared_size": 10**30, "size": 2**63 - 1},
        {"ticket_id": "\u00e4\n\"'/"},
    ],
    ids=str,
)
def test_ticket_is_read_as_it_was_written(changes: dict[str, Any]) -> None:
    ticket = replace(TICKET, **changes)
    record = KeptTicket(ticket, 10.0, {"result": [1, None, "x"]})
    assert KeptTicket.decode(record.encode(THEN), THEN) == record


def test_time_with_suspend_and_downtime_counts() -> None:
    data = KeptTicket(TICKET, 300.0, {}).encode(THEN)
    assert KeptTicket.decode(data, Clocks("boot", 1200.0, 0.0)).remaining == 100.0


def test_after_a_reboot_the_wall_clock_counts() -> None:
    data = KeptTicket(TICKET, 300.0, {}).encode(THEN)
    assert KeptTicket.decode(data, Clocks("other", 10.0, 5200.0)).remaining == 100.0


def test_after_a_reboot_the_time_since_then_counts_at_least() -> None:
    data = KeptTicket(TICKET, 300.0, {}).encode(THEN)
    assert KeptTicket.decode(data, Clocks("other", 250.0, 5001.0)).remaining == 50.0


@pytest.mark.parametrize("now", [Clocks("boot", 999.0, 6000.0), Clocks("other", 1.0, 4999.0)])
def test_ticket_has_expired_if_a_clock_went_back(now: Clocks) -> None:
    assert KeptTicket.decode(KeptTicket(TICKET, 300.0, {}).encode(THEN), now).remaining == -math.inf


def test_clocks_are_those_of_the_system() -> None:
    first, then = Clocks.read(), Clocks.read()
    assert 0 <= then.since(first) < 60
    assert first.boot == then.boot != ""


def test_file_cut_at_any_byte_is_refused() -> None:
    data = KeptTicket(TICKET, 300.0, {"a": 1}).encode(THEN)
    for length in range(len(data)):
        with pytest.raises(InvalidRequest, match="checksum"):
            KeptTicket.decode(data[:length], THEN)


def test_file_with_any_changed_byte_is_refused() -> None:
    data = KeptTicket(TICKET, 300.0, {"a": 1}).encode(THEN)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1
        with pytest.raises(InvalidRequest, match="checksum"):
            KeptTicket.decode(bytes(changed), THEN)


@pytest.mark.parametrize(
    "other",
    [
        [],
        None,
        {},
        {**content(), "written": None},
        {**content(), "written": {}},
        {**content(), "written": {"boot": "boot", "boottime": "x", "wall": 1.0}},
        {**content(), "written": {"boot": "boot", "boottime": math.nan, "wall": 1.0}},
        {**content(), "remaining": None},
        {**content(), "remaining": math.nan},
        {**content(), "remaining": math.inf},
        {**content(), "remaining": 10**400},
        {**content(), "state": []},
    ],
    ids=lambda other: str(other)[:60],
)
def test_content_of_another_shape_is_refused(other: object) -> None:
    with pytest.raises(InvalidRequest, match="not a record"):
        KeptTicket.decode(encoded(other), THEN)


def test_text_that_is_no_json_is_refused() -> None:
    for text in (b"", b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(InvalidRequest, match="not a record"):
            KeptTicket.decode(hashlib.sha256(text).hexdigest().encode() + b"\n" + text, THEN)


def test_invalid_ticket_is_refused_without_its_id() -> None:
    other = content()
    other["ticket"]["url"] = "ftp://"
    with pytest.raises(InvalidRequest, match="url scheme") as refused:
        KeptTicket.decode(encoded(other), THEN)
    assert "secret" not in str(refused.value)


def test_state_is_limited() -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        KeptTicket(TICKET, 300.0, {"a": "x" * MAX_TICKET_FILE}).encode(THEN)


def test_name_of_a_file_does_not_tell_the_id() -> None:
    assert file_name("secret") != file_name("other")
    assert "secret" not in file_name("secret")
    assert len(file_name("\u00e4" * 100)) == 64
