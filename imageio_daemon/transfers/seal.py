# SPDX-License-Identifier: Apache-2.0
"""The seal of a ticket's image. After a finalize, nothing can change the image through the ticket any more."""

import asyncio

from ..errors import DENIED, Forbidden, InUse
from .traffic import Traffic


class Seal:
    """Tell whether a ticket may still write.

    A seal is open at first, closing while the image is verified, and then closed for good, or open again.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._quiet: asyncio.Event | None = None
        #: Whether the image is finalized. close() sets this, and nothing resets it.
        self.closed = False

    @property
    def open(self) -> bool:
        """Tell whether changes may begin."""
        return not self.closed and self._quiet is None

    def require_open(self) -> None:
        """Raise InUse while the image is being verified, Forbidden after that."""
        if self.closed:
            raise Forbidden(f"{DENIED}: the image is finalized")
        if self._quiet is not None:
            raise InUse("The image is being verified")

    def begin_closing(self) -> asyncio.Event:
        """Refuse new changes, and return an event that is set when none runs. Raises as require_open() does.

        Lanes that may write end after their running requests. HTTP connections stay, NBD connections end.
        """
        self.require_open()
        quiet = self._quiet = asyncio.Event()
        lanes = self._traffic.changing_lanes()
        self.settle()
        for lane in lanes:
            lane.refuse()
        return quiet

    def settle(self) -> None:
        """Set the event of begin_closing() if no change runs."""
        if self._quiet is not None and not self._traffic.changing:
            self._quiet.set()

    def reopen(self) -> None:
        """Let changes begin again."""
        self._quiet = None

    def close(self) -> None:
        """Refuse all changes from now on. Call this when none runs: after begin_closing(), or before any has begun."""
        self.closed, self._quiet = True, None
