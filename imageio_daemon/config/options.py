# SPDX-License-Identifier: Apache-2.0
"""Kinds of configuration options: how a value is parsed, checked, written and explained.

Each function returns a dataclass field of one kind; :func:`describe` returns the description of a field.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..units import MAX_RATE, MAX_TENANT, MAX_TENANTS, MIN_RATE, GiB, KiB, MiB

_T = TypeVar("_T")

_SIZE_UNITS = {"": 1, "K": KiB, "M": MiB, "G": GiB}
#: The same words as configparser.getboolean() takes.
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class Option(NamedTuple):
    """The description of an option.

    `parse` converts text, and raises ValueError. `expected` tells the accepted values, with unit and limits. `write` is
    the inverse of `parse`, and `show` converts a value for JSON.
    """

    parse: Callable[[str], object]
    expected: str
    reason: str
    write: Callable[[Any], str] = str
    show: Callable[[Any], object] = lambda value: value


def describe(field: "dataclasses.Field[Any]") -> Option:
    """Return the description of an option."""
    option: Option = field.metadata["option"]
    return option


def flag(default: bool, reason: str) -> bool:
    """Make an option that is true or false."""
    return _field(
        default,
        Option(lambda text: _lookup(_FLAGS, text.lower()), "true or false", reason, lambda value: str(value).lower()),
    )


class Limits(NamedTuple):
    """The unit of a number, and its least and largest value."""

    unit: str
    least: int
    most: int


def number(default: int, limits: Limits, reason: str) -> int:
    """Make an option that is a whole number."""
    unit, least, most = limits
    return _field(
        default, Option(lambda text: _within(_digits(text), least, most), f"{unit}, {least} to {most}", reason)
    )


def size(default: int, reason: str, least: int, most: int) -> int:
    """Make an option that is a size in bytes; K, M and G are binary."""
    expected = f"bytes or with K, M, G, {_write_size(least)} to {_write_size(most)}"
    return _field(default, Option(lambda text: _size(text, least, most), expected, reason, _write_size))


def byte_rate(default: int, reason: str) -> int:
    """Make an option that is a limit in bytes per second; 0: none."""

    expected = f"bytes per second or with K, M, G, {_write_size(MIN_RATE)} to {_write_size(MAX_RATE)}; 0: no limit"
    return _field(default, Option(_rate, expected, reason, _write_rate))


def rates(default: tuple[tuple[str, int], ...], reason: str) -> tuple[tuple[str, int], ...]:
    """Make an option that is a list of NAME:RATE, with commas between them. A rate is written as for byte_rate()."""

    def parse(text: str) -> tuple[tuple[str, int], ...]:
        found = {}
        for part in filter(None, map(str.strip, text.split(","))):
            name, colon, value = (word.strip() for word in part.rpartition(":"))
            if not text.isprintable() or not colon or not name or len(name.encode()) > MAX_TENANT or name in found:
                raise ValueError(text)
            found[name] = _rate(value)
        if len(found) > MAX_TENANTS:
            raise ValueError(text)
        return tuple(found.items())

    def write(value: tuple[tuple[str, int], ...]) -> str:
        return ",".join(f"{name}:{_write_rate(rate)}" for name, rate in value)

    return _field(default, Option(parse, "NAME:RATE with commas between them, or nothing", reason, write, dict))


def mode(default: int, reason: str) -> int:
    """Make an option that is the mode of a file."""

    def parse(text: str) -> int:
        if not re.fullmatch("0?[0-7]{3}", text):
            raise ValueError(text)
        return int(text, 8)

    return _field(default, Option(parse, "an octal mode, 0000 to 0777", reason, "{:04o}".format, "{:04o}".format))


def choice(default: str, choices: tuple[str, ...], reason: str) -> str:
    """Make an option that is one of several words, in upper or lower case."""
    words = {word: word for word in choices}
    return _field(default, Option(lambda text: _lookup(words, text.lower()), " or ".join(choices), reason))


def text(default: str, what: str, reason: str) -> str:
    """Make an option that is printable text. It may be empty if its default is empty."""
    may_be_empty = not default

    def parse(text: str) -> str:
        if not text.isprintable() or not (text or may_be_empty):
            raise ValueError(text)
        return text

    return _field(default, Option(parse, f"{what}, or nothing" if may_be_empty else what, reason))


def directories(default: tuple[str, ...], reason: str) -> tuple[str, ...]:
    """Make an option that is a list of absolute paths with colons between them."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(path for path in text.split(":") if path)
        if not text.isprintable() or not all(path.startswith("/") for path in found):
            raise ValueError(text)
        return found

    return _field(default, Option(parse, "absolute paths with : between them, or nothing", reason, ":".join, list))


def pools(default: tuple[str, ...], reason: str) -> tuple[str, ...]:
    """Make an option that is a list of POOL or POOL/NAMESPACE of Ceph, with commas between them."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(name for part in text.split(",") if (name := part.strip()))
        if not text.isprintable() or not all(re.fullmatch("[^/@]+(/[^/@]+)?", name) for name in found):
            raise ValueError(text)
        return found

    allowed = "POOL or POOL/NAMESPACE with commas between them, or nothing"
    return _field(default, Option(parse, allowed, reason, ",".join, list))


def unix_address(default: str, reason: str) -> str:
    r"""Make an option that is a path or an abstract name; `\0NAME` is the same as `@NAME`."""

    def parse(text: str) -> str:
        address = re.sub(r"^(\0|\\0)", "@", text)
        if not address.isprintable() or address == "@":
            raise ValueError(text)
        return address

    return _field(default, Option(parse, "a path, @NAME for an abstract name, or nothing", reason))


def _field(default: _T, option: Option) -> _T:
    return dataclasses.field(default=default, metadata={"option": option})


def _digits(text: str) -> int:
    # int() would also accept "1_000", "+1" and digits of other scripts.
    if not re.fullmatch("-?[0-9]{1,20}", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def _size(text: str, least: int, most: int) -> int:
    unit = text[-1:].upper()
    if unit.isdigit():
        unit = ""
    return _within(_digits(text[: len(text) - len(unit)]) * _lookup(_SIZE_UNITS, unit), least, most)


def _rate(text: str) -> int:
    return 0 if text == "0" else _size(text, MIN_RATE, MAX_RATE)


def _within(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(value)
    return value


def _lookup(values: dict[str, _T], key: str) -> _T:
    if key not in values:
        raise ValueError(key)
    return values[key]


def _write_rate(value: int) -> str:
    return _write_size(value) if value else "0"


def _write_size(value: int) -> str:
    unit = max((u for u in _SIZE_UNITS if value % _SIZE_UNITS[u] == 0 and value), key=_SIZE_UNITS.__getitem__)
    return f"{value // _SIZE_UNITS[unit]}{unit}"
