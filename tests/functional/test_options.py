# SPDX-License-Identifier: Apache-2.0
"""OPTIONS of an image: what a client may do, and where it is done faster."""

from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection, connect_unix
from tests.support.images import Image, MakeImage, MiB, make_image
from tests.support.places import Trait, needs

READ_FEATURES = ["checksum", "checksum_blocks", "checksum_range", "extents", "nbd", "qcow2"]
WRITE_FEATURES = sorted([*READ_FEATURES, "durable", "finalize", "flush", "zero"])
ONLY_HERE = {"checksum_blocks", "nbd", "qcow2"}


def told(image: Image, features: list[str]) -> list[str]:
    """Return what is told of an image: lists of digests, NBD and qcow2 files are not passed on from another server."""
    return [name for name in features if name not in ONLY_HERE or Trait.HERE in image.place.traits]


@pytest.mark.every_kind
@pytest.mark.parametrize("ops", [["write"], ["read", "write"]], ids=str)
def test_a_writable_image_offers_everything(client: Connection, new_image: MakeImage, ops: list[str]) -> None:
    image = new_image(ops=ops)
    answer = client.request("OPTIONS", image.url)
    assert answer.status == 200
    assert answer.headers["Allow"] == "OPTIONS,GET,PUT,PATCH"
    assert sorted(answer.json()["features"]) == told(image, WRITE_FEATURES)


@pytest.mark.every_kind
def test_a_read_only_image_offers_no_change(client: Connection, new_image: MakeImage) -> None:
    image = new_image(ops=["read"])
    answer = client.request("OPTIONS", image.url)
    assert answer.status == 200
    assert answer.headers["Allow"] == "OPTIONS,GET"
    assert sorted(answer.json()["features"]) == told(image, READ_FEATURES)


def test_the_server_tells_its_methods_without_a_ticket(client: Connection, new_image: MakeImage) -> None:
    image = new_image()
    for _ in range(2):
        answer = client.request("OPTIONS", "*")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["Allow"] == "OPTIONS,GET,PUT,PATCH"
        assert client.get(image.url).status == 200, "the connection goes on"


def test_the_control_service_tells_its_methods(daemon: Daemon) -> None:
    answer = daemon.control("OPTIONS", "*")
    assert answer.status == 200
    assert sorted(answer.headers["Allow"].split(",")) == ["DELETE", "GET", "OPTIONS", "PATCH", "PUT"]


@pytest.mark.every_kind
def test_it_tells_the_room_for_data_where_that_is_known(client: Connection, new_image: MakeImage) -> None:
    image = new_image()
    available = client.request("OPTIONS", image.url).json().get("available")
    known = image.place.kind in ("file", "managed-qcow2", "proxy")
    assert type(available) is (int if known else type(None))


def test_it_tells_no_room_for_data_that_may_not_be_written(client: Connection, new_image: MakeImage) -> None:
    assert "available" not in client.request("OPTIONS", new_image(ops=["read"]).url).json()


@pytest.mark.parametrize(
    ("ops", "size", "told"),
    [(["write"], 2 * MiB, 2 * MiB), (["read"], 2 * MiB, MiB), (["write"], 4096, 4096), (["write"], 2**63, None)],
    ids=str,
)
@pytest.mark.unopened
def test_it_tells_the_most_bytes_that_a_file_may_have(
    daemon: Daemon, client: Connection, tmp_path: Path, ops: list[str], size: int, told: int | None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(MiB))
    ticket_id = daemon.add_ticket(path, size, ops=ops)
    assert client.request("OPTIONS", f"/images/{ticket_id}").json().get("max_size") == told


def test_it_tells_how_many_connections_may_be_used(client: Connection, new_image: MakeImage) -> None:
    options = client.request("OPTIONS", new_image().url).json()
    assert options["max_readers"] == 8
    assert options["max_writers"] == 8


def test_max_connections_decides_how_many(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(daemon={"max_connections": 3})
    image = make_image(daemon, tmp_path)()
    with daemon.connect("unix") as connection:
        options = connection.request("OPTIONS", image.url).json()
    assert (options["max_readers"], options["max_writers"]) == (3, 3)


@needs(Trait.HERE)
def test_all_services_of_a_process_tell_the_same_instance(
    daemon: Daemon, new_image: MakeImage, make_daemon: MakeDaemon
) -> None:
    def instance(daemon: Daemon, service: str, url: str) -> str:
        with daemon.connect(service) as connection:
            told: str = connection.request("OPTIONS", url).json()["instance"]
            return told

    here = {instance(daemon, service, url) for service in ("tls", "unix") for url in (new_image().url, "/images/*")}
    assert len(here) == 1
    assert instance(make_daemon(), "tls", "/images/*") not in here


def test_the_unix_socket_it_tells_serves_the_image(client: Connection, new_image: MakeImage, daemon: Daemon) -> None:
    image = new_image()
    address = client.request("OPTIONS", image.url).json()["unix_socket"]
    assert address == daemon.local_socket
    with Connection(connect_unix(address)) as local:
        assert local.get(image.url).body == image.content()


@pytest.mark.parametrize("name", ["", "@imageio-test-abstract"])
def test_an_abstract_unix_socket_is_told_with_its_nul(make_daemon: MakeDaemon, tmp_path: Path, name: str) -> None:
    daemon = make_daemon(local={"socket": name})
    image = make_image(daemon, tmp_path)()
    with daemon.connect("tls") as connection:
        address = connection.request("OPTIONS", image.url).json()["unix_socket"]
    assert address.startswith("\0")
    assert len(address) > 1
    with Connection(connect_unix(address)) as local:
        assert local.request("OPTIONS", image.url).status == 200


def test_without_a_local_service_there_is_no_unix_socket(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(local={"enable": False})
    image = make_image(daemon, tmp_path)()
    with daemon.connect("tls") as connection:
        assert "unix_socket" not in connection.request("OPTIONS", image.url).json()


def test_the_star_tells_what_the_server_can_do(client: Connection) -> None:
    answer = client.request("OPTIONS", "/images/*")
    assert answer.status == 200
    assert answer.headers["Allow"] == "OPTIONS,GET,PUT,PATCH"
    options = answer.json()
    assert sorted(options["features"]) == WRITE_FEATURES
    assert "unix_socket" in options
    assert "max_readers" not in options
    assert "max_writers" not in options


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH"])
def test_the_star_is_no_image(client: Connection, method: str) -> None:
    body = {"GET": None, "PUT": b"x", "PATCH": b'{"op": "flush"}'}[method]
    assert client.request(method, "/images/*", None, body).status == 403


def test_an_unknown_ticket_is_refused(client: Connection) -> None:
    answer = client.request("OPTIONS", "/images/unknown")
    assert (answer.status, answer.closes) == (403, True)


def test_a_ticket_that_allows_nothing_is_refused_everywhere(daemon: Daemon, new_image: MakeImage) -> None:
    image = new_image(ops=[])
    for method, body in [("GET", None), ("PUT", b"x"), ("PATCH", b'{"op": "flush"}')]:
        with daemon.connect("unix") as connection:
            assert connection.request(method, image.url, None, body).status == 403


def test_a_missing_image_is_the_servers_fault(client: Connection, daemon: Daemon) -> None:
    ticket_id = daemon.add_ticket("/does/not/exist", 4096)
    assert client.request("OPTIONS", f"/images/{ticket_id}").status == 500
