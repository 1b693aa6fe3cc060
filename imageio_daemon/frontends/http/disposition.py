# SPDX-License-Identifier: Apache-2.0
"""The field Content-Disposition (RFC 6266), in which the name of an image stands."""

import re
from urllib.parse import quote

#: A name that needs no quotes (RFC 9110 5.6.2), and no escapes that programs read differently (RFC 6266 appendix D).
_TOKEN = re.compile(r"[!#$&+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: What a quoted string does not have here: some programs decode % and two digits, and take \ for a part of the name.
_NOT_PLAIN = re.compile(r"[^ !#$&-\[\]-~]")
#: What stands for itself in an extended value (attr-char, RFC 8187 3.2.1), besides letters, digits and -._~
_ATTRIBUTE_SAFE = "!#$&+^`|"
#: Characters of the name for programs that do not know extended values: the last ones, with the suffix. No file system
#: has longer names, and the answers of a lane have room for this one and a longest name, all escaped.
MAX_FALLBACK = 255


def content_disposition(name: str | None) -> str:
    """Return the value of the field for an image that has this name, or none. name: without control characters.

    A name of other characters than those of a quoted string comes twice: whole, as an extended value (RFC 8187), and
    before that with `_` for each of them, for programs that know no extended values.
    """
    if not name:
        return "attachment"
    if _TOKEN.fullmatch(name):
        return f"attachment; filename={name}"
    plain = _NOT_PLAIN.sub("_", name)
    if plain == name:
        return f'attachment; filename="{name}"'
    extended = quote(name, safe=_ATTRIBUTE_SAFE)
    return f"attachment; filename=\"{plain[-MAX_FALLBACK:]}\"; filename*=UTF-8''{extended}"
