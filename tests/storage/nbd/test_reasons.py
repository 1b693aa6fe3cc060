# SPDX-License-Identifier: Apache-2.0
"""Each message with which qemu-nbd does not open an image, as it is, and the error that it means."""

import errno
import os

import pytest

from imageio_daemon.errors import BitmapInUse, ImageInUse, NotFound, StorageError, Unusable
from imageio_daemon.storage.nbd import reasons

#: How it begins, with the argument that names the image (process.py).
OPEN = """qemu-nbd: Failed to blk_new_open 'json:{"driver": "qcow2", "file": {"driver": "file", "filename": "/a"}, """
OPEN += """"discard": "unmap", "detect-zeroes": "off", "read-only": false}': """


def not_opened(said: str, bitmap: str | None = None) -> Exception:
    return reasons.not_opened(said, "/a", bitmap)


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("Image is not in qcow2 format", "format"),
        ("invalid VMDK image descriptor", "format"),
        ("invalid VPC image", "format"),
        ("File too small for a VHD header", "format"),
        ("File is too small, not a valid image", "format"),
        ("No valid VHDX header found", "format"),
        ("Image not in VDI format (bad signature 00000000)", "format"),
        ("Could not open '/a': Invalid argument", "damaged"),
        ("qcow2: Image is corrupt; cannot be opened read/write", "damaged"),
        ("Active L1 table offset invalid", "damaged"),
        ("Reference count table too large", "damaged"),
        ("Image does not contain a reference count table", "damaged"),
        ("Could not refresh total sector count: File too large", "damaged"),
        ("File truncated, expecting at least 131072 bytes", "damaged"),
        ("Incorrect header checksum", "damaged"),
        ("VHDX image file '/a' opened read-only, but contains a log that needs to be replayed", "damaged"),
        ("qcow2 header exceeds cluster size", "damaged"),
        ("Unsupported qcow2 feature(s): Unknown incompatible feature: 20", "cannot do"),
        ("Unsupported encryption method 2", "cannot do"),
        ("VMDK version 3 must be read only", "cannot do"),
        ("unsupported VDI image (version 2.1)", "cannot do"),
        ("Unknown driver 'rbd'", "lacks a program"),
        ("error connecting: Invalid argument", "cluster"),
    ],
)
def test_what_somebody_has_to_mend_is_told_without_names(cause: str, told: str) -> None:
    error = not_opened(OPEN + cause)
    assert isinstance(error, Unusable)
    assert told in error.told
    assert "/a" not in error.told
    assert cause in str(error)


@pytest.mark.parametrize(
    ("cause", "number"),
    [
        ("Could not open '/a': Permission denied", errno.EACCES),
        ("Could not open '/a': Read-only file system", errno.EROFS),
        ("Could not open '/a': No space left on device", errno.ENOSPC),
        ("Could not read L1 table: Input/output error", errno.EIO),
        ("error connecting: Connection timed out", errno.ETIMEDOUT),
        ("error connecting: No such file or directory", errno.ENOENT),
        ("error opening pool p: No such file or directory", errno.ENOENT),
        ("namespace 'x' does not exist", errno.ENOENT),
        ("something new", errno.EIO),
        ("", errno.EIO),
    ],
)
def test_failure_of_storage_has_the_number_that_is_told(cause: str, number: int) -> None:
    error = not_opened(OPEN + cause)
    assert type(error) is StorageError
    assert error.errno == number


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EPERM, errno.ENOSYS])
def test_refusal_of_asynchronous_io_is_told_from_other_failures(number: int) -> None:
    cause = f"Unable to use native AIO: failed to create linux AIO context: {os.strerror(number)}"
    error = not_opened(OPEN + cause)
    assert isinstance(error, reasons.AsyncIoRefused)
    assert error.errno == number
    assert not isinstance(not_opened(f"{OPEN}Could not open '{cause}': {os.strerror(number)}"), reasons.AsyncIoRefused)


def test_server_that_was_killed_is_a_failure() -> None:
    error = not_opened("no message")
    assert type(error) is StorageError
    assert error.errno == errno.EIO


def test_image_that_another_program_has_is_in_use() -> None:
    said = OPEN + 'Failed to get "write" lock; Is another process using the image [/a]?'
    assert isinstance(not_opened(said), ImageInUse)


def test_bitmap_that_is_not_there_is_not_found() -> None:
    assert isinstance(not_opened("qemu-nbd: Bitmap 'b' is not found", "b"), NotFound)


def test_bitmap_that_a_crash_left_in_use_is_in_use() -> None:
    assert isinstance(not_opened("qemu-nbd: Bitmap 'b' is inconsistent and cannot be used", "b"), BitmapInUse)
    busy = "qemu-nbd: Bitmap 'b.' is currently in use by another operation and cannot be used"
    assert isinstance(not_opened(busy, "b."), BitmapInUse)
    assert not isinstance(not_opened(busy, "b"), BitmapInUse)


def test_bitmap_that_nobody_has_asked_for_means_nothing() -> None:
    assert type(not_opened("qemu-nbd: Bitmap 'b' is not found", "other")) is StorageError


def test_words_in_the_name_of_an_image_mean_nothing() -> None:
    said = OPEN.replace("/a", "/corrupt, too large") + "Could not open '/corrupt': Input/output error"
    assert type(not_opened(said)) is StorageError
    assert type(not_opened(OPEN + "Could not frob '/images/invalid'")) is StorageError
