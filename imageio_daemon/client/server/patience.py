# SPDX-License-Identifier: Apache-2.0
"""How long failed requests are sent again, and the pauses between them."""

import random
import time

from ..errors import NothingListens, Temporary
from ..stopping import Stop
from .retries import Retries

#: Seconds for which failed requests are sent again, by default. A daemon restarts in some seconds, a host in one or two
#: minutes.
RETRY_FOR = 120.0
#: The same for a server that was never reached, because nothing listens there: most often the address is wrong. A
#: daemon that just restarts listens again within this time.
UNREACHED_FOR = 5.0
#: Seconds before a request is sent again for the first time. The delay doubles with each try and varies by up to a
#: quarter, so that connections which broke together do not come back together.
FIRST_DELAY = 0.1
MAX_DELAY = 10.0
#: Most seconds for which a server can ask with Retry-After.
MAX_ASKED = 60.0


class Patience:
    """Go on after failures for `seconds`, counted from the first failure after a success. For one thread.

    By default these are RETRY_FOR, or UNREACHED_FOR until the server was reached once. `retries` counts them. `failed`
    tells that there was any failure of this connection.
    """

    def __init__(self, stop: Stop, seconds: float | None, retries: Retries) -> None:
        self.failed = False
        self._stop = stop
        self._seconds = seconds
        self._retries = retries
        self._since: float | None = None
        self._tries = 0

    @property
    def is_failing(self) -> bool:
        """Return whether nothing has succeeded since the last failure."""
        return self._since is not None

    def succeeded(self) -> None:
        """Note a success. The seconds count from the next failure on."""
        self._retries.reached = True
        if self._since is not None:
            self._retries.succeeded()
        self._since = None
        self._tries = 0

    def wait(self, error: Temporary) -> None:
        """Pause before the next try, at least as long as the server asks for. After the last try, raise the error.

        Raises Stopped.
        """
        self._stop.check()  # a stop shuts sockets down, which is no failure
        self.failed = True
        seconds = self._patient_for(error)
        now = time.monotonic()
        is_first = self._since is None
        if self._since is None:
            self._since = now
        left = self._since + seconds - now
        if left <= 0:
            raise _given_up(error, seconds)
        delay = min(self._next_delay(error), left)
        self._retries.waits(str(error), delay, is_first=is_first)
        self._tries += 1
        self._stop.sleep(delay)

    def _patient_for(self, error: Temporary) -> float:
        if not isinstance(error, NothingListens):
            self._retries.reached = True
        if self._seconds is not None:
            return self._seconds
        return RETRY_FOR if self._retries.reached else UNREACHED_FOR

    def _next_delay(self, error: Temporary) -> float:
        delay = min(FIRST_DELAY * float(1 << min(self._tries, 32)), MAX_DELAY)
        asked = min(error.retry_after or 0.0, MAX_ASKED)
        return max(delay, asked) * random.uniform(1, 1.25)  # noqa: S311 - no secret


def _given_up(error: Temporary, seconds: float) -> Temporary:
    if not seconds:
        return error
    text = f"{error}; given up after {seconds:.0f} s, --retry-for waits longer"
    given_up = type(error)(text, error.http_status)
    given_up.code = error.code
    return given_up
