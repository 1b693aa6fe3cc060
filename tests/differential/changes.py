# SPDX-License-Identifier: Apache-2.0
"""How transcripts of the earlier build and of this one may differ: functions that return whether only this differs."""

import json
from collections.abc import Sequence
from dataclasses import replace

from tests.differential.conversation import Told, Transcript


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


def keeps_holes(before: Transcript, now: Transcript) -> bool:
    """Return whether only extents differ: ranges that read as zeros were allocated, and are holes now."""
    pairs = list(zip(before.answers, now.answers, strict=False))
    return (
        len(before.answers) == len(now.answers)
        and before.end == now.end
        and all(old == new or _has_more_holes(old, new) for old, new in pairs)
    )


def _has_more_holes(before: Told, now: Told) -> bool:
    if not all(told.status == 200 and (told.body or b"").startswith(b'[{"start"') for told in (before, now)):
        return False
    ends = [[extent["start"] + extent["length"] for extent in json.loads(told.body or b"")] for told in (before, now)]
    pieces = [_flags_until(told, sorted({*ends[0], *ends[1]})) for told in (before, now)]
    return all(old == new or (old, new) == ((True, False), (True, True)) for old, new in zip(*pieces, strict=True))


def _flags_until(told: Told, ends: Sequence[int]) -> list[tuple[bool, bool]]:
    """Return (zero, hole) of the bytes before each of these offsets."""
    extents = json.loads(told.body or b"")
    return [
        next((each["zero"], each["hole"]) for each in extents if end <= each["start"] + each["length"]) for end in ends
    ]
