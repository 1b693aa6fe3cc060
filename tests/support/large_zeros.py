# SPDX-License-Identifier: Apache-2.0
"""A range to zero that is longer than other programs take at once, with old content where they would cut."""

from tests.support.images import pattern

MiB = 1024**2
GiB = 1024 * MiB

#: At no border of 8 KiB or more, and longer than a number of 32 bits tells.
START, LENGTH = MiB + 4096, 4 * GiB + 5 * MiB + 4096
SIZE = LENGTH + 4 * MiB
#: Old content. It stands in the way of cuts at each border below.
OLD = pattern(4096)
#: Offsets within the range: its edges, and where other programs cut: at 32, 64 and 128 MiB, 2 and 4 GiB.
BORDERS = [0, 32 * MiB, 64 * MiB, 128 * MiB, 2 * GiB, 4 * GiB, LENGTH - len(OLD)]
#: The old content by its offset in the image: within the range, and right before and behind it, where it has to stay.
PIECES = dict.fromkeys([START - len(OLD), *(START + border for border in BORDERS), START + LENGTH], OLD)
