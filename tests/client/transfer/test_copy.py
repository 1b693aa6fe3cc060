# SPDX-License-Identifier: Apache-2.0
"""Copies from one server to another."""

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imageio_daemon.client import LocalError, Refused, Settings, Temporary, Usage, checksum, copy
from imageio_daemon.client.server.remote_image import RemoteImage
from imageio_daemon.client.server.session import ClientSession
from imageio_daemon.client.transfer import plan, sender
from imageio_daemon.client.transfer.remote_source import RemoteSource
from imageio_daemon.client.transfer.upload import Upload
from tests.client.programs import run
from tests.client.proxy import Proxy
from tests.client.transfer.test_continued_download import without
from tests.support.daemon import STATE, Certificates, Daemon
from tests.support.images import MakeImage, MiB, pattern

SIZE = 24 * MiB


@pytest.fixture(scope="session")
def other(certificates: Certificates) -> Iterator[Daemon]:
    """The server of the targets, with records of what is durable."""
    with Daemon(certificates, {"daemon": {"state_dir": STATE}}) as daemon:
        yield daemon


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.write_bytes(b"\xff" * SIZE)
    return path


@pytest.fixture
def target_url(other: Daemon, target: Path) -> str:
    return other.url(other.add_ticket(target, SIZE))


@pytest.fixture
def full(daemon: Daemon, new_image: MakeImage) -> str:
    """The URL of a source without zeros."""
    return daemon.url(new_image(pattern(SIZE), ops=["read"]).ticket)


def test_copy_equals_the_source(
    daemon: Daemon, settings: Settings, source: Path, new_image: MakeImage, other: Daemon, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"\xff" * source.stat().st_size)
    url = other.url(other.add_ticket(target, source.stat().st_size))
    done = copy(daemon.url(new_image(path=source, ops=["read"]).ticket), url, settings=settings, verify=True)
    assert target.read_bytes() == source.read_bytes()
    assert done.progress.data < 7 * MiB, "zeros don't go"
    assert done.checksum == checksum(source)


def test_source_is_read_while_the_target_is_written(
    tls: Settings, full: str, target: Path, target_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = threading.Semaphore(0)
    read_into, write = RemoteImage.read_into, RemoteImage.write
    waits, waited = iter([False, True]), []  # the first one writes the last byte, which was read before

    def reading(self: RemoteImage, offset: int, buffer: memoryview) -> None:
        read_into(self, offset, buffer)
        read.release()

    def writing(self: RemoteImage, *arguments: Any) -> bool:
        if next(waits, False):
            waited.append(all(read.acquire(timeout=30) for _ in range(3)))
        return write(self, *arguments)

    monkeypatch.setattr(RemoteImage, "read_into", reading)
    monkeypatch.setattr(RemoteImage, "write", writing)
    done = copy(full, target_url, settings=dataclasses.replace(tls, connections=1))
    assert waited == [True], "the first one waits for what another thread reads"
    assert done.connections == 2, "to the target"
    assert target.read_bytes() == pattern(SIZE)


def test_one_connection_to_the_source_is_enough_for_any_number_of_extents(
    tls: Settings, full: str, target: Path, target_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "AHEAD", 1)
    copy(full, target_url, settings=dataclasses.replace(tls, connections=1))
    assert target.read_bytes() == pattern(SIZE)


def test_server_without_extents_is_read_as_a_whole(
    tls: Settings, full: str, target: Path, target_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "extents", "checksum_blocks")
    copy(full, target_url, settings=tls, verify=True)
    assert target.read_bytes() == pattern(SIZE)


@pytest.mark.parametrize("features", [(), ("checksum_blocks",)])
def test_interrupted_copy_goes_on(
    other: Daemon,
    tls: Settings,
    full: str,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    features: tuple[str, ...],
) -> None:
    without(monkeypatch, *features)
    monkeypatch.setattr(RemoteSource, "portion", 4 * MiB)
    monkeypatch.setattr(sender, "SHORT", 0)
    monkeypatch.setattr(Upload, "connections", lambda _: 1)
    ticket = other.add_ticket(target, SIZE)
    budgets = iter([13 * MiB])
    once = Settings(cafile=tls.cafile, local=False, retry_for=0, connections=1)
    with Proxy(other.port, lambda: next(budgets, 1000 * MiB)) as proxy, pytest.raises(Temporary):
        copy(full, f"https://localhost:{proxy.port}/images/{ticket}", settings=once, source_settings=tls, checkpoint=0)
    done = copy(full, other.url(ticket), settings=tls)
    assert done.progress.resumed >= 8 * MiB
    assert target.read_bytes() == pattern(SIZE)


def test_requests_to_the_source_that_are_sent_again_are_told(
    daemon: Daemon, tls: Settings, new_image: MakeImage, target: Path, target_url: str
) -> None:
    ticket = new_image(pattern(SIZE), ops=["read"]).ticket
    budgets = iter([MiB, 5 * MiB])
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        url = f"https://localhost:{proxy.port}/images/{ticket}"
        one = dataclasses.replace(tls, connections=1)
        done = copy(url, target_url, settings=tls, source_settings=one)
        assert proxy.broken == 2
    assert (done.progress.retries, done.progress.reason) == (2, None)
    assert target.read_bytes() == pattern(SIZE)


def test_update_sends_what_differs_and_reads_no_more(
    tls: Settings, full: str, target: Path, target_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write_bytes(pattern(SIZE))
    with target.open("r+b") as f:
        f.seek(9 * MiB)
        f.write(b"changed")
    read: list[int] = []
    read_into = RemoteImage.read_into

    def counting(self: RemoteImage, offset: int, buffer: memoryview) -> None:
        read.append(len(buffer))
        read_into(self, offset, buffer)

    monkeypatch.setattr(RemoteImage, "read_into", counting)
    done = copy(full, target_url, settings=tls, update=True)
    assert (done.progress.data, sum(read)) == (4 * MiB, 4 * MiB)
    assert target.read_bytes() == pattern(SIZE)


def test_unknown_source_is_told(daemon: Daemon, tls: Settings, target_url: str) -> None:
    with pytest.raises(Refused):
        copy(daemon.url("no-such-ticket"), target_url, settings=tls)


def test_contradiction_is_told() -> None:
    with pytest.raises(Usage, match="an update compares all"):
        copy("https://a/images/x", "https://b/images/x", update=True, restart=True)


@pytest.mark.parametrize("urls", [("copy.raw", "https://b/images/x"), ("https://a/images/x", "copy.raw")])
def test_image_of_this_host_is_no_copy(urls: tuple[str, str]) -> None:
    with pytest.raises(Usage, match="upload takes an image of this host, download makes one"):
        copy(*urls)


def test_source_that_changes_its_size_is_told(
    daemon: Daemon, tls: Settings, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RemoteSource(ClientSession(full, tls))
    monkeypatch.setattr(RemoteImage, "size", lambda _: 1)
    with pytest.raises(LocalError, match="has another size than it had"):
        source.check()
    source.close()


def test_command_takes_tickets_from_the_environment(
    daemon: Daemon, full: str, other: Daemon, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins = [full.partition("/images/")[0], f"https://localhost:{other.port}"]
    monkeypatch.setenv("IMAGEIO_TICKET", f"{full.rpartition('/')[2]}\n{other.add_ticket(target, SIZE)}")
    done = run("copy", "--json", "--no-local", "--cafile", daemon.cafile, *origins)
    assert done.status == 0, done
    assert json.loads(done.out.splitlines()[-1])["data"] == SIZE
    assert target.read_bytes() == pattern(SIZE)
    assert os.environ["IMAGEIO_TICKET"]
