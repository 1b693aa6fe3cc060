# SPDX-License-Identifier: Apache-2.0
"""Bytes and seconds as text, for messages to users and arguments of commands."""

import argparse
import re

from ..units import MAX_OFFSET, GiB, KiB, MiB, TiB

MAX_SECONDS = 10**9

_UNITS = {"": 1, "K": KiB, "M": MiB, "G": GiB, "T": TiB}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def human(size: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def duration(seconds: float) -> str:
    """Format a time as minutes and seconds, or from one hour on as hours and minutes."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60}:{whole % 60:02}"


def parse_size(text: str) -> int:
    """Parse a number of bytes, with a suffix K, M, G or T for binary multiples. Raises ArgumentTypeError."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes like 512, 64K or 10G")
    if (value := int(number) * _UNITS[unit]) > MAX_OFFSET:
        raise argparse.ArgumentTypeError(f"{text!r} is more than an image can have, {MAX_OFFSET}")
    return value


def parse_seconds(text: str) -> int:
    """Parse a time in seconds, or with a suffix s, m, h or d. Raises ArgumentTypeError."""
    number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    if not re.fullmatch("[0-9]{1,9}", number) or unit not in _SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 90, 30m or 2h")
    return int(number) * _SECONDS[unit]
