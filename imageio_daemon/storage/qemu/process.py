# SPDX-License-Identifier: Apache-2.0
"""A qemu-nbd process for one transfer, for image formats that only qemu reads and writes."""

import asyncio
import errno
import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ...errors import StorageError, Unusable
from ...runtime import descriptors
from ...urls.nbd import NbdAddress
from ..threads import in_thread, start_thread
from . import reasons
from .chain import Chain

log = logging.getLogger(__name__)

#: Seconds until it accepts connections. It takes some 20 ms, and more when opening takes long on slow storage.
START_TIMEOUT = 30.0
#: Seconds that it may take to end: it writes cached metadata then. Below the daemon's own shutdown_timeout.
STOP_TIMEOUT = 20.0
#: The same for one that waits for a cluster to open the image: it takes no signal then, and has written nothing.
WAITING_STOP_TIMEOUT = 1.0
#: Seconds between SIGTERMs: for some 10 ms at its start it ignores them.
SIGNAL_INTERVAL = 0.2
#: Seconds between checks for its pid file. The first OPTIONS of a qcow2 image takes 13 ms, and 17 with 0.01.
POLL = 0.002
#: Bytes of its standard error that are kept: the last ones.
MAX_MESSAGES = 4096

#: For the allocator of glibc (mallopt(3)): it keeps freed memory in place of mapping and unmapping the buffer of each
#: request, which the kernel has to clear. 1 GiB into a qcow2 image in memory, in requests of 256 KiB, took qemu-nbd
#: 0.97 s of processor time without and 0.42 s with it, and 3 MiB more memory. 32 MiB is the most that glibc takes as a
#: threshold (HEAP_MAX_SIZE / 2).
MALLOC = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=67108864"
#: What a peer is told if a program of qemu or Ceph is not installed.
NO_PROGRAM = "The server lacks a program for images of this kind"

DIRECTORY = "qemu-nbd-"
#: What the argument begins with that names the image: qemu takes JSON behind it.
JSON = "json:"
SOCKET = "socket"
PID_FILE = "pid"


class QemuNbd:
    """A running qemu-nbd, which serves one image on a unix socket in a private directory.

    A thread waits for it from its start to its end. It ends with the daemon: setpriv asks the kernel for a SIGTERM when
    that thread ends (PR_SET_PDEATHSIG, prctl(2)), at which qemu-nbd writes what it caches and ends. A preexec_fn could
    ask, too, but is not safe in a process with threads.

    One that waits for a cluster to open the image takes no SIGTERM. If the daemon is killed then, it stays, with no
    lock and nothing written, until the cluster answers or librados gives up. It ends then, because the next daemon has
    removed the directory (leftovers.py). systemd kills it with the daemon.
    """

    def __init__(self, command: Sequence[str], directory: str, image: str, bitmap: str | None) -> None:
        self._directory = directory
        self._image = image
        self._bitmap = bitmap
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        # It has found that the image is damaged, and every request fails.
        self._has_marked = False
        self._on_marked: Callable[[], None] | None = None
        #: Done when it has ended, with its messages.
        self._ended: Future[str] = start_thread(lambda: self._follow(command))

    @classmethod
    async def start(
        cls,
        chain: Chain,
        image: str,
        *,
        run_dir: str,
        writable: bool,
        connections: int,
        bitmap: str | None = None,
        answer_timeout: float | None = None,
    ) -> "QemuNbd":
        """Start it and wait until it serves. image: the name of the image for logs. bitmap: one of it to be told.

        answer_timeout: seconds for a cluster to answer; None: there is none, START_TIMEOUT counts. While it waits for a
        cluster, it is killed if it does not end in WAITING_STOP_TIMEOUT.

        Raises Unusable: the program is missing. StorageError: it does not start in time. What reasons.not_opened()
        has: it ends at once, and says why.
        """
        directory, node = await in_thread(lambda: _prepare(run_dir, chain.node), _discard)
        options = _options(directory, writable=writable, direct=chain.direct, bitmap=bitmap)
        # JSON, so that a path is never read as an option, and the format of no file is probed.
        node |= {"discard": "unmap", "detect-zeroes": "off", "read-only": not writable}
        server = cls([*options, f"--shared={connections}", JSON + json.dumps(node)], directory, image, bitmap)
        try:
            await server._serving(START_TIMEOUT if answer_timeout is None else answer_timeout)
        except BaseException:
            await server._end(STOP_TIMEOUT if answer_timeout is None else WAITING_STOP_TIMEOUT)
            raise
        return server

    @property
    def address(self) -> NbdAddress:
        """Return the address of its socket."""
        return NbdAddress(socket=os.path.join(self._directory, SOCKET))

    def on_marked(self, callback: Callable[[], None]) -> None:
        """Call a function, in any thread, when it has found that the image is damaged; at once if it has already.

        It replaces the function before, which is not called any more.
        """
        with self._lock:
            self._on_marked = callback
            if self._has_marked:
                callback()

    def _marked(self) -> None:
        with self._lock:
            self._has_marked = True
            if self._on_marked is not None:
                self._on_marked()

    async def stop(self) -> None:
        """End it by SIGTERM, at which it writes what it caches, or by SIGKILL after STOP_TIMEOUT."""
        await self._end(STOP_TIMEOUT)

    async def _end(self, timeout: float) -> None:
        ended = asyncio.wrap_future(self._ended)
        with self._lock:
            self._stopping = True
        if self._process is not None:
            deadline = time.monotonic() + timeout
            while not ended.done() and time.monotonic() < deadline:
                self._process.terminate()
                await asyncio.wait([ended], timeout=SIGNAL_INTERVAL)
            if not ended.done():
                log.error("qemu-nbd for %s does not end, and is killed", self._image)
                self._process.kill()
        await asyncio.wait([ended])
        await in_thread(lambda: shutil.rmtree(self._directory, ignore_errors=True))

    async def _serving(self, timeout: float) -> None:
        """Wait until it accepts connections: it writes its pid file then."""
        ended = asyncio.wrap_future(self._ended)
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if ended.done():
                raise reasons.not_opened(await ended, self._image, self._bitmap)
            if time.monotonic() > deadline:
                why = f"(not open after {timeout:.0f} seconds: does its storage answer, and has it room?)"
                raise StorageError(errno.ETIMEDOUT, f"open {self._image}", "qemu-nbd", why)
            await asyncio.wait([ended], timeout=POLL)

    def _is_ready(self) -> bool:
        return os.path.exists(os.path.join(self._directory, PID_FILE))

    def _follow(self, command: Sequence[str]) -> str:
        """Run it to its end and return its messages. Blocks."""
        with self._lock:
            if self._stopping:
                return "stopped before it was started"
            try:
                process, reading = _spawn(command)
            except OSError as e:
                return f"cannot be started: {e.strerror}"
            self._process = process
        with process, os.fdopen(reading, "rb", 0) as stream:
            messages = b""
            while data := stream.read(MAX_MESSAGES):
                messages = (messages + data)[-MAX_MESSAGES:]
                if not self._has_marked and reasons.MARKED.encode() in messages:
                    log.error("%s is damaged, and was marked as corrupt", self._image)
                    self._marked()
        said = messages.decode(errors="replace").strip().replace("\n", "; ") or "no message"
        if not self._stopping:
            log.error("qemu-nbd for %s ended with status %d: %s", self._image, process.returncode, said)
        elif process.returncode or messages:
            log.warning("qemu-nbd for %s stopped with status %d: %s", self._image, process.returncode, said)
        return said


def environment() -> dict[str, str]:
    """Return the environment of programs of qemu and Ceph: without CEPH_ARGS, which librados would follow."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "GLIBC_TUNABLES": MALLOC}


def _spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Return the process and a descriptor of its standard error."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell, and the image's path stands inside JSON
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writing,
            env=environment(),
            cwd="/",
            umask=0o177,
            start_new_session=True,  # signals to the daemon's process group are not for it: it ends after the daemon
        )
        descriptors.restore_limit(process.pid)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return process, reading


def _prepare(run_dir: str, node: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a new directory that only the daemon's user can read, and the node for JSON.

    Raises StorageError, Unusable. qemu reads JSON that is UTF-8: a file whose name is not gets another one, of a link
    to it in the directory.
    """
    for program in ("qemu-nbd", "setpriv"):
        if shutil.which(program) is None:
            raise Unusable(NO_PROGRAM, "start qemu-nbd", program, "(is qemu-utils installed?)")
    try:
        directory = tempfile.mkdtemp(prefix=DIRECTORY, dir=run_dir)
    except OSError as e:
        raise StorageError(e.errno or errno.EIO, "start qemu-nbd", "mkdtemp", f"({run_dir})") from None
    try:
        return directory, _linked(node, directory)
    except OSError as e:
        shutil.rmtree(directory, ignore_errors=True)
        raise StorageError(e.errno or errno.EIO, "start qemu-nbd", "symlink", f"({directory})") from None


def _linked(node: dict[str, Any], directory: str) -> dict[str, Any]:
    """Return a node whose names are text. Raises OSError."""
    made = dict(node)
    for key, value in node.items():
        if isinstance(value, dict):
            made[key] = _linked(value, directory)
        elif key == "filename" and not _is_text(value):
            made[key] = os.path.join(directory, f"file-{len(os.listdir(directory))}")
            os.symlink(value, made[key])
    return made


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # it has bytes that are not UTF-8, as os.fsdecode() has them
        return False
    return True


def _discard(prepared: tuple[str, object]) -> None:
    shutil.rmtree(prepared[0], ignore_errors=True)


def _options(directory: str, *, writable: bool, direct: bool, bitmap: str | None) -> Sequence[str]:
    return [
        *("setpriv", "--pdeathsig", "TERM", "--", "qemu-nbd"),
        f"--socket={os.path.join(directory, SOCKET)}",
        f"--pid-file={os.path.join(directory, PID_FILE)}",
        "--persistent",
        *(("--cache=none", "--aio=native") if direct else ("--cache=writeback", "--aio=threads")),
        "--discard=unmap",
        "--detect-zeroes=off",
        "--allocation-depth",
        *(() if writable else ("--read-only",)),
        *(() if bitmap is None else (f"--bitmap={bitmap}",)),
    ]
