# SPDX-License-Identifier: Apache-2.0
"""Asynchronous I/O of the kernel is used where it is, and never needed."""

from pathlib import Path

import pytest

from tests.support.daemon import MakeDaemon
from tests.support.heldcalls import build_library
from tests.support.images import MiB, make_image, pattern

CONTENT = pattern(3 * MiB, seed=1)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel of daemons that are started have no asynchronous I/O."""
    monkeypatch.setenv("LD_PRELOAD", str(build_library(tmp_path)))
    monkeypatch.setenv("IMAGEIO_TEST_NO_AIO", "1")


@pytest.mark.usefixtures("refused")
def test_without_it_threads_read_and_write(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    image = make_image(daemon, tmp_path)(size=len(CONTENT))
    with daemon.connect("unix") as connection:
        for _ in range(2):
            assert connection.put(image.url, CONTENT).status == 200
            assert connection.get(image.url).body == CONTENT
    assert image.content() == CONTENT


@pytest.mark.usefixtures("refused")
def test_a_refusal_is_in_the_log(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.log.wait_for(r"WARNING .*the kernel refuses asynchronous I/O.* error=\"Function not implemented\"")


def test_nothing_is_in_the_log_where_it_is_there(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.log.wait_for(r"INFO .*ready")
    assert daemon.log.find("asynchronous I/O") is None
