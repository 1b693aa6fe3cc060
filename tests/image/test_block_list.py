# SPDX-License-Identifier: Apache-2.0
"""The list of the digests of blocks: what is written is read, and nothing else."""

import json

import pytest

from imageio_daemon.image.block_list import MAX_LINE, Block, BlockListHead, ListReader, ListWriter
from imageio_daemon.image.blockhash import Total, new_hash
from tests.support.images import MiB, pattern

HEAD = BlockListHead("sha256", MiB, 4096)
DATA = [new_hash("sha256"), new_hash("sha256")]
for number, state in enumerate(DATA):
    state.update(pattern(MiB, number))
BLOCKS = [
    Block(4096, MiB, DATA[0].hexdigest()),
    Block(4096 + MiB, 3 * MiB, None),
    Block(4096 + 4 * MiB, 10, DATA[1].hexdigest()),
]
LENGTH = 4 * MiB + 10


class Malformed(Exception):
    """A list that is none."""


def checksum() -> str:
    zeros = new_hash("sha256")
    zeros.update(bytes(MiB))
    total = Total("sha256")
    total.add(DATA[0].digest())
    total.add_all(zeros.digest(), 3)
    total.add(DATA[1].digest())
    return total.hexdigest()


def written() -> bytes:
    made = ListWriter(HEAD)
    made.block(MiB, DATA[0].digest())
    made.zeros(MiB)
    first = made.take()
    made.zeros(2 * MiB)
    made.block(10, DATA[1].digest())
    made.end(LENGTH, checksum())
    return first + made.take()


def read(text: bytes, piece: int = 1000, most: int = LENGTH) -> tuple[ListReader, list[Block]]:
    reader = ListReader(Malformed(), most)
    found = [block for start in range(0, len(text), piece) for block in reader.feed(text[start : start + piece])]
    reader.end()
    return reader, found


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_what_is_written_is_read(piece: int) -> None:
    reader, found = read(written(), piece)
    assert found == BLOCKS
    assert (reader.head, reader.length, reader.checksum) == (HEAD, LENGTH, checksum())


def lines(*changed: tuple[int, object]) -> bytes:
    """Return the list with other lines: numbers and what is there; None: nothing."""
    told: list[object] = [json.loads(line) for line in written().splitlines()]
    for number, line in changed:
        told[number] = line
    return b"".join(json.dumps(line).encode() + b"\n" for line in told if line is not None)


ZERO, LAST = {"start": 4096 + MiB, "length": 3 * MiB, "zero": True}, {"start": 4096 + 4 * MiB, "length": 10}


@pytest.mark.parametrize(
    "text",
    {
        "nothing": b"",
        "no JSON": b"x\n",
        "no object": b"[]\n",
        "no end of a line": written()[:-1],
        "a long line": written() + b" " * (MAX_LINE + 1),
        "a long line that ends": b" " * (MAX_LINE + 1) + b"\n" + written(),
        "more behind the end": written() + b"{}\n",
        "no head": lines((0, None)),
        "an unknown algorithm": lines((0, HEAD._asdict() | {"algorithm": "crc32"})),
        "a block size that is none": lines((0, HEAD._asdict() | {"block_size": 4097})),
        "a negative offset": lines((0, HEAD._asdict() | {"offset": -4096})),
        "a gap": lines((2, None)),
        "blocks behind the last one": lines((2, ZERO | {"length": 3 * MiB - 1}), (3, LAST | {"start": 4095 + 4 * MiB})),
        "no length": lines((2, ZERO | {"length": 0})),
        "a number that is none": lines((2, ZERO | {"length": 1.5})),
        "a block that is too long": lines((2, LAST | {"start": 4096 + MiB, "length": MiB + 1, "digest": "00" * 32})),
        "zeros that are too long": lines((2, ZERO | {"length": 5 * MiB})),
        "no digest": lines((3, LAST)),
        "a short digest": lines((3, LAST | {"digest": "00"})),
        "another digest": lines((3, LAST | {"digest": "00" * 32})),
        "no checksum": lines((4, None)),
        "another checksum": lines((4, {"length": LENGTH, "checksum": "00"})),
        "another length": lines((4, {"length": LENGTH - 1, "checksum": checksum()})),
    }.items(),
    ids=lambda item: item[0],
)
def test_other_lists_are_refused(text: tuple[str, bytes]) -> None:
    with pytest.raises(Malformed):
        read(text[1])
