# SPDX-License-Identifier: Apache-2.0
"""The sequences of requests that the known clients send, with their headers as they spell them."""

import http.client
import json

from tests.support.daemon import Daemon, ticket
from tests.support.http_client import Connection, connect_unix
from tests.support.images import MakeImage, MiB, pattern
from tests.support.services import Connect

UPLOAD_HEADERS = {
    "Accept-Encoding": "identity",
    "Content-Type": "application/octet-stream",
}


def test_an_import_by_the_upload_plugin_of_virt_v2v(daemon: Daemon, client: Connection, new_image: MakeImage) -> None:
    size = 6 * MiB
    image = new_image(size=size, sparse=True)
    options = client.request("OPTIONS", image.url, {"Accept-Encoding": "identity"}).json()
    assert {"zero", "flush"} <= set(options["features"])
    # It runs on the host: it goes on over the unix socket, with as many connections as it may have.
    connections = [Connection(connect_unix(options["unix_socket"])) for _ in range(min(8, options["max_writers"]))]
    expected = bytearray()
    for number in range(6):
        connection = connections[number % len(connections)]
        offset, data = number * MiB, pattern(MiB, seed=number) if number % 2 else bytes(MiB)
        expected += data
        if number % 2:
            headers = UPLOAD_HEADERS | {
                "Content-Range": f"bytes {offset}-{offset + MiB - 1}/*",
                "Content-Length": str(MiB),
            }
            assert connection.put(f"{image.url}?flush=n", data, headers).status == 200
        else:
            zero = {"op": "zero", "offset": offset, "size": MiB, "flush": False}
            assert connection.patch(image.url, zero).status == 200
    # Flushes keep the idle connections, and end the transfer.
    for connection in connections:
        answer = connection.patch(image.url, {"op": "flush"})
        assert (answer.status, answer.closes) == (200, False)
        connection.close()
    assert image.content() == expected


def test_a_backup_by_the_client_of_ovirt(client: Connection, connect: Connect, new_image: MakeImage) -> None:
    image = new_image(size=4 * MiB, pieces={MiB: pattern(MiB)}, ops=["read"], dirty=True)
    assert client.request("OPTIONS", image.url, {"host": "localhost"}).json()["max_readers"] >= 4
    assert client.get(f"{image.url}/extents?context=dirty").status == 404
    extents = client.get(f"{image.url}/extents?context=zero").json()
    connections = [client, *(connect() for _ in range(3))]
    copy = bytearray(4 * MiB)
    for number, extent in enumerate(extent for extent in extents if not extent["zero"]):
        first, last = extent["start"], extent["start"] + extent["length"] - 1
        answer = connections[number % 4].get(image.url, {"range": f"bytes={first}-{last}"})
        assert answer.status == 206
        copy[first : last + 1] = answer.body
    assert copy == image.content()
    assert client.get(f"{image.url}/checksum").status == 200


def test_an_upload_by_the_web_page_of_the_engine(connect: Connect, new_image: MakeImage) -> None:
    image = new_image(size=3 * MiB)
    origin = {"Origin": "https://engine.example.org", "Accept": "*/*", "Sec-Fetch-Mode": "cors"}
    preflight = {
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "cache-control,content-range,pragma",
    }
    for part in range(3):
        asked = connect().request("OPTIONS", image.url, origin | preflight)
        assert asked.headers["Access-Control-Allow-Headers"] == "*"
        assert "PUT" in asked.headers["Access-Control-Allow-Methods"]
        content_range = {"Content-Range": f"bytes {part * MiB}-{part * MiB + MiB - 1}/{3 * MiB}"}
        headers = origin | content_range | {"Cache-Control": "no-cache", "Content-Type": "application/octet-stream"}
        sent = connect().put(f"{image.url}?close=y&flush=y", pattern(MiB, seed=part), headers)
        assert (sent.status, sent.closes) == (200, True)
        assert sent.headers["Access-Control-Allow-Origin"] == "*"
    assert image.content() == b"".join(pattern(MiB, seed=part) for part in range(3))


def test_the_host_manager_watches_a_transfer(daemon: Daemon, client: Connection, new_image: MakeImage) -> None:
    image = new_image(size=MiB)
    # One connection for each request.
    assert daemon.status(image.ticket)["transferred"] == 0
    assert client.put(image.url, pattern(MiB)).status == 200
    daemon.extend(image.ticket, 600)
    status = daemon.status(image.ticket)
    assert (status["transferred"], status["timeout"]) == (MiB, 300)
    daemon.remove(image.ticket)
    assert daemon.control("GET", f"/tickets/{image.ticket}").status == 404


def test_the_host_manager_speaks_http_client(daemon: Daemon) -> None:
    class Manager(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = connect_unix(daemon.control_socket)

    fields = ticket("/images/disk", 4096)
    daemon.hide(fields["uuid"])
    for method, body, status in [
        ("PUT", json.dumps(fields), 200),
        ("GET", None, 200),
        ("PATCH", '{"timeout": 5}', 200),
        # It waits for a Content-Length, also of a 204.
        ("DELETE", None, 204),
    ]:
        manager = Manager("localhost")
        manager.request(method, f"/tickets/{fields['uuid']}", body=body)
        response = manager.getresponse()
        assert response.status == status
        assert response.getheader("Content-Length") is not None
        response.read()
        manager.close()
