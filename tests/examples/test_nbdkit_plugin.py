# SPDX-License-Identifier: Apache-2.0
"""The plugin of nbdkit that serves an image of the images API: what libnbd's programs do with it."""

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.programs import PROJECT, TIMEOUT
from tests.support.daemon import Certificates, Daemon
from tests.support.images import MiB, pattern
from tests.support.polling import eventually

SIZE = 32 * MiB


def _missing() -> str | None:
    """Return why the plugin cannot run here; None if it can."""
    told = subprocess.run(["nbdkit", "python", "--dump-plugin"], check=False, capture_output=True, text=True).stdout
    version = re.search(r"^python_version=(\d+)\.(\d+)", told, re.MULTILINE)
    if version is None:
        return "needs nbdkit-plugin-python"
    if (int(version[1]), int(version[2])) != sys.version_info[:2]:
        return f"nbdkit has another Python than these tests, {version[1]}.{version[2]}"
    return None


pytestmark = [pytest.mark.skip(reason=reason)] if (reason := _missing()) else []


@contextlib.contextmanager
def served(daemon: Daemon, ticket: str, directory: Path) -> Iterator[str]:
    """Run nbdkit, and return the address of the export."""
    socket, ready = directory / "nbd", directory / "pid"  # the socket is there before it can be connected to
    plugin = PROJECT / "examples" / "nbdkit_plugin.py"
    parameters = [f"url={daemon.url(ticket)}", f"cafile={daemon.cafile}"]
    paths = os.pathsep.join((str(PROJECT), sysconfig.get_path("platlib")))
    listens = ("--unix", str(socket), "--pidfile", str(ready))
    arguments = ["nbdkit", "--foreground", *listens, "python", str(plugin), *parameters]
    with subprocess.Popen(arguments, env=os.environ | {"PYTHONPATH": paths}) as process:
        try:
            eventually(lambda: ready.exists() or process.poll() is not None, "nbdkit listens")
            yield f"nbd+unix:///?socket={socket}"
        finally:
            process.terminate()


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, timeout=TIMEOUT, capture_output=True, text=True).stdout


def _sparse(path: Path) -> Path:
    with path.open("wb") as f:
        f.truncate(SIZE)
        for number in range(4):
            f.seek(number * 8 * MiB + 4096)
            f.write(pattern(MiB, number))
    return path


@pytest.fixture
def daemon(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon as it comes: how it serves requests is not the plugin's concern."""
    with Daemon(certificates) as daemon:
        yield daemon


def test_image_goes_up_and_comes_down(daemon: Daemon, tmp_path: Path) -> None:
    source, copy, target = _sparse(tmp_path / "source"), tmp_path / "copy", tmp_path / "target"
    target.write_bytes(b"\xff" * SIZE)
    with served(daemon, daemon.add_ticket(target, SIZE, sparse=True), tmp_path) as uri:
        told = json.loads(_run("nbdinfo", "--json", uri))["exports"][0]
        _run("nbdcopy", "--flush", source, uri)
        assert target.read_bytes() == source.read_bytes()
        _run("nbdcopy", uri, copy)
        states = json.loads(_run("nbdinfo", "--map", "--json", uri))
    assert copy.read_bytes() == source.read_bytes()
    assert (told["export-size"], told["can_multi_conn"], told["is_read_only"]) == (SIZE, True, False)
    assert sum(state["length"] for state in states if not state["type"] & 2) <= 4 * (MiB + 8192)  # 2: reads as zeros


def test_ticket_that_reads_is_a_read_only_export(daemon: Daemon, tmp_path: Path) -> None:
    image, copy = tmp_path / "image", tmp_path / "copy"
    image.write_bytes(pattern(SIZE))
    with served(daemon, daemon.add_ticket(image, SIZE, ops=["read"]), tmp_path) as uri:
        assert json.loads(_run("nbdinfo", "--json", uri))["exports"][0]["is_read_only"]
        _run("nbdcopy", uri, copy)
    assert copy.read_bytes() == pattern(SIZE)


def test_client_learns_why_a_write_has_failed(daemon: Daemon, full_filesystem: Path, tmp_path: Path) -> None:
    ticket, source = daemon.add_ticket(full_filesystem, MiB, sparse=True), tmp_path / "source"
    source.write_bytes(pattern(MiB))
    with served(daemon, ticket, tmp_path) as uri:
        failed = subprocess.run(
            ["nbdcopy", str(source), uri],
            check=False,
            timeout=TIMEOUT,
            capture_output=True,
            text=True,
        )
    assert "No space left on device" in failed.stderr
