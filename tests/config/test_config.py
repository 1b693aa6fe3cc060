# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from imageio_daemon.config import files
from imageio_daemon.config.config import SECTIONS, Config, conflicts, show
from imageio_daemon.config.files import Loaded
from imageio_daemon.config.sections import ControlSection
from imageio_daemon.config.services import TlsSection
from imageio_daemon.errors import ConfigError
from imageio_daemon.units import MiB

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE = PROJECT / "conf" / "daemon.conf"

#: As a host has it that ran ovirt-imageio.
EXISTING = r"""
# Configuration of the host, managed by its agent.

[daemon]
poll_interval = 0.1
max_connections = 4
inactivity_timeout = 120
run_dir = /run/ovirt-imageio
user_name = ovirtimg
group_name = ovirtimg
systemd_enable = yes

[tls]
enable = true
key_file = /etc/pki/host/private/key.pem
cert_file = /etc/pki/host/cert.pem
ca_file = /etc/pki/host/ca.pem
enable_tls1_1 = false

[backend_file]
buffer_size = 131072

[backend_nbd]
buffer_size = 8388608

[backend_http]
ca_file =
buffer_size = 8388608

[remote]
host: ::
port: 54322

[local]
enable = True
socket = \0/org/example/images

[control]
transport = unix
socket = /run/ovirt-imageio/sock
port = -1
prefer_ipv4 = true
remove_timeout = 60

[profile]
filename = /run/ovirt-imageio/profile

[loggers]
keys = root

[handlers]
keys = logfile

[formatters]
keys = long

[logger_root]
level = INFO
handlers = logfile
propagate = 0

[handler_logfile]
class = logging.handlers.RotatingFileHandler
args = ("/var/log/daemon.log",)
kwargs = {"maxBytes": 20971520,
    "backupCount": 10}
level = DEBUG
formatter = long

[formatter_long]
format = %(asctime)s %(levelname)-7s (%(threadName)s) [%(name)s] %(message)s
"""


class ConfDir:
    """A configuration directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.conf_d = directory / "conf.d"
        self.conf_d.mkdir()

    def write(self, text: str, name: str = "a.conf") -> None:
        (self.conf_d / name).write_text(text)

    def load(self, text: str | None = None) -> Config:
        if text is not None:
            self.write(text)
        return files.load(self.path).config

    def refusal(self, text: str | None = None) -> str:
        """Return why it is refused, with CONF for the directory of files."""
        if text is not None:
            self.write(text)
        with pytest.raises(ConfigError) as caught:
            files.load(self.path).check()
        reason = str(caught.value)
        assert "\n" not in reason
        return reason.replace(str(self.conf_d), "CONF")


@pytest.fixture
def conf(tmp_path: Path) -> ConfDir:
    return ConfDir(tmp_path)


# Files


def test_without_files_all_is_default(conf: ConfDir) -> None:
    assert conf.load() == Config()


def test_missing_default_directory_means_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr(files, "DEFAULT_CONF_DIR", missing)
    assert files.load(missing).config == Config()


def test_missing_directory_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/missing/conf\.d: expected a directory with \*\.conf files$"):
        files.load(tmp_path / "missing")


def test_directory_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conf.d").touch()
    with pytest.raises(ConfigError, match=r"/conf\.d: cannot read it: Not a directory$"):
        files.load(tmp_path)


def test_file_that_cannot_be_read_is_refused(conf: ConfDir) -> None:
    (conf.conf_d / "a.conf").symlink_to("missing")
    assert conf.refusal() == "CONF/a.conf: cannot read it: No such file or directory"


def test_file_that_is_not_utf8_is_refused(conf: ConfDir) -> None:
    (conf.conf_d / "a.conf").write_bytes(b"[daemon]\n\xff")
    assert conf.refusal() == "CONF/a.conf: expected UTF-8 text: byte 9 is not"


def test_last_file_by_name_wins(conf: ConfDir) -> None:
    conf.write("[remote]\nport = 2\nhost = b\n", "50-b.conf")
    conf.write("[remote]\nport = 1\nhost = a\n[log]\nlevel = debug\n", "10-a.conf")
    conf.write("[remote]\nport = 3\n", "99-c.conf")
    config = conf.load()
    assert (config.remote.port, config.remote.host, config.log.level) == (3, "b", "debug")


@pytest.mark.parametrize("name", ["a.conf.rpmsave", "a.conf~", ".a.conf", "README"])
def test_other_files_are_not_read(conf: ConfDir, name: str) -> None:
    conf.write("nonsense", name)
    assert conf.load() == Config()


def test_value_that_a_later_file_replaces_is_checked_all_the_same(conf: ConfDir) -> None:
    conf.write("[remote]\nport = none\n", "a.conf")
    conf.write("[remote]\nport = 1\n", "b.conf")
    assert conf.refusal().startswith("CONF/a.conf:2: [remote] port = 'none': expected")


# Syntax


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\nport = 1\n", "CONF/a.conf:2: expected a [section] before anything else"),
        ("[remote]\n\nport\n", "CONF/a.conf:3: expected a [section], name = value, or a comment"),
        ("[remote]\n[log]\n[remote]\n", "CONF/a.conf:3: [remote] stands in this file twice: expected once"),
        ("[log]\nlevel=info\nLevel=info", "CONF/a.conf:3: [log] level stands in this section twice: expected once"),
    ],
)
def test_malformed_file_is_refused_with_its_line(conf: ConfDir, text: str, reason: str) -> None:
    assert conf.refusal(text) == reason


def test_names_of_options_are_taken_in_any_case(conf: ConfDir) -> None:
    assert conf.load("[remote]\nPort = 1\n").remote.port == 1


def test_line_is_right_behind_comments_and_continued_lines(conf: ConfDir) -> None:
    text = "# comment\n\n[handler_x]\nargs = (1,\n  2)\n\n; comment\n[log]\nlevel: info\nformat: xml\n"
    assert conf.refusal(text).startswith("CONF/a.conf:10: [log] format")


# Unknown names


def test_unknown_section_is_refused(conf: ConfDir) -> None:
    reason = conf.refusal("[log]\n\n[locale]\nenable = true\n")
    assert reason.startswith("CONF/a.conf:3: [locale] is not known: expected one of daemon, tls, remote, local")


def test_unknown_section_is_refused_without_options_too(conf: ConfDir) -> None:
    assert conf.refusal("[locale]\n").startswith("CONF/a.conf:1: [locale] is not known")


def test_default_section_of_configparser_is_unknown(conf: ConfDir) -> None:
    assert conf.refusal("[DEFAULT]\nport = 1\n").startswith("CONF/a.conf:1: [DEFAULT] is not known")


def test_unknown_option_is_refused(conf: ConfDir) -> None:
    reason = conf.refusal("[log]\nlevels = info\n")
    assert reason == "CONF/a.conf:2: [log] levels is not known: expected one of level, format"


def test_unknown_option_beside_one_without_effect_is_refused(conf: ConfDir) -> None:
    reason = conf.refusal("[backend_http]\nsize = 1\n")
    assert reason == "CONF/a.conf:2: [backend_http] size is not known: expected one of ca_file, buffer_size"


# Values


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("Yes", True), ("1", True), ("on", True), ("false", False), ("OFF", False)]
)
def test_flag_is_a_word_that_configparser_knows(conf: ConfDir, text: str, value: bool) -> None:
    assert conf.load(f"[control]\nenable = {text}\n").control.enable is value


@pytest.mark.parametrize("text", ["", "2", "truee", "enable"])
def test_other_flag_is_refused(conf: ConfDir, text: str) -> None:
    reason = conf.refusal(f"[control]\nenable = {text}\n")
    assert reason == f"CONF/a.conf:2: [control] enable = '{text}': expected true or false"


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("65535", 65535), ("080", 80)])
def test_number_within_its_limits_is_taken(conf: ConfDir, text: str, value: int) -> None:
    assert conf.load(f"[remote]\nport = {text}\n").remote.port == value


@pytest.mark.parametrize("text", ["", "-1", "65536", "1.0", "0x10", "1_0", "+1", "1 # x", "٣", "9" * 5000, "1\n 2"])
def test_other_number_is_refused(conf: ConfDir, text: str) -> None:
    reason = conf.refusal(f"[remote]\nport = {text}\n")
    assert re.fullmatch(r"CONF/a\.conf:2: \[remote\] port = '.*': expected port, 0 to 65535", reason)
    assert len(reason) < 150


@pytest.mark.parametrize(
    ("text", "value"), [("1048577", 1048577), ("2048K", 2097152), ("4m", 4194304), ("64G", 68719476736)]
)
def test_size_is_bytes_or_has_a_binary_unit(conf: ConfDir, text: str, value: int) -> None:
    assert conf.load(f"[daemon]\nbuffer_memory = {text}\n").daemon.buffer_memory == value


@pytest.mark.parametrize("text", ["", "M", "4 M", "4X", "1.5M", "4MiB", "-4M", "0", "65G", "1023K", "9" * 5000])
def test_other_size_is_refused(conf: ConfDir, text: str) -> None:
    reason = conf.refusal(f"[daemon]\nbuffer_memory = {text}\n")
    assert reason.endswith("': expected bytes or with K, M, G, 1M to 64G")


@pytest.mark.parametrize(("text", "value"), [("0600", 0o600), ("660", 0o660), ("0000", 0)])
def test_mode_is_octal(conf: ConfDir, text: str, value: int) -> None:
    assert conf.load(f"[local]\nmode = {text}\n").local.mode == value


@pytest.mark.parametrize("text", ["", "0", "rw", "0o600", "680", "1777", "4755"])
def test_other_mode_is_refused(conf: ConfDir, text: str) -> None:
    reason = conf.refusal(f"[local]\nmode = {text}\n")
    assert reason == f"CONF/a.conf:2: [local] mode = '{text}': expected an octal mode, 0000 to 0777"


def test_choice_is_taken_in_any_case(conf: ConfDir) -> None:
    assert conf.load("[log]\nlevel = DEBUG\n").log.level == "debug"


def test_other_choice_is_refused(conf: ConfDir) -> None:
    reason = conf.refusal("[tls]\nclient_auth = maybe\n")
    assert reason == "CONF/a.conf:2: [tls] client_auth = 'maybe': expected none or optional or required"


def test_text_is_taken_as_it_is(conf: ConfDir) -> None:
    assert conf.load("[tls]\nca_file = /a b/%(c)s#é.pem\n").tls.ca_file == "/a b/%(c)s#é.pem"


@pytest.mark.parametrize("text", ["a\0b", "a\n  b", "a\x1bb"])
def test_text_with_control_characters_is_refused(conf: ConfDir, text: str) -> None:
    assert conf.refusal(f"[tls]\nca_file = {text}\n").endswith("expected the path of a PEM file, or nothing")


def test_text_that_is_needed_must_not_be_empty(conf: ConfDir) -> None:
    reason = conf.refusal("[daemon]\nuser_name =\n")
    assert reason == "CONF/a.conf:2: [daemon] user_name = '': expected the name of a user"


@pytest.mark.parametrize(
    ("text", "value"), [("", ()), ("/a", ("/a",)), ("/a:/b c", ("/a", "/b c")), (":/a:", ("/a",)), ("/", ("/",))]
)
def test_directories_have_colons_between_them(conf: ConfDir, text: str, value: tuple[str, ...]) -> None:
    assert conf.load(f"[backend_nbd]\nallowed_paths = {text}\n").backend_nbd.allowed_paths == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("", ()), ("a:1M", (("a", MiB),)), ("a: 1M , the b:c:0,", (("a", MiB), ("the b:c", 0)))],
)
def test_rates_of_tenants_have_commas_between_them(
    conf: ConfDir, text: str, value: tuple[tuple[str, int], ...]
) -> None:
    assert conf.load(f"[limits]\ntenants = {text}\n").limits.tenants == value


@pytest.mark.parametrize("text", ["a", "a:", ":1M", "a:1", "a:20G", "a:1M,a:2M", "x" * 256 + ":1M", "a:-1M"])
def test_other_rates_of_tenants_are_refused(conf: ConfDir, text: str) -> None:
    assert "NAME:RATE with commas" in conf.refusal(f"[limits]\ntenants = {text}\n")


@pytest.mark.parametrize(("text", "value"), [("", ()), ("a", ("a",)), ("a, b c/d ,d:e,", ("a", "b c/d", "d:e"))])
def test_pools_have_commas_between_them(conf: ConfDir, text: str, value: tuple[str, ...]) -> None:
    assert conf.load(f"[backend_rbd]\nallowed_pools = {text}\n").backend_rbd.allowed_pools == value


@pytest.mark.parametrize("text", ["a/b/c", "a/", "/b", "a@b", "a\x01"])
def test_other_pools_are_refused(conf: ConfDir, text: str) -> None:
    assert "commas" in conf.refusal(f"[backend_rbd]\nallowed_pools = {text}\n")


@pytest.mark.parametrize("text", ["images", "/a:b", "/a\x01b"])
def test_other_directories_are_refused(conf: ConfDir, text: str) -> None:
    assert "absolute paths" in conf.refusal(f"[backend_nbd]\nallowed_paths = {text}\n")


@pytest.mark.parametrize(
    ("text", "value"), [("", ""), ("/a/b", "/a/b"), ("@name", "@name"), (r"\0name", "@name"), ("\0name", "@name")]
)
def test_local_socket_is_a_path_or_an_abstract_name(conf: ConfDir, text: str, value: str) -> None:
    assert conf.load(f"[local]\nsocket = {text}\n").local.socket == value


@pytest.mark.parametrize("text", ["@", r"\0", "/a\0b", "a\n b"])
def test_other_local_socket_is_refused(conf: ConfDir, text: str) -> None:
    reason = conf.refusal(f"[local]\nsocket = {text}\n")
    assert reason.endswith("': expected a path, @NAME for an abstract name, or nothing")


# Options that depend on each other

GOOD_TLS = TlsSection(key_file="key.pem", cert_file="cert.pem")


@pytest.mark.parametrize(
    ("config", "section", "name"),
    [
        (Config(tls=TlsSection(cert_file="")), "tls", "cert_file"),
        (Config(tls=TlsSection(key_file="")), "tls", "key_file"),
        (Config(tls=TlsSection(enable=False, ca_file="ca.pem", client_auth="optional")), "tls", "client_auth"),
        (Config(tls=dataclasses.replace(GOOD_TLS, client_auth="required")), "tls", "ca_file"),
        (Config(tls=GOOD_TLS, control=ControlSection(transport="tcp", port=-1)), "control", "port"),
    ],
)
def test_option_that_does_not_go_with_another_is_found(config: Config, section: str, name: str) -> None:
    assert [(conflict.section, conflict.name) for conflict in conflicts(config)] == [(section, name)]


@pytest.mark.parametrize(
    "config",
    [
        Config(tls=GOOD_TLS),
        Config(tls=TlsSection(enable=False)),
        Config(tls=dataclasses.replace(GOOD_TLS, client_auth="required", ca_file="ca.pem")),
        Config(tls=GOOD_TLS, control=ControlSection(transport="tcp", port=0)),
        Config(tls=GOOD_TLS, control=ControlSection(enable=False, transport="tcp", port=-1)),
    ],
)
def test_options_that_go_together_are_no_conflict(config: Config) -> None:
    assert list(conflicts(config)) == []


def test_conflict_is_refused_with_the_line_of_the_option(conf: ConfDir) -> None:
    reason = conf.refusal("[tls]\nenable = false\nclient_auth = required\nca_file = ca.pem\n")
    assert reason == "CONF/a.conf:3: [tls] client_auth: expected none, for [tls] enable is false"


def test_conflict_of_an_option_that_is_not_set_is_refused_with_the_directory(conf: ConfDir) -> None:
    reason = conf.refusal("[tls]\nclient_auth = required\n")
    assert reason.startswith("CONF: [tls] ca_file: expected ")


# Files of ovirt-imageio


@pytest.fixture
def existing(conf: ConfDir) -> Loaded:
    conf.write(EXISTING)
    return files.load(conf.path)


def test_existing_file_is_usable_unchanged(existing: Loaded) -> None:
    existing.check()


def test_existing_file_has_its_effect(existing: Loaded) -> None:
    config = existing.config
    assert config.daemon.max_connections == 4
    assert config.daemon.inactivity_timeout == 120
    assert config.tls.key_file == "/etc/pki/host/private/key.pem"
    assert config.local.socket == "@/org/example/images"
    assert config.control.socket == "/run/ovirt-imageio/sock"


def test_each_option_and_section_without_effect_has_one_warning(existing: Loaded, conf: ConfDir) -> None:
    warned = [warning.removeprefix(f"{conf.conf_d}/a.conf:") for warning in existing.warnings]
    assert [re.sub(r"^\d+: | has no effect: .*", "", warning) for warning in warned] == [
        "[daemon] poll_interval",
        "[tls] enable_tls1_1",
        "[backend_file] buffer_size",
        "[backend_nbd] buffer_size",
        "[backend_http] buffer_size",
        "[control] prefer_ipv4",
        "[profile]",
        "[loggers]",
        "[handlers]",
        "[formatters]",
        "[logger_root]",
        "[handler_logfile]",
        "[formatter_long]",
    ]


def test_warning_says_where_and_why(conf: ConfDir) -> None:
    conf.write("[tls]\nenable_tls1_1 = true\n")
    (warning,) = files.load(conf.path).warnings
    assert warning == f"{conf.conf_d}/a.conf:2: [tls] enable_tls1_1 has no effect: TLS 1.2 is the least"


def test_the_number_of_event_loops_has_no_effect(conf: ConfDir) -> None:
    conf.write("[daemon]\nloops = 4\n")
    assert files.load(conf.path).warnings == [
        f"{conf.conf_d}/a.conf:2: [daemon] loops has no effect: there is one event loop"
    ]


def test_a_receiver_of_notifications_has_no_effect_and_hears_what_to_do(conf: ConfDir) -> None:
    conf.write("[control]\nnotify = /usr/bin/event --of imageio\n")
    (warning,) = files.load(conf.path).warnings
    place = f"{conf.conf_d}/a.conf:2: [control] notify has no effect"
    assert warning.startswith(f"{place}: the daemon runs no command")
    assert "GET /events" in warning


def test_option_without_effect_in_several_files_has_one_warning(conf: ConfDir) -> None:
    conf.write("[daemon]\npoll_interval = 1\n", "a.conf")
    conf.write("[daemon]\npoll_interval = 2\n", "b.conf")
    assert len(files.load(conf.path).warnings) == 1


@pytest.mark.parametrize("name", ["c_lane", "fast_lane"])
def test_option_who_moves_bytes_has_no_effect_any_more(conf: ConfDir, name: str) -> None:
    conf.write(f"[remote]\n{name} = false\n")
    (warning,) = files.load(conf.path).warnings
    assert warning == f"{conf.conf_d}/a.conf:2: [remote] {name} has no effect: C moves all bytes of images"


@pytest.mark.parametrize("name", ["c_lane", "fast_lane"])
def test_option_who_serves_nbd_has_no_effect_any_more(conf: ConfDir, name: str) -> None:
    conf.write(f"[nbd]\n{name} = false\n")
    (warning,) = files.load(conf.path).warnings
    assert warning == f"{conf.conf_d}/a.conf:2: [nbd] {name} has no effect: C serves all connections"


@pytest.mark.parametrize("name", ["logger", "loggers_x", "profile_x", "profiles"])
def test_section_that_only_looks_like_one_without_effect_is_refused(conf: ConfDir, name: str) -> None:
    assert "is not known" in conf.refusal(f"[{name}]\n")


# What is shown


def test_shown_configuration_is_json_with_all_sections_and_options() -> None:
    shown = json.loads(json.dumps(show(Config())))
    assert {name: list(options) for name, options in shown.items()} == {
        name: [field.name for field in dataclasses.fields(section)] for name, section in SECTIONS.items()
    }


def test_shown_values_are_numbers_flags_and_text() -> None:
    shown = show(Config())
    assert shown["daemon"]["buffer_memory"] == 268435456
    assert shown["tls"]["enable"] is True
    assert shown["local"]["mode"] == "0666"
    assert shown["remote"]["host"] == "::"


@pytest.mark.parametrize(("kind", "file"), [("conf", "conf/daemon.conf"), ("man", "docs/imageio-daemon.conf.5")])
def test_file_that_explains_the_options_is_the_one_of_the_generator(kind: str, file: str) -> None:
    command = ["scripts/config_docs.py", kind]
    made = subprocess.run([sys.executable, *command], cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    assert (PROJECT / file).read_text() == made, f"python {' '.join(command)} > {file}"


def test_sample_file_changes_nothing(conf: ConfDir) -> None:
    assert conf.load(SAMPLE.read_text()) == Config()


def test_each_line_of_the_sample_file_states_the_default(conf: ConfDir) -> None:
    text = re.sub(r"^#(?=\w)", "", SAMPLE.read_text(), flags=re.MULTILINE)
    assert conf.load(text) == Config()
    assert len(files.load(conf.path).places) == sum(len(options) for options in show(Config()).values())


def test_each_option_has_a_reason_and_each_section_a_sentence() -> None:
    for section in SECTIONS.values():
        assert section.__doc__
        for field in dataclasses.fields(section):
            assert field.metadata["option"].reason.endswith(".")
