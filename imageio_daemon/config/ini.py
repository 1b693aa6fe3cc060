# SPDX-License-Identifier: Apache-2.0
"""A parser of INI files that keeps the line of each section and option."""

import configparser
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError


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


def read(path: Path) -> list[Section]:
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
