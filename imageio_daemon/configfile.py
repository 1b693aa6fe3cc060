# SPDX-License-Identifier: Apache-2.0
"""Configuration files: the one loader, and the file that explains all options.

`python -m imageio_daemon.configfile` prints the latter, which is conf/daemon.conf.
"""

import dataclasses
import inspect
import os
import reprlib
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import inifile
from .config import SECTIONS, Config, conflicts
from .errors import ConfigError
from .options import describe

DEFAULT_CONF_DIR = Path("/etc/imageio-daemon")

#: Options of ovirt-imageio that have no effect here, and why: its configuration files are accepted as they are.
IGNORED_OPTIONS = {
    "daemon": {"poll_interval": "nothing is polled"},
    "tls": {"enable_tls1_1": "TLS 1.2 is the least"},
    "control": {"prefer_ipv4": "over TCP the control service is on localhost"},
    "backend_http": {"buffer_size": "buffer_size of [backend_file] counts for all"},
    "backend_nbd": {"buffer_size": "buffer_size of [backend_file] counts for all"},
}
#: The same for whole sections; a name with a dash at the end is the beginning of names.
IGNORED_SECTIONS = {
    "profile": "there is no profiler",
    **dict.fromkeys(("loggers", "handlers", "formatters", "logger_", "handler_", "formatter_"), "see [log]"),
}

SAMPLE_HEAD = """\
# SPDX-License-Identifier: Apache-2.0
#
# Every option of imageio-daemon, with its default.
#
# Write what differs into a file of your own, /etc/imageio-daemon/conf.d/NAME.conf. Files are read
# in the order of their names, and the last one wins. What is not known, or not possible, stops the
# start. To check: imageio-daemon --check-config
"""


@dataclass(frozen=True)
class Loaded:
    """What was read: a configuration, and a line about each option that has no effect."""

    config: Config
    warnings: list[str] = field(default_factory=list)
    conf_dir: Path = DEFAULT_CONF_DIR
    places: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def check(self) -> None:
        """Check what options ask of each other. Raises ConfigError, in one line."""
        for conflict in conflicts(self.config):
            place = self.places.get((conflict.section, conflict.name), _conf_d(self.conf_dir))
            raise ConfigError(f"{place}: [{conflict.section}] {conflict.name}: expected {conflict.expected}")


def load(conf_dir: Path = DEFAULT_CONF_DIR) -> Loaded:
    """Read conf.d/*.conf in the order of their names; the last one wins.

    The default directory may be missing: then all is default. Raises ConfigError, in one line, for what is not
    understood.
    """
    reader = _Reader()
    for path in _files(conf_dir):
        for section in inifile.read(path):
            reader.take(section)
    sections = {name: SECTIONS[name](**options) for name, options in reader.values.items()}
    return Loaded(Config(**sections), list(reader.warnings.values()), conf_dir, reader.places)


class _Reader:
    """Collect the values of sections, one file after the other."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
        self.places: dict[tuple[str, str], str] = {}
        self.warnings: dict[tuple[str, str], str] = {}

    def take(self, section: inifile.Section) -> None:
        """Take what stands in a section over what was there before."""
        name = section.name
        if reason := _why_ignored(name):
            self.warnings.setdefault((name, ""), f"{section.place}: [{name}] has no effect: {reason}")
            return
        if name not in SECTIONS and name not in IGNORED_OPTIONS:
            raise ConfigError(f"{section.place}: [{name}] is not known: expected {_choices(SECTIONS)}")
        ignored = IGNORED_OPTIONS.get(name, {})
        for entry in section.entries:
            if reason := ignored.get(entry.name):
                warning = f"{entry.place}: [{name}] {entry.name} has no effect: {reason}"
                self.warnings.setdefault((name, entry.name), warning)
            else:
                self.values[name][entry.name] = _parse(name, entry)
                self.places[name, entry.name] = entry.place


def _parse(section: str, entry: inifile.Entry) -> object:
    """Return the value of an option, of the right type and within its limits."""
    known = _options(section)
    if entry.name not in known:
        choices = _choices([*known, *IGNORED_OPTIONS.get(section, ())])
        raise ConfigError(f"{entry.place}: [{section}] {entry.name} is not known: expected {choices}")
    option = describe(known[entry.name])
    try:
        return option.parse(entry.value)
    except ValueError:
        value = reprlib.repr(entry.value)
        raise ConfigError(f"{entry.place}: [{section}] {entry.name} = {value}: expected {option.expected}") from None


def _options(section: str) -> "dict[str, dataclasses.Field[Any]]":
    if section not in SECTIONS:
        return {}
    return {option.name: option for option in dataclasses.fields(SECTIONS[section])}


def _why_ignored(section: str) -> str | None:
    beginning, underscore, _ = section.partition("_")
    return IGNORED_SECTIONS.get(section) or IGNORED_SECTIONS.get(beginning + underscore)


def _choices(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"


def _conf_d(conf_dir: Path) -> str:
    return str(conf_dir / "conf.d")


def _files(conf_dir: Path) -> list[Path]:
    directory = Path(_conf_d(conf_dir))
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        if conf_dir == DEFAULT_CONF_DIR:
            return []
        raise ConfigError(f"{directory}: expected a directory with *.conf files") from None
    except OSError as e:
        raise ConfigError(f"{directory}: cannot read it: {e.strerror}") from None
    # Editors leave hidden files behind.
    return [directory / name for name in sorted(names) if name.endswith(".conf") and not name.startswith(".")]


def sample() -> str:
    """Return a configuration file with every option, each commented out, with its unit, default and reason."""
    return "\n".join([SAMPLE_HEAD, *(_sample_section(name) for name in SECTIONS)])


def _sample_section(name: str) -> str:
    lines = [*_comment(inspect.getdoc(SECTIONS[name]) or ""), f"[{name}]", ""]
    for option in _options(name).values():
        described = describe(option)
        default = described.write(option.default)
        lines += [*_comment(described.reason), *_comment(f"Value: {described.expected}.")]
        lines += [f"#{option.name} = {default}".rstrip(), ""]
    return "\n".join(lines)


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, 100))


if __name__ == "__main__":
    sys.stdout.write(sample())
