# SPDX-License-Identifier: Apache-2.0
"""Tickets of images on Ceph. Files are in the place of Ceph here; tests/lab/ceph has a real one."""

from collections.abc import Iterator

import pytest

from tests.support.daemon import Certificates, Daemon, ticket
from tests.support.fakeceph import FakeCeph, diff
from tests.support.images import MiB, pattern

SIZE = 8 * MiB


@pytest.fixture(scope="module")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> FakeCeph:
    return FakeCeph(tmp_path_factory.mktemp("ceph"))


@pytest.fixture(scope="module")
def daemon(certificates: Certificates, ceph: FakeCeph) -> Iterator[Daemon]:
    config = {"backend_rbd": {"allowed_pools": "pool"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", ceph.path)
        with Daemon(certificates, config) as daemon:
            yield daemon


@pytest.fixture
def image(ceph: FakeCeph, request: pytest.FixtureRequest) -> str:
    """The name of an image of SIZE zeros."""
    ceph.create(f"pool/{request.node.name}", SIZE)
    return str(request.node.name)


def add(daemon: Daemon, name: str, **fields: object) -> str:
    return daemon.put_ticket({**ticket("", SIZE), "url": f"rbd:pool/{name}", **fields})


def test_what_is_written_is_read_and_in_the_image(daemon: Daemon, ceph: FakeCeph, image: str) -> None:
    added = add(daemon, image, ops=["read", "write"])
    data = pattern(MiB)
    with daemon.connect("tls") as connection:
        headers = {"Content-Range": f"bytes 4096-{4096 + MiB - 1}/*"}
        assert connection.put(f"/images/{added}?flush=y", data, headers).status == 200
        assert connection.get(f"/images/{added}", {"Range": f"bytes=4096-{4096 + MiB - 1}"}).body == data
        assert (
            connection.patch(f"/images/{added}", {"op": "zero", "size": 8192, "offset": 0, "flush": True}).status == 200
        )
        extents = connection.get(f"/images/{added}/extents").json()
    assert extents[-1]["zero"]
    assert sum(extent["length"] for extent in extents) == SIZE
    daemon.remove(added)
    assert ceph.file(f"pool/{image}").read_bytes()[: 4096 + MiB] == bytes(8192) + data[4096:]


def test_larger_ticket_serves_what_the_image_has(daemon: Daemon, image: str) -> None:
    added = add(daemon, image, ops=["read"], size=2**40)
    with daemon.connect("tls") as connection:
        assert connection.request("HEAD", f"/images/{added}").headers["Content-Length"] == str(SIZE)
    daemon.remove(added)


def test_snapshot_tells_what_has_changed_since_another(daemon: Daemon, ceph: FakeCeph) -> None:
    ceph.create("pool/disk@b", SIZE)
    ceph.answer(diff((4 * MiB, 4 * MiB, True)))
    added = add(daemon, "disk@b", ops=["read"], dirty=True, since="a")
    with daemon.connect("tls") as connection:
        assert connection.get(f"/images/{added}/extents?context=dirty").json() == [
            {"start": 0, "length": 4 * MiB, "dirty": False, "zero": False},
            {"start": 4 * MiB, "length": 4 * MiB, "dirty": True, "zero": False},
        ]
    assert daemon.status(added)["since"] == "a"
    daemon.remove(added)


@pytest.mark.parametrize("fields", [{"dirty": True}, {"since": "a"}])
def test_without_a_snapshot_or_dirty_there_are_no_changes(
    daemon: Daemon, image: str, fields: dict[str, object]
) -> None:
    added = add(daemon, image, ops=["read"], **fields)
    with daemon.connect("tls") as connection:
        assert connection.get(f"/images/{added}/extents?context=dirty").status == 404
    daemon.remove(added)


@pytest.mark.parametrize(
    ("method", "body"), [("GET", None), ("PUT", b"x" * 512), ("PATCH", b'{"op": "flush"}'), ("OPTIONS", None)]
)
def test_request_tries_to_open_an_image_once_and_the_next_one_again(
    daemon: Daemon, ceph: FakeCeph, method: str, body: bytes | None
) -> None:
    """Monitors that do not answer keep each try for long."""
    name = f"late-{method}"
    added = add(daemon, name, ops=["read", "write"])

    def status() -> int:
        with daemon.connect("tls") as connection:
            return connection.request(method, f"/images/{added}", {}, body).status

    for tries in (1, 2):
        assert status() == 500
        assert str(ceph.asked()).count(name) == tries
    ceph.create(f"pool/{name}", SIZE)
    assert status() == 200
    daemon.remove(added)


@pytest.mark.parametrize(
    ("url", "code", "line"),
    [
        ("rbd:pool/never", "storage_gone", "error reading header from never: No such file or directory"),
        ("rbd:other/image", "storage_permission", r"other is not in \[backend_rbd\] allowed_pools"),
    ],
)
def test_what_is_wrong_has_a_code_and_is_logged(daemon: Daemon, url: str, code: str, line: str) -> None:
    added = add(daemon, "", url=url, ops=["read"])
    with daemon.connect("tls") as connection:
        answer = connection.get(f"/images/{added}")
    assert (answer.status, answer.headers["X-Error-Code"]) == (500, code)
    assert daemon.log.wait_for(line)
    daemon.remove(added)
