# SPDX-License-Identifier: Apache-2.0
"""The state directory of a running daemon."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon, Section, run_to_end, write_config


def test_daemon_makes_its_state_directory(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    make_daemon(daemon={"state_dir": tmp_path / "state"}).stop()
    assert (tmp_path / "state" / "version").exists()


def test_directory_of_the_unit_is_used(
    make_daemon: MakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path / 'state'}:/another")
    make_daemon().stop()
    assert (tmp_path / "state" / "version").exists()


def test_second_daemon_on_a_directory_refuses_to_start(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    make_daemon(daemon={"state_dir": tmp_path / "state"})
    options = {"run_dir": tmp_path, "state_dir": tmp_path / "state", "drop_privileges": False}
    other: dict[str, Section] = {"daemon": options, "tls": {"enable": False}, "remote": {"port": 0}}
    write_config(tmp_path / "conf.d" / "a.conf", other)
    done = run_to_end(["-c", str(tmp_path)])
    assert done.returncode == 2
    assert "imageio-daemon: [daemon] state_dir: another daemon uses the directory\n" in done.stderr
    assert not (tmp_path / "sock").exists()


def test_daemon_serves_without_a_directory_that_cannot_be_used(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "version").write_text("2\n")
    daemon = make_daemon(daemon={"state_dir": state})
    assert daemon.log.find("the state directory .* cannot be used, so nothing is kept")
    daemon.add_ticket("/nowhere", 4096)
    assert os.listdir(state) == ["version"]


# What docs/host-backup.md says of copies


def status_of(daemon: Daemon, ticket: str) -> int:
    with daemon.connect("unix") as connection:
        return connection.get(f"/images/{ticket}", {"Range": "bytes=0-0"}).status


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(4096))
    return path


def test_lost_state_is_made_anew_without_its_tickets(make_daemon: MakeDaemon, tmp_path: Path, image: Path) -> None:
    before = make_daemon(daemon={"state_dir": tmp_path / "state"})
    ticket = before.add_ticket(image, 4096)
    before.stop()
    shutil.rmtree(tmp_path / "state")
    after = make_daemon(daemon={"state_dir": tmp_path / "state"})
    assert status_of(after, ticket) == 403
    assert (tmp_path / "state" / "version").exists()


def test_state_that_was_moved_has_its_tickets(make_daemon: MakeDaemon, tmp_path: Path, image: Path) -> None:
    before = make_daemon(daemon={"state_dir": tmp_path / "state"})
    ticket = before.add_ticket(image, 4096)
    before.stop()
    shutil.move(tmp_path / "state", tmp_path / "moved")
    after = make_daemon(daemon={"state_dir": tmp_path / "moved"})
    assert status_of(after, ticket) == 206


def test_old_copy_brings_removed_tickets_back(make_daemon: MakeDaemon, tmp_path: Path, image: Path) -> None:
    """So nobody may restore one."""
    before = make_daemon(daemon={"state_dir": tmp_path / "state"})
    ticket = before.add_ticket(image, 4096)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    assert before.control("DELETE", f"/tickets/{ticket}").status == 204
    before.stop()
    after = make_daemon(daemon={"state_dir": tmp_path / "copy"})
    assert status_of(after, ticket) == 206
