# SPDX-License-Identifier: Apache-2.0
"""The functions of the library that only ask about images."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..image.blockhash import (
    BLOCK_ALIGNMENT,
    DEFAULT_ALGORITHM,
    DEFAULT_BLOCK,
    MAX_BLOCK,
    MIN_BLOCK,
    algorithms,
    new_hash,
)
from ..image.extents import Extent
from .errors import Usage
from .local.in_use import locked
from .local.opening import How, disk_names, open_source
from .local.source import Source
from .server.address import is_url
from .server.remote_image import RemoteImage
from .server.session import DEFAULTS, ClientSession, Settings, securing
from .transfer import workers
from .transfer.block_hashing import hash_all
from .transfer.digest import Digest
from .transfer.manifest import ManifestComparison
from .transfer.progress import Counter, Opening, Report

_T = TypeVar("_T")


@dataclass(frozen=True)
class Info:
    """What is known of an image without reading its data. Sizes are in bytes, and None if they are not known.

    `data` and `zero` are the bytes of data, and of extents that read as zeros. `local` tells whether the client reaches
    the server by its unix socket.
    """

    size: int
    data: int | None = None
    zero: int | None = None
    features: tuple[str, ...] = ()
    max_readers: int | None = None
    max_writers: int | None = None
    local: bool = False


def disks(
    archive: str | os.PathLike[str], *, decompress: str | None = None, progress: Report | None = None
) -> list[str]:
    """Return the names of the disks in a tar archive, such as an OVA, in their order.

    `decompress` is as for upload(). A compressed archive is read to its end, and `progress` is called every 0.1 s. An
    archive of a web server is read once, and its disks are not listed. Raises ClientError.
    """
    if is_url(os.fspath(archive)):
        raise Usage("the disks of an archive on a web server are not known: say --member NAME, or fetch it first")
    return disk_names(Path(archive), How(decompress=decompress), Opening(Counter(), progress))


def extents(url: str, *, settings: Settings = DEFAULTS, context: str = "zero") -> Sequence[Extent]:
    """Return the extents of an image: zero or data, or in the context "dirty" changed or not. Raises ClientError."""
    return _ask(url, settings, lambda image, _: image.extents(context))


def info(
    image: str | os.PathLike[str],
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
) -> Info:
    """Return information on the image at a URL, or on a local file or device. Raises ClientError."""
    if is_url(os.fspath(image)):
        return _ask(os.fspath(image), settings, _remote_info)
    with _opened(image, settings, format, shared=True) as source:
        return _with_extents(Info(source.size), source.extents())


def checksum(
    image: str | os.PathLike[str],
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
    algorithm: str = DEFAULT_ALGORITHM,
    block_size: int = DEFAULT_BLOCK,
    shared: bool = False,
) -> str:
    """Return the digest of an image. For a URL, the server computes it; for a file or device, this function does.

    image/blockhash.py says what is hashed. With `shared`, other programs may write to a local image at the same time,
    see upload().
    """
    if not MIN_BLOCK <= block_size <= MAX_BLOCK or block_size % BLOCK_ALIGNMENT:
        raise Usage(f"a block has {MIN_BLOCK} to {MAX_BLOCK} bytes, a multiple of {BLOCK_ALIGNMENT}")
    if not algorithm.isascii():
        raise Usage(f"{algorithm} is no name of an algorithm")
    if is_url(os.fspath(image)):
        return _ask(os.fspath(image), settings, lambda image, _: str(image.checksum(algorithm, block_size)["checksum"]))
    with _opened(image, settings, format, shared=shared) as source:
        return _hash(source, algorithm, block_size)


def verify(
    manifest: str | os.PathLike[str],
    image: str | os.PathLike[str],
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
    shared: bool = False,
) -> list[tuple[int, int]]:
    """Return offset and length of the ranges, in whole blocks, in which an image differs from the manifest.

    `manifest` is what download() has written. `image` is local, or the URL of an image, whose server computes the
    digests. A server without `checksum_blocks` does not tell where they differ; then the range is the whole image. With
    `shared`, other programs may write to a local image at the same time, see upload(). Raises ClientError.
    """

    def compared(size: int) -> ManifestComparison:
        return ManifestComparison(Path(manifest), size, Counter())

    if is_url(os.fspath(image)):
        found = _ask(os.fspath(image), settings, lambda image, session: compared(image.size()).there(session, image))
    else:
        with _opened(image, settings, format, shared=shared) as source:
            found = compared(source.size).here(source)
    return [(start, end - start) for start, end in found]


def _ask(url: str, settings: Settings, question: Callable[[RemoteImage, ClientSession], _T]) -> _T:
    """Open an image, and call `question` in a thread, so that Ctrl-C ends the wait."""
    with ClientSession(url, settings) as session:
        (answer,) = workers.run([lambda: question(session.open(), session)], session.stop)
        return answer


@contextlib.contextmanager
def _opened(
    image: str | os.PathLike[str], settings: Settings, format_name: str | None, *, shared: bool
) -> Iterator[Source]:
    """Open a local image for reading, locked unless it is shared. Raises LocalError, Usage."""
    how = How(format_name, shared=shared, secure=securing(settings))
    with locked(image, writes=False, shared=shared), contextlib.closing(open_source(image, how)) as source:
        yield source


def _remote_info(image: RemoteImage, session: ClientSession) -> Info:
    abilities = session.abilities
    told = Info(
        image.size(),
        features=tuple(sorted(abilities.features)),
        max_readers=abilities.max_readers,
        max_writers=abilities.max_writers,
        local=session.is_local,
    )
    return _with_extents(told, image.extents()) if "extents" in abilities.features else told


def _with_extents(told: Info, found: Iterable[Extent]) -> Info:
    zero = sum(extent.length for extent in found if extent.zero)
    return dataclasses.replace(told, data=told.size - zero, zero=zero)


def _hash(source: Source, algorithm: str, block_size: int) -> str:
    try:
        digest = Digest(algorithm, block_size)
        new_hash(algorithm)
    except ValueError as e:
        raise Usage(f"{algorithm} is not an algorithm of this host, which has {', '.join(algorithms())}") from e
    hash_all(source, digest)
    return digest.hexdigest()
