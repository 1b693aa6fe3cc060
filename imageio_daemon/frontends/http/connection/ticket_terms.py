# SPDX-License-Identifier: Apache-2.0
"""The terms of an HTTP lane: what the ticket allows, and templates of the answers to successful requests."""

from functools import lru_cache

from ....lanes.http import DATE, FIRST, LAST, LENGTH, ORIGIN, HttpTerms
from ....storage.backend import Backend
from ....transfers.ticket import Access, Ticket
from ..conditions import entity_tag
from ..cors import cors_headers
from ..responses import head_template, range_headers, whole_headers
from .framing import RequestHead

#: Number of tickets whose terms are cached. Making terms takes 12 us of the 150 us of a connection with one request.
KNOWN_TERMS = 64
#: The prefix of an image's path.
IMAGES = "/images/"
#: The fields of an answer to a request with Origin, except preflight requests (the Fetch standard, CORS protocol).
_ORIGIN_ANSWERED = "".join(f"{name}: {value}\r\n" for name, value in cors_headers({"origin": ""}, "").items()).encode()


def ticket_id(head: RequestHead) -> str:
    """Return the ticket id in the target of a plain request."""
    return head.target.partition("?")[0].removeprefix(IMAGES)


def terms_of(ticket: Ticket, backend: Backend, *, writable: bool) -> HttpTerms:
    """Return the terms of a ticket and its image as it is now. `writable` is that of its Permission."""
    if ticket.may(Access.WRITE):
        return _make_terms(ticket, None, 0, writable)
    return _make_terms(ticket, backend.info.identity, backend.generation, writable)


@lru_cache(KNOWN_TERMS)
def _make_terms(ticket: Ticket, identity: object, generation: int, writable: bool) -> HttpTerms:
    tag = entity_tag(identity, ticket.size, generation)
    tagged = {} if tag is None else {"ETag": tag}
    part = range_headers(ticket, FIRST, LAST, ticket.size)
    return HttpTerms(
        size=ticket.size,
        timeout=ticket.inactivity_timeout,
        read_only=not writable,
        sparse=ticket.sparse,
        count_reads=ticket.counts(Access.READ),
        count_writes=ticket.counts(Access.WRITE),
        target=f"{IMAGES}{ticket.ticket_id}".encode(),
        done=head_template(200, {}, "0", DATE, more=ORIGIN),
        partial=head_template(206, part | tagged, LENGTH, DATE, more=ORIGIN),
        whole=head_template(200, whole_headers(ticket) | tagged, LENGTH, DATE, more=ORIGIN),
        generation=generation,
        origin=_ORIGIN_ANSWERED,
    )
