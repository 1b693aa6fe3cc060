# SPDX-License-Identifier: Apache-2.0
"""Images that qemu-nbd reads for a transfer."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imageio_daemon.client.errors import LocalError, Stopped
from imageio_daemon.client.local import QemuSource, qemu
from imageio_daemon.client.local.qemu import QemuTarget
from tests.client.local.test_formats import qemu_img

KiB = 1024


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a qemu-nbd that hangs be killed soon."""
    monkeypatch.setattr(qemu, "STOPPED_TIMEOUT", 0.1)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[QemuSource]:
    path = tmp_path / "image.qcow2"
    qemu_img("create", "-f", "qcow2", path, "1M")
    source = QemuSource(path, "qcow2")
    yield source
    source.close()


@pytest.mark.usefixtures("impatient")
def test_stop_ends_a_read_that_the_storage_does_not_answer(source: QemuSource) -> None:
    source._server._process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(source.read, 0, memoryview(bytearray(KiB)))
        source.stop()
        assert isinstance(read.exception(), Stopped)


@pytest.mark.usefixtures("impatient")
def test_stop_ends_a_write_that_the_storage_does_not_answer(tmp_path: Path) -> None:
    target = QemuTarget(tmp_path / "image.qcow2", "qcow2")
    target.start(KiB * KiB)
    assert target._server is not None
    target._server._process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        write = pool.submit(target.write, 0, memoryview(bytes(KiB)))
        target.stop()
        assert isinstance(write.exception(), Stopped)
    target.abandon()
    assert not list(tmp_path.iterdir())


def test_qemu_nbd_that_is_stopped_closes_the_image(tmp_path: Path) -> None:
    target = QemuTarget(tmp_path / "image.qcow2", "qcow2")
    target.start(KiB * KiB)
    target.write(0, memoryview(bytes(KiB)))
    target.stop()
    target.abandon()
    assert target._server is not None
    assert target._server._process.returncode == 0


def test_target_that_is_stopped_before_qemu_nbd_has_ended_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = QemuTarget(tmp_path / "image.qcow2", "qcow2")
    target.start(KiB * KiB)
    server = target._server
    assert server is not None

    def stopped_and_failed() -> None:
        target.stop()
        server._process.kill()

    monkeypatch.setattr(server.image, "flush", stopped_and_failed)
    with pytest.raises(Stopped):
        target.finish()
    assert not (tmp_path / "image.qcow2").exists()
    target.abandon()
    assert not list(tmp_path.iterdir())


def test_nothing_is_read_after_stop(source: QemuSource) -> None:
    source.stop()
    with pytest.raises(Stopped):
        list(source.extents())


def test_end_of_qemu_nbd_without_stop_is_an_error(source: QemuSource) -> None:
    source._server._process.kill()
    with pytest.raises(LocalError):
        source.read(0, memoryview(bytearray(KiB)))
    with pytest.raises(LocalError, match="qemu-nbd failed"):
        source.close()


def test_nothing_is_left_of_a_qemu_nbd_that_has_ended_before_it_is_stopped(source: QemuSource) -> None:
    server = source._server
    server._process.kill()
    server._process.wait()
    source.stop()
    source.close()
    assert not Path(server._directory).exists()
