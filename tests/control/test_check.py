# SPDX-License-Identifier: Apache-2.0
"""imageioctl check."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.control import cli
from tests.control.conftest import run
from tests.support.daemon import Certificates, Daemon


@pytest.fixture
def own(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon whose configuration is checked."""
    with Daemon(certificates) as daemon:
        yield daemon


def check(daemon: Daemon, *arguments: str | Path) -> tuple[str | Path, ...]:
    return ("check", "--conf-dir", daemon.directory, "--socket", daemon.control_socket, *arguments)


def test_line_for_each_check(own: Daemon, image: Path) -> None:
    done = run(*check(own, image))
    assert done.status == 0, done
    lines = {line.split()[1]: line for line in done.out.splitlines()}
    assert "days left" in lines["certificate"]
    assert "can read and write it" in lines["image"]
    assert lines["daemon"].split(maxsplit=2) == ["ok", "daemon", "it is ready"]


def test_failure_is_in_the_status(own: Daemon) -> None:
    run(*check(own, "/no/such/image")).failed_with("failed: image", 1)
    found = run(*check(own, "--json", "/no/such/image"))
    assert '{"check": "image", "verdict": "failed", "text": "/no/such/image: ' in found.out


def test_daemon_that_does_not_run_is_a_failure_if_wanted(own: Daemon) -> None:
    own.stop()
    assert run(*check(own)).status == 0
    run(*check(own, "--ready")).failed_with("failed: daemon", 1)


def test_checks_that_do_not_run_are_told(
    own: Daemon, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert cli.main([str(argument) for argument in check(own)]) == 1
    assert capfd.readouterr().err == "imageioctl: the checks of the daemon do not run\n"


def test_daemon_that_is_not_ready_is_a_failure(own: Daemon) -> None:
    with own.connect("unix") as client:
        client.request("OPTIONS", f"/images/{own.add_ticket('/images/x', 4096)}")
        assert own.control("PUT", "/drain").status == 200
        done = run(*check(own))
    assert done.status == 1
    assert "daemon         service: draining" in done.out


@pytest.mark.parametrize("there", [True, False])
def test_name_that_is_not_utf_8_is_checked(own: Daemon, image: Path, there: bool) -> None:
    named = image.with_name("d\udcefsk")
    if there:
        image.rename(named)
    done = run(*check(own, named))
    assert done.status == (0 if there else 1)
    assert r"d\xefsk: " in done.out
