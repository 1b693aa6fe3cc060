# SPDX-License-Identifier: Apache-2.0
"""What the messages mean with which qemu-nbd does not open an image: the one table of them.

qemu has no codes for this. It ends its messages with the text of an error number, where a system call or librados has
failed, and says in words what is wrong with the content of an image. The words are those of qemu 7.2 to 10; they were
collected by other bytes in the headers of images of each format.
"""

import errno
import os
import re

from ...errors import BitmapInUse, Error, ImageInUse, NotFound, StorageError, Unusable
from ...urls import rbd as rbd_url

#: What it says if another program has locked a file of the image: the hint of its lock errors since qemu 2.10.
IN_USE = "Is another process using the image"

#: What it says when it finds that an image is damaged while it has that open; then it reads and writes no more of it.
MARKED = "Marking image as corrupt"

#: The end of the name of an image in its messages, which is the argument it was given (process.py); a cause follows.
_NAMED = re.compile(r"\"read-only\": (?:true|false)\}': ")
#: Names of files and others, in which words mean nothing.
_QUOTED = re.compile("'[^']*'")

#: Error numbers that tell of what the image holds, not of the storage: the words decide.
_OF_CONTENT = {errno.EINVAL, errno.EFBIG, errno.ENOTSUP}
_NUMBERS = {os.strerror(number): number for number in errno.errorcode if number not in _OF_CONTENT}

#: Words of a cause, and what peers are told; the first row that fits counts. A retry mends none of them.
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


def not_opened(said: str, image: str, bitmap: str | None = None) -> Error:
    """Return what it means that qemu-nbd has ended at its start. Takes time linear in the message.

    said: all it said. image: its name, for the log. bitmap: that it was asked for.

    NotFound and BitmapInUse are about the bitmap: the image itself can be opened. ImageInUse: another program has
    locked a file of it. Unusable: somebody has to mend image or ticket. StorageError: the storage has failed, or nobody
    knows; the number is the one that qemu-nbd tells, or EIO.
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
    return StorageError(errno.EIO if number is None else number, what, "qemu-nbd", why)


def found_damaged(image: str) -> Unusable:
    """Return the error of requests after qemu-nbd has said that an image is damaged (MARKED)."""
    return Unusable("The image is damaged", f"use {image}", "qemu-nbd", "(it has said so before)")


def remedy(said: str) -> str:
    """Return what helps the operator where a message of qemu does not tell; see urls.rbd.remedy()."""
    return rbd_url.remedy(said, "is there a key of [backend_rbd] user that the service's user can read?")


def _number(cause: str) -> int | None:
    """Return the error number with whose text, in the locale C, a cause ends; None: there is none."""
    if re.search(r"namespace '' does not exist$", cause):
        return errno.ENOENT  # librbd has a number for it, and qemu words
    found = next((text for text in _NUMBERS if cause.endswith(text)), None)
    return None if found is None else _NUMBERS[found]
