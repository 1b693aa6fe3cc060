# SPDX-License-Identifier: Apache-2.0
"""A range to zero that other programs zero in several pieces, with old content where they would cut it."""

from tests.support.images import pattern

MiB = 1024**2
GiB = 1024 * MiB

#: Not at a multiple of 8 KiB, and too long for a number of 32 bits.
START, LENGTH = MiB + 4096, 4 * GiB + 5 * MiB + 4096
SIZE = LENGTH + 4 * MiB
#: Old content across each of the offsets below.
OLD = pattern(4096)
#: Offsets in the range: its edges, and where other programs cut it, at 32, 64 and 128 MiB, 2 and 4 GiB.
BORDERS = [0, 32 * MiB, 64 * MiB, 128 * MiB, 2 * GiB, 4 * GiB, LENGTH - len(OLD)]
#: The old content, by offset in the image: in the range, and right before and behind it, where it has to stay.
PIECES = dict.fromkeys([START - len(OLD), *(START + border for border in BORDERS), START + LENGTH], OLD)
