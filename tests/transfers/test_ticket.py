# SPDX-License-Identifier: Apache-2.0
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.errors import InvalidRequest
from imageio_daemon.transfers.keys import MAX_FILENAME, MAX_ID, MAX_SIZE, MAX_URL
from imageio_daemon.transfers.ticket import Access, Changes, Ticket
from imageio_daemon.units import MAX_OFFSET, MAX_RATE, MAX_TENANT, MIN_RATE

VALID: dict[str, Any] = {
    "uuid": "c0ffee-secret",
    "size": 1024,
    "url": "file:///images/disk",
    "timeout": 300,
    "ops": ["read", "write"],
}


def ticket(**changes: object) -> Ticket:
    return Ticket.from_json({**VALID, **changes}, inactivity_timeout=60)


def test_minimal_ticket_has_the_defaults() -> None:
    made = ticket()
    assert (made.inactivity_timeout, made.sparse, made.dirty, made.filename) == (60, False, False, None)


def test_unknown_keys_are_ignored() -> None:
    assert ticket(color="blue") == ticket()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"transfer_id": "t1", "filename": "disk.img", "sparse": True, "dirty": True, "inactivity_timeout": 5},
        {"format": "qcow2", "backing_chain": False, "bitmap": "b1"},
        {"rate": 0, "tenant": "blue"},
        {"shared": True},
        {"url": "rbd:pool/image", "dirty": True, "since": "s"},
        {"rate": MIN_RATE},
        {"rate": MAX_RATE},
    ],
)
def test_ticket_is_told_as_it_was_given(changes: dict[str, object]) -> None:
    told = ticket(**changes).to_json()
    assert {**told, **VALID, **changes} == told
    assert ticket(**told).to_json() == told


@pytest.mark.parametrize("key", VALID)
def test_missing_key_is_refused_by_name(key: str) -> None:
    data = {k: v for k, v in VALID.items() if k != key}
    with pytest.raises(InvalidRequest, match=key):
        Ticket.from_json(data, inactivity_timeout=60)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("uuid", 1),
        ("uuid", None),
        ("size", True),
        ("size", "1024"),
        ("size", 1.0),
        ("size", None),
        ("url", 5),
        ("timeout", False),
        ("ops", "read"),
        ("ops", {"read": 1}),
        ("inactivity_timeout", None),
        ("inactivity_timeout", True),
        ("transfer_id", 7),
        ("filename", None),
        ("sparse", 1),
        ("dirty", "yes"),
        ("format", None),
        ("backing_chain", 1),
        ("bitmap", None),
        ("since", None),
        ("rate", None),
        ("rate", True),
        ("rate", 1e6),
        ("rate", "1000000"),
        ("tenant", None),
        ("tenant", 1),
        ("shared", "yes"),
    ],
)
def test_wrong_type_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"'{key}' must be of type"):
        ticket(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", -1),
        ("size", MAX_SIZE + 1),
        ("timeout", -1),
        ("timeout", 2**63),
        ("inactivity_timeout", 0),
        ("inactivity_timeout", -5),
        ("ops", ["read", "erase"]),
        ("ops", [1]),
        ("ops", [["read"]]),
        ("uuid", ""),
        ("uuid", "x" * (MAX_ID + 1)),
        ("uuid", "\ud800"),
        ("url", ""),
        ("url", "file://relative"),
        ("url", "file:/one"),
        ("url", "ftp://host/disk"),
        ("url", "rbd:pool"),
        ("url", "rbd:pool/image@a@b"),
        ("since", "snapshot"),  # of a file
        ("since", "a/b"),
        ("since", ""),
        ("url", "/images/disk"),
        ("url", "file:///a\0b"),
        ("url", "file:///" + "a" * MAX_URL),
        ("filename", "a\r\nSet-Cookie: b"),
        ("filename", "tab\there"),
        ("filename", "c1\x85"),
        ("filename", "é" * MAX_FILENAME),
    ],
)
def test_bad_value_is_refused(key: str, value: object) -> None:
    with pytest.raises(InvalidRequest):
        ticket(**{key: value})


@pytest.mark.parametrize("size", [2**63, 2**64, MAX_SIZE])
def test_a_size_that_no_image_has_is_told_as_it_was_declared(size: int) -> None:
    made = ticket(size=size)
    assert (made.size, made.to_json()["size"]) == (MAX_OFFSET, size)


def test_the_largest_size_of_an_image_is_a_limit() -> None:
    made = ticket(size=MAX_OFFSET)
    assert (made.size, made.declared_size) == (MAX_OFFSET, None)


def test_without_transfer_id_the_name_in_logs_is_told() -> None:
    fields = {key: value for key, value in VALID.items() if key != "transfer_id"}
    made = Ticket.from_json(fields, inactivity_timeout=60)
    assert made.to_json()["transfer_id"] == made.log_name


def test_an_empty_transfer_id_is_not_told() -> None:
    assert "transfer_id" not in ticket(transfer_id="").to_json()


@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(InvalidRequest, match="object"):
        Ticket.from_json(data, inactivity_timeout=60)


def test_path_of_a_file_url_is_taken_as_it_is() -> None:
    assert ticket(url="file:///a%20b?c#d").path == "/a%20b?c#d"


def test_write_implies_read() -> None:
    made = ticket(ops=["write"])
    assert made.may(Access.READ)
    assert made.may(Access.WRITE)


def test_read_does_not_imply_write() -> None:
    assert not ticket(ops=["read"]).may(Access.WRITE)


def test_no_ops_is_valid_and_allows_nothing() -> None:
    made = ticket(ops=[])
    assert not any(made.may(access) for access in Access)


def test_repeated_op_counts_once() -> None:
    assert ticket(ops=["read", "read"]).ops == (Access.READ,)


def test_repr_hides_the_ticket_id() -> None:
    assert VALID["uuid"] not in repr(ticket())


def test_log_name_is_the_transfer_id() -> None:
    assert ticket(transfer_id="backup-7").log_name == "backup-7"


def test_log_name_without_transfer_id_is_no_part_of_the_ticket_id() -> None:
    name = ticket(transfer_id="").log_name
    assert name
    assert name not in VALID["uuid"]


@pytest.mark.parametrize("value", [-1, True, "5", None])
def test_bad_extension_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest):
        Changes.from_json({"timeout": value})


@pytest.mark.parametrize("data", [{}, [], None, {"tenant": "blue"}])
def test_change_of_nothing_is_refused(data: object) -> None:
    with pytest.raises(InvalidRequest):
        Changes.from_json(data)


@pytest.mark.parametrize("value", [-1, 1, MIN_RATE - 1, MAX_RATE + 1, 10**40, True, 1e6, "5", None])
def test_bad_rate_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="rate"):
        ticket(rate=value)
    with pytest.raises(InvalidRequest, match="rate"):
        Changes.from_json({"rate": value})
    with pytest.raises(InvalidRequest, match="rate"):
        Changes.from_json({"timeout": 1, "rate": value})


@pytest.mark.parametrize("rate", [0, MIN_RATE, MAX_RATE])
def test_rate_is_changed_with_and_without_the_timeout(rate: int) -> None:
    assert Changes.from_json({"rate": rate}) == Changes(None, rate)
    assert Changes.from_json({"rate": rate, "timeout": 7}) == Changes(7, rate)


@pytest.mark.parametrize("value", ["", "x" * (MAX_TENANT + 1), "\ud800"])
def test_bad_tenant_is_refused(value: str) -> None:
    assert ticket(tenant="x" * MAX_TENANT).tenant
    with pytest.raises(InvalidRequest, match="tenant"):
        ticket(tenant=value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@given(
    st.dictionaries(st.sampled_from([*VALID, "filename", "sparse", "transfer_id", "rate", "tenant", "x"]), JSON) | JSON
)
def test_any_json_makes_a_ticket_or_is_refused(data: object) -> None:
    with contextlib.suppress(InvalidRequest):
        Ticket.from_json(data, inactivity_timeout=60)


@pytest.mark.parametrize("url", ["nbd:unix:/run/s:exportname=x", "nbd://h/x", "nbds+unix:///?socket=/s&tls-hostname=h"])
def test_ticket_of_an_nbd_server(url: str) -> None:
    made = ticket(url=url)
    assert made.url == url
    assert made.nbd is not None


def test_ticket_of_a_file_has_no_server() -> None:
    assert ticket().nbd is None


def test_bad_nbd_url_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="socket"):
        ticket(url="nbd+unix:///x")


def test_ticket_of_another_server_is_shown_without_its_secret() -> None:
    made = ticket(url="https://host:54322/images/id")
    assert made.http is not None
    assert made.shown_url == "https://host:54322/images/..."


def test_ticket_of_an_nbd_server_is_shown_without_its_export() -> None:
    assert ticket(url="nbd://host/secret").shown_url == "nbd:host:10809"


def test_ticket_of_a_file_is_shown_as_it_is() -> None:
    made = ticket()
    assert (made.http, made.shown_url) == (None, made.url)


def test_ticket_with_a_bad_https_url_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="https"):
        ticket(url="https://host/other/id")


@pytest.mark.parametrize("name", ["raw", "qcow2", "vmdk", "vhdx", "vpc", "vdi"])
def test_file_of_a_format(name: str) -> None:
    assert ticket(format=name).format == name


def test_file_is_raw_with_its_backing_chain_unless_said_otherwise() -> None:
    made = ticket()
    assert (made.format, made.backing_chain) == ("raw", True)


@pytest.mark.parametrize("name", ["", "QCOW2", "luks", "auto", "json:"])
def test_unknown_format_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="format"):
        ticket(format=name)


@pytest.mark.parametrize("url", ["nbd:unix:/run/s", "https://host/images/id"])
def test_format_of_another_servers_image_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="format"):
        ticket(url=url, format="qcow2")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 1024])
def test_name_of_a_bitmap_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="bitmap"):
        ticket(format="qcow2", dirty=True, bitmap=name)


def test_snapshot_cannot_be_written() -> None:
    assert ticket(url="rbd:pool/image@s", ops=["read"]).rbd is not None
    with pytest.raises(InvalidRequest, match="read-only"):
        ticket(url="rbd:pool/image@s", ops=["read", "write"])


def test_image_on_ceph_has_a_storage_of_its_own() -> None:
    made = ticket(url="rbd:pool/image")
    assert (made.storage, made.shown_url, str(made.rbd)) == ("rbd", "rbd:pool/image", "rbd:pool/image")
    assert ticket().rbd is None
