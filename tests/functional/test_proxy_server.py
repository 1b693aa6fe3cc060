# SPDX-License-Identifier: Apache-2.0
"""The proxy beside a server that answers what a test says: what goes on, what does not, and how both sides end."""

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.frontends.http.proxy.passed_answers import MAX_ANSWER
from tests.support.daemon import Certificates, Daemon, MakeDaemon, ticket
from tests.support.http_client import Answer, Connection, DisconnectedError
from tests.support.images import KiB, MiB
from tests.support.polling import eventually
from tests.support.scripted import Asked, Peer, Script, ScriptedServer, answer, first_byte, options

SECRET = "the-other-ticket"
TAG, NEW_TAG = (f'"{digit * 32}"' for digit in "01")
#: What fits into the buffers of all sockets and of the proxy, on one way.
BUFFERED = 16 * MiB
ENDLESS = 256 * MiB


@pytest.fixture(scope="module")
def proxy(certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(certificates, {"backend_http": {"ca_file": certificates.cafile}}) as daemon:
        daemon.hide(SECRET)
        yield daemon
        daemon.check_log()


@pytest.fixture(scope="module")
def impatient(certificates: Certificates) -> Iterator[Daemon]:
    """A proxy whose time limits are half a second."""
    with Daemon(
        certificates, {"backend_http": {"ca_file": certificates.cafile}}, program="tests.support.impatient"
    ) as daemon:
        daemon.hide(SECRET)
        yield daemon


@pytest.fixture(scope="module")
def distrustful(certificates: Certificates) -> Iterator[Daemon]:
    """A proxy that trusts nobody's certificate but those of the system."""
    with Daemon(certificates) as daemon:
        daemon.hide(SECRET)
        yield daemon


@pytest.fixture
def server(certificates: Certificates) -> Iterator[ScriptedServer]:
    with ScriptedServer(certificates) as made:
        yield made


@pytest.fixture
def url(proxy: Daemon, server: ScriptedServer) -> str:
    return add(proxy, server)


@pytest.fixture
def client(proxy: Daemon) -> Iterator[Connection]:
    with proxy.connect("tls") as connection:
        yield connection


def add(proxy: Daemon, server: ScriptedServer, size: int = MiB, **fields: Any) -> str:
    """Return the path of an image with a new ticket of the proxy."""
    return f"/images/{proxy.put_ticket({**ticket('', size, **fields), 'url': server.url(SECRET)})}"


def ask(client: Connection, server: ScriptedServer, *scripts: Script, of: tuple[str, str], **fields: str) -> Answer:
    """Return the answer to a request without a body, or one of a byte."""
    server.scripts = list(scripts)
    method, target = of
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return client.request(method, target, headers, b"x" if method == "PUT" else None)


# Fields


def test_only_fields_that_are_known_go_on(client: Connection, server: ScriptedServer, url: str) -> None:
    odd = {
        "Cookie": "a=b",
        "Authorization": "Basic YTpi",
        "Proxy-Authorization": "Basic YTpi",
        "Connection": "keep-alive, Content-Range, X-Mine",
        "Keep-Alive": "timeout=5",
        "TE": "trailers",
        "X-Mine": "1",
        "Forwarded": "for=192.0.2.1",
        "Origin": "https://example.org",
    }
    server.scripts = [answer(200)]
    assert client.put(f"{url}?flush=n&x=y", b"data", {"Content-Range": "bytes 100-103/200", **odd}).status == 200
    (asked,) = server.asked
    assert asked.line == f"PUT /images/{SECRET}?flush=n HTTP/1.1"
    assert asked.names == {"host", "accept", "accept-encoding", "content-range", "content-type", "content-length"}
    assert (asked["Content-Range"], asked["Accept-Encoding"], asked.body) == ("bytes 100-103/*", "identity", b"data")


def test_only_fields_that_are_known_come_back(client: Connection, server: ScriptedServer, url: str) -> None:
    odd = {
        "Connection": "keep-alive, X-Hop",
        "X_Hop": "1",
        "Keep_Alive": "timeout=5",
        "Set_Cookie": "a=b",
        "Access_Control_Allow_Origin": "https://theirs",
        "Server": "theirs",
        "Location": "https://elsewhere/",
        "Content_Disposition": "attachment; filename=theirs",
    }
    reply = answer(206, b"data", Content_Range="bytes 0-3/4", ETag=TAG, **odd)
    got = ask(client, server, reply, of=("GET", url), Range="bytes=0-3", Origin="https://example.org")
    assert {name.lower() for name, _ in got.headers.fields} == {
        *("accept-ranges", "content-type", "content-disposition", "content-range", "etag", "content-length", "date"),
        *("server", "x-content-type-options", "access-control-allow-origin", "access-control-expose-headers"),
        *("access-control-max-age", "cache-control", "x-accel-buffering"),
    }
    assert got.headers["Access-Control-Allow-Origin"] == "*"
    assert (got.headers["Server"], got.headers["Content-Disposition"]) == ("imageio-daemon", "attachment")


def test_conditions_go_on(client: Connection, server: ScriptedServer, url: str) -> None:
    changed = answer(412, b"it is another\n", X_Error_Code="changed", Content_Type="text/plain")
    got = ask(client, server, changed, of=("GET", url), Range="bytes=1-3", If_Match=TAG)
    assert (got.status, got.code, got.body) == (412, "changed", b"it is another\n")
    assert (server.asked[-1]["If-Match"], server.asked[-1]["Range"]) == (TAG, "bytes=1-3")
    whole = answer(200, b"whole", ETag=NEW_TAG)
    got = ask(client, server, first_byte(5), whole, of=("GET", url), Range="bytes=1-3", If_Range=TAG)
    assert (got.status, got.body, got.headers["ETag"]) == (200, b"whole", NEW_TAG)
    assert server.asked[-1]["If-Range"] == TAG


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_who_has_the_image_is_told_so(client: Connection, server: ScriptedServer, url: str, method: str) -> None:
    same = answer(304, Content_Length="", ETag=TAG)
    got = ask(client, server, first_byte(5), same, of=(method, url), Range="bytes=1-3", If_None_Match=TAG)
    assert (got.status, got.headers["ETag"], got.body, got.closes) == (304, TAG, b"", False)
    assert (server.asked[-1]["If-None-Match"], server.asked[-1]["Range"]) == (TAG, "bytes=1-3")


def test_304_that_nobody_asked_for_is_no_answer(client: Connection, server: ScriptedServer, url: str) -> None:
    assert ask(client, server, answer(304, Content_Length=""), of=("GET", url), Range="bytes=1-3").status == 502


def test_a_tag_of_more_than_the_ticket_is_no_tag(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    part = answer(206, b"whol", Content_Range="bytes 0-3/5", ETag=TAG)
    url = add(proxy, server, size=4)
    got = ask(client, server, first_byte(5), part, of=("GET", url), Range="bytes=1-3", If_Range=TAG)
    assert (got.status, got.body) == (200, b"whol")
    assert "if-range" not in server.asked[-1].names
    got = ask(client, server, first_byte(5), part, of=("GET", url), If_None_Match=TAG, If_Range=TAG)
    assert (got.status, got.body) == (200, b"whol")
    assert not server.asked[-1].names & {"if-none-match", "if-range"}


def test_body_goes_on_as_it_is_coded_if_the_other_server_knows_that(
    client: Connection, server: ScriptedServer, url: str
) -> None:
    coded = {"Content-Encoding": "zstd", "Content-Range": "bytes 0-99/*"}
    server.scripts = [options(encodings=["zstd"]), answer(200), answer(200)]
    assert client.put(url, b"frame", coded).status == 200
    assert client.put(url, b"frame", coded).status == 200
    assert [asked.line.split()[0] for asked in server.asked] == ["OPTIONS", "PUT", "PUT"]
    assert (server.asked[-1]["Content-Encoding"], server.asked[-1].body) == ("zstd", b"frame")


def test_body_in_a_coding_that_the_other_server_does_not_know_is_refused(
    client: Connection, server: ScriptedServer, url: str
) -> None:
    server.scripts = [options()]
    got = client.put(url, b"frame", {"Content-Encoding": "zstd", "Content-Range": "bytes 0-99/*"})
    assert (got.status, got.code) == (415, "unsupported_encoding")
    assert len(server.asked) == 1


# Answers


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_request"), (403, "not_allowed"), (409, "image_in_use"), (507, "storage_full")]
)
def test_refusal_is_passed_on(client: Connection, server: ScriptedServer, url: str, status: int, code: str) -> None:
    refusal = answer(status, b"why\n", X_Error_Code=code, Content_Type="text/plain; charset=UTF-8")
    got = ask(client, server, refusal, of=("PUT", url))
    assert (got.status, got.code, got.body) == (status, code, b"why\n")
    assert ask(client, server, answer(200), of=("PUT", url)).status == 200  # the connection goes on


@pytest.mark.parametrize("quoted", [SECRET, "<tag>"])
def test_text_that_quotes_the_other_ticket_is_replaced(
    client: Connection, server: ScriptedServer, proxy: Daemon, quoted: str
) -> None:
    secret = SECRET if quoted == SECRET else "%3Ctag%3E"
    url = f"/images/{proxy.put_ticket({**ticket('', MiB), 'url': server.url(secret)})}"
    got = ask(client, server, answer(403, f"no ticket {quoted}\n".encode()), of=("PUT", url))
    assert (got.status, got.code) == (403, "not_allowed")
    assert got.body == b"The server that has the image refuses the request\n"


def test_reason_comes_as_a_document_if_the_client_wants_it(
    client: Connection, server: ScriptedServer, url: str
) -> None:
    document = {"code": "storage_full", "message": "no room", "status": 507}
    refusal = answer(507, json.dumps(document).encode(), X_Error_Code="storage_full", Content_Type="application/json")
    got = ask(client, server, refusal, of=("PUT", url), Accept="application/json")
    assert got.json() == document
    assert server.asked[-1]["Accept"] == "application/json"


def test_size_in_a_refusal_is_at_most_that_of_the_ticket(
    client: Connection, server: ScriptedServer, proxy: Daemon
) -> None:
    url = add(proxy, server, size=10)
    refusal = answer(416, X_Error_Code="out_of_range", Content_Range="bytes */20")
    got = ask(client, server, refusal, of=("GET", url), Range="bytes=0-3")
    assert (got.status, got.headers["Content-Range"]) == (416, "bytes */10")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(302, Location="https://elsewhere/"), id="redirect"),
        pytest.param(answer(401, WWW_Authenticate="Basic"), id="asks who we are"),
        pytest.param(answer(407), id="asks who we are as a proxy"),
        pytest.param(answer(201), id="unknown success"),
        pytest.param(answer(200, b"{}", Content_Encoding="gzip"), id="encoded"),
        pytest.param(answer(200, b"x" * (MAX_ANSWER + 1)), id="too long"),
        pytest.param(answer(416, Content_Range="bytes */x"), id="invalid size"),
        pytest.param(b"SSH-2.0\r\n\r\n", id="no HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", id="two lengths"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="two framings"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="no length"),
    ],
)
def test_what_is_no_answer_to_a_client_is_a_bad_gateway(
    client: Connection, server: ScriptedServer, url: str, bad: bytes
) -> None:
    got = ask(client, server, bad, of=("PUT", url))
    assert (got.status, got.code, got.closes) == (502, "server_gone", True)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(206, b"data"), id="no Content-Range"),
        pytest.param(answer(206, b"data", Content_Range="bytes 0-3/*"), id="no total"),
        pytest.param(answer(206, b"data", Content_Range="bytes 1-4/9"), id="another first byte"),
        pytest.param(answer(206, b"data5", Content_Range="bytes 0-4/9"), id="more"),
        pytest.param(answer(206, b"", Content_Range="bytes */9"), id="no range"),
        pytest.param(answer(206, b"dat", Content_Range="bytes 0-3/9"), id="a shorter body"),
        pytest.param(answer(200, b"data"), id="the whole image"),
        pytest.param(answer(206, b"data", Content_Range="bytes 0-3/9", Content_Encoding="gzip"), id="encoded"),
    ],
)
def test_another_range_is_no_data(client: Connection, server: ScriptedServer, url: str, bad: bytes) -> None:
    got = ask(client, server, bad, of=("GET", url), Range="bytes=0-3")
    assert (got.status, got.code) == (502, "server_gone")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(200, b"x" * 11), id="more than the ticket"),
        pytest.param(answer(206, b"x", Content_Range="bytes 0-0/1"), id="a range"),
        pytest.param(answer(200, Content_Length="", Connection="close"), id="no length"),
    ],
)
def test_what_is_not_the_whole_image_is_no_data(
    client: Connection, server: ScriptedServer, proxy: Daemon, bad: bytes
) -> None:
    got = ask(client, server, first_byte(10), bad, of=("GET", add(proxy, server, size=10)))
    assert (got.status, got.code) == (502, "server_gone")


@pytest.mark.parametrize("bad", [answer(200, b"x"), answer(206, b"x"), answer(416)], ids=["whole", "none", "refused"])
def test_a_size_that_is_not_told_is_not_guessed(
    client: Connection, server: ScriptedServer, url: str, bad: bytes
) -> None:
    got = ask(client, server, bad, of=("GET", url))
    assert got.status == (416 if bad == answer(416) else 502)


def test_an_image_may_be_empty(client: Connection, server: ScriptedServer, proxy: Daemon, url: str) -> None:
    nothing = answer(416, Content_Range="bytes */0")
    assert ask(client, server, nothing, answer(200), of=("GET", url)).body == b""
    assert ask(client, server, first_byte(10), of=("GET", add(proxy, server, size=0))).body == b""


def test_chunks_of_an_answer_are_counted(client: Connection, server: ScriptedServer, url: str) -> None:
    head = b"HTTP/1.1 206 Reason\r\nContent-Range: bytes 0-3/9\r\nTransfer-Encoding: chunked\r\n\r\n"
    got = ask(client, server, head + b"2\r\nda\r\n2;x=y\r\nta\r\n0\r\n\r\n", of=("GET", url), Range="bytes=0-3")
    assert (got.status, got.headers["Content-Length"], got.body) == (206, "4", b"data")
    got = ask(client, server, head + b"5\r\ndata5\r\n0\r\n\r\n", of=("GET", url), Range="bytes=0-3")
    assert got.status == 502


def test_a_body_that_ends_early_cuts_the_client(client: Connection, server: ScriptedServer, url: str) -> None:
    def half(peer: Peer, _: Asked) -> None:
        peer.sock.sendall(answer(206, b"da", Content_Range="bytes 0-3/9", Content_Length="4"))
        raise EOFError

    server.scripts = [half]
    with pytest.raises(DisconnectedError) as cut:
        client.get(url, {"Range": "bytes=0-3"})
    assert cut.value.received == b"da"


def test_the_end_of_the_other_servers_connection_is_told(client: Connection, server: ScriptedServer, url: str) -> None:
    assert ask(client, server, answer(200, Connection="close"), of=("PUT", url)).closes


def test_a_connection_that_ended_between_requests_ends_that_of_the_client(
    client: Connection, server: ScriptedServer, url: str
) -> None:
    def leave(peer: Peer, asked: Asked) -> None:
        peer.body(asked)
        peer.sock.sendall(answer(200))
        raise EOFError

    assert ask(client, server, leave, of=("PUT", url)).status == 200
    eventually(lambda: server.open == 0, "the server has left")
    server.scripts = [answer(200)]
    with pytest.raises(DisconnectedError):
        client.put(url, b"x")
    assert len(server.scripts) == 1


def test_connections_are_used_again(client: Connection, server: ScriptedServer, url: str) -> None:
    for _ in range(10):
        assert ask(client, server, answer(200), of=("PUT", url)).status == 200
    assert server.connections == 1


def test_a_success_before_the_end_of_the_body_is_none(client: Connection, server: ScriptedServer, url: str) -> None:
    server.scripts = [lambda peer, _: peer.sock.sendall(answer(200))]
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx".encode())
    assert client.receive(to="PUT").status == 502


def test_a_refusal_before_the_end_of_the_body_goes_on(client: Connection, server: ScriptedServer, url: str) -> None:
    refusal = answer(416, b"no\n", X_Error_Code="out_of_range", Content_Type="text/plain; charset=UTF-8")
    server.scripts = [lambda peer, _: peer.sock.sendall(refusal)]
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx".encode())
    got = client.receive(to="PUT")
    assert (got.status, got.body, got.closes) == (416, b"no\n", True)


# OPTIONS


def test_options_tell_what_both_allow(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    told = options(max_readers=100, max_writers=2, unix_socket="/theirs", instance="their-process", available=7)
    url = add(proxy, server, ops=["read"])
    got = ask(client, server, told, of=("OPTIONS", url))
    document = got.json()
    assert got.headers["Allow"] == "OPTIONS,GET"
    assert document["features"] == ["checksum", "extents"]
    assert (document["max_readers"], document["max_writers"]) == (8, 2)
    assert (document["instance"], document["unix_socket"]) == ("their-process", proxy.local_socket)
    assert "available" not in document
    got = ask(client, server, told, of=("OPTIONS", add(proxy, server)))
    assert (got.headers["Allow"], got.json()["available"]) == ("OPTIONS,GET,PUT,PATCH", 7)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(200, b"[]"), id="no object"),
        pytest.param(answer(200, b"{"), id="no JSON"),
        pytest.param(answer(200, b"[" * 10000), id="deep JSON"),
        pytest.param(options(features="all"), id="features no list"),
        pytest.param(options(features=[1]), id="features no text"),
        pytest.param(options(encodings=[1]), id="encodings no text"),
        pytest.param(options(max_readers=-1), id="no readers"),
        pytest.param(options(max_writers="8"), id="writers no number"),
        pytest.param(options(max_size=True), id="size a flag"),
    ],
)
def test_bad_options_are_a_bad_gateway(client: Connection, server: ScriptedServer, url: str, bad: bytes) -> None:
    assert ask(client, server, bad, of=("OPTIONS", url)).status == 502


def test_refused_options_are_passed_on(client: Connection, server: ScriptedServer, url: str) -> None:
    assert ask(client, server, answer(403, X_Error_Code="not_allowed"), of=("OPTIONS", url)).status == 403


# The ticket here


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("PUT", {"Content-Range": "bytes 6-10/*"}, b"12345"),
        ("PATCH", {}, b'{"op": "zero", "offset": 6, "size": 5}'),
        ("GET", {"Range": "bytes=10-"}, b""),
        ("GET", {"Range": "bytes=10-12"}, b""),
    ],
)
def test_nothing_past_the_ticket_goes_on(
    client: Connection, server: ScriptedServer, proxy: Daemon, method: str, headers: dict[str, str], body: bytes
) -> None:
    url = add(proxy, server, size=10)
    server.scripts = [first_byte(20)] if headers.get("Range") == "bytes=10-" else []
    assert client.request(method, url, headers, body).status == 416
    assert [asked["Range"] for asked in server.asked] == ["bytes=0-0"] * len(server.asked)


def test_chunks_past_the_ticket_are_cut(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    server.scripts = [answer(200)]
    url = add(proxy, server, size=10)
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    client.send(b"8\r\n12345678\r\n8\r\n12345678\r\n")
    assert client.receive(to="PUT").status == 416
    eventually(lambda: server.open == 0, "the other server's side is cut")
    assert server.asked == []


@pytest.mark.parametrize(
    ("asked", "sent"),
    [("bytes=-3", "bytes=7-9"), ("bytes=4-", "bytes=4-9"), ("bytes=4-99", "bytes=4-9"), ("bytes=0-3", "bytes=0-3")],
)
def test_ranges_are_those_of_the_ticket(
    client: Connection, server: ScriptedServer, proxy: Daemon, asked: str, sent: str
) -> None:
    first, last = (int(text) for text in sent.removeprefix("bytes=").split("-"))
    body = b"x" * (last - first + 1)
    reply = answer(206, body, Content_Range=f"bytes {first}-{last}/20")
    scripts = [reply] if asked.count("-") and asked.split("-")[1] and not asked.startswith("bytes=-") else []
    url = add(proxy, server, size=10)
    got = ask(client, server, *(scripts or [first_byte(20), reply]), of=("GET", url), Range=asked)
    assert (got.status, got.body, got.headers["Content-Range"]) == (206, body, f"bytes {first}-{last}/10")
    assert server.asked[-1]["Range"] == sent


@pytest.mark.parametrize("target", ["/checksum", "/checksum?offset=0"])
def test_a_checksum_of_more_than_the_ticket_is_refused(
    client: Connection, server: ScriptedServer, proxy: Daemon, target: str
) -> None:
    got = ask(client, server, first_byte(20), of=("GET", add(proxy, server, size=10) + target))
    assert (got.status, got.code) == (422, "image_unusable")


def test_a_checksum_of_a_part_of_the_ticket_goes_on(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    url = add(proxy, server, size=10)
    found = json.dumps(
        {"checksum": "0" * 64, "algorithm": "sha256", "block_size": 4194304, "offset": 0, "length": 5}
    ).encode()
    reply = answer(200, found, Content_Type="application/json")
    got = ask(client, server, reply, of=("GET", f"{url}/checksum?length=5&algorithm=sha256"))
    assert (got.status, got.body) == (200, found)
    assert server.asked[-1].line.split()[1].endswith("/checksum?algorithm=sha256&block_size=4194304&offset=0&length=5")
    assert ask(client, server, of=("GET", f"{url}/checksum?length=11")).status == 416


@pytest.mark.parametrize("told", [b"{", b"[]", b'{"checksum": "00"}', b'{"offset": 0, "length": 10}'])
def test_a_checksum_of_another_range_is_none(client: Connection, server: ScriptedServer, url: str, told: bytes) -> None:
    reply = answer(200, told, Content_Type="application/json")
    got = ask(client, server, reply, of=("GET", f"{url}/checksum?length=5"))
    assert (got.status, got.code) == (422, "image_unusable")


def test_rights_are_those_of_the_ticket(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    url = add(proxy, server, ops=["read"])
    for method, target in (("PUT", url), ("GET", f"{url}/extents?context=dirty")):
        with proxy.connect("tls") as other:
            assert ask(other, server, of=(method, target)).status in (403, 404)
    with proxy.connect("tls") as other:
        assert other.patch(url, {"op": "flush"}).status == 403
    with proxy.connect("tls") as other:
        finalize = {"op": "finalize", "checksum": {"algorithm": "sha256", "checksum": "0" * 64}}
        assert other.patch(url, finalize).status == 403
    proxy.extend(url.rpartition("/")[2], 0)
    assert ask(client, server, of=("GET", url)).status == 403
    assert server.asked == []


def test_bytes_are_counted(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    url = add(proxy, server)
    server.scripts = [answer(200), answer(200)]
    assert client.put_at(url, 0, bytes(64 * KiB)).status == 200
    assert client.patch(url, {"op": "zero", "offset": 64 * KiB, "size": KiB}).status == 200
    reply = answer(206, b"data", Content_Range="bytes 0-3/9")
    assert ask(client, server, reply, of=("GET", url), Range="bytes=0-3").status == 206
    status = proxy.status(url.rpartition("/")[2])
    assert (status["written"], status["read"], status["transferred"]) == (64 * KiB, 4, 65 * KiB)
    assert status["zeroed"] == {"remote": KiB}


def test_a_limit_on_the_rate_counts(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    url = add(proxy, server, rate=MiB)
    server.scripts = [answer(200)]
    assert client.put(url, bytes(MiB)).status == 200
    assert proxy.status(url.rpartition("/")[2])["limited"] > 0.3


def test_connection_goes_on_when_an_expired_ticket_is_revived(
    client: Connection, server: ScriptedServer, proxy: Daemon
) -> None:
    url = add(proxy, server)
    assert ask(client, server, answer(200), of=("PUT", url)).status == 200
    proxy.extend(url.rpartition("/")[2], 0)
    with proxy.connect("tls") as other:
        assert ask(other, server, of=("PUT", url)).status == 403
    proxy.extend(url.rpartition("/")[2], 300)
    assert ask(client, server, answer(200), of=("PUT", url)).status == 200
    assert server.connections == 1


# Both sides end


def endless(peer: Peer, _: Asked) -> None:
    """Send an image until it is cut."""
    peer.sock.sendall(answer(206, Content_Range=f"bytes 0-{ENDLESS - 1}/{ENDLESS}", Content_Length=str(ENDLESS)))
    piece = bytes(256 * KiB)
    for __ in range(ENDLESS // len(piece)):
        peer.sock.sendall(piece)


def silent(peer: Peer, _: Asked) -> None:
    """Wait for the end of the connection."""
    while peer.sock.recv(KiB):
        pass
    raise EOFError


def test_removal_of_the_ticket_cuts_both_sides(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    url = add(proxy, server, size=ENDLESS)
    server.scripts = [endless]
    client.send(f"GET {url} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-{ENDLESS - 1}\r\n\r\n".encode())
    eventually(lambda: bool(server.asked), "it has begun")
    proxy.remove(url.rpartition("/")[2])
    eventually(lambda: server.open == 0, "the other server's side is cut")
    with pytest.raises(DisconnectedError):
        client.receive()


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
def test_removal_of_the_ticket_ends_a_wait_for_the_other_server(
    client: Connection, server: ScriptedServer, proxy: Daemon, method: str
) -> None:
    url = add(proxy, server)
    server.scripts = [silent]
    body = b'{"op": "flush"}'
    fields = f"Range: bytes=0-1\r\nContent-Length: {0 if method == 'GET' else len(body)}"
    client.send(f"{method} {url} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode() + (body if method != "GET" else b""))
    eventually(lambda: bool(server.asked), "it has begun")
    assert proxy.status(url.rpartition("/")[2])["active"]
    proxy.remove(url.rpartition("/")[2])
    assert client.receive(to=method).status == 403
    eventually(lambda: server.open == 0, "the other server's side is cut")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
def test_client_that_leaves_cuts_the_other_side(proxy: Daemon, server: ScriptedServer, method: str) -> None:
    url = add(proxy, server, size=ENDLESS)
    server.scripts = [endless if method == "GET" else silent]
    body = b'{"op": "flush"}'
    length = {"GET": 0, "PUT": ENDLESS, "PATCH": len(body)}[method]
    with proxy.connect("tls") as client:
        head = f"{method} {url} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-{ENDLESS - 1}\r\nContent-Length: {length}\r\n\r\n"
        client.send(head.encode() + (body if length else b""))
        eventually(lambda: bool(server.asked), "it has begun")
    eventually(lambda: server.open == 0, "the other server's side is cut")


def test_a_client_that_does_not_read_stops_the_other_server(proxy: Daemon, server: ScriptedServer) -> None:
    sent = 0

    def count(peer: Peer, _: Asked) -> None:
        nonlocal sent
        peer.sock.sendall(answer(206, Content_Range=f"bytes 0-{ENDLESS - 1}/{ENDLESS}", Content_Length=str(ENDLESS)))
        while sent < ENDLESS:
            sent += peer.sock.send(bytes(256 * KiB))

    url = add(proxy, server, size=ENDLESS)
    server.scripts = [count]
    before = proxy.resident_memory()
    with proxy.connect("tls") as client:
        client.send(f"GET {url} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-{ENDLESS - 1}\r\n\r\n".encode())
        eventually(lambda: stands_still(lambda: sent), "it stands still")
        assert 0 < sent < BUFFERED
        assert proxy.resident_memory() < before + BUFFERED


def test_a_server_that_does_not_read_stops_the_client(proxy: Daemon, server: ScriptedServer) -> None:
    over = threading.Event()
    url = add(proxy, server, size=ENDLESS)
    server.scripts = [lambda _, __: over.wait(30)]
    before = proxy.resident_memory()
    with proxy.connect("tls") as client:
        client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: {ENDLESS}\r\n\r\n".encode())
        client.sock.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < ENDLESS:
                sent += client.sock.send(bytes(256 * KiB))
        assert 0 < sent < BUFFERED
        assert proxy.resident_memory() < before + BUFFERED
        assert proxy.status(url.rpartition("/")[2])["slowest_operation"]["kind"] == "write"
    over.set()


def stands_still(value: Any) -> bool:
    """Tell whether a number that is above 0 stays the same for a moment."""
    first = value()
    return bool(first) and not threading.Event().wait(0.5) and value() == first


# Errors of the way


#: What a proxy passes on.
REQUESTS = [
    pytest.param("OPTIONS", "", b"", id="options"),
    pytest.param("GET", "", b"", id="get"),
    pytest.param("HEAD", "", b"", id="head"),
    pytest.param("PUT", "", b"x", id="put"),
    pytest.param("PATCH", "", b'{"op": "flush"}', id="patch"),
    pytest.param("GET", "/extents", b"", id="extents"),
    pytest.param("GET", "/checksum", b"", id="checksum"),
    pytest.param("GET", "/finalize", b"", id="finalize"),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_nobody_there_is_a_bad_gateway(client: Connection, proxy: Daemon, method: str, path: str, body: bytes) -> None:
    url = f"/images/{proxy.put_ticket({**ticket('', MiB), 'url': f'https://localhost:1/images/{SECRET}'})}"
    got = client.request(method, url + path, None, body)
    assert (got.status, got.code) == (502, "server_gone")
    proxy.log.wait_for("ECONNREFUSED")


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_connection_that_takes_too_long_is_a_time_out(impatient: Daemon, method: str, path: str, body: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, impatient.connect("tls") as client:
        there = f"https://localhost:{listening.getsockname()[1]}/images/{SECRET}"
        url = f"/images/{impatient.put_ticket({**ticket('', MiB), 'url': there})}"
        got = client.request(method, url + path, None, body)
    assert (got.status, got.code) == (504, "server_silent")


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_certificate_that_is_not_trusted_is_for_the_manager(
    distrustful: Daemon, server: ScriptedServer, method: str, path: str, body: bytes
) -> None:
    with distrustful.connect("tls") as client:
        got = client.request(method, add(distrustful, server) + path, None, body)
    assert (got.status, got.code) == (422, "image_unusable")


def test_a_server_that_hangs_up_is_a_bad_gateway(client: Connection, server: ScriptedServer, url: str) -> None:
    def hang_up(_: Peer, __: Asked) -> None:
        raise EOFError

    got = ask(client, server, hang_up, of=("PUT", url))
    assert (got.status, got.code, got.closes) == (502, "server_gone", True)


def test_a_silent_server_is_a_time_out(impatient: Daemon, server: ScriptedServer) -> None:
    with impatient.connect("tls") as client:
        got = ask(client, server, silent, of=("PUT", add(impatient, server)))
    assert (got.status, got.code, got.closes) == (504, "server_silent", True)


def test_a_server_that_takes_no_more_is_a_time_out(impatient: Daemon, server: ScriptedServer) -> None:
    over = threading.Event()
    server.scripts = [lambda _, __: over.wait(30)]
    with impatient.connect("tls") as client:
        url = add(impatient, server, size=ENDLESS)
        client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: {ENDLESS}\r\n\r\n".encode())
        client.send_while_accepted(bytes(ENDLESS))
        assert client.receive(to="PUT").status == 504
    over.set()


def test_a_server_that_stops_in_its_answer_cuts_the_client(impatient: Daemon, server: ScriptedServer) -> None:
    def stop(peer: Peer, asked: Asked) -> None:
        peer.sock.sendall(answer(206, b"da", Content_Range="bytes 0-3/9", Content_Length="4"))
        silent(peer, asked)

    server.scripts = [stop]
    with impatient.connect("tls") as client, pytest.raises(DisconnectedError):
        client.get(add(impatient, server), {"Range": "bytes=0-3"})


# Two parsers


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("Content-Length: 4\r\nTransfer-Encoding: chunked", id="two framings"),
        pytest.param("Content-Length: 4\r\nContent-Length: 5", id="two lengths"),
        pytest.param("Content-Length: 4, 4", id="list of lengths"),
        pytest.param("Content-Length: +4", id="sign"),
        pytest.param("Content-Length: 4\r\n X: y", id="folded"),
        pytest.param("Content-Length : 4", id="space before the colon"),
        pytest.param("Transfer-Encoding: identity, chunked", id="other coding"),
        pytest.param("Transfer-Encoding: xchunked", id="unknown coding"),
        pytest.param("Content-Length: 4\r\nX: a\rContent-Length: 0", id="CR alone"),
        pytest.param("Content-Length: 4\nX: y", id="LF alone"),
        pytest.param("Content-Length: 4\r\nContent-Range: bytes 0-3/*\r\nContent-Range: bytes 8-11/*", id="two ranges"),
        pytest.param("Content-Length: 4\r\nContent-Range: bytes 0-3/*, bytes 8-11/*", id="list of ranges"),
        pytest.param("Content-Length: 4\r\nContent-Encoding: gzip", id="coding that is not known"),
    ],
)
def test_what_two_parsers_could_read_in_two_ways_does_not_go_on(
    client: Connection, server: ScriptedServer, url: str, head: str
) -> None:
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n0000".encode())
    assert client.receive(to="PUT").status in (400, 415)
    assert server.asked == []


@pytest.mark.parametrize("query", ["flush=y%0d%0aX:y", "flush=n%20HTTP/1.1", "flush=%00", "flush=y;x"])
def test_query_is_not_passed_on_but_what_it_means(
    client: Connection, server: ScriptedServer, url: str, query: str
) -> None:
    assert client.put(f"{url}?{query}", b"x").status == 400
    assert server.asked == []


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param("4;name=value\r\ndata\r\n0\r\n\r\n", id="extension"),
        pytest.param('4;x="\r\ndata\r\n0\r\n\r\n', id="open quote"),
        pytest.param("0004\r\ndata\r\n0\r\nX: y\r\n\r\n", id="zeros and a trailer"),
        pytest.param("1\r\nd\r\n3\r\nata\r\n0\r\n\r\n", id="two"),
    ],
)
def test_chunks_are_made_anew(client: Connection, server: ScriptedServer, url: str, chunks: str) -> None:
    server.scripts = [answer(200)]
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}".encode())
    got = client.receive(to="PUT")
    assert [asked.body for asked in server.asked] == ([b"data"] if got.status == 200 else [])
    assert got.status in (200, 400)


@pytest.mark.parametrize(
    "chunks",
    ["4\ndata\r\n0\r\n\r\n", "4\r\ndataX\r\n0\r\n\r\n", "-4\r\n", "0x4\r\ndata\r\n", "4 \r\ndata\r\n0\r\n\r\n"],
)
def test_malformed_chunks_have_no_end_on_the_other_side(
    client: Connection, server: ScriptedServer, url: str, chunks: str
) -> None:
    server.scripts = [answer(200)]
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}".encode())
    assert client.receive(to="PUT").status == 400
    assert server.asked == []


def test_absolute_target_goes_to_the_server_of_the_ticket(client: Connection, server: ScriptedServer, url: str) -> None:
    server.scripts = [answer(200)]
    client.send(f"PUT http://elsewhere:1{url} HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 1\r\n\r\nx".encode())
    assert client.receive(to="PUT").status == 200
    (asked,) = server.asked
    assert asked.line == f"PUT /images/{SECRET}?flush=y HTTP/1.1"
    assert asked["Host"].startswith("localhost:")


def test_what_follows_a_body_is_not_its_part(client: Connection, server: ScriptedServer, url: str) -> None:
    server.scripts = [answer(200), answer(200)]
    one = f"PUT {url} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
    client.send(f"{one}GET {one}/ PA".encode())
    for _ in range(2):
        assert client.receive(to="PUT").status in (200, 400)
    assert server.asked[0].body == b"GET "


def test_body_is_asked_for_when_the_other_server_asks(client: Connection, server: ScriptedServer, url: str) -> None:
    let_go = threading.Event()

    def waits(peer: Peer, asked: Asked) -> None:
        assert asked["Expect"] == "100-continue"
        let_go.wait(30)
        peer.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert peer.body(asked) == b"data"
        peer.sock.sendall(answer(200))

    server.scripts = [waits]
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode())
    eventually(lambda: bool(server.asked), "it has begun")
    assert client.is_silent()
    let_go.set()
    assert client.receive(to="PUT").status == 100
    client.send(b"data")
    assert client.receive(to="PUT").status == 200


def test_nothing_is_expected_for_no_bytes(client: Connection, server: ScriptedServer, url: str) -> None:
    server.scripts = [lambda peer, _: peer.sock.sendall(answer(200))]
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n".encode())
    got = client.receive(to="PUT")
    assert (got.status, got.closes) == (200, False)
    assert "expect" not in server.asked[0].names


def test_answer_without_a_body_has_no_type(client: Connection, server: ScriptedServer, url: str) -> None:
    def script(peer: Peer, asked: Asked) -> None:
        peer.body(asked)
        peer.sock.sendall(answer(200))

    server.scripts = [script]
    got = client.put(url, b"data")
    assert (got.status, got.headers["Content-Length"]) == (200, "0")
    assert "Content-Type" not in got.headers


def test_body_that_the_other_server_refuses_is_not_asked_for(
    client: Connection, server: ScriptedServer, url: str
) -> None:
    server.scripts = [lambda peer, _: peer.sock.sendall(answer(416, X_Error_Code="out_of_range"))]
    client.send(f"PUT {url} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode())
    got = client.receive(to="PUT")
    assert (got.status, got.closes) == (416, True)


# Extents


def test_extents_are_cut_at_the_ticket(client: Connection, server: ScriptedServer, proxy: Daemon) -> None:
    told = [
        {"start": 0, "length": 8, "zero": True, "hole": True},
        {"start": 8, "length": 12, "zero": False, "hole": False},
    ]
    url = add(proxy, server, size=10)
    got = ask(client, server, first_byte(20), answer(200, json.dumps(told).encode()), of=("GET", f"{url}/extents"))
    assert got.json() == [told[0], {**told[1], "length": 2}]
    assert ask(client, server, answer(200), of=("PUT", url)).status == 200  # the connection goes on


@pytest.mark.parametrize(
    "bad", [b"{}", b"[]", b'[{"start": 1, "length": 9, "zero": true}]', b'[{"start": 0, "length": 9}]']
)
def test_bad_extents_are_a_bad_gateway(client: Connection, server: ScriptedServer, url: str, bad: bytes) -> None:
    assert ask(client, server, first_byte(10), answer(200, bad), of=("GET", f"{url}/extents")).status == 502


def test_refused_extents_are_passed_on(client: Connection, server: ScriptedServer, url: str) -> None:
    refusal = answer(404, X_Error_Code="not_found")
    assert ask(client, server, first_byte(10), refusal, of=("GET", f"{url}/extents?context=durable")).status == 404
    assert ask(client, server, refusal, of=("GET", f"{url}/extents")).status == 404


# NBD


def test_there_is_no_nbd_export_of_it(make_daemon: MakeDaemon, server: ScriptedServer, tmp_path: Path) -> None:
    path = tmp_path / "nbd"
    daemon = make_daemon(nbd={"enable": True, "host": "localhost", "port": 0, "socket": path})
    uri = f"nbd+unix:///{add(daemon, server).rpartition('/')[2]}?socket={path}"
    done = subprocess.run(["qemu-img", "info", uri], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Another server has the image: only HTTP requests are passed on to it" in done.stderr
    assert server.connections == 0
