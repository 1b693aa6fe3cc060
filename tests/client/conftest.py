# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the client's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client import Settings
from tests.support.daemon import STATE, Certificates, Daemon
from tests.support.images import KiB, MiB, pattern
from tests.support.ports import unused_port

SIZE = 24 * MiB


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the proxy of this host: daemons under test are not behind it."""
    for name in ("https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow servers without TLS: a ScriptedServer has none. tests/client/test_ticket_ids.py shows its refusal."""
    monkeypatch.setattr("imageio_daemon.client.server.session.require_tls", lambda _: None)


@pytest.fixture(autouse=True)
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which uploads keep what is done, one for each test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "imageio-client"


@pytest.fixture(scope="session")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """One daemon as it comes: its two lanes are others' concern."""
    with Daemon(certificates) as daemon:
        yield daemon


@pytest.fixture
def own(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon that keeps its state, and its port over a restart."""
    with Daemon(certificates, {"daemon": {"state_dir": STATE}, "remote": {"port": unused_port()}}) as daemon:
        yield daemon


@pytest.fixture(params=["tls", "unix"])
def settings(request: pytest.FixtureRequest, daemon: Daemon) -> Settings:
    """Reach the daemon by TLS, and by the unix socket that the client finds by itself."""
    return Settings(cafile=str(daemon.cafile), local=request.param == "unix")


@pytest.fixture
def tls(daemon: Daemon) -> Settings:
    """Reach the daemon by TLS."""
    return Settings(cafile=str(daemon.cafile), local=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An image of odd size: holes, data at an odd offset, zeros inside of data, data at the end."""
    path = tmp_path / "source.raw"
    with path.open("wb") as f:
        f.seek(MiB + 1)
        f.write(pattern(3 * MiB))
        f.seek(10 * MiB)
        f.write(pattern(MiB, 1) + bytes(MiB + 5 * KiB) + pattern(MiB, 2))
        f.seek(SIZE - 3)
        f.write(b"end!")
    return path
