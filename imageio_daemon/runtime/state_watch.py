# SPDX-License-Identifier: Apache-2.0
"""Whether the state directory can still be written, and will be found by the next process."""

import threading
import time

from .state import StateDirectory

#: Seconds between two probes. One writes and flushes 4 KiB: 0.3 ms in the median of 50 on ext4 of a busy virtual disk,
#: 88 ms at most.
INTERVAL = 10.0
#: Seconds after which why() reports a probe that has not ended. Tickets wait as long (transfers/kept_tickets.py).
SILENT = 10.0


class StateWatch:
    """Probe a state directory periodically, in a separate thread. The constructor makes the first probe, and blocks.

    Without a directory, pass None, and in `why` the reason why the configured one cannot be used, or "".
    """

    def __init__(self, state: StateDirectory | None, why: str) -> None:
        self._state = state
        self._reason = why
        self._began: float | None = None
        self._ends = threading.Event()
        # A daemon thread: a disk that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="state", daemon=True)
        if state is not None:
            self._probe(state)
            self._thread.start()

    def why(self) -> str:
        """Return why files that are written now would not outlive the process, or "" if they would."""
        began = self._began
        if began is not None and time.monotonic() - began > SILENT:
            return "it does not answer"
        return self._reason

    def close(self, timeout: float) -> bool:
        """End the thread. Return False if it does not end within `timeout` seconds, and still uses the directory."""
        if self._state is None:
            return True
        self._ends.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._state is not None and not self._ends.wait(INTERVAL):
            self._probe(self._state)

    def _probe(self, state: StateDirectory) -> None:
        self._began = time.monotonic()
        try:
            state.probe()
        except OSError as e:
            self._reason = e.strerror or str(e)
        else:
            self._reason = ""
        self._began = None
