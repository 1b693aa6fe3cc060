# SPDX-License-Identifier: Apache-2.0
"""The state directory, with all that outlives the process, and whether it can be used. One daemon at a time uses it.

    STATE/version     the version of the layout, a decimal number and a newline
    STATE/NAME/       the files of one part of the daemon, mode 0700

Without a state directory, or with one that cannot be used, the daemon serves and keeps nothing. In the second case it
is degraded (degraded.py).
"""

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time

from ..errors import ConfigError

#: The version of the layout that this program writes, and the only one that it reads.
VERSION = 1
#: Most bytes of the file `version`.
MAX_VERSION = 32
#: Prefix of the names of files while they are written. If a crash leaves such a file, it is never read.
UNFINISHED = ".new-"
#: Seconds between two probes. One writes and flushes 4 KiB: 0.3 ms in the median of 50 on ext4 of a busy virtual disk,
#: 88 ms at most.
PROBE_INTERVAL = 10.0
#: Seconds after which StateWatch.why() reports a probe that has not ended. Tickets wait as long: KEEP_TIMEOUT in
#: transfers/kept_tickets.py.
SILENT = 10.0

_VERSION_FILE, _VERSION_TEXT = "version", f"{VERSION}\n".encode()
#: A probe writes 4 KiB, because a file system may store smaller files without a block (inline data of ext4 and others).
_PROBE_FILE, _PROBE_SIZE = f"{UNFINISHED}probe", 4096
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class StateDirectory:
    """An open state directory at a path, locked until close(). The object owns the descriptor from now on.

    Raises OSError if the directory cannot be used, and ConfigError if another daemon has it.
    """

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._directories: dict[str, int] = {}
        try:
            _require_private(fd)
            self._lock()
            self._require_version()
        except BaseException:
            os.close(fd)
            raise

    def directory(self, name: str) -> int:
        """Return the descriptor of STATE/name, valid until close(). Make the directory with mode 0700 if it is missing.

        Raises OSError if it cannot be used, and PermissionError if other users may use it. Also raises OSError if it
        has a directory in the place of a file, which could neither be read nor written nor removed.
        """
        if name not in self._directories:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._fd)
                os.fsync(self._fd)
            fd = os.open(name, _OPEN_DIRECTORY, dir_fd=self._fd)
            try:
                _require_private(fd)
                _refuse_directories(fd, name)
                _remove_unfinished(fd)
            except BaseException:
                os.close(fd)
                raise
            self._directories[name] = fd
        return self._directories[name]

    def probe(self) -> None:
        """Make a file durable and remove it. Blocks. Raises OSError, also if the next daemon would not find it."""
        if not os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
            raise FileNotFoundError(errno.ENOENT, "another directory has its path now")
        _require_private(self._fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(_PROBE_FILE, flags, 0o600, dir_fd=self._fd)
            try:
                if os.write(fd, bytes(_PROBE_SIZE)) < _PROBE_SIZE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(fd)
            finally:
                os.close(fd)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_PROBE_FILE, dir_fd=self._fd)

    def close(self) -> None:
        """Close all descriptors. Another daemon may have the directory after that."""
        for fd in (*self._directories.values(), self._fd):
            os.close(fd)
        self._directories.clear()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("[daemon] state_dir: another daemon uses the directory") from None

    def _require_version(self) -> None:
        """Check the version, and that files can be written. A full directory that has its version can be used."""
        _require_writable(self._fd)
        _remove_unfinished(self._fd)
        if not _has_version(self._fd):
            replace_file(self._fd, _VERSION_FILE, _VERSION_TEXT)


def make_directory(path: str) -> bool:
    """Make a directory of mode 0700 unless it exists, and return whether it was made. open_state() raises errors."""
    try:
        os.makedirs(path, 0o700)
    except OSError:
        return False
    return True


def open_state(path: str) -> StateDirectory:
    """Open the state directory at a path, after make_directory().

    Raises OSError if it cannot be used: it is read-only, damaged or of another version, or belongs to another user.
    Raises ConfigError if another daemon uses it.
    """
    return StateDirectory(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)


def why_unusable(path: str, *, private: bool = True) -> str:
    """Return why open_state() would fail for an existing directory, or "" if it would not. Changes nothing.

    Pass private=False to allow a directory that other users may use.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if private:
                _require_private(fd)
            _require_writable(fd)
            _has_version(fd)
        finally:
            os.close(fd)
    except OSError as e:
        return e.strerror or str(e)
    return ""


# Files in the directory. These functions block: call them in threads, not on an event loop.


def read_file(directory: int, name: str, most: int) -> bytes:
    """Return the content of a file in a directory, given by descriptor. Raises OSError, also above `most` bytes."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name}: expected a regular file")
        with open(fd, "rb", closefd=False) as f:
            data = f.read(most + 1)
    finally:
        os.close(fd)
    if len(data) > most:
        raise OSError(f"{name}: expected at most {most} bytes")
    return data


def replace_file(directory: int, name: str, data: bytes) -> None:
    """Replace a file as a whole by one of mode 0600. The new file is durable, or the old one stays. Raises OSError.

    `directory` is a descriptor. One thread at a time may replace a file.
    """
    write_file(directory, name, data)
    os.fsync(directory)


def write_file(directory: int, name: str, data: bytes) -> None:
    """Do as replace_file(), but the new file is durable only after the caller's fsync(2) of the directory."""
    unfinished = UNFINISHED + name
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(unfinished, flags, 0o600, dir_fd=directory), "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.rename(unfinished, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished, dir_fd=directory)
        raise


def remove_file(directory: int, name: str) -> None:
    """Remove a file durably, if it exists. `directory` is a descriptor. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    os.fsync(directory)


def _remove_unfinished(directory: int) -> None:
    for name in os.listdir(directory):
        if name.startswith(UNFINISHED):
            os.unlink(name, dir_fd=directory)


def _refuse_directories(directory: int, name: str) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                raise OSError(f"{name}/{entry.name}: expected a file, it is a directory")


def _require_writable(fd: int) -> None:
    # access() also fails on a read-only file system, where a ticket could be served that cannot be removed.
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True):
        raise PermissionError("it is read-only")


def _has_version(fd: int) -> bool:
    """Return whether the directory has a version. Raises OSError if it has another one than VERSION."""
    try:
        found = read_file(fd, _VERSION_FILE, MAX_VERSION)
    except FileNotFoundError:
        return False
    if found != _VERSION_TEXT:
        raise OSError(f"expected version {VERSION}, and the file `version` has another one: {found!r}")
    return True


def _require_private(fd: int) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise PermissionError(f"expected a directory of user {os.geteuid()}: its owner is {status.st_uid}")
    if status.st_mode & 0o077:
        raise PermissionError(f"expected mode 0700: it is {stat.S_IMODE(status.st_mode):04o}")


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
        while self._state is not None and not self._ends.wait(PROBE_INTERVAL):
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
