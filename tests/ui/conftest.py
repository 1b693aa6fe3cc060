# SPDX-License-Identifier: Apache-2.0
"""A browser, a daemon with the page, and disks. `make test-ui` runs these tests; `make test` leaves them out."""

import os
import random
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imageio_daemon.units import MiB
from tests.support.daemon import STATE, Certificates, Daemon
from tests.ui.wire import Wire

if TYPE_CHECKING:
    from tests.ui.browser import Browser

WANTED = bool(os.environ.get("IMAGEIO_TEST_UI"))
collect_ignore_glob = [] if WANTED else ["test_*.py"]

#: Makes a sparse file: bytes of it, and pieces of 2 MiB of data in it.
MakeDisk = Callable[[str, int, int], Path]
PIECE = 2 * MiB


@pytest.fixture(scope="session")
def page_daemon(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon with the page that keeps records of what is durable."""
    with Daemon(certificates, {"ui": {"enable": True}, "daemon": {"state_dir": STATE}}) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Callable[[], Browser]]":
    """One browser for all tests: each has tabs of its own."""
    module = pytest.importorskip("tests.ui.browser", reason="selenium is not installed", exc_type=ImportError)
    if module.CHROMIUM is None or module.DRIVER is None:
        pytest.skip("needs chromium and chromium-driver: scripts/setup-ui installs them")
    with module.started(tmp_path_factory.mktemp("profile")) as driver:
        yield lambda: module.Browser(driver)


@pytest.fixture
def browser(chromium: "Callable[[], Browser]") -> "Iterator[Browser]":
    """A tab without a session. The test fails if the browser has complained of the page."""
    tab = chromium()
    tab.new_tab()
    yield tab
    complaints = tab.complaints()
    tab.close_tab()
    assert not complaints


@dataclass(frozen=True)
class Link:
    """A link to the page, with its ticket."""

    url: str
    ticket: str
    path: Path


#: Makes the image of a ticket, and a link: bytes, and keys of the ticket.
MakeLink = Callable[..., Link]


@pytest.fixture
def wire(page_daemon: Daemon) -> Iterator[Wire]:
    """The network between browser and daemon."""

    def port() -> int:
        try:
            return page_daemon.port
        except AssertionError:
            return 0  # it starts, and nothing listens there

    with Wire(port) as wire:
        yield wire


@pytest.fixture
def make_link(page_daemon: Daemon, wire: Wire, tmp_path: Path) -> MakeLink:
    """Make links for uploads to empty images, or to `path`."""

    def make(size: int, path: Path | None = None, **fields: Any) -> Link:
        if path is None:
            path = tmp_path / "image"
            path.touch()
            os.truncate(path, size)
        ticket = page_daemon.add_ticket(path, size, **{"sparse": True, **fields})
        return Link(f"https://localhost:{wire.port}/ui/#{ticket}", ticket, path)

    return make


@pytest.fixture
def make_disk(tmp_path: Path) -> MakeDisk:
    """Make files whose data is in places that differ each time."""

    def make(name: str, size: int, pieces: int) -> Path:
        path = tmp_path / name
        with open(path, "wb") as file:
            file.truncate(size)
            for place in random.sample(range(size // PIECE), pieces):
                file.seek(place * PIECE)
                file.write(secrets.token_bytes(PIECE))
        return path

    return make


def same(one: Path, other: Path) -> bool:
    """Tell whether two files have the same bytes, by another program."""
    return subprocess.run(["cmp", str(one), str(other)], check=False).returncode == 0
