# SPDX-License-Identifier: Apache-2.0
"""Notifications of what happens, for the program that manages the host: a JSON object on a line each.

They go to a command, which is run for each and reads it from standard input, or to a unix socket. A thread of its own
delivers them in order, so a receiver that is slow or gone delays nothing else.
"""

import contextlib
import json
import logging
import shlex
import socket
import subprocess
import threading
import time
from collections import deque
from datetime import UTC, datetime

log = logging.getLogger(__name__)

#: A target that begins so is the address of a unix socket; any other one is a command.
SOCKET = "unix:"
#: Notifications that wait. Each is less than 64 KiB, usually 400 bytes. Further ones are lost, and the next tells it.
MAX_WAITING = 1000
#: Seconds for one delivery: the run of the command, or each step on the socket.
DELIVERY_TIMEOUT = 30.0
#: Seconds for which a delivery that fails is repeated: a receiver that restarts misses nothing. While all fail, each
#: has one try.
RETRY_FOR = 60.0
FIRST_DELAY, MAX_DELAY = 0.5, 8.0
#: What the command finds in its environment: nothing of the daemon's.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class Notifier:
    """Deliver notifications to a target. tell() is thread-safe. close() is called once, at the end.

    target: as [control] notify has it; "": nothing is delivered. `sent`, `failed` and `lost` count notifications.
    """

    def __init__(self, target: str) -> None:
        self.wanted = bool(target)
        self.sent = self.failed = self.lost = 0
        self._target = target
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._untold = 0  # of the lost ones
        self._failing = False
        self._closing = False
        self._child: subprocess.Popen[bytes] | None = None
        # A daemon thread: a receiver that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        if self.wanted:
            self._thread.start()

    def tell(self, event: str, **details: object) -> None:
        """Queue a notification. details: JSON values; no secrets."""
        if not self.wanted:
            return
        when = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                if not self._untold:
                    log.error("notifications are lost: %d wait for %s", MAX_WAITING, self._target)
                self._untold += 1
                self.lost += 1
                return
            missing = {"lost": self._untold} if self._untold else {}
            self._untold = 0
            self._waiting.append(f"{json.dumps({'time': when, 'event': event, **details, **missing})}\n".encode())
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Try to deliver what waits, for at most timeout seconds. The command of a delivery that hangs is killed."""
        if not self.wanted:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        child = self._child
        if self._thread.is_alive() and child is not None:
            child.kill()
        if self._waiting:
            log.warning("%d notifications are not delivered", len(self._waiting))
            self._waiting.clear()

    def _run(self) -> None:
        while (line := self._take()) is not None:
            try:
                self._deliver(line)
            except _FAILURES as e:
                self.failed += 1
                if not self._failing:
                    log.error("notifications are not delivered: %s: %s", self._target, e)
                self._failing = True
            else:
                self.sent += 1
                if self._failing:
                    log.info("notifications are delivered again")
                self._failing = False

    def _take(self) -> bytes | None:
        """Wait for a line and return it; None when all are delivered after close()."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _deliver(self, line: bytes) -> None:
        """Deliver a line, if need be in several tries. Raises one of _FAILURES."""
        deadline = time.monotonic() + (0 if self._failing else RETRY_FOR)
        delay = FIRST_DELAY
        while True:
            try:
                self._try(line)
            except _FAILURES:
                left = deadline - time.monotonic()
                if left <= 0 or not self._pause(min(delay, left)):
                    raise
                delay = min(2 * delay, MAX_DELAY)
            else:
                return

    def _pause(self, seconds: float) -> bool:
        """Wait before another try; False: the daemon ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)
            return not self._closing

    def _try(self, line: bytes) -> None:
        if self._target.startswith(SOCKET):
            _send(self._target.removeprefix(SOCKET), line)
            return
        with subprocess.Popen(  # noqa: S603 - the administrator's command, without a shell
            shlex.split(self._target),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        ) as child:
            self._child = child
            try:
                # A command that does not read its input is one that has ended well.
                with contextlib.suppress(BrokenPipeError):
                    child.communicate(line, timeout=DELIVERY_TIMEOUT)
            finally:
                self._child = None
                if child.poll() is None:
                    child.kill()
        if child.returncode:
            raise subprocess.SubprocessError(f"exit status {child.returncode}")


#: What a delivery fails with.
_FAILURES = (OSError, subprocess.SubprocessError)


def _send(address: str, line: bytes) -> None:
    """Send a line over a connection of its own. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(DELIVERY_TIMEOUT)
        sock.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        sock.sendall(line)
