# SPDX-License-Identifier: Apache-2.0
"""Images on Ceph as local ones. Files are in its place here; tests/lab/ceph has a real one."""

import tempfile
from pathlib import Path

import pytest

from imageio_daemon import client
from imageio_daemon.client.errors import LocalError, Usage
from imageio_daemon.client.local import qemu_nbd
from imageio_daemon.client.server.session import Settings
from tests.support.daemon import Daemon
from tests.support.fakeceph import FakeCeph
from tests.support.images import MiB, pattern
from tests.support.locks import GUEST, locked

SIZE = 4 * MiB


@pytest.fixture
def ceph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCeph:
    made = FakeCeph(tmp_path / "ceph")
    monkeypatch.setenv("PATH", made.path)
    for name in ("CEPH_CONF", "CEPH_ARGS"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture
def settings(daemon: Daemon) -> Settings:
    return Settings(cafile=str(daemon.cafile))


def test_image_is_uploaded(daemon: Daemon, ceph: FakeCeph, settings: Settings, tmp_path: Path) -> None:
    ceph.create("pool/disk@snap", SIZE, bytes(MiB) + pattern(MiB))
    target = tmp_path / "target"
    target.write_bytes(b"x" * SIZE)
    ticket = daemon.add_ticket(target, SIZE)
    done = client.upload("rbd:pool/disk@snap", daemon.url(ticket), settings=settings, verify=True)
    assert target.read_bytes() == bytes(MiB) + pattern(MiB) + bytes(2 * MiB)
    assert done.progress.zero >= MiB


def test_image_is_written_in_place(daemon: Daemon, ceph: FakeCeph, settings: Settings, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(pattern(MiB) + bytes(MiB))
    there = ceph.create("pool/space/disk", SIZE, b"x" * SIZE)
    ticket = daemon.add_ticket(source, 2 * MiB, ops=["read"])
    client.download(daemon.url(ticket), "rbd:pool/space/disk", settings=settings, verify=True)
    assert there.read_bytes() == source.read_bytes() + b"x" * (2 * MiB)


def test_image_that_is_too_small_is_not_begun(
    daemon: Daemon, ceph: FakeCeph, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"s" * SIZE)
    there = ceph.create("pool/disk", MiB, b"x" * MiB)
    ticket = daemon.add_ticket(tmp_path / "source", SIZE, ops=["read"])
    with pytest.raises(LocalError, match="does not fit"):
        client.download(daemon.url(ticket), "rbd:pool/disk", settings=settings)
    assert there.read_bytes() == b"x" * MiB


def test_image_is_hashed_and_told_of_like_a_file(ceph: FakeCeph, tmp_path: Path) -> None:
    there = ceph.create("pool/disk", SIZE, pattern(MiB))
    assert client.checksum("rbd:pool/disk") == client.checksum(there)
    assert client.info("rbd:pool/disk").size == SIZE


def test_file_whose_path_looks_the_same_is_left_alone(
    ceph: FakeCeph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ceph.create("pool/disk", SIZE, pattern(MiB))
    file = tmp_path / "rbd:pool" / "disk"
    file.parent.mkdir()
    file.write_bytes(bytes(MiB))
    monkeypatch.chdir(tmp_path)
    with locked(file, *GUEST):
        assert client.checksum("rbd:pool/disk") == client.checksum(there)


def test_image_that_is_not_there_is_told(ceph: FakeCeph) -> None:
    with pytest.raises(LocalError, match="error reading header from never"):
        client.info("rbd:pool/never")


@pytest.mark.parametrize(
    ("said", "remedy"),
    [("Unknown driver 'rbd'", "qemu-block-extra"), ("error connecting: No such file or directory", "CEPH_ARGS")],
)
def test_what_helps_is_told(ceph: FakeCeph, said: str, remedy: str) -> None:
    ceph.fail(said)
    with pytest.raises(LocalError, match=remedy):
        client.info("rbd:pool/disk")


def test_cluster_that_does_not_answer_is_given_up(
    ceph: FakeCeph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (ceph.bin / "qemu-nbd").write_text("#!/bin/sh\ntrap '' TERM INT\nexec sleep 99\n")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(qemu_nbd, "START_TIMEOUT", 0.1)
    with pytest.raises(LocalError, match="does its storage answer"):
        client.info("rbd:pool/disk")
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("conf", "arguments", "asked"),
    [
        (None, "", {}),
        ("/a.conf", "--id me", {"conf": "/a.conf", "user": "me"}),
        ("/a.conf", "-c /b.conf --name=client.you --cluster x", {"conf": "/b.conf", "user": "you"}),
        (None, "-n client.they", {"user": "they"}),
        (None, "-i me --cluster site --rados-osd-op-timeout 5", {"conf": "/etc/ceph/site.conf", "user": "me"}),
        ("/a.conf", "--cluster=site", {"conf": "/a.conf"}),
    ],
)
def test_cluster_and_user_are_those_of_the_environment(
    ceph: FakeCeph, monkeypatch: pytest.MonkeyPatch, conf: str | None, arguments: str, asked: dict[str, str]
) -> None:
    ceph.create("pool/disk", SIZE)
    if conf:
        monkeypatch.setenv("CEPH_CONF", conf)
    monkeypatch.setenv("CEPH_ARGS", arguments)
    client.info("rbd:pool/disk")
    assert ceph.asked() == [{"driver": "rbd", "pool": "pool", "image": "disk", **asked}]


@pytest.mark.parametrize("arguments", ["--id", "'"])
def test_environment_that_cannot_be_read_is_told(
    ceph: FakeCeph, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("CEPH_ARGS", arguments)
    with pytest.raises(Usage, match="CEPH_ARGS"):
        client.info("rbd:pool/disk")


def test_image_that_looks_like_another_format_is_refused(ceph: FakeCeph) -> None:
    ceph.create("pool/disk", SIZE, b"QFI\xfb" + bytes(508))
    with pytest.raises(Usage, match="looks like qcow2"):
        client.info("rbd:pool/disk")
    assert client.info("rbd:pool/disk", format="raw").size == SIZE


def test_what_contradicts_an_image_on_ceph_is_refused(daemon: Daemon, ceph: FakeCeph, settings: Settings) -> None:
    url = daemon.url("any")
    with pytest.raises(Usage, match="raw"):
        client.upload("rbd:pool/disk", url, settings=settings, format="qcow2")
    with pytest.raises(Usage, match="raw"):
        client.upload("rbd:pool/disk", url, settings=settings, size=1)
    with pytest.raises(Usage, match="raw"):
        client.download(url, "rbd:pool/disk", settings=settings, format="qcow2")
    with pytest.raises(Usage, match="snapshot"):
        client.download(url, "rbd:pool/disk@s", settings=settings)
    with pytest.raises(Usage, match="rbd:POOL"):
        client.download(url, "rbd:pool", settings=settings)
