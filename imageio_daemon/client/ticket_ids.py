# SPDX-License-Identifier: Apache-2.0
"""Ticket ids that are given apart from the URL, because all users of a host can read the arguments of processes."""

from collections.abc import Iterable, Mapping, Sequence

from ..units import KiB
from .errors import LocalError, Usage
from .server.address import has_ticket, with_ticket

#: The environment variable with one id, or with several on a line each.
VARIABLE = "IMAGEIO_TICKET"
STANDARD_INPUT = "-"
#: What is before the ticket in a URL.
_PLACES = ("/images/", "/ui/#")
#: Most bytes of a file of tickets: room for 250 of the longest ids.
MAX_FILE = 64 * KiB


def complete(urls: Sequence[str], file: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return the URLs of images, each with its ticket. URLs without one get the given ids in their order.

    The file has an id on each line; `-` is standard input. Without a file, the ids are in IMAGEIO_TICKET. Raises Usage,
    LocalError.
    """
    lacking = [url for url in urls if not has_ticket(url)]
    if file is None and not lacking:
        return list(urls)
    given = _checked(environment.get(VARIABLE, "")) if file is None else _read(file)
    ids = [line.strip() for line in given.splitlines() if line.strip()]
    if not ids and file is None:
        raise Usage(f"the URL has no ticket: https://HOST:PORT/images/TICKET, --ticket-file FILE, or {VARIABLE}")
    if len(ids) != len(lacking):
        raise Usage(f"there are {len(ids)} tickets for {len(lacking)} URLs without one")
    left = iter(ids)
    return [url if has_ticket(url) else with_ticket(url, next(left)) for url in urls]


def without_tickets(message: str, arguments: Iterable[object]) -> str:
    """Return the message without the tickets of URLs among the arguments, which may be in the place of a file.

    An argument is a text or a list of texts. Its URL may lack the scheme. What has a suffix is a file of a web server.
    """
    texts = [text for given in arguments for text in (given if isinstance(given, list) else [given])]
    for text in texts:
        for place in _PLACES:
            origin, found, ticket = text.partition(place) if isinstance(text, str) else ("", "", "")
            if ":" in origin and ticket and "." not in ticket:
                message = message.replace(found + ticket, f"{found}…")
    return message


def _checked(given: str) -> str:
    try:
        given.encode()
    except UnicodeEncodeError as e:
        raise Usage(f"{VARIABLE} has no ticket: it is not UTF-8") from e
    return given


def _read(file: str) -> str:
    try:
        # Not sys.stdin, which has the encoding of the locale.
        with open(0 if file == STANDARD_INPUT else file, "rb", closefd=file != STANDARD_INPUT) as source:
            content = source.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise Usage(f"a file of tickets has at most {MAX_FILE} bytes")
        return content.decode()
    except OSError as e:
        # Who gives the ticket itself must not find it in a log. Names of files mostly have one of these characters.
        name = _named(file) if "/" in file or "." in file else "the file of --ticket-file"
        raise LocalError(f"can't read the ticket from {name}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise Usage(f"{_named(file)} is no list of tickets: it is not UTF-8") from e


def _named(file: str) -> str:
    return "standard input" if file == STANDARD_INPUT else file
