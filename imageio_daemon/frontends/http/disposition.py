# SPDX-License-Identifier: Apache-2.0
"""The field Content-Disposition (RFC 6266), which tells the name of an image."""

import re
from urllib.parse import quote

#: A name without quotes (RFC 9110 5.6.2), and without escapes that programs read differently (RFC 6266 appendix D).
_TOKEN = re.compile(r"[!#$&+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: Characters that are not put into quotes. Some programs decode % and two digits there, and take \ as part of the name.
_NOT_PLAIN = re.compile(r"[^ !#$&-\[\]-~]")
#: Characters that are not escaped in an extended value (attr-char, RFC 8187 3.2.1), as letters, digits and -._~
_ATTRIBUTE_SAFE = "!#$&+^`|"
#: Most characters of the name for programs that do not know extended values: the last ones, with the suffix. No file
#: system has longer names, and the answers of a lane have room for it beside the longest name with all bytes escaped.
MAX_FALLBACK = 255


def content_disposition(name: str | None) -> str:
    """Return the value of the field for an image with this name, or without one. `name` has no control characters.

    A name with characters that a quoted string cannot have comes twice. First, for programs that know no extended
    values, with `_` in place of each such character; then whole, as an extended value (RFC 8187).
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
