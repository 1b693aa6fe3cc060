# SPDX-License-Identifier: Apache-2.0
"""Conversations that hypothesis makes: a few requests, most of them valid, sent in any pieces."""

import itertools

from hypothesis import strategies as st

from tests.differential.conversation import Conversation, End, Round, request
from tests.differential.corpus import URL, url
from tests.differential.scene import FORBIDDEN, LARGER, MAIN, READ_ONLY, SIZE, SMALL, SMALLER, SPARSE, UNKNOWN
from tests.support.images import KiB, MiB, pattern

#: Places where something begins or ends.
_EDGES = (0, 1, 511, 512, 4095, 4096, 64 * KiB, SMALL - 5000, SMALL, MiB, 2 * MiB, 3 * MiB + 5, 4 * MiB, SIZE, 2**63)
offsets = st.builds(
    lambda edge, step: max(0, edge + step), st.sampled_from(_EDGES), st.sampled_from((0, 0, -1, 1, -700, 700))
)
lengths = st.sampled_from((1, 5, 511, 512, 4096, 10_000, 65_536, 70_001, 256 * KiB, MiB + 3))
tickets = st.sampled_from((MAIN, MAIN, MAIN, READ_ONLY, SPARSE, LARGER, SMALLER, FORBIDDEN, UNKNOWN))

_FIELDS = (
    "Accept-Encoding: identity",
    "User-Agent: x/1",
    "Connection: keep-alive",
    "Connection: close",
    "Origin: https://x",
    "Content-Type: application/json",
    "Content-Encoding: identity",
    "Content-Encoding: gzip",
    "If-Match: *",
    "If-None-Match: *",
    'If-None-Match: "x"',
    'If-Range: "x"',
    "Access-Control-Request-Method: PUT",
    "Cookie: a=b",
    "Host: elsewhere",
    "Range: bytes=5-9",
    "Content-Range: bytes 0-9/*",
    "X: " + "x" * 3000,
)
fields = st.lists(st.sampled_from(_FIELDS), max_size=3, unique_by=lambda line: line.partition(":")[0])


@st.composite
def gets(draw: st.DrawFn) -> bytes:
    """Make reads."""
    first, length = draw(offsets), draw(lengths)
    value = draw(
        st.sampled_from(
            (
                f"bytes={first}-{first + length - 1}",
                f"bytes={first}-{first + length - 1}",
                f"bytes={first}-{first + length - 1}",
                f"bytes={first}-",
                f"bytes=-{length}",
                f"bytes={length}-{first}",
                "",
            )
        )
    )
    lines = [f"Range: {value}"] if value else []
    query = draw(st.sampled_from(("", "", "", "?close=y", "?x=1")))
    method = draw(st.sampled_from(("GET", "GET", "GET", "HEAD")))
    return request(method, url(draw(tickets)) + query, *lines, *draw(fields))


@st.composite
def puts(draw: st.DrawFn) -> bytes:
    """Make writes."""
    offset, length = draw(offsets), draw(lengths)
    body = bytes(length) if draw(st.integers(0, 4)) == 0 else pattern(length, draw(st.integers(100, 110)))
    line = draw(
        st.sampled_from(
            (
                f"Content-Range: bytes {offset}-{offset + length - 1}/*",
                f"Content-Range: bytes {offset}-*/*",
                f"Content-Range: bytes {offset}-{offset + length - 1}/{SIZE}",
                f"Content-Range: bytes {offset}/*",
            )
        )
    )
    query = draw(st.sampled_from(("", "?flush=n", "?flush=n", "?flush=y", "?close=y", "?flush=z")))
    return request("PUT", url(draw(tickets)) + query, line, *draw(fields), body=body)


@st.composite
def patches(draw: st.DrawFn) -> bytes:
    """Make zeros and flushes."""
    offset, length = draw(offsets), draw(lengths)
    body = draw(
        st.sampled_from(
            (
                f'{{"op": "zero", "offset": {offset}, "size": {length}}}',
                f'{{"op": "zero", "offset": {offset}, "size": {length}, "flush": true}}',
                f'{{"op": "zero", "offset": {offset}, "size": {length}, "fast": true}}',
                f'{{"op":"zero","size":{length}}}',
                '{"op": "flush"}',
                '{"op": "flush"',
                f'{{"op": "zero", "size": "{length}"}}',
            )
        )
    )
    return request("PATCH", url(draw(tickets)), *draw(fields), body=body.encode())


others = st.builds(
    lambda method, target, lines: request(method, target, *lines),
    st.sampled_from(("GET", "OPTIONS", "OPTIONS", "HEAD", "DELETE")),
    st.sampled_from((URL, f"{URL}/extents", f"{url(READ_ONLY)}/extents", "/images/*", "/nothing", url(UNKNOWN))),
    fields,
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Make conversations; the first requests of one in three are sent at once."""
    asked = draw(st.lists(st.one_of(gets(), puts(), patches(), others), min_size=1, max_size=5))
    at_once = draw(st.integers(0, 2)) == 0
    rounds = []
    for sent in [asked] if at_once else [[each] for each in asked]:
        data = b"".join(sent)
        cuts = sorted(draw(st.lists(st.integers(1, len(data) - 1), max_size=3, unique=True)))
        ends = [0, *cuts, len(data)]
        pieces = tuple(data[start:end] for start, end in itertools.pairwise(ends))
        rounds.append(Round(pieces, tuple(each.partition(b" ")[0].decode() for each in sent)))
    end = draw(st.sampled_from(End))
    return Conversation("generated", tuple(rounds), end)
