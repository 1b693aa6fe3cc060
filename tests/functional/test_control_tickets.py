# SPDX-License-Identifier: Apache-2.0
"""The control service: tickets are put, asked for, extended and removed."""

import json
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.storage.operation import ZeroMethod
from tests.support.daemon import Daemon, MakeDaemon, now, ticket
from tests.support.http_client import Answer, Connection, connect_tls
from tests.support.images import MakeImage, MiB, pattern
from tests.support.polling import eventually


def put(daemon: Daemon, fields: dict[str, Any]) -> Answer:
    daemon.hide(str(fields.get("uuid", "no id")) or "no id")
    return daemon.control("PUT", f"/tickets/{fields['uuid']}", json.dumps(fields).encode())


# PUT


def test_put_installs_a_ticket(daemon: Daemon) -> None:
    fields = ticket("/images/disk", 4096)
    answer = put(daemon, fields)
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")
    assert daemon.status(fields["uuid"])["url"] == "file:///images/disk"


def test_put_needs_no_image_yet(daemon: Daemon) -> None:
    assert put(daemon, ticket("/does/not/exist", 4096)).status == 200


def test_put_ignores_unknown_keys(daemon: Daemon) -> None:
    assert put(daemon, ticket("/images/disk", 4096, colour="red", future={"a": [1]})).status == 200


@pytest.mark.parametrize(
    "accepted",
    [
        {"ops": []},
        {"ops": ["read"]},
        {"ops": ["write"]},
        {"ops": ["read", "write"]},
        {"timeout": 0},
        {"size": 0},
        {"size": 8 * 1024**4},
        {"size": 2**63},
        {"size": 2**64},
        {"size": 10**39 - 1},
        {"transfer_id": ""},
        {"transfer_id": "backup-17"},
        {"filename": "disk.raw"},
        {"filename": "Größe 1.img"},
        {"sparse": True, "dirty": True},
        {"inactivity_timeout": 1},
    ],
    ids=str,
)
def test_put_accepts(daemon: Daemon, accepted: dict[str, Any]) -> None:
    assert put(daemon, ticket("/images/disk", 4096) | accepted).status == 200


@pytest.mark.parametrize("key", ["uuid", "size", "url", "timeout", "ops"])
def test_put_without_a_required_key_names_it(daemon: Daemon, key: str) -> None:
    fields = ticket("/images/disk", 4096)
    ticket_id = fields["uuid"]
    del fields[key]
    answer = daemon.control("PUT", f"/tickets/{ticket_id}", json.dumps(fields).encode())
    assert answer.status == 400
    assert key in answer.text
    assert daemon.control("GET", f"/tickets/{ticket_id}").status == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": -1},
        {"size": "4096"},
        {"size": 4096.0},
        {"size": True},
        {"size": None},
        {"size": 10**39},
        {"size": 10**4299},
        {"timeout": -1},
        {"timeout": 1.5},
        {"timeout": True},
        {"timeout": None},
        {"inactivity_timeout": 0},
        {"inactivity_timeout": -1},
        {"inactivity_timeout": False},
        {"inactivity_timeout": None},
        {"ops": "read"},
        {"ops": ["destroy"]},
        {"ops": [["read"]]},
        {"ops": [None]},
        {"ops": {"read": True}},
        {"url": 7},
        {"url": ""},
        {"url": "/images/disk"},
        {"url": "ftp://host/disk"},
        {"url": "file://host/disk"},
        {"url": "file:relative"},
        {"url": "file:///a\0b"},
        {"filename": "a\nSet-Cookie: x"},
        {"filename": "a\rb"},
        {"filename": "a\0b"},
        {"filename": "a\x7fb"},
        {"filename": 1},
        {"filename": None},
        {"sparse": 1},
        {"sparse": "yes"},
        {"sparse": None},
        {"dirty": 0},
        {"transfer_id": 5},
        {"transfer_id": None},
    ],
    ids=str,
)
def test_put_refuses_with_the_reason(daemon: Daemon, wrong: dict[str, Any]) -> None:
    fields = ticket("/images/disk", 4096) | wrong
    answer = put(daemon, fields)
    assert answer.status == 400
    assert answer.text.endswith("\n")
    assert next(iter(wrong)) in answer.text
    assert fields["uuid"] not in answer.text
    assert daemon.control("GET", f"/tickets/{fields['uuid']}").status == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"{}" * 2, b"[" * 20000])
def test_put_refuses_what_is_no_json_object(daemon: Daemon, body: bytes) -> None:
    answer = daemon.control("PUT", "/tickets/some-id", body)
    assert answer.status == 400
    assert answer.headers["Content-Type"] == "text/plain; charset=UTF-8"


def test_put_refuses_a_foreign_uuid(daemon: Daemon) -> None:
    fields = ticket("/images/disk", 4096)
    answer = daemon.control("PUT", "/tickets/another", json.dumps(fields).encode())
    assert answer.status == 400
    assert fields["uuid"] not in answer.text


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_an_empty_id_is_a_bad_request(daemon: Daemon, method: str) -> None:
    assert (
        daemon.control(method, "/tickets/", json.dumps(ticket("/images/disk", 1) | {"uuid": ""}).encode()).status == 400
    )


def test_put_refuses_a_document_over_64_kib(daemon: Daemon) -> None:
    fields = ticket("/images/disk", 4096, padding="x" * 65536)
    assert put(daemon, fields).status == 413


def test_put_refuses_a_document_that_announces_to_be_huge_without_reading_it(daemon: Daemon) -> None:
    with daemon.connect("control") as connection:
        connection.send(b"PUT /tickets/some-id HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n")
        answer = connection.receive(to="PUT")
        assert (answer.status, answer.closes) == (413, True)


def test_put_accepts_a_document_just_below_64_kib(daemon: Daemon) -> None:
    fields = ticket("/images/disk", 4096, padding="")
    fields["padding"] = "x" * (65536 - len(json.dumps(fields)))
    assert len(json.dumps(fields)) == 65536
    assert put(daemon, fields).status == 200


def test_put_replaces_a_ticket(daemon: Daemon) -> None:
    fields = ticket("/images/disk", 4096)
    put(daemon, fields)
    put(daemon, fields | {"size": 8192})
    assert daemon.status(fields["uuid"])["size"] == 8192


def test_an_id_may_be_percent_encoded(daemon: Daemon) -> None:
    name = f"a b/ü-{secrets.token_hex(8)}"
    fields = ticket("/images/disk", 4096) | {"uuid": name}
    daemon.hide(name)
    path = "/tickets/" + "".join(f"%{byte:02X}" for byte in name.encode())
    assert daemon.control("PUT", path, json.dumps(fields).encode()).status == 200
    assert daemon.control("GET", path).json()["uuid"] == name


def test_tickets_are_limited_in_number(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(daemon={"max_tickets": 2})
    first = daemon.add_ticket("/images/disk", 1)
    daemon.add_ticket("/images/disk", 1)
    answer = put(daemon, ticket("/images/disk", 1))
    assert (answer.status, answer.code) == (503, "too_many_tickets")
    assert put(daemon, ticket("/images/disk", 2) | {"uuid": first}).status == 200
    daemon.remove(first)
    assert put(daemon, ticket("/images/disk", 1)).status == 200


# GET


def test_get_tells_everything(daemon: Daemon) -> None:
    ticket_id = daemon.add_ticket("/images/disk", 4096, ops=["read"], transfer_id="job", filename="x.img", sparse=True)
    before = int(now())
    status = daemon.status(ticket_id)
    assert before + 295 <= status.pop("expires") <= now() + 300
    assert (
        status.items()
        >= {
            "uuid": ticket_id,
            "url": "file:///images/disk",
            "size": 4096,
            "ops": ["read"],
            "timeout": 300,
            "inactivity_timeout": 60,
            "active": False,
            "canceled": False,
            "connections": 0,
            "idle_time": status["idle_time"],
            "sparse": True,
            "dirty": False,
            "transfer": "job",
            "transfer_id": "job",
            "filename": "x.img",
            "transferred": 0,
            "bytes_per_second": 0,
            "read": 0,
            "written": 0,
            "zeroed": {},
        }.items()
    )
    assert status["idle_time"] in (0, 1)


def test_get_leaves_out_what_was_not_given(daemon: Daemon) -> None:
    status = daemon.status(daemon.add_ticket("/images/disk", 4096, transfer_id=""))
    assert "filename" not in status
    assert "transfer_id" not in status


@pytest.mark.parametrize("fields", [{}, {"transfer_id": ""}, {"transfer_id": "job-17"}], ids=str)
def test_get_tells_the_name_of_the_log(daemon: Daemon, fields: dict[str, Any]) -> None:
    start = daemon.log.end()
    status = daemon.status(daemon.add_ticket("/images/disk", 4096, **fields))
    daemon.log.wait_for(rf"ticket added transfer={status['transfer']} ", start=start)
    assert status.get("transfer_id", status["transfer"]) == status["transfer"]


@pytest.mark.parametrize("size", [2**63, 2**64])
def test_get_tells_a_size_that_no_image_has(daemon: Daemon, size: int) -> None:
    assert daemon.status(daemon.add_ticket("/images/disk", size))["size"] == size


def test_get_of_a_ticket_with_both_operations_has_no_transferred(daemon: Daemon) -> None:
    assert "transferred" not in daemon.status(daemon.add_ticket("/images/disk", 4096, ops=["read", "write"]))


def test_get_tells_what_was_zeroed_and_how(daemon: Daemon, client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=4 * MiB, sparse=True)
    for offset in range(0, 4 * MiB, MiB):
        body = json.dumps({"op": "zero", "offset": offset, "size": MiB, "flush": True}).encode()
        assert client.request("PATCH", image.url, None, body).status == 200
    zeroed = daemon.status(image.ticket)["zeroed"]
    assert sum(zeroed.values()) == 4 * MiB
    assert zeroed.keys() <= set(ZeroMethod)


def test_get_tells_what_a_ticket_with_both_operations_has_moved(
    daemon: Daemon, client: Connection, new_image: MakeImage
) -> None:
    image = new_image(size=4 * MiB, ops=["read", "write"])
    assert client.put(image.url, pattern(MiB)).status == 200
    assert client.get(image.url).status == 200
    status = daemon.status(image.ticket)
    assert (status["written"], status["read"]) == (MiB, 4 * MiB)


def test_get_tells_the_rate_of_now(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(size=4 * MiB)
    start = now()
    with daemon.connect("unix") as client:
        assert client.put(image.url, pattern(4 * MiB)).status == 200
    rates = {daemon.status(image.ticket)["bytes_per_second"] for _ in range(2)}
    assert min(rates) >= 4 * MiB / (now() - start + 10)
    eventually(lambda: daemon.status(image.ticket)["bytes_per_second"] == 0, "the upload is long ago", timeout=60)


def test_list_can_be_of_one_name_or_of_those_in_use(daemon: Daemon, new_image: MakeImage) -> None:
    used, unused = (new_image(size=MiB, transfer_id=name) for name in ("list&used", "list unused"))

    def listed(query: str) -> list[str]:
        answer = daemon.control("GET", f"/tickets/?{query}")
        assert answer.status == 200
        return [status["uuid"] for status in answer.json()]

    assert listed("transfer=list%26used") == [used.ticket]
    assert listed("transfer=list+unused&in_use=n") == [unused.ticket]
    assert listed("transfer=nobody") == []
    with daemon.connect("unix") as client:
        assert client.request("OPTIONS", used.url).status == 200
        found = listed("in_use=y")
    assert used.ticket in found
    assert unused.ticket not in found
    assert daemon.control("GET", "/tickets/?in_use=perhaps").status == 400


def test_get_tells_who_is_connected(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(size=MiB)
    with daemon.connect("tls") as far, daemon.connect("unix") as near:
        for connection in (far, near):
            assert connection.request("OPTIONS", image.url).status == 200
        clients = daemon.status(image.ticket)["clients"]
    assert [(told["service"], told["client"].rpartition(":")[2].isdecimal()) for told in clients] == [
        ("remote", True),
        ("local", False),
    ]
    assert clients[1]["client"] == "unix"


def test_get_of_an_unknown_ticket_is_not_found(daemon: Daemon) -> None:
    answer = daemon.control("GET", "/tickets/unknown")
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "text/plain; charset=UTF-8"


def test_get_without_an_id_lists_all_tickets(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    assert daemon.control("GET", "/tickets/").json() == []
    ids = {daemon.add_ticket("/images/disk", size) for size in range(3)}
    listed = daemon.control("GET", "/tickets/").json()
    assert {entry["uuid"] for entry in listed} == ids
    assert all(entry.keys() == daemon.status(entry["uuid"]).keys() for entry in listed)


# PATCH


def test_patch_lets_a_ticket_expire_later(daemon: Daemon) -> None:
    ticket_id = daemon.add_ticket("/images/disk", 4096)
    answer = daemon.control("PATCH", f"/tickets/{ticket_id}", b'{"timeout": 5000}')
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")
    assert now() + 4990 <= daemon.status(ticket_id)["expires"] <= now() + 5000


def test_patch_lets_a_ticket_expire_sooner(daemon: Daemon) -> None:
    ticket_id = daemon.add_ticket("/images/disk", 4096)
    daemon.extend(ticket_id, 10)
    assert daemon.status(ticket_id)["expires"] <= now() + 10


@pytest.mark.parametrize(
    "body",
    [b"{}", b"", b"[]", b'{"timeout": -1}', b'{"timeout": null}', b'{"timeout": true}', b'{"timeout": "5"}', b"{"],
)
def test_patch_refuses(daemon: Daemon, body: bytes) -> None:
    ticket_id = daemon.add_ticket("/images/disk", 4096)
    assert daemon.control("PATCH", f"/tickets/{ticket_id}", body).status == 400


def test_patch_of_an_unknown_ticket_is_not_found(daemon: Daemon) -> None:
    assert daemon.control("PATCH", "/tickets/unknown", b'{"timeout": 5}').status == 404


# DELETE


def test_delete_removes_a_ticket(daemon: Daemon) -> None:
    ticket_id = daemon.add_ticket("/images/disk", 4096)
    answer = daemon.control("DELETE", f"/tickets/{ticket_id}")
    assert (answer.status, answer.headers["Content-Length"]) == (204, "0")
    assert daemon.control("GET", f"/tickets/{ticket_id}").status == 404


def test_delete_of_an_unknown_ticket_succeeds(daemon: Daemon) -> None:
    assert daemon.control("DELETE", "/tickets/unknown").status == 204


def test_delete_without_an_id_removes_all_tickets(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    ids = [daemon.add_ticket("/images/disk", 4096) for _ in range(3)]
    answer = daemon.control("DELETE", "/tickets/")
    assert (answer.status, answer.headers["Content-Length"]) == (204, "0")
    assert daemon.control("GET", "/tickets/").json() == []
    assert all(daemon.control("GET", f"/tickets/{ticket_id}").status == 404 for ticket_id in ids)


# The service


def test_one_connection_serves_many_requests(daemon: Daemon) -> None:
    with daemon.connect("control") as connection:
        for _ in range(3):
            assert connection.request("DELETE", "/tickets/unknown").status == 204
            assert connection.get("/tickets/unknown").status == 404


@pytest.mark.parametrize("path", ["/", "/tickets", "/images/x", "/tickets/a/b", "/info/"])
def test_other_paths_are_not_found(daemon: Daemon, path: str) -> None:
    assert daemon.control("GET", path).status == 404


@pytest.mark.parametrize("path", ["/tickets", "/tickets/", "/tickets/a", "/tickets/a/b"])
@pytest.mark.parametrize("method", ["BREW", "POST", "HEAD"])
def test_a_method_that_nothing_knows_is_not_allowed_anywhere(daemon: Daemon, method: str, path: str) -> None:
    assert daemon.control(method, path).status == 405


@pytest.mark.parametrize("path", ["/", "/nothing", "/images/x"])
def test_a_method_that_is_unknown_is_not_allowed_where_there_is_nothing(daemon: Daemon, path: str) -> None:
    assert daemon.control("BREW", path).status == 405


@pytest.mark.parametrize(("path", "allowed"), [("/tickets/x", {"GET", "PUT", "PATCH", "DELETE"}), ("/tickets/", set())])
def test_other_methods_are_not_allowed(daemon: Daemon, path: str, allowed: set[str]) -> None:
    answer = daemon.control("POST", path, b"")
    assert answer.status == 405
    assert allowed <= {method.strip() for method in answer.headers["Allow"].split(",")}


def test_only_owner_and_group_may_use_the_socket(daemon: Daemon) -> None:
    mode = Path(daemon.control_socket).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o660


def test_tickets_are_not_served_to_clients(daemon: Daemon, client: Connection) -> None:
    ticket_id = daemon.add_ticket("/images/disk", 4096)
    assert client.get(f"/tickets/{ticket_id}").status == 404
    assert client.request("DELETE", f"/tickets/{ticket_id}").status == 404


def test_it_can_run_over_tcp_on_localhost_only(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(control={"transport": "tcp", "port": 0, "socket": ""})
    with Connection(socket.create_connection(("localhost", daemon.control_port), timeout=20)) as connection:
        fields = ticket("/images/disk", 1 * MiB)
        daemon.hide(fields["uuid"])
        put = connection.request("PUT", f"/tickets/{fields['uuid']}", None, json.dumps(fields).encode())
        assert put.status == 200
        assert connection.get(f"/tickets/{fields['uuid']}").json()["size"] == MiB
    match = daemon.log.find(r"listening.*service=control.*address=(\S+)")
    assert match is not None
    assert match[1].strip('"') in ("127.0.0.1", "::1")


def test_it_can_be_switched_off(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(control={"enable": False})
    assert daemon.log.find("service=control") is None
    assert not Path(daemon.control_socket).exists()


def test_the_remote_service_is_not_the_control_service(daemon: Daemon) -> None:
    import ssl

    context = ssl.create_default_context(cafile=str(daemon.cafile))
    with Connection(connect_tls("localhost", daemon.port, context)) as connection:
        assert connection.get("/tickets/").status == 404
