# SPDX-License-Identifier: Apache-2.0
"""The reasons for which qemu-nbd does not open an image: a table of its messages.

qemu has no codes for this. Where a system call or librados has failed, its message ends with the text of an error
number. Where the content of an image is wrong, it says so in words. The words here are those of qemu 7.2 to 10. They
were collected with images of each format whose headers had wrong bytes.
"""

import errno
import os
import re

from ...errors import BitmapInUse, Error, ImageInUse, NotFound, StorageError, Unusable
from ...urls import rbd as rbd_url

#: The message if another program has locked a file of the image: the hint of lock errors since qemu 2.10.
IN_USE = "Is another process using the image"

#: The message when qemu-nbd finds that an open image is damaged. It reads and writes no more of the image then.
MARKED = "Marking image as corrupt"

#: The beginning of the cause if io_setup(2) has failed.
_NO_ASYNC_IO = "Unable to use native AIO:"

#: The end of the image's name in a message, before the cause. The name is qemu-nbd's argument (process.py).
_NAMED = re.compile(r"\"read-only\": (?:true|false)\}': ")
#: Names of files and the like. The words in them mean nothing.
_QUOTED = re.compile("'[^']*'")

#: Error numbers that are about the content of the image, not about the storage. For them, the words decide.
_OF_CONTENT = {errno.EINVAL, errno.EFBIG, errno.ENOTSUP}
_NUMBERS = {os.strerror(number): number for number in errno.errorcode if number not in _OF_CONTENT}

#: Words of a cause, with the text for clients. The first row that fits counts. A retry helps with none of them.
_UNUSABLE = (
    (r"Unknown driver|Unknown protocol", "The server lacks a program for images of this kind"),
    (r"error connecting|error reading conf", "The cluster that has the image does not accept the server"),
    (
        r"not in \w+ format|not a valid image|[Ii]nvalid \w+ image|header magic|No valid \w+ header|for a VHD header",
        "The image does not have the format that the ticket names",
    ),
    (r"[Uu]nsupported|[Uu]nknown|not supported|must be read only|encrypt", "The image needs what the server cannot do"),
    (
        r"corrupt|truncated|[Ii]nvalid|[Ii]ncorrect|too (?:large|small|big|short|many|much)|exceeds|does not contain|"
        r"requires|must not|needs to be replayed|Error reading",
        "The image is damaged, or does not have the format that the ticket names",
    ),
)
_WORDS = tuple((re.compile(words), told) for words, told in _UNUSABLE)


class AsyncIoRefused(StorageError):
    """The kernel refuses qemu-nbd asynchronous I/O: fs.aio-max-nr is used up, or a filter forbids the call."""


def not_opened(said: str, image: str, bitmap: str | None = None) -> Error:
    """Return the error if qemu-nbd has ended at its start. Takes time linear in the message.

    `said` is all of its messages, `image` the image's name for the log, and `bitmap` the bitmap that it should serve.

    NotFound and BitmapInUse are about the bitmap: the image itself can be opened. With ImageInUse, another program has
    locked a file of the image. With Unusable, somebody has to mend the image or the ticket. AsyncIoRefused is about the
    host. StorageError is for all other causes. Its number is that of qemu-nbd's message, or EIO.
    """
    if bitmap is not None and f"Bitmap '{bitmap}' is not found" in said:
        return NotFound("The image does not have the bitmap that the ticket names")
    if bitmap is not None and re.search(f"Bitmap '{re.escape(bitmap)}' is (inconsistent|currently in use)", said):
        return BitmapInUse()
    if IN_USE in said:
        return ImageInUse()
    what, why = f"open {image}", f"({said}){remedy(said)}"
    cause = _QUOTED.sub("''", _NAMED.split(said)[-1])
    number = _number(cause)
    if number is None:
        for words, told in _WORDS:
            if words.search(cause):
                return Unusable(told, what, "qemu-nbd", why)
    kind = AsyncIoRefused if is_async_io_refused(said) else StorageError
    return kind(errno.EIO if number is None else number, what, "qemu-nbd", why)


def is_async_io_refused(said: str) -> bool:
    """Return whether qemu-nbd has ended at its start because the kernel refuses asynchronous I/O."""
    return _NAMED.split(said)[-1].startswith(_NO_ASYNC_IO)


def found_damaged(image: str) -> Unusable:
    """Return the error of requests after qemu-nbd has marked an image as damaged (MARKED)."""
    return Unusable("The image is damaged", f"use {image}", "qemu-nbd", "(it has said so before)")


def remedy(said: str) -> str:
    """Return advice for the operator where qemu's message has none; see urls.rbd.remedy()."""
    return rbd_url.remedy(said, "is there a key of [backend_rbd] user that the service's user can read?")


def _number(cause: str) -> int | None:
    """Return the error number whose text, in the locale C, is at the end of a cause, if there is one."""
    if re.search(r"namespace '' does not exist$", cause):
        return errno.ENOENT  # here qemu has words in place of librbd's number
    found = next((text for text in _NUMBERS if cause.endswith(text)), None)
    return None if found is None else _NUMBERS[found]
