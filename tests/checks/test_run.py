# SPDX-License-Identifier: Apache-2.0
"""All checks of a configuration, as the user of the service."""

import grp
import os
import pwd
from pathlib import Path

import pytest

from imageio_daemon.checks import run
from imageio_daemon.checks.finding import Verdict
from imageio_daemon.runtime import privileges
from tests.checks.test_host import NOT_HERE
from tests.support.daemon import Certificates, write_config

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who becomes another user")
USER = "nobody"
GROUP = grp.getgrgid(pwd.getpwnam(USER).pw_gid).gr_name


@pytest.fixture
def config(tmp_path: Path, certificates: Certificates) -> dict[str, dict[str, object]]:
    """Options with which the daemon can start here."""
    return {
        "daemon": {"run_dir": tmp_path, "user_name": USER, "group_name": GROUP, "drop_privileges": "false"},
        "tls": {"cert_file": certificates.certfile, "key_file": certificates.keyfile},
        "remote": {"host": "127.0.0.1", "port": 0},
    }


def verdicts(directory: Path, *paths: str) -> dict[str, tuple[Verdict, str]]:
    return {finding.check: (finding.verdict, finding.text) for finding in run.check(directory, paths)}


def test_daemon_that_keeps_its_user_is_checked_as_it_is(tmp_path: Path, config: dict[str, dict[str, object]]) -> None:
    write_config(tmp_path / "conf.d" / "a.conf", config)
    found = verdicts(tmp_path)
    assert {check: verdict for check, (verdict, _) in found.items() if verdict is not Verdict.OK} == NOT_HERE, found
    assert found["user"][1] == f"checked as {pwd.getpwuid(os.geteuid()).pw_name}"


@pytest.mark.root
@ROOT
@pytest.mark.parametrize("systemd", ["/", "/no/such"], ids=["systemd", "no systemd"])
def test_root_checks_as_the_user_of_the_service(
    tmp_path: Path, config: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch, systemd: str
) -> None:
    config["daemon"]["drop_privileges"] = "true"
    write_config(tmp_path / "conf.d" / "a.conf", config)
    os.chmod(config["tls"]["key_file"], 0o600)  # type: ignore[arg-type]
    monkeypatch.setattr(run, "_SYSTEMD", Path(systemd))
    found = verdicts(tmp_path, "/etc/shadow")
    assert found["user"] == (Verdict.OK, f"checked as {USER}")
    # Without systemd, the daemon is started as root, which loads the certificate and prepares the run directory.
    assert found["certificate"][0] is (Verdict.FAILED if systemd == "/" else Verdict.WARNING)
    assert f"as user {USER}" in found["certificate"][1]
    assert found["image"] == (Verdict.FAILED, f"/etc/shadow: {USER} cannot read it")
    assert found["run_dir"][0] is (Verdict.FAILED if systemd == "/" else Verdict.OK)
    assert found["remote"][0] is Verdict.OK
    assert os.geteuid() == 0


@pytest.mark.root
@ROOT
def test_configuration_has_to_be_readable_for_the_user_of_the_service(
    tmp_path: Path, config: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config["daemon"]["drop_privileges"] = "true"
    write_config(tmp_path / "conf.d" / "a.conf", config)
    (tmp_path / "conf.d").chmod(0o700)
    monkeypatch.setattr(run, "_SYSTEMD", Path("/"))
    verdict, text = verdicts(tmp_path)["configuration"]
    assert verdict is Verdict.FAILED
    assert text.startswith(f"as the user of the service: {tmp_path}")


@pytest.mark.root
@ROOT
def test_groups_of_the_unit_count(
    tmp_path: Path, config: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config["daemon"]["drop_privileges"] = "true"
    write_config(tmp_path / "conf.d" / "a.conf", config)
    (tmp_path / "bin").mkdir()
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.write_text("#!/bin/sh\necho shadow no-such-group 4000000\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(run, "_SYSTEMD", Path("/"))
    assert verdicts(tmp_path, "/etc/shadow")["image"] == (
        Verdict.WARNING,
        f"/etc/shadow: {USER} can read it, and not write it",
    )


@pytest.mark.root
@ROOT
def test_user_that_is_missing_is_a_failure(tmp_path: Path, config: dict[str, dict[str, object]]) -> None:
    config["daemon"] |= {"drop_privileges": "true", "user_name": "no-such-user"}
    write_config(tmp_path / "conf.d" / "a.conf", config)
    assert verdicts(tmp_path)["user"] == (Verdict.FAILED, "[daemon] user_name: there is no user 'no-such-user'")


@pytest.mark.root
@ROOT
def test_checks_that_fail_themselves_are_told(
    tmp_path: Path, config: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config["daemon"]["drop_privileges"] = "true"
    write_config(tmp_path / "conf.d" / "a.conf", config)
    monkeypatch.setattr(privileges, "drop", lambda *_: os._exit(3))
    assert verdicts(tmp_path)["user"] == (Verdict.FAILED, f"the checks as {USER} have failed")


def test_configuration_that_is_wrong_is_the_only_finding(tmp_path: Path) -> None:
    write_config(tmp_path / "conf.d" / "a.conf", {"tls": {"colour": "red"}})
    found = verdicts(tmp_path)
    assert found.keys() == {"configuration"}
    assert found["configuration"][0] is Verdict.FAILED


def test_option_without_effect_is_a_warning(tmp_path: Path, config: dict[str, dict[str, object]]) -> None:
    write_config(tmp_path / "conf.d" / "a.conf", {**config, "profile": {}})
    assert verdicts(tmp_path)["configuration"][0] is Verdict.WARNING


def test_limit_on_open_files_of_the_unit_counts(
    tmp_path: Path, config: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path / "conf.d" / "a.conf", config)
    (tmp_path / "bin").mkdir()
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.write_text('#!/bin/sh\n[ "$2" != --property=LimitNOFILE ] || echo 1024\n')
    systemctl.chmod(0o755)
    assert verdicts(tmp_path)["open_files"][0] is Verdict.OK
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(run, "_SYSTEMD", Path("/"))
    verdict, text = verdicts(tmp_path)["open_files"]
    assert (verdict, text.partition(" connections")[0]) == (
        Verdict.WARNING,
        "1024 open files are enough for 112",
    )
