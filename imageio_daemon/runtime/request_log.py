# SPDX-License-Identifier: Apache-2.0
"""Log lines about requests that C or Python has served: all requests at level DEBUG, and slow ones at INFO."""

import logging
from collections.abc import Mapping

from . import logs

log = logging.getLogger(__name__)


#: Seconds after which a request is slow. Its line shows its waits. With requests of 4 MiB, as clients send
#: them, that is less than 400 KiB/s.
SLOW = 10.0


def wanted() -> bool:
    """Return whether all requests are logged at the current level."""
    return log.isEnabledFor(logging.DEBUG)


def tell(seconds: float, waited: Mapping[str, float], **fields: object) -> None:
    """Log an answered request that took `seconds`. `waited` has the seconds of its waits, by kind."""
    if seconds >= SLOW:
        known = {f"wait_{name}": round(wait, 1) for name, wait in waited.items() if wait >= 0.05}
        log.info("slow request", extra=logs.fields(**fields, seconds=round(seconds, 1), **known))
    elif wanted():
        log.debug("request", extra=logs.fields(**fields, seconds=round(seconds, 6)))


def tell_lost(count: int) -> None:
    """Log that `count` requests are missing in the log: they were served faster than their records were read."""
    log.warning("requests are missing in the log", extra=logs.fields(count=count))
