# SPDX-License-Identifier: Apache-2.0
"""The functions of the library."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
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
from .described import Downloading, Local, Uploading
from .errors import Usage
from .handle.image import Image
from .local.choosing import Making
from .local.in_use import locked
from .local.opening import How, disk_names, open_source
from .local.source import Source
from .server.address import is_url
from .server.image import RemoteImage
from .server.session import DEFAULTS, ClientSession, Settings, securing
from .transfer import workers
from .transfer.checkpoints import CHECKPOINT
from .transfer.digest import Digest
from .transfer.download import Downloaded
from .transfer.hashing import hash_all
from .transfer.options import DownloadOptions, Uploaded, UploadOptions
from .transfer.progress import Counter, Opening, Report
from .transfer.record import state_directory
from .transfer.wire_compression import Compression

_T = TypeVar("_T")


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
    source: Local,
    url: str,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002 - as the command and qemu call it
    decompress: str | None = None,
    member: str | None = None,
    size: int | None = None,
    expect: str | None = None,
    restart: bool = False,
    compare_all: bool = False,
    update: bool = False,
    base: str | None = None,
    bitmap: str | None = None,
    state: bool | str | os.PathLike[str] = True,
    checkpoint: float = CHECKPOINT,
    verify: bool = False,
    room_check: bool = True,
    wire_compression: Compression | str = Compression.AUTO,
    shared: bool = False,
    progress: Report | None = None,
) -> Uploaded:
    """Make the image at url read as source, on stable storage. A longer target is not changed beyond source's end.

    source: a file or block device, an image on Ceph (rbd:POOL/IMAGE), an export of an NBD server (nbd://HOST/NAME and
    the other URIs of NBD), a file of any web server (https://…), which is read in order, or a binary stream. format:
    `raw`, or any that qemu knows; None: what the suffix of the name says, or else raw after a check that it does not
    look like anything else. decompress: `gz`, `xz`, `zstd` or `bz2`; None: what the suffix of the name says, if there
    is no format. member: the member of a tar archive, such as an OVA, to upload. size: bytes of a stream, or of what is
    decompressed; None: what compressed data tells, or a file that is read twice. expect: `sha256:HEX` or the like, the
    digest of the file as it was published, which is compared before the image is verified.

    What an interrupted upload has left on stable storage is not sent again: the server tells it, or, for another ticket
    of the same image and where the server cannot, files of this user, or in the directory `state`; False: nobody. What
    they tell is compared with the target. restart: send all.
    update: send only what differs from what the target has, by the digests of both sides, whatever it is, and verify.
    base, bitmap: with update, the checksum() of the source as it was when its dirty bitmap of this name began, of a
    qcow2 image or an export of an NBD server: a target that is the same is not compared but for a sample, and what the
    bitmap marks is sent. Any other target is compared as a whole.
    compare_all: compare all that is not sent with the source, and not a sample. checkpoint: seconds between two
    flushes. verify: compare the checksum of what was read with the server's. room_check: end before the first byte if
    the storage of the target is too small. wire_compression: send data compressed to servers that take it, never over
    a unix socket: `auto`, where that is faster, `always` or `never`. shared: other programs may write to the source
    meanwhile; otherwise it is locked, and refused if one does. progress: called every 0.1 s.

    Raises ClientError.
    """
    how = How(
        format=format, decompress=decompress, member=member, size=size, shared=shared, expect=expect, bitmap=bitmap
    )
    options = UploadOptions(
        verify=verify,
        restart=restart,
        state=state_directory(state),
        checkpoint=checkpoint,
        update=update,
        base=base,
        compare_all=compare_all,
        room_check=room_check,
        wire_compression=_compression(wire_compression),
    )
    return Uploading(source, url, settings, how, options).run(progress)


def disks(
    archive: str | os.PathLike[str], *, decompress: str | None = None, progress: Report | None = None
) -> list[str]:
    """Return the names of the members of a tar archive, such as an OVA, that are disks, in their order.

    decompress: as for upload(). A compressed archive is read to its end. progress: called every 0.1 s meanwhile.
    Raises ClientError.
    """
    return disk_names(Path(archive), How(decompress=decompress), Opening(Counter(), progress))


def download(
    url: str,
    target: Local,
    *,
    settings: Settings = DEFAULTS,
    format: str | None = None,  # noqa: A002
    compress: bool = False,
    dirty: bool = False,
    update: bool = False,
    base: str | None = None,
    restart: bool = False,
    state: bool | str | os.PathLike[str] = True,
    checkpoint: float = CHECKPOINT,
    verify: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    shared: bool = False,
    progress: Report | None = None,
) -> Downloaded:
    """Make target read as the image at url, on stable storage.

    target: a file, which is replaced when the download is complete; a block device; an existing image on Ceph
    (rbd:POOL/IMAGE) or export of an NBD server; or a binary stream. format: of a new file: raw, or any that qemu can
    create; None: what the suffix of its name says, also whether it is compressed, or else raw. compress: the clusters
    of a qcow2 image. dirty: download only the extents that have changed since the server's checkpoint, into a file or
    device with an older copy, or into a new qcow2 image to be rebased on such a copy. update: write only what differs
    from a raw or qcow2 file or a device that exists, by the digests of both sides, and verify. base: with update, the
    checksum() of the image as it was when the bitmap of its ticket began: of a target that is the same the server reads
    what the bitmap marks, and a sample. verify: compare the checksum of what was received with the server's. manifest:
    the file that gets the digests of all blocks, after such a comparison. shared: other programs may use a target that
    exists meanwhile; otherwise it is locked, and refused if one does. progress: called every 0.1 s.

    An interrupted download of a new raw or qcow2 file leaves NAME.part, and a file of this user, or in the directory
    `state`, that tells what of it is on stable storage; False: it leaves nothing. The next one compares that with the
    image, and receives what differs or is not there. restart: receive all. checkpoint: seconds between two flushes.

    Raises ClientError.
    """
    making = Making(format=format, compress=compress, shared=shared)
    options = DownloadOptions(
        verify=verify,
        restart=restart,
        state=state_directory(state),
        checkpoint=checkpoint,
        update=update,
        base=base,
        dirty=dirty,
        manifest=None if manifest is None else Path(manifest),
    )
    return Downloading(url, target, settings, making, options).run(progress)


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
    with contextlib.closing(open_source(image, How(format, shared=True, secure=securing(settings)))) as source:
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
    if not algorithm.isascii():
        raise Usage(f"{algorithm} is no name of an algorithm")
    if is_url(os.fspath(image)):
        return _ask(os.fspath(image), settings, lambda image, _: str(image.checksum(algorithm, block_size)["checksum"]))
    with (
        locked(image, writes=False, shared=shared),
        contextlib.closing(open_source(image, How(format, shared=shared, secure=securing(settings)))) as source,
    ):
        return _hash(source, algorithm, block_size)


def _compression(name: Compression | str) -> Compression:
    try:
        return Compression(name)
    except ValueError:
        raise Usage("wire_compression is auto, always or never") from None


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
        raise Usage(f"{algorithm} is not an algorithm of this host, which has {', '.join(algorithms())}") from e
    hash_all(source, digest)
    return digest.hexdigest()
