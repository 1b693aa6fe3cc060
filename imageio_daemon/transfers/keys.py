# SPDX-License-Identifier: Apache-2.0
"""Checks of the keys in a ticket's document. Functions raise InvalidRequest, whose text never has the ticket id."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from ..errors import InvalidRequest
from ..image.formats import FORMATS
from ..units import MAX_OFFSET, MAX_RATE, MIN_RATE
from ..urls import http as http_url
from ..urls import nbd as nbd_url
from ..urls import rbd as rbd_url

#: The longest ticket id, in bytes of UTF-8. The id is the name of an NBD export, and clients may refuse names of more
#: than 256 bytes.
MAX_ID = 255
#: The longest url, file name and transfer id, in bytes of UTF-8. PATH_MAX is 4096 with its NUL.
MAX_URL = 4096 + 256
MAX_FILENAME = 1024
MAX_TRANSFER_ID = 255
#: The largest size. Programs send 2**64 and more for "no limit". A number with more digits than 2**128 is refused.
MAX_SIZE = 10**39 - 1
#: The longest name of a bitmap, in bytes: the limit of qcow2.
MAX_BITMAP = 1023

FILE_URL = "file://"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_T = TypeVar("_T")


def required(data: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    """Return the value of a key that every ticket has."""
    if key not in data:
        raise InvalidRequest(f"Invalid ticket: missing {key!r}")
    return typed(data[key], key, kind)


def optional(data: Mapping[str, Any], key: str, kind: type[_T], default: Any) -> Any:
    """Return the value of a key, or the default if the key is missing."""
    return typed(data[key], key, kind) if key in data else default


def typed(value: object, key: str, kind: type[_T]) -> _T:
    """Return the value if it has this type."""
    # bool is a subclass of int, but true is not a size.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidRequest(f"Invalid ticket: {key!r} must be of type {kind.__name__}")
    return value


def number(value: int, key: str, least: int, most: int = MAX_OFFSET) -> int:
    """Return the number if it is between two limits, both included."""
    if not least <= value <= most:
        raise InvalidRequest(f"Invalid ticket: {key!r} must be between {least} and {most}")
    return value


def text(value: str, key: str, limit: int, *, empty: bool = True, errors: str = "strict") -> str:
    """Return the text if it can be encoded in at most `limit` bytes of UTF-8. `errors` is as in encode().

    JSON can contain lone surrogates, which are not valid text. In file names, those of PEP 383 stand for bytes that are
    not UTF-8: "\\udcff" for the byte 0xff.
    """
    if not value and not empty:
        raise InvalidRequest(f"Invalid ticket: {key!r} is empty")
    try:
        size = len(value.encode(errors=errors))
    except UnicodeEncodeError:
        size = limit + 1
    if size > limit:
        raise InvalidRequest(f"Invalid ticket: {key!r} must be valid text of at most {limit} bytes")
    return value


def image_url(value: str) -> str:
    """Return the url if its scheme is known and its form is right."""
    is_file = value.startswith(FILE_URL)
    text(value, "url", MAX_URL, empty=False, errors="surrogateescape" if is_file else "strict")
    if "\0" in value:
        raise InvalidRequest("Invalid ticket: 'url' holds a NUL character")
    kinds = ((nbd_url.is_nbd, nbd_url.parse), (http_url.is_http, http_url.parse), (rbd_url.is_rbd, rbd_url.parse))
    for is_its, parse in kinds:
        if is_its(value):
            parse(value)
            return value
    if not is_file:
        supported = ", ".join(("file", "https", *nbd_url.SCHEMES, rbd_url.SCHEME))
        raise InvalidRequest(f"Invalid ticket: unsupported url scheme, supported: {supported}")
    if not value.startswith(FILE_URL + "/"):
        raise InvalidRequest("Invalid ticket: a file url names an absolute path: file:///path")
    return value


def image_format(value: str, url: str) -> str:
    """Return the format of the image at a url."""
    if value not in FORMATS:
        raise InvalidRequest(f"Invalid ticket: unknown 'format', known: {', '.join(FORMATS)}")
    if value != "raw" and not url.startswith(FILE_URL):
        raise InvalidRequest("Invalid ticket: 'format' is for file urls; other servers know theirs")
    return value


def bitmap(value: str | None) -> str | None:
    """Return the name of a bitmap."""
    if value is not None and (not value or _CONTROL.search(value)):
        raise InvalidRequest("Invalid ticket: 'bitmap' is empty or holds control characters")
    return None if value is None else text(value, "bitmap", MAX_BITMAP)


def since(value: str | None, url: str) -> str | None:
    """Return the name of the snapshot with which an image on Ceph is compared."""
    if value is not None and not rbd_url.is_name(value):
        raise InvalidRequest("Invalid ticket: 'since' is no name of a snapshot")
    if value is not None and not rbd_url.is_rbd(url):
        raise InvalidRequest("Invalid ticket: 'since' is for rbd urls")
    return value


def rate(data: Mapping[str, Any]) -> int | None:
    """Return the rate in bytes per second, 0 for no limit, or None if the document has none."""
    if "rate" not in data:
        return None
    value = typed(data["rate"], "rate", int)
    if value and not MIN_RATE <= value <= MAX_RATE:
        raise InvalidRequest(f"Invalid ticket: 'rate' must be 0, for no limit, or between {MIN_RATE} and {MAX_RATE}")
    return value


def given_text(data: Mapping[str, Any], key: str, limit: int, *, empty: bool = True) -> str | None:
    """Return the text of a key, or None if the key is missing."""
    return text(typed(data[key], key, str), key, limit, empty=empty) if key in data else None


def filename(value: str | None) -> str | None:
    """Return the name if it can stand in a header field."""
    if value is None:
        return None
    if _CONTROL.search(value):
        raise InvalidRequest("Invalid ticket: 'filename' holds control characters")
    return text(value, "filename", MAX_FILENAME)
