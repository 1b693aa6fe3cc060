# SPDX-License-Identifier: Apache-2.0
"""The answer to OPTIONS (docs/images-api.md): what the other server can do, as far as the ticket allows it."""

import json
from collections.abc import Iterable

from ....transfers.ticket import Access, Ticket
from .way import Way

#: Keys that are passed on unchanged, to all clients and to those that may write.
_PASSED = ("zero_state", "finalized", "instance")
_PASSED_TO_WRITERS = ("available",)


def options_of(text: bytes, way: Way) -> dict[str, object]:
    """Return the document of an answer to OPTIONS. Raises WayGone if it is not a JSON object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise way.gone("OPTIONS without a JSON object")
    return document


def names(document: dict[str, object], key: str, way: Way) -> list[str]:
    """Return the list of names under a key, empty if there is no such key. Raises WayGone if it is no list of names."""
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise way.gone(f"OPTIONS with invalid {key}")
    return value


#: Features that are not passed on: lists of digests, which come while the image is read, and NBD, which is not HTTP.
NOT_PASSED = ("checksum_blocks", "nbd")


def translated(
    document: dict[str, object], ticket: Ticket, most: int, reads: Iterable[str], way: Way
) -> dict[str, object]:
    """Return the document for the client. `most` is how many connections this daemon recommends.

    `reads` are the features of tickets that only read. The other server's unix socket is left out, because it is on
    that server's host. Raises WayGone.
    """
    writable = ticket.may(Access.WRITE)
    features = names(document, "features", way)
    answer: dict[str, object] = {
        "features": [each for each in features if each not in NOT_PASSED and (writable or each in reads)],
        "max_readers": _number(document, "max_readers", most, way),
        "max_writers": _number(document, "max_writers", most, way),
    }
    if ticket.declared_size is None or "max_size" in document:
        answer["max_size"] = _number(document, "max_size", ticket.size, way)
    answer["fast_zero"] = writable and document.get("fast_zero") is True
    passed = _PASSED + (_PASSED_TO_WRITERS if writable else ())
    answer |= {key: document[key] for key in passed if key in document}
    if writable:
        answer["encodings"] = names(document, "encodings", way)
    return answer


def _number(document: dict[str, object], key: str, most: int, way: Way) -> int:
    value = document.get(key, most)
    if type(value) is not int or value < 0:
        raise way.gone(f"OPTIONS with an invalid {key}")
    return min(value, most)
