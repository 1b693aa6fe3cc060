# SPDX-License-Identifier: Apache-2.0
"""A qemu-nbd process that serves an image to this process."""

import contextlib
import errno
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ...urls.nbd import NbdAddress
from ..errors import ImageInUse, LocalError
from .in_use import END, END_OR_SHARE
from .nbd_image import NbdImage
from .source import identity

#: Most connections to one qemu-nbd, one for each thread.
SHARED = 64
START_TIMEOUT = 30.0
#: Seconds between checks whether it accepts connections, which takes some 15 ms.
POLL = 0.002
#: Seconds that qemu-nbd may take to close an image after its last client has left.
STOP_TIMEOUT = 600.0
#: The same after stop(). It is enough for running requests, and to release the lock of an image on Ceph. If qemu-nbd
#: were killed, the next program would wait 30 s for the lock, instead of 0.5 s (tests/lab/ceph).
STOPPED_TIMEOUT = 5.0
#: The message if another program has locked a file of the image: the hint of lock errors since qemu 2.10.
IN_USE = "Is another process using the image"
#: Words of other messages, and what the user can do then.
ADVICE = {
    "key-secret": "it is encrypted: qemu-img convert makes a copy that is not",
    "Image is corrupt": "repair it: qemu-img check -r all",
}


class PrivateQemuNbd(NbdImage):
    """An image that a qemu-nbd process of its own serves, on a private socket, until its last client leaves.

    `name` is the image's name in messages. `image` has the arguments that tell qemu-nbd what to serve. `bitmap` is a
    bitmap of the image to serve with it. `why` tells, if qemu-nbd is not installed, why the image needs it.
    """

    def __init__(
        self, name: str, image: Sequence[str], *, writable: bool = False, bitmap: str | None = None, why: str = ""
    ) -> None:
        self._closed = False
        self._image = image[-1]
        #: Whether qemu-nbd has ended by itself, so that it has flushed and closed the image.
        self.ended_well = False
        with contextlib.ExitStack() as made:
            try:
                self._directory = tempfile.mkdtemp(prefix="imageio-client-")
                made.callback(self._remove_directory)
                self._errors = made.enter_context(tempfile.TemporaryFile())
                # The address of a socket has at most 107 bytes (unix(7)), and the directory's name may be longer.
                self._opened = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as e:
                raise LocalError(f"can't make temporary files, which {name} needs: {e.strerror}") from e
            made.callback(os.close, self._opened)
            self._temporary = made.pop_all()
        self._pid_file = f"{self._directory}/pid"
        socket = f"/proc/self/fd/{self._opened}/nbd"
        command = ["qemu-nbd", f"--socket={socket}", f"--pid-file={self._pid_file}", f"--shared={SHARED}"]
        command += ["--discard=unmap"] if writable else ["--read-only"]
        command += [] if bitmap is None else [f"--bitmap={bitmap}"]
        command += image
        try:
            # In another process group, so that Ctrl-C does not kill it.
            self._process = subprocess.Popen(  # noqa: S603 - no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(self._opened,),
                process_group=0,
            )
        except OSError as e:
            self._temporary.close()
            needs = f"{name} needs because {why}" if why else f"{name} needs"
            reason = "it is not installed" if e.errno == errno.ENOENT else e.strerror
            raise LocalError(f"can't run qemu-nbd, which {needs}: {reason}") from e
        try:
            self._wait(name, END if writable else END_OR_SHARE)
            super().__init__(name, NbdAddress(socket=socket), dirty=bitmap is not None)
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._temporary.close()
            raise

    def files(self) -> list[Path]:
        """Return the files and block devices of which the image consists, in the order in which they were opened.

        These are links to the open files, /proc/PID/fd/N (proc_pid_fd(5)). The names that qemu has for them may be no
        file names, and may lack bytes.
        """
        try:
            own = os.stat(self._pid_file)
            links = [Path(f"/proc/{self._process.pid}/fd/{number}") for number in sorted(self._descriptors())]
            told = [(link, link.stat()) for link in links]
        except OSError as e:
            raise LocalError(f"can't see which files {self._name} is made of: {e.strerror}") from e
        return [link for link, status in told if _is_image(status) and not os.path.samestat(status, own)]

    def identity(self, file: Path) -> dict[str, object] | None:
        """Return the identity() of one of the files. Raises LocalError if qemu-nbd has ended."""
        try:
            return identity(file)
        except OSError as e:
            raise LocalError(f"can't see whether {self._name} has changed: its qemu-nbd has ended") from e

    def finish(self) -> None:
        """Flush, and end qemu-nbd. Raises LocalError, and Stopped if stop() came before the end."""
        super().finish()
        self._stop.check()  # after stop(), close() does not tell whether qemu-nbd has failed

    def close(self) -> None:
        """Disconnect, and wait until qemu-nbd has closed the image. Raises LocalError if it fails.

        After stop(), wait no longer than STOPPED_TIMEOUT, and ignore a failure. Later calls do nothing.
        """
        if self._closed:
            return
        self._closed = True
        super().close()
        try:
            status, reason = self._wait_for_end(), self._said()
        finally:
            self._temporary.close()
        self.ended_well = status == 0
        if status != 0 and not self._stop.is_set:
            raise LocalError(f"qemu-nbd failed with {self._name}: {reason}")

    def _descriptors(self) -> list[int]:
        standard = (0, 1, 2)
        return [int(name) for name in os.listdir(f"/proc/{self._process.pid}/fd") if int(name) not in standard]

    def _wait(self, name: str, remedy: str) -> None:
        """Wait until qemu-nbd accepts connections. It writes its pid file then; its socket exists before."""
        deadline = time.monotonic() + START_TIMEOUT
        while not os.path.exists(self._pid_file):
            if self._process.poll() is not None:
                said = self._said()
                if IN_USE in said:
                    raise ImageInUse(f"can't open {name}: {said} ({remedy})")
                advice = "".join(f" ({text})" for words, text in ADVICE.items() if words in said)
                raise LocalError(f"can't open {name}: {said}{advice}")
            if time.monotonic() > deadline:
                raise LocalError(
                    f"can't open {name}: not open after {START_TIMEOUT:.0f} seconds: does its storage answer?"
                )
            time.sleep(POLL)

    def _wait_for_end(self) -> int:
        """Return the status of qemu-nbd. Kill it if it does not end in time."""
        try:
            return self._process.wait(STOPPED_TIMEOUT if self._stop.is_set else STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _said(self) -> str:
        self._errors.seek(0)
        said = self._errors.read(2000).decode(errors="surrogateescape").strip()
        for known in ("qemu-nbd: ", f"Failed to blk_new_open '{self._image}': ", f"Could not open '{self._image}': "):
            said = said.removeprefix(known)
        return " ".join(said.split()) or "it does not tell why"

    def _remove_directory(self) -> None:
        for name in ("nbd", "pid"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._directory}/{name}")
        os.rmdir(self._directory)


def _is_image(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) or stat.S_ISBLK(status.st_mode)
