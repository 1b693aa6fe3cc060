# SPDX-License-Identifier: Apache-2.0
"""The level of the log while the daemon runs."""

import asyncio
import logging

#: The names of the levels in the configuration.
LEVELS = ("debug", "info", "warning", "error")


class LogLevel:
    """Change the level, for a time or until the next change. At first the log has the `configured` level."""

    def __init__(self, configured: str) -> None:
        self._configured = configured
        self._level = configured
        self._timer: asyncio.TimerHandle | None = None

    def set(self, level: str, seconds: float | None = None) -> None:
        """Change the level. Change back to the configured one after this many seconds, or never if None."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._level = level
        logging.getLogger().setLevel(level.upper())
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.reset)

    def reset(self) -> None:
        """Change to the configured level."""
        self.set(self._configured)

    def configure(self, level: str) -> None:
        """Change to a new level of the configuration."""
        self._configured = level
        self.reset()

    def state(self) -> dict[str, object]:
        """Return the level, the configured level, and the seconds until the log changes back, or None."""
        seconds = None
        if self._timer is not None:
            seconds = max(0, round(self._timer.when() - asyncio.get_running_loop().time()))
        return {"level": self._level, "configured": self._configured, "seconds": seconds}
