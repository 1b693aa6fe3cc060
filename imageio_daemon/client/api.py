# SPDX-License-Identifier: Apache-2.0
"""The functions of the library that transfer or open images. Those that only ask about images are in asking.py."""

from typing import TYPE_CHECKING, Unpack

from .described import Copying, Downloading, Local, Uploading
from .handle import Image
from .server.session import DEFAULTS, ClientSession, Settings
from .transfer.download import Downloaded
from .transfer.progress import Report
from .transfer.transfer_options import (
    CopyArguments,
    DownloadArguments,
    DownloadOptions,
    SendOptions,
    UploadArguments,
    Uploaded,
    UploadOptions,
)

if TYPE_CHECKING:
    from .transfer.preview import Preview


def upload(
    source: Local,
    url: str,
    *,
    settings: Settings = DEFAULTS,
    progress: Report | None = None,
    **options: Unpack[UploadArguments],
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

    `state` and `room_check` are True by default, `checkpoint` is 10 s, `wire_compression` is `auto`; all else is off.
    Raises ClientError.
    """
    return Uploading(source, url, settings, UploadOptions(**options)).run(progress)


def preview_upload(
    source: Local, url: str, *, settings: Settings = DEFAULTS, **options: Unpack[UploadArguments]
) -> "Preview":
    """Tell what upload() with these arguments would do. Changes nothing on the server, and keeps nothing here.

    Reads a compressed file once if its header has no size, and the first bytes of a stream. Raises ClientError where
    upload() would fail before it knows image and ticket. Later failures are in Preview.refused.
    """
    return Uploading(source, url, settings, UploadOptions(**options)).preview()


def download(
    url: str,
    target: Local,
    *,
    settings: Settings = DEFAULTS,
    progress: Report | None = None,
    **options: Unpack[DownloadArguments],
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
    `checkpoint` is the seconds between two flushes. Defaults are those of upload().

    Raises ClientError.
    """
    return Downloading(url, target, settings, DownloadOptions(**options)).run(progress)


def preview_download(
    url: str, target: Local, *, settings: Settings = DEFAULTS, **options: Unpack[DownloadArguments]
) -> "Preview":
    """Tell what download() with these arguments would do. Makes no file, and writes to no image.

    Raises ClientError as preview_upload().
    """
    return Downloading(url, target, settings, DownloadOptions(**options)).preview()


def copy(
    source: str,
    target: str,
    *,
    settings: Settings = DEFAULTS,
    source_settings: Settings | None = None,
    progress: Report | None = None,
    **options: Unpack[CopyArguments],
) -> Uploaded:
    """Make the image at the URL `target` read as the one at the URL `source`, on stable storage.

    Data goes through this host's memory; zeros are not transferred. This is an upload whose source is an image of a
    server: see upload() for the arguments, and for how it continues. `source_settings` is for the server of the source,
    if it differs from `settings`. `base`, for `update`, is the checksum() that the source had when the bitmap of its
    ticket began. If the target has this checksum, what the bitmap marks is sent, and only a sample of the rest is
    compared. Any other target is compared as a whole. Raises ClientError.
    """
    return Copying(source, target, settings, source_settings or settings, SendOptions(**options)).run(progress)


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
