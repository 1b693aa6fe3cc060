# SPDX-License-Identifier: Apache-2.0
import importlib.metadata
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from imageio_daemon import __version__, cli, daemon
from imageio_daemon.config.config import Config
from imageio_daemon.errors import ConfigError, Error, InvalidRequest
from tests.support.refusing import without_no_aio

PROJECT = Path(__file__).resolve().parents[1]

GOOD = "[tls]\nenable = false\n"


class FakeDaemon:
    """Note what would be run."""

    def __init__(self) -> None:
        self.runs: list[tuple[Config, Sequence[object]]] = []
        self.status = 0
        self.error: Error | None = None

    def run(self, config: Config, tickets: Sequence[object], load: Callable[[], Config]) -> int:
        self.runs.append((config, tickets))
        logging.getLogger(__name__).info("running")
        if self.error is not None:
            raise self.error
        return self.status

    @property
    def tickets(self) -> Sequence[object]:
        """What the one run was given."""
        ((_, tickets),) = self.runs
        return tickets


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    fake = FakeDaemon()
    monkeypatch.setattr(daemon, "run", fake.run)
    return fake


def conf_dir(directory: Path, text: str) -> str:
    (directory / "conf.d").mkdir()
    (directory / "conf.d" / "a.conf").write_text(text)
    return str(directory)


@pytest.fixture
def good(tmp_path: Path) -> str:
    """A configuration directory that is good."""
    return conf_dir(tmp_path, GOOD)


def refusal(capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error."""
    out, err = capfd.readouterr()
    assert out == ""
    line = without_no_aio(err)
    assert line.count("\n") == 1
    return line.rstrip("\n")


def test_daemon_runs_with_the_configuration(fake: FakeDaemon, tmp_path: Path) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, GOOD + "[remote]\nport = 1\n")]) == 0
    ((config, tickets),) = fake.runs
    assert config.remote.port == 1
    assert tickets == []


def test_status_of_the_daemon_is_returned(fake: FakeDaemon, good: str) -> None:
    fake.status = 1
    assert cli.main(["--conf-dir", good]) == 1


def test_log_is_set_up_as_configured(fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["-c", conf_dir(tmp_path, GOOD + "[log]\nformat = json\n")])
    assert json.loads(capfd.readouterr().err)["message"] == "running"


def test_options_without_effect_are_logged(fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cli.main(["-c", conf_dir(tmp_path, GOOD + "[daemon]\npoll_interval = 1\n")])
    warning, running = capfd.readouterr().err.splitlines()
    assert "WARNING" in warning
    assert "[daemon] poll_interval has no effect" in warning
    assert "running" in running


def test_bad_configuration_is_one_line_and_starts_nothing(
    fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, "[remote]\nport = x\n")]) == 2
    assert refusal(capfd) == (
        f"imageio-daemon: {tmp_path}/conf.d/a.conf:2: [remote] port = 'x': expected port, 0 to 65535"
    )
    assert fake.runs == []


def test_options_that_do_not_go_together_start_nothing(
    fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, "[tls]\nclient_auth = required\n")]) == 2
    assert "[tls] ca_file: expected" in refusal(capfd)
    assert fake.runs == []


def test_configuration_that_the_daemon_refuses_is_the_last_line(
    fake: FakeDaemon, good: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.error = ConfigError("cannot listen on :::1: Permission denied")
    assert cli.main(["-c", good]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == "imageio-daemon: cannot listen on :::1: Permission denied"


def test_unknown_argument_is_refused(fake: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--daemonize"]) == 2
    assert "unrecognized arguments: --daemonize" in capfd.readouterr().err


# Ends at once


def test_show_config_prints_json_by_section(
    fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, "[remote]\nport = 1\n"), "--show-config"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["remote"] == {"host": "::", "port": 1}
    assert shown["daemon"]["max_connections"] == 8
    assert fake.runs == []


def test_show_config_refuses_what_it_cannot_read(
    fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, "[remote]\nhosts = x\n"), "--show-config"]) == 2
    assert "hosts is not known" in refusal(capfd)


@pytest.fixture
def here(tmp_path: Path) -> str:
    """Options with which the daemon could start here."""
    return f"{GOOD}[daemon]\nrun_dir = {tmp_path}\ndrop_privileges = false\n[remote]\nhost = 127.0.0.1\nport = 0\n"


def test_check_config_says_nothing_of_a_good_one(
    fake: FakeDaemon, here: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, here), "--check-config"]) == 0
    out, err = capfd.readouterr()
    assert (out, without_no_aio(err)) == ("", "")
    assert fake.runs == []


def test_check_config_tells_what_has_no_effect(
    fake: FakeDaemon, here: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, here + "[profile]\n"), "--check-config"]) == 0
    assert refusal(capfd).endswith("[profile] has no effect: there is no profiler")


def test_check_config_refuses_a_bad_one(fake: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-c", conf_dir(tmp_path, "[tls]\nclient_auth = required\n"), "--check-config"]) == 2
    assert "[tls] ca_file: expected" in refusal(capfd)


def test_check_config_refuses_a_certificate_that_cannot_be_loaded(
    fake: FakeDaemon, here: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tls = "[tls]\nkey_file = /missing/key.pem\ncert_file = /missing/cert.pem\n"
    assert cli.main(["-c", conf_dir(tmp_path, here.replace(GOOD, tls)), "--check-config"]) == 2
    assert "[tls] cannot load cert_file /missing/cert.pem with key_file /missing/key.pem: " in refusal(capfd)


def test_check_config_refuses_what_keeps_the_daemon_from_starting(
    fake: FakeDaemon, here: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = here.replace("port = 0", f"port = {taken.getsockname()[1]}")
        assert cli.main(["-c", conf_dir(tmp_path, wrong), "--check-config"]) == 2
    assert refusal(capfd).endswith("Address already in use: another program has it")


def test_version_is_the_one_of_the_distribution() -> None:
    assert importlib.metadata.version("imageio-daemon") == __version__


def test_module_is_the_command() -> None:
    command = [sys.executable, "-m", "imageio_daemon", "--version"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"imageio-daemon {__version__} (OpenSSL 3.")
    assert "; zstd 1." in " ".join(done.stdout.split())


# Tickets


def test_ticket_file_may_hold_one_ticket(fake: FakeDaemon, good: str, tmp_path: Path) -> None:
    (tmp_path / "ticket").write_text('{"uuid": "a"}')
    cli.main(["-c", good, "--ticket", str(tmp_path / "ticket")])
    assert fake.tickets == [{"uuid": "a"}]


def test_ticket_file_may_hold_a_list_of_tickets(fake: FakeDaemon, good: str, tmp_path: Path) -> None:
    (tmp_path / "ticket").write_text('[{"uuid": "a"}, {"uuid": "b"}]')
    cli.main(["-c", good, "--ticket", str(tmp_path / "ticket")])
    assert fake.tickets == [{"uuid": "a"}, {"uuid": "b"}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "expected a ticket in JSON: Expecting property name"),
        (b"\xff", "expected a ticket in JSON: 'utf-8' codec can't decode"),
        (b"[" * 60000, "expected a ticket in JSON: "),
        (b" " * 65537, "expected at most 65536 bytes"),
    ],
)
def test_bad_ticket_file_starts_nothing(
    content: bytes, reason: str, fake: FakeDaemon, good: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ticket"
    path.write_bytes(content)
    assert cli.main(["-c", good, "--ticket", str(path)]) == 2
    assert refusal(capfd).startswith(f"imageio-daemon: {path}: {reason}")
    assert fake.runs == []


def test_missing_ticket_file_starts_nothing(fake: FakeDaemon, good: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-c", good, "--ticket", "/missing/ticket"]) == 2
    assert refusal(capfd) == "imageio-daemon: /missing/ticket: cannot read it: No such file or directory"
    assert fake.runs == []


def test_ticket_that_the_daemon_refuses_is_the_last_line(
    fake: FakeDaemon, good: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ticket"
    path.write_text("{}")
    fake.error = InvalidRequest("Missing key: uuid")
    assert cli.main(["-c", good, "--ticket", str(path)]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == f"imageio-daemon: {path}: Missing key: uuid"
