# SPDX-License-Identifier: Apache-2.0
"""Differences from the earlier build that are wanted: each with its reason, and what the new answer is."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.differential.conversation import Conversation, End, Told, Transcript


@dataclass(frozen=True)
class Wanted:
    """A difference. concerns: tells the conversations; is_one: tells the old transcript with the new one."""

    reason: str
    concerns: Callable[[Conversation], bool]
    is_one: Callable[[Transcript, Transcript], bool]


def says(pattern: bytes) -> Callable[[Conversation], bool]:
    """Return what tells a conversation in which the client says something."""
    compiled = re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    return lambda conversation: any(compiled.search(b"".join(each.pieces)) for each in conversation.rounds)


def ends_with_last_answer(before: Transcript, now: Transcript) -> bool:
    """Tell whether the same answers come, but the last one tells that the connection ends, and it does."""
    *others, last = before.answers
    return now == replace(before, answers=[*others, closing(last)], end="closed")


def differs_in_telling(before: Transcript, now: Transcript) -> bool:
    """Tell whether the client is told that its body is too short, or is not."""
    return _without_short_body(before) == _without_short_body(now)


def differs_in_announcing(before: Transcript, now: Transcript) -> bool:
    """Tell whether an answer tells that the connection ends, or does not."""
    return _unannounced(before) == _unannounced(now)


def differs_in_codings(before: Transcript, now: Transcript) -> bool:
    """Tell whether codings that are refused are refused with other words, and the one that is served is named."""
    return _without_codings(before) == _without_codings(now)


def _without_codings(transcript: Transcript) -> Transcript:
    def told(answer: Told) -> Told:
        if answer.status != 415:
            return answer
        fields = tuple(field for field in answer.fields if field[0] not in ("accept-encoding", "content-length"))
        return answer._replace(fields=fields, body=b"")

    return replace(transcript, answers=[told(answer) for answer in transcript.answers])


def tells_more(before: Transcript, now: Transcript) -> bool:
    """Tell whether JSON documents have further keys, and all else is the same."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    return len(before.answers) == len(now.answers) and before.end == now.end and all(_has_more(*each) for each in pairs)


def _has_more(before: Told, now: Told) -> bool:
    if before == now:
        return True
    fields = [{k: v for k, v in told.fields if k != "content-length"} for told in (before, now)]
    if before.status != now.status or fields[0] != fields[1]:
        return False
    try:
        told = [json.loads(each.body or b"") for each in (before, now)]
    except ValueError:
        return False
    return all(isinstance(each, dict) for each in told) and told[0].items() <= told[1].items()


def _unannounced(transcript: Transcript) -> Transcript:
    return replace(transcript, answers=[silent(told) for told in transcript.answers])


def _without_short_body(transcript: Transcript) -> Transcript:
    if not transcript.answers:
        return transcript
    *others, last = transcript.answers
    short = last.status == 400 and (last.body or b"").startswith(b"The request's body is shorter")
    return replace(transcript, answers=others) if short else transcript


def may_be_cut(conversation: Conversation) -> bool:
    """Tell whether the client may end in the middle of a body."""
    return conversation.end is End.ENDS_SENDING


def silent(told: Told) -> Told:
    """Return an answer that does not tell whether its connection ends."""
    return told._replace(fields=tuple(field for field in told.fields if field[0] != "connection"))


def closing(told: Told) -> Told:
    """Return an answer that closes its connection."""
    return told._replace(fields=tuple(sorted([*silent(told).fields, ("connection", "close")])))


#: All of them.
WANTED: Sequence[Wanted] = (
    Wanted(
        "a request in chunks ends its connection: a proxy that sees another end of it finds no request behind it",
        says(rb"^transfer-encoding:"),
        ends_with_last_answer,
    ),
    Wanted(
        "aiohttp tells each client that asked for the end of the connection that it comes, and those of HTTP/1.0",
        says(rb"^connection: *close| HTTP/1\.0\r"),
        differs_in_announcing,
    ),
    Wanted(
        "an answer to HEAD has no body, whoever gives it",
        says(rb"^HEAD "),
        lambda before, now: before.end.startswith("no HTTP") and not now.end.startswith("no HTTP"),
    ),
    Wanted(
        "who ends a TLS connection in the middle of a body, without a farewell, is told so by C, and not by aiohttp",
        may_be_cut,
        differs_in_telling,
    ),
    Wanted("OPTIONS tells more: how large an image may be, and the codings of bodies", says(rb"^OPTIONS "), tells_more),
    Wanted("415 names the coding that is served", says(rb"^content-encoding:"), differs_in_codings),
)


def is_wanted(conversation: Conversation, before: Transcript, now: Transcript) -> bool:
    """Tell whether a difference is wanted."""
    return bool(before.answers) and any(
        wanted.concerns(conversation) and wanted.is_one(before, now) for wanted in WANTED
    )


#: NBD_INFO_BLOCK_SIZE: the least, the preferred, and the largest size of a request.
_BLOCK_SIZES = re.compile(rb"(?<=\x00\x03\x00\x00\x00\x01).{4}(?=\x02\x00\x00\x00)", re.DOTALL)


def without_preferred_size(replies: bytes) -> bytes:
    """Return replies to options without the preferred size: that of TLS connections is the lane's, as on others."""
    return _BLOCK_SIZES.sub(b"PREF", replies)
