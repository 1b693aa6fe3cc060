# SPDX-License-Identifier: Apache-2.0
"""Text for people: names are chosen by others, and may be any bytes."""

import json
import re

_BARE_VALUE = re.compile(r'[^\s"=]+')


def printable(text: str) -> str:
    """Return a text as one line that changes no terminal and can be encoded.

    Control characters, separators of lines, marks of direction and lone surrogates are escaped. Bytes that are not
    UTF-8, which names have as surrogates (PEP 383), become `\\xff`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def quoted(value: object) -> str:
    """Return a value of name=value, as log and events have it: in quotes if it could look like another pair."""
    text = str(value)
    return text if _BARE_VALUE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
