# SPDX-License-Identifier: Apache-2.0
"""NBD servers of other projects, each a process of its own on a unix socket."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.polling import eventually
from tests.support.processes import open_files

#: Most connections of a server at a time.
SHARED = 8
#: The flags of a socket that listens, in /proc/net/unix.
ACCEPTS = "00010000"


@dataclass
class NbdServer:
    """A running server. `command` starts it again."""

    socket: Path
    command: list[str]
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"nbd:unix:{self.socket}"

    @property
    def uri(self) -> str:
        """The address of the export, in the form of the programs of libnbd."""
        return f"nbd+unix:///?socket={self.socket}"

    def connections(self) -> int:
        """Return the number of connections."""
        assert self.process is not None
        opened = open_files(self.process.pid).values()
        return sum(name.startswith("socket:") for name in opened) - 1  # without the socket that listens

    def start(self) -> None:
        """Start the process and wait until it listens."""
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        eventually(self._listens, f"{self.command[0]} listens", timeout=30)

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.command} ended with status {self.process.returncode}"
        # Do not connect for this, because servers log an error about clients that leave at once.
        sockets = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
        return any(fields[3] == ACCEPTS and fields[-1] == str(self.socket) for fields in sockets)

    def stop(self) -> None:
        """End the process in order, so that it can write what it still has in memory."""
        eventually(self._ends, f"{self.command[0]} ends", timeout=30)

    def _ends(self) -> bool:
        assert self.process is not None
        # Send it repeatedly, because qemu-nbd loses signals that come while it starts.
        self.process.terminate()
        return self.process.poll() is not None

    def kill(self) -> None:
        """End the process at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.socket.unlink(missing_ok=True)


@contextlib.contextmanager
def running(*command: str) -> Iterator[NbdServer]:
    """Run a server. SOCKET in the command stands for its socket."""
    # Not below pytest's directory, because the path of a unix socket may have only 107 bytes.
    with tempfile.TemporaryDirectory(prefix="nbd-") as directory:
        path = Path(directory) / "socket"
        server = NbdServer(path, [part.replace("SOCKET", str(path)) for part in command])
        server.start()
        try:
            yield server
        finally:
            server.kill()


def qemu_nbd(image: Path, image_format: str, *options: str) -> contextlib.AbstractContextManager[NbdServer]:
    """Serve an image by qemu-nbd, through the page cache, because images of tests may be on any file system."""
    return running(
        "qemu-nbd",
        "--persistent",
        f"--shared={SHARED}",
        "--socket=SOCKET",
        f"--format={image_format}",
        "--discard=unmap",
        *options,
        str(image),
    )


def nbdkit(*arguments: str) -> contextlib.AbstractContextManager[NbdServer]:
    """Run nbdkit with these arguments."""
    return running("nbdkit", "--foreground", "--unix=SOCKET", *arguments)


def make_qcow2(path: Path, size: int) -> Path:
    """Make an empty qcow2 image."""
    subprocess.check_call(["qemu-img", "create", "-q", "-f", "qcow2", str(path), str(size)])
    return path
