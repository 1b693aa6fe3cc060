# SPDX-License-Identifier: Apache-2.0
"""The seal of a ticket's image: after a finalize nothing changes the image through the ticket any more.

Shared by the event loops; transfers/__init__.py has the rules.
"""

import concurrent.futures
import threading

from ..errors import DENIED, Forbidden, InUse
from .traffic import Traffic


class Seal:
    """Tell whether a ticket may still write. Thread-safe. lock: the transfer's; some methods are called with it.

    Open, then closing while the image is verified, then closed for good, or open again.
    """

    def __init__(self, traffic: Traffic, lock: threading.Lock) -> None:
        self._traffic = traffic
        self._lock = lock
        self._quiet: concurrent.futures.Future[None] | None = None
        #: Whether the image is finalized. Set by close(), and never reset.
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

    def begin_closing(self) -> "concurrent.futures.Future[None]":
        """Let no change begin, and return a future of the end of those that run. Raises as require_open() does.

        Lanes that may write end as soon as no request of them runs. Their HTTP connections stay, NBD connections end.
        """
        with self._lock:
            self.require_open()
            quiet = self._quiet = concurrent.futures.Future()
            lanes = self._traffic.changing_lanes()
            self.settle()
        for lane in lanes:
            lane.refuse()
        return quiet

    def settle(self) -> None:
        """Complete the future of begin_closing() if no change runs. Called with the lock."""
        if self._quiet is not None and not self._quiet.done() and not self._traffic.changing:
            self._quiet.set_result(None)

    def reopen(self) -> None:
        """Let changes begin again."""
        with self._lock:
            self._quiet = None

    def close(self) -> None:
        """Refuse all changes from now on. None runs: begin_closing() has waited for them, or none has begun yet."""
        with self._lock:
            self.closed, self._quiet = True, None
