# SPDX-License-Identifier: Apache-2.0
"""Images for programs that others wrote: large ones, whose data is small so that a run is short."""

import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

MiB = 1 << 20
#: Of an image. DATA of the environment is how much of it is data, in MiB: 4096 is a full run.
SIZE = 4096 * MiB
DATA = int(os.environ.get("DATA", "256")) * MiB
PIECE = 4 * MiB
#: Seconds for a transfer or a comparison on a machine that has other work, too.
PATIENCE = 300 + DATA // (4 * MiB)


@dataclass(frozen=True)
class Source:
    """path: SIZE bytes with DATA in pieces. dense: DATA bytes. small: 64 MiB of that."""

    path: Path
    dense: Path
    small: Path


def make_source(directory: Path) -> Source:
    """Make the files."""
    source = Source(*(directory / name for name in ("sparse.raw", "dense.raw", "small.raw")))
    chosen = random.Random(46)
    places = chosen.sample(range(SIZE // PIECE), DATA // PIECE)
    with source.path.open("wb") as sparse, source.dense.open("wb") as dense, source.small.open("wb") as small:
        sparse.truncate(SIZE)
        for number, place in enumerate(places):
            data = chosen.randbytes(PIECE)
            sparse.seek(place * PIECE)
            sparse.write(data)
            dense.write(data)
            if number < 64 * MiB // PIECE:
                small.write(data)
    return source


def compared(one: Path, other: Path, length: int | None = None) -> str:
    """Return a word for files with the same bytes. length: of those that count. Raises AssertionError for others."""
    command = ["qemu-img", "compare", "-f", "raw", "-F", "raw"] if length is None else ["cmp", "-n", str(length)]
    done = subprocess.run(
        [*command, str(one), str(other)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return "identical"
