# SPDX-License-Identifier: Apache-2.0
"""A service manager for a daemon: it gets notifications, and keeps descriptors for the next process."""

import array
import contextlib
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.polling import SOON

#: Most descriptors in one message: the limit of Linux.
_MOST = 253

#: A notification of our own, which comes after those that a daemon has sent.
_MARK = b"MARK=1"

#: Puts inherited descriptors where sd_listen_fds(3) expects them, and becomes the program. Arguments: the descriptors
#: with colons between them, the program.
_LAUNCH = """
import fcntl, os, sys
given = [int(fd) for fd in sys.argv[1].split(":") if fd]
high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 500) for fd in given]
for fd in given:
    os.close(fd)
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """Receive notifications of a daemon in a thread, and keep what it stores, by name. `watchdog` is WatchdogSec=."""

    def __init__(self, *, watchdog: float = 0) -> None:
        self._watchdog = watchdog
        self._directory = tempfile.TemporaryDirectory(prefix="manager-")
        self.address = Path(self._directory.name) / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.address))
        self.states: list[str] = []
        self._stored: list[tuple[str, int]] = []
        self._marks = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(b"")
        self._thread.join()
        self._socket.close()
        self.forget_all()
        self._directory.cleanup()

    @property
    def stored(self) -> list[tuple[str, int]]:
        """The stored descriptors, when all notifications that daemons have sent until now were received."""
        self._tell(_MARK)
        assert self._marks.acquire(timeout=SOON), "the manager does not run"
        return self._stored

    def pass_on(self, name: str, sock: socket.socket) -> None:
        """Pass a copy of a socket to the next process, as if it were stored, or the socket of a socket unit."""
        self._stored.append((name, os.dup(sock.fileno())))

    def forget_all(self) -> None:
        """Close the stored descriptors, as systemd does when a service is stopped."""
        for _, fd in self._stored:
            os.close(fd)
        self._stored.clear()

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a daemon under this manager, without LISTEN_PID."""
        variables = {"NOTIFY_SOCKET": str(self.address)}
        if self._watchdog:
            variables["WATCHDOG_USEC"] = str(round(self._watchdog * 1e6))
        if stored := self.stored:
            names = ":".join(name for name, _ in stored)
            variables |= {"LISTEN_FDS": str(len(stored)), "LISTEN_FDNAMES": names}
        return variables

    def command(self, command: list[str]) -> list[str]:
        """Return a command that inherits self.descriptors(), and runs another command with the stored ones."""
        return [sys.executable, "-c", _LAUNCH, ":".join(map(str, self.descriptors())), *command]

    def descriptors(self) -> list[int]:
        return [fd for _, fd in self.stored]

    def _tell(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(data, str(self.address))

    def _run(self) -> None:
        size = socket.CMSG_SPACE(_MOST * array.array("i").itemsize)
        while True:
            data, ancillary, *_ = self._socket.recvmsg(4096, size)
            if not data:
                return
            if data == _MARK:
                self._marks.release()
                continue
            fds = array.array("i")
            for level, kind, rights in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(rights)
            self._take(data.decode(), list(fds))

    def _take(self, state: str, fds: list[int]) -> None:
        lines = dict(line.split("=", 1) for line in state.splitlines())
        name = lines.get("FDNAME", "stored")
        if "FDSTORE" in lines:
            self._stored += [(name, fd) for fd in fds]
            fds = []
        elif "FDSTOREREMOVE" in lines:
            fds += [fd for stored, fd in self._stored if stored == name]
            self._stored = [(stored, fd) for stored, fd in self._stored if stored != name]
        self.states.append(state)
        for fd in fds:  # also the pipe of BARRIER=1, whose close says that all earlier messages were handled
            with contextlib.suppress(OSError):
                os.close(fd)
