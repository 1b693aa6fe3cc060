# SPDX-License-Identifier: Apache-2.0
"""A qemu-nbd process for one transfer, for images that only qemu reads and writes."""

import asyncio
import contextlib
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
from typing import Any, NamedTuple

from ...errors import StorageError, Unusable
from ...image.chain import Chain
from ...runtime import descriptors
from ...runtime.background import in_thread, start_thread, surely
from ...urls.nbd import NbdAddress
from . import reasons

log = logging.getLogger(__name__)

#: Most seconds until qemu-nbd accepts connections. It takes some 20 ms, and longer to open an image on slow storage.
START_TIMEOUT = 30.0
#: Most seconds until qemu-nbd ends, in which it writes cached metadata. This is less than the daemon's
#: shutdown_timeout.
STOP_TIMEOUT = 20.0
#: The same while qemu-nbd waits for a cluster to open the image. It ignores signals then, and has written nothing.
WAITING_STOP_TIMEOUT = 1.0
#: Seconds between SIGTERMs. qemu-nbd ignores them for some 10 ms at its start.
SIGNAL_INTERVAL = 0.2
#: Seconds between checks for its pid file. The first OPTIONS of a qcow2 image takes 13 ms, and 17 ms with 0.01.
POLL = 0.002
#: Most bytes of its standard error that are kept, the last ones.
MAX_MESSAGES = 4096

#: Options for the allocator of glibc (mallopt(3)), which then keeps freed memory. Otherwise it maps and unmaps the
#: buffer of each request, and the kernel has to clear it. For 1 GiB into a qcow2 image in memory, in requests of 256
#: KiB, qemu-nbd needed 0.97 s of processor time without them and 0.42 s with them, and 3 MiB more memory. 32 MiB is the
#: largest threshold that glibc takes (HEAP_MAX_SIZE / 2).
MALLOC = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=67108864"
#: The text for clients if a program of qemu or Ceph is not installed.
NO_PROGRAM = "The server lacks a program for images of this kind"

DIRECTORY = "qemu-nbd-"
#: The beginning of the argument that names the image. qemu reads JSON after it.
JSON = "json:"
SOCKET = "socket"
PID_FILE = "pid"


class QemuServer(NamedTuple):
    """Options for serving an image. The server's socket is in `run_dir`. `bitmap` is the bitmap to serve, if any.

    `answer_timeout` is the seconds for a cluster to answer. Without a cluster it is None, and START_TIMEOUT counts. If
    the start fails, a qemu-nbd that waits for a cluster is killed after WAITING_STOP_TIMEOUT.
    """

    run_dir: str
    connections: int
    writable: bool
    bitmap: str | None = None
    answer_timeout: float | None = None


class QemuNbd:
    """A running qemu-nbd, which serves one image on a unix socket in a private directory.

    A thread waits for the process from its start to its end. The process ends with the daemon: setpriv asks the kernel
    for a SIGTERM when that thread ends (PR_SET_PDEATHSIG, prctl(2)). At a SIGTERM qemu-nbd writes its cached changes
    and ends. A preexec_fn could ask for it, too, but is not safe in a process with threads.

    While qemu-nbd waits for a cluster to open the image, it ignores SIGTERM. If the daemon is killed then, qemu-nbd
    stays until the cluster answers or librados gives up. It has no lock and has written nothing. Then it ends, because
    the next daemon has removed its directory (leftovers.py). Under systemd, it is killed together with the daemon.
    """

    def __init__(self, command: Sequence[str], directory: str, image: str, bitmap: str | None) -> None:
        self._directory = directory
        self._image = image
        self._bitmap = bitmap
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        # Whether qemu-nbd has found that the image is damaged. Every request fails then.
        self._has_marked = False
        self._on_marked: Callable[[], None] | None = None
        #: The messages of the process, once it has ended.
        self._ended: Future[str] = start_thread(lambda: self._follow(command))

    @classmethod
    async def start(cls, chain: Chain, image: str, how: QemuServer) -> "QemuNbd":
        """Start qemu-nbd, and wait until it serves. `image` is the image's name in logs.

        If the kernel refuses qemu-nbd asynchronous I/O, it is started again with threads that read and write. The
        kernel is not asked before: it takes 30 ms to answer, and may refuse qemu-nbd later what it grants now.

        Raises Unusable if the program is missing, StorageError if it does not start in time, Unavailable if there is no
        thread, and the error of reasons.not_opened() if it ends at its start.
        """
        if chain.direct:
            with contextlib.suppress(reasons.AsyncIoRefused):
                return await cls._start(chain, image, how, asynchronous=True)
            log.warning("qemu-nbd for %s is started again, with threads that read and write", image)
        return await cls._start(chain, image, how, asynchronous=False)

    @classmethod
    async def _start(cls, chain: Chain, image: str, how: QemuServer, *, asynchronous: bool) -> "QemuNbd":
        directory, node = await in_thread(lambda: _prepare(how.run_dir, chain.node), _discard)
        options = _options(directory, how, direct=chain.direct, asynchronous=asynchronous)
        # JSON, so that a path is never read as an option, and the format of no file is probed.
        node |= {"discard": "unmap", "detect-zeroes": "off", "read-only": not how.writable}
        server = cls([*options, JSON + json.dumps(node)], directory, image, how.bitmap)
        timeout = how.answer_timeout
        try:
            await server._serving(START_TIMEOUT if timeout is None else timeout)
        except BaseException:
            await server._end(STOP_TIMEOUT if timeout is None else WAITING_STOP_TIMEOUT)
            raise
        return server

    @property
    def address(self) -> NbdAddress:
        """Return the address of the server's socket."""
        return NbdAddress(socket=os.path.join(self._directory, SOCKET))

    def on_marked(self, callback: Callable[[], None]) -> None:
        """Set a function to call, in any thread, when qemu-nbd finds that the image is damaged.

        If it has found that before, call the function at once. The function that was set before is not called any more.
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
        """End the process by SIGTERM, at which it writes its cached changes, or by SIGKILL after STOP_TIMEOUT."""
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
        ended.exception()  # so that asyncio does not log it: _serving() raises it
        await surely(lambda: in_thread(lambda: shutil.rmtree(self._directory, ignore_errors=True)))

    async def _serving(self, timeout: float) -> None:
        """Wait until the process accepts connections, which it shows by its pid file."""
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
        """Run the process to its end, and return its messages. Blocks."""
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
        if not self._stopping and not reasons.is_async_io_refused(said):
            log.error("qemu-nbd for %s ended with status %d: %s", self._image, process.returncode, said)
        elif process.returncode or messages:
            log.warning("qemu-nbd for %s stopped with status %d: %s", self._image, process.returncode, said)
        return said


def environment() -> dict[str, str]:
    """Return the environment of programs of qemu and Ceph, without CEPH_ARGS, which librados would follow."""
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
            start_new_session=True,  # it must not get signals to the daemon's process group, and ends after the daemon
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

    Raises StorageError, Unusable. qemu reads JSON in UTF-8. A file whose name is not UTF-8 gets a link in the
    directory, whose name is in the node.
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
    """Return a node whose names are all UTF-8. Raises OSError."""
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
    except UnicodeEncodeError:  # os.fsdecode() has found bytes that are not UTF-8
        return False
    return True


def _discard(prepared: tuple[str, object]) -> None:
    shutil.rmtree(prepared[0], ignore_errors=True)


def _options(directory: str, how: QemuServer, *, direct: bool, asynchronous: bool) -> Sequence[str]:
    return [
        *("setpriv", "--pdeathsig", "TERM", "--", "qemu-nbd"),
        f"--socket={os.path.join(directory, SOCKET)}",
        f"--pid-file={os.path.join(directory, PID_FILE)}",
        "--persistent",
        f"--cache={'none' if direct else 'writeback'}",
        f"--aio={'native' if asynchronous else 'threads'}",
        "--discard=unmap",
        "--detect-zeroes=off",
        "--allocation-depth",
        *(() if how.writable else ("--read-only",)),
        *(() if how.bitmap is None else (f"--bitmap={how.bitmap}",)),
        f"--shared={how.connections}",
    ]
