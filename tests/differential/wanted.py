# SPDX-License-Identifier: Apache-2.0
"""The wanted differences from the earlier build, each with its reason and a check of the new answers."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from imageio_daemon.frontends.http.responses import content_disposition
from tests.differential.conversation import Conversation, End, Told, Transcript
from tests.support.places import Proxied


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


def ends_with_last_answer(before: Transcript, now: Transcript) -> bool:
    """Return whether the answers differ only in that the last one now ends the connection, and says so."""
    *others, last = before.answers
    return now == replace(before, answers=[*others, closing(last)], end="closed")


def differs_in_telling(before: Transcript, now: Transcript) -> bool:
    """Return whether the transcripts differ at most in the answer that the body is too short."""
    return _without_short_body(before) == _without_short_body(now)


def differs_in_announcing(before: Transcript, now: Transcript) -> bool:
    """Return whether the answers differ at most in whether they announce the end of the connection."""
    return _unannounced(before) == _unannounced(now)


def differs_in_codings(before: Transcript, now: Transcript) -> bool:
    """Return whether only refusals of a coding differ, in their text and in the coding that they recommend."""
    return _without_texts(before, 415) == _without_texts(now, 415)


def differs_in_conditions(before: Transcript, now: Transcript) -> bool:
    """Return whether only refusals of a condition differ, in their text."""
    return _without_texts(before, 412) == _without_texts(now, 412)


def _without_texts(transcript: Transcript, status: int) -> Transcript:
    """Return the answers without the text of those with this status, and without the coding that they recommend."""

    def told(answer: Told) -> Told:
        if answer.status != status:
            return answer
        fields = tuple(field for field in answer.fields if field[0] not in ("accept-encoding", "content-length"))
        return answer._replace(fields=fields, body=b"")

    return replace(transcript, answers=[told(answer) for answer in transcript.answers])


def knows_no_method(before: Transcript, now: Transcript) -> bool:
    """Return whether only refusals differ: 404 before, and 405 for a method that the server does not know."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    return (
        len(before.answers) == len(now.answers)
        and before.end == now.end
        and all(
            old == new or (old.status == 404 and new.status == 405 and b"is not allowed here" in (new.body or b""))
            for old, new in pairs
        )
    )


def tells_more(before: Transcript, now: Transcript, but: str = "") -> bool:
    """Return whether only JSON documents differ, by new keys and elements. The key `but` may have any value."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    return (
        len(before.answers) == len(now.answers)
        and before.end == now.end
        and all(_has_more(*each, but) for each in pairs)
    )


def _has_more(before: Told, now: Told, but: str) -> bool:
    if before == now:
        return True
    fields = [{k: v for k, v in told.fields if k != "content-length"} for told in (before, now)]
    if before.status != now.status or fields[0] != fields[1]:
        return False
    try:
        told = [json.loads(each.body or b"") for each in (before, now)]
    except ValueError:
        return False
    return all(isinstance(each, dict) for each in told) and all(
        key in told[1] and (key == but or _is_part(value, told[1][key])) for key, value in told[0].items()
    )


def passes_no_qcow2(before: Transcript, now: Transcript) -> bool:
    """Return whether only JSON documents differ, by new keys and the feature `qcow2`, which is not passed on."""
    answers = [_without_qcow2(told) for told in before.answers]
    return tells_more(replace(before, answers=answers), now, but="fast_zero")


def _without_qcow2(told: Told) -> Told:
    return told._replace(body=told.body.replace(b'"qcow2", ', b"")) if told.body else told


def _is_part(before: object, now: object) -> bool:
    """Return whether a value is the same, or a list with new elements."""
    if isinstance(before, list) and isinstance(now, list):
        return [each for each in now if each in before] == before
    return before == now


def _unannounced(transcript: Transcript) -> Transcript:
    return replace(transcript, answers=[silent(told) for told in transcript.answers])


def _without_short_body(transcript: Transcript) -> Transcript:
    if not transcript.answers:
        return transcript
    *others, last = transcript.answers
    short = last.status == 400 and (last.body or b"").startswith(b"The request's body is shorter")
    return replace(transcript, answers=others) if short else transcript


def may_be_cut(conversation: Conversation) -> bool:
    """Return whether the client may end in the middle of a body."""
    return conversation.end is End.ENDS_SENDING


def silent(told: Told) -> Told:
    """Return the answer without its announcement of whether the connection ends."""
    return told._replace(fields=tuple(field for field in told.fields if field[0] != "connection"))


def closing(told: Told) -> Told:
    """Return the answer with the announcement that it closes the connection."""
    return told._replace(fields=tuple(sorted([*silent(told).fields, ("connection", "close")])))


def cuts_ranges(before: Transcript, now: Transcript) -> bool:
    """Return whether only refused ranges differ: they are served now, or the refusal has the size of the image."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    cut = [
        old
        for old, new in pairs
        if old.status == 416 and new.status in (206, 416) and "content-range" in dict(new.fields)
    ]
    same = [old for old, new in pairs if old == new]
    return bool(cut) and len(before.answers) == len(now.answers) == len(cut) + len(same) and before.end == now.end


def leaves_out_100(before: Transcript, now: Transcript) -> bool:
    """Return whether the new transcript lacks only the answers 100, and ends with a closed connection."""
    return now == Transcript([told for told in before.answers if told.status != 100], "closed")


def serves_options(before: Transcript, now: Transcript) -> bool:
    """Return whether only requests differ that were refused as malformed, and are answered with Allow now."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    served = [old for old, new in pairs if old.status == 400 and new.status == 200 and "allow" in dict(new.fields)]
    same = [old for old, new in pairs if old == new]
    return bool(served) and len(before.answers) == len(now.answers) == len(served) + len(same)


def compares_with_none(before: Transcript, now: Transcript) -> bool:
    """Return whether only successful requests differ that now get 304 or 412, because If-None-Match is respected."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    met = [old for old, new in pairs if old.status in (200, 206) and new.status in (304, 412)]
    same = [old for old, new in pairs if old == new]
    return bool(met) and len(before.answers) == len(now.answers) == len(met) + len(same) and before.end == now.end


def tells_tags(before: Transcript, now: Transcript) -> bool:
    """Return whether the answers differ only in tags that the earlier ones do not have."""

    def untagged(old: Told, new: Told) -> Told:
        had = any(key == "etag" for key, _ in old.fields)
        return new if had else new._replace(fields=tuple(field for field in new.fields if field[0] != "etag"))

    if len(before.answers) != len(now.answers):
        return False
    pairs = zip(before.answers, now.answers, strict=True)
    return before == replace(now, answers=[untagged(old, new) for old, new in pairs])


def zeroes_fast(before: Transcript, now: Transcript) -> bool:
    """Return whether only fast zeros differ that were refused, because the daemon did not ask, and succeed now."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    done = [old for old, new in pairs if ("x-error-code", "not_fast") in old.fields and new.status == 200]
    same = [old for old, new in pairs if old == new]
    return bool(done) and len(before.answers) == len(now.answers) == len(done) + len(same) and before.end == now.end


PROXY = Proxied.kind

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
