# SPDX-License-Identifier: Apache-2.0
"""The wanted differences from the earlier build, each with its reason and a check of the new answers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from imageio_daemon.frontends.http.responses import content_disposition
from imageio_daemon.nbdproto.constants import Command, CommandFlag
from tests.differential.changes import (
    compares_with_none,
    cuts_ranges,
    differs_in_announcing,
    differs_in_codings,
    differs_in_conditions,
    differs_in_telling,
    ends_with_last_answer,
    keeps_holes,
    knows_no_method,
    leaves_out_100,
    passes_no_qcow2,
    serves_options,
    tells_more,
    tells_tags,
    zeroes_fast,
)
from tests.differential.conversation import Conversation, End, Told, Transcript
from tests.frontends.nbd.asks import Ask
from tests.support.places import Managed, Proxied


@dataclass(frozen=True)
class Wanted:
    """A wanted difference.

    `concerns` returns whether a conversation may have it, and `is_one` whether an old and a new transcript differ only
    by it. With a `kind`, it is wanted only for images at this kind of place. With `changes`, the images may differ
    afterwards.
    """

    reason: str
    concerns: Callable[[Conversation], bool]
    is_one: Callable[[Transcript, Transcript], bool]
    kind: str | None = None
    changes: bool = False


def says(pattern: bytes) -> Callable[[Conversation], bool]:
    """Return a function that returns whether the client sends a match of the pattern in a conversation."""
    compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    return lambda conversation: any(compiled.search(b"".join(each.pieces)) for each in conversation.rounds)


def may_be_cut(conversation: Conversation) -> bool:
    """Return whether the client may end in the middle of a body."""
    return conversation.end is End.ENDS_SENDING


PROXY, QCOW2 = Proxied.kind, Managed.kind

#: All of them.
WANTED: Sequence[Wanted] = (
    Wanted(
        "a request in chunks ends its connection, so a proxy that sees another end of it finds no request behind it",
        says(rb"^transfer-encoding:"),
        ends_with_last_answer,
    ),
    Wanted(
        "aiohttp announces the end of the connection to clients that asked for it, and to those of HTTP/1.0",
        says(rb"^connection: *close| HTTP/1\.0\r"),
        differs_in_announcing,
    ),
    Wanted(
        "an answer to HEAD never has a body",
        says(rb"^HEAD "),
        lambda before, now: before.end.startswith("no HTTP") and not now.end.startswith("no HTTP"),
    ),
    Wanted(
        "a client that ends TLS in the middle of a body, without close_notify, is answered by C, and not by aiohttp",
        may_be_cut,
        differs_in_telling,
    ),
    Wanted(
        "OPTIONS has new keys: the most size of the image, codings of bodies, a proof of the socket",
        says(rb"^OPTIONS "),
        tells_more,
    ),
    Wanted("a range has the tag of the whole image (RFC 9110 15.3.7)", says(rb"^range:"), tells_tags),
    Wanted(
        "If-None-Match: * prevents reads and changes of an image that exists (RFC 9110 13.1.2)",
        says(rb"^if-none-match: *\*"),
        compares_with_none,
        changes=True,
    ),
    Wanted("a range that ends past the image is cut there (RFC 9110 14.1.2)", says(rb"^range:"), cuts_ranges),
    Wanted("HTTP/1.0 has no 100 Continue (RFC 9110 10.1.1)", says(rb" HTTP/1\.0\r(?s:.*)^expect:"), leaves_out_100),
    Wanted("OPTIONS * returns the methods of the server (RFC 9110 9.3.7)", says(rb"^OPTIONS \* "), serves_options),
    Wanted("an image of another server has the tag of that server", says(rb"^(GET|HEAD) "), tells_tags, PROXY),
    Wanted("another server decides if it zeroes fast", says(rb'"fast": ?true'), zeroes_fast, PROXY, changes=True),
    Wanted("a part of a cluster is zeroed fast (ADR 55)", says(rb'"fast": ?true'), zeroes_fast, QCOW2, changes=True),
    Wanted(
        "a zero of a part of a hole leaves the hole, with a sparse ticket",
        says(rb"^GET .*/extents"),
        keeps_holes,
        QCOW2,
    ),
    Wanted(
        "OPTIONS of an image of another server has that server's features: fast zeros, durable ranges",
        says(rb"^OPTIONS "),
        partial(tells_more, but="fast_zero"),
        PROXY,
    ),
    Wanted("files in the format qcow2 are not passed on (ADR 61)", says(rb"^OPTIONS "), passes_no_qcow2, PROXY),
    Wanted("415 names the coding that is served", says(rb"^content-encoding:"), differs_in_codings),
    Wanted(
        "a method that the server does not know is answered 405 on each path (RFC 9110 15.5.6)",
        says(rb"^(?!(?-i:OPTIONS|GET|HEAD|PUT|PATCH|DELETE|POST) )\S+ /"),
        knows_no_method,
    ),
    Wanted("412 names the condition that does not hold", says(rb"^if-(none-)?match:"), differs_in_conditions),
)


def is_wanted(conversation: Conversation, kind: str, before: Transcript, now: Transcript) -> bool:
    """Return whether the difference of two transcripts is wanted. `kind` is that of the place of the image."""
    before, now = _comparable(before, now)
    return before == now or any(_wanted(conversation, kind, before, now))


def changes_images(conversation: Conversation, kind: str, before: Transcript, now: Transcript) -> bool:
    """Return whether the difference is wanted, and the images may differ afterwards."""
    return any(wanted.changes for wanted in _wanted(conversation, kind, *_comparable(before, now)))


def _comparable(before: Transcript, now: Transcript) -> tuple[Transcript, Transcript]:
    """Return both transcripts without the fields that differ in every answer."""
    return without_caches(with_quoted_names(before)), without_caches(now)


def _wanted(conversation: Conversation, kind: str, before: Transcript, now: Transcript) -> list[Wanted]:
    """Return the wanted differences that explain this one."""
    return [
        wanted
        for wanted in WANTED
        if before.answers
        and wanted.kind in (None, kind)
        and wanted.concerns(conversation)
        and wanted.is_one(before, now)
    ]


def without_caches(transcript: Transcript) -> Transcript:
    """Return the answers without the fields for caches and nginx, which earlier builds do not send."""

    def told(answer: Told) -> Told:
        return answer._replace(fields=tuple(each for each in answer.fields if each not in _FOR_CACHES))

    return replace(transcript, answers=[told(answer) for answer in transcript.answers])


_FOR_CACHES = (("cache-control", "no-store"), ("x-accel-buffering", "no"))


def with_quoted_names(transcript: Transcript) -> Transcript:
    """Return the answers with the names of images quoted, as RFC 6266 has it. Answers with an image have a name."""
    start, quoted = "attachment; filename=", 'attachment; filename="'

    def told(answer: Told) -> Told:
        fields = (
            (key, content_disposition(value.removeprefix(start)))
            if value.startswith(start) and not value.startswith(quoted)
            else (key, value)
            for key, value in answer.fields
        )
        return answer._replace(fields=tuple(fields))

    return replace(transcript, answers=[told(answer) for answer in transcript.answers])


#: NBD_INFO_BLOCK_SIZE: the least, the preferred, and the largest size of a request.
_BLOCK_SIZES = re.compile(rb"(?<=\x00\x03\x00\x00\x00\x01).{4}(?=\x02\x00\x00\x00)", re.DOTALL)


def without_preferred_size(replies: bytes) -> bytes:
    """Return replies to options without the preferred size, which with TLS is now the same as without."""
    return _BLOCK_SIZES.sub(b"PREF", replies)


def without_fast_zeros(ask: Ask, kind: str) -> Ask:
    """Return a request without the flag for fast zeros, if the image is one whose earlier server refused some of them.

    Which ones succeed now is wanted, as over HTTP.
    """
    if kind == QCOW2 and ask.command == Command.WRITE_ZEROES:
        return ask._replace(flags=ask.flags & ~CommandFlag.FAST_ZERO)
    return ask
