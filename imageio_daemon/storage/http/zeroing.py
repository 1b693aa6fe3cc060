# SPDX-License-Identifier: Apache-2.0
"""How much of an image the other server is asked to zero at once."""

from ...units import GiB, MiB

#: Bytes zeroed by the first request, so that storage that writes zeros answers in time: 20 s at 50 MB/s. An answer
#: within QUICK seconds doubles the next ones, so that 8 TiB of holes take 13 requests; a slow one halves them.
ZERO_STEP = 1 * GiB
QUICK = 1.0
SLOW = 30.0


class ZeroSteps:
    """Adapt the length of requests to zero to the time that their answers take."""

    def __init__(self) -> None:
        #: The most bytes of the next request.
        self.most = ZERO_STEP

    def answered(self, seconds: float) -> None:
        """Note how long the answer to the last request took."""
        if seconds < QUICK:
            self.most *= 2
        elif seconds > SLOW:
            self.most = max(MiB, self.most // 2)
