# SPDX-License-Identifier: Apache-2.0
"""An nbdkit plugin: an image of the images API as an NBD export, for programs that know NBD and not HTTP.

    nbdkit python examples/nbdkit_plugin.py url=https://host:54322/images/TICKET cafile=ca.pem
    nbdcopy --flush disk.raw nbd://localhost

Parameters: url; cafile, or pin (sha256//BASE64); connections, how many requests run at a time. Other users of the host
see the ticket in the list of processes. The Python of nbdkit has to find imageio_daemon and what it needs (PYTHONPATH).

All NBD connections share one open image, so a flush on one of them covers what was written on the others.
"""

import contextlib
import errno
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import nbdkit

from imageio_daemon import client

API_VERSION = 2

#: Errors of the server that NBD has numbers for (docs/images-api.md, errors); all else is EIO.
ERRORS = {"storage_full": errno.ENOSPC, "not_allowed": errno.EPERM}

_parameters: dict[str, str] = {}


class Export:
    """The open image, and the map of it that clients ask for piece by piece."""

    def __init__(self, image: client.Image) -> None:
        self.image = image
        self._lock = threading.Lock()
        self._map: Sequence[client.Extent] | None = None

    def map(self) -> Sequence[client.Extent]:
        """Return the extents as of the last change that came through this export."""
        with self._lock:
            if self._map is None:
                self._map = self.image.extents()
            return self._map

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Do a change, and forget the map."""
        try:
            yield
        finally:
            with self._lock:
                self._map = None


_export: Export


@contextlib.contextmanager
def with_errno() -> Iterator[None]:
    """Give the client of NBD the error's number; nbdkit logs its text."""
    try:
        yield
    except client.ClientError as e:
        nbdkit.set_error(ERRORS.get(e.code or "", errno.EIO))
        raise


def thread_model() -> int:
    return int(nbdkit.THREAD_MODEL_PARALLEL)


def config(key: str, value: str) -> None:
    if key not in ("url", "cafile", "pin", "connections"):
        raise ValueError(f"unknown parameter {key}")
    _parameters[key] = value


def config_complete() -> None:
    if "url" not in _parameters:
        raise ValueError("url=https://HOST:PORT/images/TICKET is missing")


def after_fork() -> None:
    """Connect in the process that serves."""
    global _export  # noqa: PLW0603 - a plugin is a module
    count = _parameters.get("connections")
    settings = client.Settings(
        cafile=_parameters.get("cafile"),
        pins=[_parameters["pin"]] if "pin" in _parameters else [],
        connections=int(count) if count else None,
    )
    _export = Export(client.open(_parameters["url"], settings=settings))


def cleanup() -> None:
    _export.image.close()


def open(readonly: bool) -> Export:  # noqa: A001 - as nbdkit calls it
    return _export


def get_size(export: Export) -> int:
    return export.image.size


def can_write(export: Export) -> bool:
    return export.image.writable


def can_multi_conn(export: Export) -> bool:
    return True


def can_fast_zero(export: Export) -> bool:
    return False


def can_fua(export: Export) -> int:
    return int(nbdkit.FUA_EMULATE)


def can_extents(export: Export) -> bool:
    return "extents" in export.image.features


def pread(export: Export, buffer: memoryview, offset: int, flags: int) -> None:
    with with_errno():
        export.image.read(offset, buffer)


def pwrite(export: Export, data: memoryview, offset: int, flags: int) -> None:
    with with_errno(), export.changing():
        export.image.write(offset, data)


def zero(export: Export, count: int, offset: int, flags: int) -> None:
    with with_errno(), export.changing():
        export.image.zero(offset, count)


def flush(export: Export, flags: int) -> None:
    with with_errno():
        export.image.flush()


def extents(export: Export, count: int, offset: int, flags: int) -> Iterator[tuple[int, int, int]]:
    with with_errno():
        found = export.map()
    for number in range(bisect_right(found, offset, key=lambda extent: extent.start) - 1, len(found)):
        start, length, is_zero = found[number][:3]
        if start >= offset + count:
            break
        yield start, length, nbdkit.EXTENT_ZERO if is_zero else 0
