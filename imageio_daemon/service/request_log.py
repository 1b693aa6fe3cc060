# SPDX-License-Identifier: Apache-2.0
"""Log lines about requests that C or Python has served: one for each, at the level DEBUG."""

import logging

from . import logs

log = logging.getLogger(__name__)


def wanted() -> bool:
    """Tell whether requests are logged at the current level."""
    return log.isEnabledFor(logging.DEBUG)


def tell(seconds: float, **fields: object) -> None:
    """Log an answered request. seconds: its duration."""
    if wanted():
        log.debug("request", extra=logs.fields(**fields, seconds=round(seconds, 6)))


def tell_lost(count: int) -> None:
    """Log that `count` requests are missing in the log: they were served faster than their records were read."""
    log.warning("requests are missing in the log", extra=logs.fields(count=count))
