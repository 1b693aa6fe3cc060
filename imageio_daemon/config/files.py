# SPDX-License-Identifier: Apache-2.0
"""The loader of configuration files, with a parser of INI files that keeps the line of each section and option."""

import configparser
import dataclasses
import io
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ConfigError
from .config import SECTIONS, Config, conflicts
from .options import describe


class Entry(NamedTuple):
    """An option with its text. `place` is FILE:LINE."""

    place: str
    name: str
    value: str


class Section(NamedTuple):
    """A section of a file, in the order of the file. `place` is FILE:LINE of its header."""

    place: str
    name: str
    entries: list[Entry]


def read_ini(path: Path) -> list[Section]:
    """Return the sections of a file. Names of options are in lower case. Raises ConfigError, in one line."""
    parser = _IniParser()
    try:
        parser.read_file(parser.counted(path.read_text(encoding="utf-8")))
    except OSError as e:
        raise ConfigError(f"{path}: cannot read it: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: expected UTF-8 text: byte {e.start} is not") from None
    except configparser.Error as e:
        raise ConfigError(f"{path}:{_malformed(e)}") from None
    # Sections and options are unique in a file and keep their order, so the n-th line is that of the n-th option.
    lines = iter(parser.option_lines)
    return [
        Section(
            f"{path}:{parser.section_lines[name]}",
            name,
            [Entry(f"{path}:{next(lines)}", option, value) for option, value in parser.items(name)],
        )
        for name in parser.sections()
    ]


class _IniParser(configparser.RawConfigParser):
    """Record the line of each section and option. Without interpolation: values of logging sections contain `%`."""

    def __init__(self) -> None:
        # With an empty name, which no file can contain, [DEFAULT] is an ordinary section.
        super().__init__(default_section="")
        self.section_lines: dict[str, int] = {}
        self.option_lines: list[int] = []
        self._line = 0

    def counted(self, text: str) -> Iterator[str]:
        """Yield the lines, and count them. The parser takes the next line after it has parsed the last one."""
        for self._line, line in enumerate(io.StringIO(text), 1):
            if header := self.SECTCRE.match(line):
                self.section_lines.setdefault(header["header"], self._line)
            yield line

    def optionxform(self, optionstr: str) -> str:
        """Record the line and return the name in lower case. The parser calls this once for each option."""
        self.option_lines.append(self._line)
        return optionstr.lower()


def _malformed(error: configparser.Error) -> str:
    """Return LINE: and what was expected there."""
    match error:
        case configparser.DuplicateSectionError():
            return f"{error.lineno}: [{error.section}] stands in this file twice: expected once"
        case configparser.DuplicateOptionError():
            return f"{error.lineno}: [{error.section}] {error.option} stands in this section twice: expected once"
        case configparser.MissingSectionHeaderError():
            return f"{error.lineno}: expected a [section] before anything else"
        case configparser.ParsingError():
            return f"{error.errors[0][0]}: expected a [section], name = value, or a comment"
    raise error


DEFAULT_CONF_DIR = Path("/etc/imageio-daemon")

_PIECES = "C chooses how much one read or write moves"
#: Options of ovirt-imageio and of earlier versions that are accepted without effect, with the reason.
IGNORED_OPTIONS = {
    "daemon": {"poll_interval": "nothing is polled", "loops": "there is one event loop"},
    "tls": {"enable_tls1_1": "TLS 1.2 is the least"},
    "remote": dict.fromkeys(("c_lane", "fast_lane"), "C moves all bytes of images"),
    "nbd": dict.fromkeys(("c_lane", "fast_lane"), "C serves all connections"),
    "control": {
        "prefer_ipv4": "over TCP the control service is on localhost",
        "notify": "the daemon runs no command and calls nobody; read GET /events, the metrics or `imageioctl top`",
    },
    "backend_file": {"buffer_size": _PIECES},
    "backend_http": {"buffer_size": _PIECES},
    "backend_nbd": {"buffer_size": _PIECES},
}
#: The same for whole sections. A name that ends with "_" is a prefix.
IGNORED_SECTIONS = {
    "profile": "there is no profiler",
    **dict.fromkeys(("loggers", "handlers", "formatters", "logger_", "handler_", "formatter_"), "see [log]"),
}


@dataclass(frozen=True)
class Loaded:
    """A configuration that was read from files.

    `warnings` has a line for each option that has no effect, and `places` FILE:LINE by section and option.
    """

    config: Config
    warnings: list[str] = field(default_factory=list)
    conf_dir: Path = DEFAULT_CONF_DIR
    places: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def check(self) -> None:
        """Check the constraints between options. Raises ConfigError, in one line, for the first violated one."""
        for conflict in conflicts(self.config):
            place = self.places.get((conflict.section, conflict.name), _conf_d(self.conf_dir))
            raise ConfigError(f"{place}: [{conflict.section}] {conflict.name}: expected {conflict.expected}")


def load(conf_dir: Path = DEFAULT_CONF_DIR) -> Loaded:
    """Read conf.d/*.conf in the order of their names; a later file overrides an earlier one.

    The default directory may be missing: then all options have their defaults. Raises ConfigError, in one line, for
    unreadable files, unknown names and invalid values.
    """
    reader = _Reader()
    for path in _files(conf_dir):
        for section in read_ini(path):
            reader.take(section)
    sections = {name: SECTIONS[name](**options) for name, options in reader.values.items()}
    return Loaded(Config(**sections), list(reader.warnings.values()), conf_dir, reader.places)


class _Reader:
    """Collect the values of all files."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
        self.places: dict[tuple[str, str], str] = {}
        self.warnings: dict[tuple[str, str], str] = {}

    def take(self, section: Section) -> None:
        """Add the options of a section; they override those of earlier files. Raises ConfigError."""
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
                self._set(name, entry)

    def _set(self, section: str, entry: Entry) -> None:
        self.values[section][entry.name] = _parse(section, entry)
        self.places[section, entry.name] = entry.place


def _parse(section: str, entry: Entry) -> object:
    """Return the value of an option, of its type and within its limits. Raises ConfigError."""
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
    # Hidden files may be leftovers of editors.
    return [directory / name for name in sorted(names) if name.endswith(".conf") and not name.startswith(".")]
