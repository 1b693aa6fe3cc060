# SPDX-License-Identifier: Apache-2.0
"""Safe text for people. Others choose the names of files and images, which may be any bytes."""

import json
import re

_BARE_VALUE = re.compile(r'[^\s"=]+')


def printable(text: str) -> str:
    """Return a text as one line that has no effect on a terminal and can be encoded.

    Control characters, separators of lines, marks of direction and lone surrogates are escaped. Names have surrogates
    for bytes that are not UTF-8 (PEP 383), which become like `\\xff`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def quoted(value: object) -> str:
    """Return the value for a pair name=value, as in log lines and events. Quote it if it could look like a pair."""
    text = str(value)
    return text if _BARE_VALUE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
