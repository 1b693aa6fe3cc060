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
from .server.remote_image import RemoteImage
from .server.session import DEFAULTS, ClientSession, Settings, securing
from .transfer import workers
from .transfer.block_hashing import hash_all
from .transfer.checkpoints import CHECKPOINT
from .transfer.digest import Digest
from .transfer.download import Downloaded
from .transfer.progress import Counter, Opening, Report
from .transfer.record import state_directory
from .transfer.transfer_options import DownloadOptions, Uploaded, UploadOptions
from .transfer.wire_compression import Compression

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
    """Make the image at `url` read as `source`, on stable storage. Bytes of the image after source's end stay.

    `source` is a file or block device, an image on Ceph (rbd:POOL/IMAGE), an export of an NBD server (nbd://HOST/NAME
    and the other URIs of NBD), a file of any web server (https://…), which is read in order, or a binary stream.
    `format` is `raw`, or any that qemu knows. By default it is what the suffix of the name says, or else raw after a
    check that the source does not look like anything else. `decompress` is `gz`, `xz`, `zstd` or `bz2`; by default what
    the suffix of the name says, unless a format is given. `member` is the member of a tar archive, such as an OVA, to
    upload. `size` is the number of bytes of a stream, or of decompressed data; by default it comes from the header of
    the compressed data, or a compressed file is read twice. `expect` is the published digest of the file, such as
    `sha256:HEX`. It is compared before the image is verified, and of a local file before anything is sent.

    Bytes that an interrupted upload has put on stable storage are not sent again. The server tells which these are. If
    it cannot, or for another ticket of the same image, a file in this user's directory or in the directory `state`
    lists them. They are then compared with the target. With `state` False there is no such file. With `restart` all is
    sent.

    With `update`, only what differs from the target is sent, whatever the target has. The digests of both sides tell
    what differs, and the result is verified. `base` and `bitmap`, for `update`, are the checksum() that the source had
    when its dirty bitmap of this name began, and that name. The source is then a qcow2 image or an export of an NBD
    server. If the target has this checksum, what the bitmap marks is sent, and only a sample of the rest is compared.
    Any other target is compared as a whole. With `compare_all`, everything that is not sent is compared with the
    source, instead of a sample. `checkpoint` is the seconds between two flushes. With `verify`, the checksum of the
    bytes that were read is compared with the server's. With `room_check`, the upload fails before the first byte if the
    storage of the target is too small. `wire_compression` compresses data for servers that can decompress it, never
    over a unix socket: `auto` where that is faster, `always` or `never`. With `shared`, other programs may write to the
    source at the same time. Otherwise it is locked, and refused if another program writes to it. `progress` is called
    every 0.1 s.

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
    """Return the names of the disks in a tar archive, such as an OVA, in their order.

    `decompress` is as for upload(). A compressed archive is read to its end, and `progress` is called every 0.1 s. An
    archive of a web server is read once, and its disks are not listed. Raises ClientError.
    """
    if is_url(os.fspath(archive)):
        raise Usage("the disks of an archive on a web server are not known: say --member NAME, or fetch it first")
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
    """Make `target` read as the image at `url`, on stable storage.

    `target` is a file, which is replaced when the download is complete; a block device; an existing image on Ceph
    (rbd:POOL/IMAGE) or export of an NBD server; or a binary stream. `format` is that of a new file: raw, or any that
    qemu can create. By default the suffix of its name says the format and the compression; without a known suffix it is
    raw. With `compress`, the clusters of a qcow2 image are compressed. With `dirty`, only the extents that have changed
    since the server's checkpoint are downloaded, into a file or device with an older copy, or into a new qcow2 image to
    be rebased on such a copy. With `update`, only what differs is written to an existing raw or qcow2 file or device.
    The digests of both sides tell what differs, and the result is verified. `base`, for `update`, is the checksum()
    that the image had when the bitmap of its ticket began. If the target has this checksum, the server reads only what
    the bitmap marks, and a sample of the rest. With `verify`, the checksum of the received bytes is compared with the
    server's. `manifest` is the file that then gets the digests of all blocks. With `shared`, other programs may use an
    existing target at the same time. Otherwise it is locked, and refused if another program uses it. `progress` is
    called every 0.1 s.

    An interrupted download of a new raw or qcow2 file leaves NAME.part. A file in this user's directory or in the
    directory `state` lists its ranges that are on stable storage. The next download compares these with the image, and
    receives the others and what differs. With `state` False, nothing is left. With `restart`, all is received.
    `checkpoint` is the seconds between two flushes.

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


def open(url: str, *, settings: Settings = DEFAULTS) -> Image:  # noqa: A001 - named as that of files
    """Open the image at `url` for reading, and for writing if the ticket allows it. Close it, or use `with`.

    Several threads may use it; see Image. Raises ClientError.
    """
    session = ClientSession(url, settings)
    try:
        return Image(session)
    except BaseException:
        session.close()
        raise


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
    """Open an image, and call `question` in a thread, so that Ctrl-C ends the wait."""
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
