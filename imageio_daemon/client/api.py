# SPDX-License-Identifier: Apache-2.0
"""The functions of the library."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from ..image.blockhash import BLOCK_ALIGNMENT, DEFAULT_ALGORITHM, DEFAULT_BLOCK, MAX_BLOCK, MIN_BLOCK, new_hash
from ..image.extents import Extent
from .errors import Usage
from .handle.image import Image
from .local.choosing import open_target
from .local.in_use import locked
from .local.opening import How, disk_names, open_source
from .local.source import Source
from .server.address import is_url
from .server.image import RemoteImage
from .server.session import DEFAULTS, ClientSession, Settings
from .stopping import Stop
from .transfer import workers
from .transfer.confirmed import CHECKPOINT
from .transfer.digest import Digest
from .transfer.download import Download, Downloaded
from .transfer.hashing import hash_unit
from .transfer.memory import new_buffer
from .transfer.options import Options, Uploaded
from .transfer.plan import Queue, units
from .transfer.progress import Report
from .transfer.state import default_directory
from .transfer.upload import Upload
from .transfer.wire_compression import Compression

_T = TypeVar("_T")

#: Threads that hash a local image. 2 are as fast as most disks.
HASHING = 2


@dataclass(frozen=True)
class Info:
    """What is known of an image without reading its data. Sizes are in bytes. `None`: not known.

    data, zero: bytes of data and of extents that read as zeros. local: the server is reached by its unix socket.
    """

    size: int
    data: int | None = None
    zero: int | None = None
    features: tuple[str, ...] = ()
    max_readers: int | None = None
    max_writers: int | None = None
    local: bool = False


def upload(
    source: str | os.PathLike[str] | BinaryIO,
    url: str,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002 - as the command and qemu call it
    decompress: str | None = None,
    member: str | None = None,
    size: int | None = None,
    restart: bool = False,
    compare_all: bool = False,
    state: bool | str | os.PathLike[str] = True,
    checkpoint: float = CHECKPOINT,
    verify: bool = False,
    room_check: bool = True,
    wire_compression: Compression | str = Compression.AUTO,
    shared: bool = False,
    progress: Report | None = None,
) -> Uploaded:
    """Make the image at url read as source, on stable storage. A longer target is not changed beyond source's end.

    source: a file or block device, an image on Ceph (rbd:POOL/IMAGE), or a binary stream. format: `raw`, or any that
    qemu knows; None: what the suffix of the name says, or else raw after a check that it does not look like anything
    else. decompress: `gz`, `xz`, `zstd` or `bz2`; None: what the suffix of the name says, if there is no format.
    member: the member of a tar archive, such as an OVA, to upload. size: bytes of a stream, or of what is decompressed;
    None: what compressed data tells, or a file that is read twice.

    What an interrupted upload has left on stable storage is not sent again: the server tells it, or, for another ticket
    of the same image and where the server cannot, files of this user, or in the directory `state`; False: nobody. What
    they tell is compared with the target. restart: send all.
    compare_all: compare all that is not sent with the source, and not a sample. checkpoint: seconds between two
    flushes. verify: compare the checksum of what was read with the server's. room_check: end before the first byte if
    the storage of the target is too small. wire_compression: send data compressed to servers that take it, never over
    a unix socket: `auto`, where that is faster, `always` or `never`. shared: other programs may write to the source
    meanwhile; otherwise it is locked, and refused if one does. progress: called every 0.1 s.

    Raises ClientError.
    """
    if isinstance(source, str | os.PathLike) and is_url(os.fspath(source)):
        raise Usage("the image comes first, then the URL")
    if wire_compression not in set(Compression):
        raise Usage("wire_compression is auto, always or never")
    with (
        locked(source, writes=False, shared=shared),
        contextlib.closing(open_source(source, How(format, decompress, member, size, shared))) as opened,
        ClientSession(url, settings) as session,
    ):
        kept, wire = _state_directory(state), Compression(wire_compression)
        options = Options(verify, restart, compare_all, kept, checkpoint, room_check, wire)
        return Upload(opened, session, options, progress).run()


def disks(archive: str | os.PathLike[str], *, decompress: str | None = None) -> list[str]:
    """Return the names of the members of a tar archive, such as an OVA, that are disks, in their order.

    decompress: as for upload(). A compressed archive is read to its end. Raises ClientError.
    """
    return disk_names(Path(archive), How(decompress=decompress))


def download(
    url: str,
    target: str | os.PathLike[str] | BinaryIO,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
    compress: bool = False,
    dirty: bool = False,
    verify: bool = False,
    shared: bool = False,
    progress: Report | None = None,
) -> Downloaded:
    """Make target read as the image at url, on stable storage.

    target: a file, which is replaced when the download is complete; a block device; an existing image on Ceph
    (rbd:POOL/IMAGE); or a binary stream. format: of a new file: raw, or any that qemu can create; None: what the suffix
    of its name says, also whether it is compressed, or else raw. compress: the clusters of a qcow2 image. dirty:
    download only the extents that have changed since the server's checkpoint, into a file or device with an older copy,
    or into a new qcow2 image to be rebased on such a copy. verify: compare the checksum of what was received with the
    server's. shared: other programs may use a target that exists meanwhile; otherwise it is locked, and refused if one
    does. progress: called every 0.1 s.

    Raises ClientError.
    """
    if dirty and verify:
        raise Usage("what is downloaded with dirty is a part, and the server's checksum is that of the whole image")
    with locked(target, writes=True, shared=shared), ClientSession(url, settings) as session:
        if isinstance(target, str | os.PathLike) and is_url(os.fspath(target)):
            raise Usage("the URL comes first, then the image")
        opened = open_target(target, format, compress=compress, dirty=dirty)
        try:
            return Download(session, opened, dirty=dirty, verify=verify, report=progress).run()
        except BaseException:
            opened.abandon()
            raise


def open(url: str, *, settings: Settings = DEFAULTS) -> Image:  # noqa: A001 - as that of files
    """Open the image at url for reading, and for writing if the ticket allows it; close() it, or use `with`.

    Several threads may use it: see Image. Raises ClientError.
    """
    session = ClientSession(url, settings)
    try:
        return Image(session)
    except BaseException:
        session.close()
        raise


def extents(url: str, *, settings: Settings = DEFAULTS, context: str = "zero") -> Sequence[Extent]:
    """Return the extents of an image: zero or data, or with the context "dirty", changed or not. Raises ClientError."""
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
    with contextlib.closing(open_source(image, How(format, shared=True))) as source:
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
    """Return the digest of an image, computed by the server of a URL, or here for a file or device.

    What is hashed: image/blockhash.py. shared: other programs may write to a local image meanwhile, see upload().
    """
    if not MIN_BLOCK <= block_size <= MAX_BLOCK or block_size % BLOCK_ALIGNMENT:
        raise Usage(f"a block has {MIN_BLOCK} to {MAX_BLOCK} bytes, a multiple of {BLOCK_ALIGNMENT}")
    if is_url(os.fspath(image)):
        return _ask(os.fspath(image), settings, lambda image, _: str(image.checksum(algorithm, block_size)["checksum"]))
    with (
        locked(image, writes=False, shared=shared),
        contextlib.closing(open_source(image, How(format, shared=shared))) as source,
    ):
        return _hash(source, algorithm, block_size)


def _state_directory(state: bool | str | os.PathLike[str]) -> Path | None:
    """Return the directory in which upload() keeps its state; None if it keeps none."""
    if isinstance(state, str | os.PathLike):
        return Path(state)
    return default_directory() if state else None


def _ask(url: str, settings: Settings, question: Callable[[RemoteImage, ClientSession], _T]) -> _T:
    """Open an image and call question in a thread, so that Ctrl-C ends the wait."""
    with ClientSession(url, settings) as session:
        (answer,) = workers.run([lambda: question(session.open(), session)], session.stop)
        return answer


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
        raise Usage(f"{algorithm} is not an algorithm of this host: {e}") from e
    stop = Stop()
    queue = Queue(units(source.extents(), block_size=block_size), source.portion, stop)

    def work() -> None:
        buffer = new_buffer(block_size)
        for unit in queue.take():
            stop.check()
            hash_unit(source, unit, buffer, digest, unit.start // block_size)

    workers.run([queue.fill, *[work] * HASHING], stop)
    return digest.hexdigest()
