# SPDX-License-Identifier: Apache-2.0
"""The client with another server of the same protocol: ovirt-imageio, if benchmarks/setup has installed it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers import OVIRT_IMAGEIO, THEIRS, Server, running
from imageio_daemon import client
from imageio_daemon.client import Refused, Settings, Temporary, WritesLost, checksum, download, info, upload
from tests.client.conftest import SIZE
from tests.client.proxy import Proxy
from tests.support.daemon import Certificates
from tests.support.images import MiB, pattern

pytestmark = pytest.mark.skipif(
    not OVIRT_IMAGEIO.exists(), reason="ovirt-imageio is not installed: benchmarks/setup does it"
)


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[Server]:
    """Run the other server."""
    # Not below pytest's directory: the path of a unix socket may have 107 bytes.
    directory = tempfile.mkdtemp(prefix="ovirt-")
    try:
        with running(THEIRS, certificates, Path(directory) / "server") as started:
            yield started
    finally:
        shutil.rmtree(directory)


@pytest.fixture(params=[True, False], ids=["unix", "tls"])
def foreign(request: pytest.FixtureRequest, server: Server, certificates: Certificates) -> Settings:
    """Reach it by its unix socket, and by TLS."""
    named = server.address("unix").removeprefix("unix:") if request.param else None
    return Settings(cafile=str(certificates.cafile), unix_socket=named)


@pytest.fixture
def source(source: Path) -> Path:
    """An image of whole blocks: that server rounds the size of others up."""
    os.truncate(source, SIZE)
    return source


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """An image that is as large as the source and full of other data."""
    path = tmp_path / "target"
    path.write_bytes(b"\xff" * (SIZE))
    return path


def port_of(server: Server) -> int:
    return int(server.address("tls").partition(":")[2])


def url(server: Server, image: Path) -> str:
    return f"https://localhost:{port_of(server)}/images/{server.add_ticket(image, SIZE)}"


def test_image_goes_up_and_down(server: Server, foreign: Settings, source: Path, target: Path, tmp_path: Path) -> None:
    there = url(server, target)
    done = upload(source, there, settings=foreign, verify=True)
    assert done.local is (foreign.unix_socket is not None)
    assert target.read_bytes() == source.read_bytes()
    download(there, tmp_path / "copy", settings=foreign, verify=True)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def test_socket_that_has_no_proof_is_not_used(server: Server, certificates: Certificates, target: Path) -> None:
    """That server tells its socket in OPTIONS, and nothing by which it could be known."""
    assert not info(url(server, target), settings=Settings(cafile=str(certificates.cafile))).local


def test_open_image_is_read_and_written(server: Server, foreign: Settings, target: Path) -> None:
    with client.open(url(server, target), settings=foreign) as image:
        image.write(512, b"x" * 512)
        image.zero(1024, 4096)
        image.flush()
        buffer = bytearray(1536)
        image.read(0, buffer)
        assert image.extents()[-1].end == SIZE
    assert buffer == b"\xff" * 512 + b"x" * 512 + bytes(512)


def test_open_image_that_lost_a_connection_may_have_lost_writes(
    server: Server, certificates: Certificates, target: Path
) -> None:
    ticket = server.add_ticket(target, SIZE)
    with Proxy(port_of(server), iter([100_000, 2**40]).__next__) as proxy:
        there = f"https://localhost:{proxy.port}/images/{ticket}"
        settings = Settings(cafile=str(certificates.cafile), local=False, connections=1)
        with client.open(there, settings=settings) as image:
            image.write(0, b"x" * 1000)
            image.write(1000, b"y" * 100_000)  # the connection breaks
            with pytest.raises(WritesLost) as lost:
                image.flush()
            assert lost.value.ranges == [(0, 1000)]
            image.write(0, b"x" * 1000)
            image.flush()
    assert target.read_bytes()[:101_000] == b"x" * 1000 + b"y" * 100_000


def test_questions_are_answered(server: Server, foreign: Settings, source: Path) -> None:
    there = url(server, source)
    assert info(there, settings=foreign).size == SIZE
    assert checksum(there, settings=foreign) == checksum(source)


def test_broken_connections_are_made_anew(
    server: Server, certificates: Certificates, source: Path, target: Path
) -> None:
    budgets = iter([100_000, 2_000_000, 3_000_000])
    ticket = server.add_ticket(target, SIZE)
    with Proxy(port_of(server), lambda: next(budgets, 2**40)) as proxy:
        settings = Settings(cafile=str(certificates.cafile), local=False, connections=1)
        upload(source, f"https://localhost:{proxy.port}/images/{ticket}", settings=settings)
    assert target.read_bytes() == source.read_bytes()
    assert proxy.broken >= 2


def test_interrupted_upload_goes_on_with_another_ticket(
    server: Server, certificates: Certificates, tmp_path: Path, target: Path
) -> None:
    full = tmp_path / "full"
    full.write_bytes(pattern(SIZE))
    settings = Settings(cafile=str(certificates.cafile), local=False, connections=1, retry_for=0)
    with Proxy(port_of(server), lambda: 16 * MiB) as proxy:
        first = f"https://localhost:{proxy.port}/images/{server.add_ticket(target, SIZE)}"
        with pytest.raises(Temporary):
            upload(full, first, settings=settings, checkpoint=0)
    done = upload(full, url(server, target), settings=settings)
    assert done.progress.resumed >= 8 * MiB
    assert target.read_bytes() == full.read_bytes()


def test_refusals_are_told(server: Server, foreign: Settings, tmp_path: Path, target: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(pattern(SIZE + 1))
    with pytest.raises(Refused, match="does not fit"):
        upload(large, url(server, target), settings=foreign)
