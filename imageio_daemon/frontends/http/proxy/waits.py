# SPDX-License-Identifier: Apache-2.0
"""The waits for the other server, which has the image: to its transfer, and to the log, it is what storage is."""

from ....storage.backend import Operation


class Waits:
    """Tell an operation whether it waits for the other server."""

    def __init__(self, op: Operation) -> None:
        self._op = op
        self._there = False

    def begin(self) -> None:
        """Begin to wait. No effect while it waits."""
        if not self._there:
            self._there = True
            self._op.retain()

    def end(self) -> None:
        """End the wait. No effect without one."""
        if self._there:
            self._there = False
            self._op.release()
