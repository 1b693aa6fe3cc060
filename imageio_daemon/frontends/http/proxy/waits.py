# SPDX-License-Identifier: Apache-2.0
"""Waits for the other server. For the status of the transfer and for the log, they are waits for storage."""

from ....storage.backend import Operation


class Waits:
    """Note for an operation whether it waits for the other server."""

    def __init__(self, op: Operation) -> None:
        self._op = op
        self._there = False

    def begin(self) -> None:
        """Begin to wait. This has no effect while the operation waits."""
        if not self._there:
            self._there = True
            self._op.retain()

    def end(self) -> None:
        """End the wait. This has no effect if the operation does not wait."""
        if self._there:
            self._there = False
            self._op.release()
