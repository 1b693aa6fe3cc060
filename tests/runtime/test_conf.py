# SPDX-License-Identifier: Apache-2.0
"""The files of the service say the same as the code, and systemd understands them."""

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from imageio_daemon.config.config import SECTIONS
from imageio_daemon.config.options import describe
from imageio_daemon.config.sections import DaemonSection
from imageio_daemon.config.services import RemoteSection

PROJECT = Path(__file__).resolve().parents[2]
UNIT = PROJECT / "conf" / "imageio-daemon.service"
SYSUSERS = PROJECT / "conf" / "sysusers.d" / "imageio-daemon.conf"
TMPFILES = PROJECT / "conf" / "tmpfiles.d" / "imageio-daemon.conf"


@pytest.fixture
def directives() -> dict[str, str]:
    """The directives of the unit; of a repeated one, the last."""
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if not line.startswith(("#", "[")))
    return {name: value for name, _, value in lines if name}


def run(program: str, *arguments: str, stdin: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of systemd; skip the test where there is none."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    text = stdin.read_text() if stdin is not None else None
    return subprocess.run([path, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)


def test_unit_is_understood_by_systemd(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("ExecStart=/usr/bin/imageio-daemon", f"ExecStart={sys.executable}"))
    done = run("systemd-analyze", "verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def root_directory(tmp_path: Path) -> Path:
    """A root directory that has the user of the service."""
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", "-", stdin=SYSUSERS)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_socket_unit_is_understood_by_systemd(tmp_path: Path) -> None:
    unit = UNIT.read_text().replace("ExecStart=/usr/bin/imageio-daemon", f"ExecStart={sys.executable}")
    (tmp_path / UNIT.name).write_text(unit)
    shutil.copy(UNIT.with_suffix(".socket"), tmp_path)
    done = run("systemd-analyze", "verify", str(tmp_path / "imageio-daemon.socket"))
    assert (done.returncode, done.stderr) == (0, "")


def test_socket_unit_names_a_service_and_its_default_address() -> None:
    text = UNIT.with_suffix(".socket").read_text()
    assert "\nFileDescriptorName=remote\n" in text
    assert f"\nListenStream=[{RemoteSection().host}]:{RemoteSection().port}\n" in text


def test_sockets_of_all_services_can_be_stored_and_their_paths_stay(directives: dict[str, str]) -> None:
    assert int(directives["FileDescriptorStoreMax"]) >= 5
    assert directives["RuntimeDirectoryPreserve"] == "restart"


def test_state_directory_is_private(directives: dict[str, str]) -> None:
    assert (directives["StateDirectory"], directives["StateDirectoryMode"]) == ("imageio-daemon", "0700")


def test_sysusers_makes_the_user_without_a_shell(root_directory: Path) -> None:
    (line,) = (root_directory / "etc" / "passwd").read_text().splitlines()
    name, _, uid, *_, shell = line.split(":")
    assert name == "imageio"
    assert int(uid) < 1000
    assert shell == "/usr/sbin/nologin"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="changing the owner needs root")
def test_tmpfiles_makes_the_run_directory(root_directory: Path) -> None:
    uid = int((root_directory / "etc" / "passwd").read_text().split(":")[2])
    done = run("systemd-tmpfiles", "--create", f"--root={root_directory}", "-", stdin=TMPFILES)
    assert done.returncode == 0, done.stderr
    status = (root_directory / "run" / "imageio-daemon").stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (uid, 0o755)


def test_unit_is_killed_later_than_the_daemon_gives_up(directives: dict[str, str]) -> None:
    assert int(directives["TimeoutStopSec"]) > DaemonSection().shutdown_timeout


def test_unit_has_descriptors_for_all_connections(directives: dict[str, str]) -> None:
    assert int(directives["LimitNOFILE"]) > 2 * DaemonSection().max_total_connections


def test_user_and_run_directory_are_the_same_everywhere(directives: dict[str, str]) -> None:
    daemon = DaemonSection()
    assert (directives["User"], directives["Group"]) == (daemon.user_name, daemon.group_name)
    assert f"/run/{directives['RuntimeDirectory']}" == daemon.run_dir
    assert f"d {daemon.run_dir} 0755 {daemon.user_name} {daemon.group_name} " in TMPFILES.read_text()
    assert f"u {daemon.user_name} " in SYSUSERS.read_text()


@pytest.mark.parametrize("directive", ["PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "PrivateUsers"])
def test_unit_does_not_hide_block_devices(directives: dict[str, str], directive: str) -> None:
    assert directive not in directives


def test_unit_leaves_its_configuration_read_only(directives: dict[str, str]) -> None:
    assert directives["ProtectSystem"] == "full"
    # systemd excepts this directory from ProtectSystem.
    assert "ConfigurationDirectory" not in directives


def test_guide_lists_every_option_with_its_default() -> None:
    rows = [
        f"| `[{name}] {field.name}` | {_default(field)} | {describe(field).expected} |"
        for name, section in SECTIONS.items()
        for field in dataclasses.fields(section)
    ]
    guide = (PROJECT / "docs" / "operations.md").read_text()
    assert [line for line in guide.splitlines() if line.startswith("| `[")] == rows


def _default(field: "dataclasses.Field[object]") -> str:
    default = describe(field).write(field.default)
    return f"`{default}`" if default else ""
