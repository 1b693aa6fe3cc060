# SPDX-License-Identifier: Apache-2.0
"""Tickets: the access of a client to one image. A ticket is validated once and immutable, and its id is secret."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from ..errors import InvalidRequest, OutOfRange
from ..units import MAX_OFFSET, MAX_RATE, MIN_RATE
from ..urls import http as http_url
from ..urls import nbd as nbd_url

#: What may have the image of a ticket: a file or device, an NBD server, another server of the images API, or, for an
#: image with a format, a qemu-nbd of ours.
STORAGE = ("file", "nbd", "http", "qemu")
#: The longest ticket id, in bytes of UTF-8. The id is the name of an NBD export, and clients may refuse names of more
#: than 256 bytes.
MAX_ID = 255
#: The longest url, file name and transfer id, in bytes of UTF-8. PATH_MAX is 4096 with its NUL.
MAX_URL = 4096 + 256
MAX_FILENAME = 1024
MAX_TRANSFER_ID = 255
#: The longest name of a tenant, in bytes of UTF-8.
MAX_TENANT = 255
#: The largest size. Programs send 2**64 and more for "no limit". A number with more digits than 2**128 is no size.
MAX_SIZE = 10**39 - 1
#: The longest name of a bitmap, in bytes: the limit of qcow2.
MAX_BITMAP = 1023

_FILE_URL = "file://"
#: The formats of image files. The daemon never probes the format, because a guest decides how a raw image begins.
FORMATS = ("raw", "qcow2", "vmdk", "vhdx", "vpc", "vdi")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

_T = TypeVar("_T")


class Access(Enum):
    """An access that a ticket allows."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class Ticket:
    """Authorise a transfer of one image.

    size: bytes; no request may touch a byte at or past it. declared_size: the size in the document if it is more than
    an image can have; then only the image limits requests. timeout: seconds for which the ticket is valid without use.
    inactivity_timeout: seconds for which a connection that has used it may be idle. sparse: zeroing may deallocate.
    format: of a file. backing_chain: serve the file with its backing files, not its top layer alone. bitmap: name of
    the bitmap of the file that holds the dirty extents. rate: most bytes per second, both directions together; 0: no
    limit; None: the default. tenant: whose tickets share a limit. shared: other programs may use the image meanwhile.
    """

    ticket_id: str = field(repr=False)  # the secret: a client that knows it has the access
    url: str
    size: int
    ops: tuple[Access, ...]
    timeout: int
    inactivity_timeout: int
    transfer_id: str | None = None
    filename: str | None = None
    sparse: bool = False
    dirty: bool = False
    format: str = "raw"
    backing_chain: bool = True
    bitmap: str | None = None
    rate: int | None = None
    tenant: str | None = None
    shared: bool = False
    declared_size: int | None = None

    @classmethod
    def from_json(cls, data: object, *, inactivity_timeout: int) -> "Ticket":
        """Make a ticket of a decoded JSON document.

        Unknown keys are ignored. Raises InvalidRequest with the reason, which never holds the ticket id.
        """
        if not isinstance(data, dict):
            raise InvalidRequest("Invalid ticket: expected a JSON object")
        url = _url(_required(data, "url", str))
        size = _number(_required(data, "size", int), "size", 0, MAX_SIZE)
        return cls(
            ticket_id=_text(_required(data, "uuid", str), "uuid", MAX_ID, empty=False),
            url=url,
            size=min(size, MAX_OFFSET),
            declared_size=size if size > MAX_OFFSET else None,
            ops=_ops(_required(data, "ops", list)),
            timeout=_number(_required(data, "timeout", int), "timeout", 0),
            inactivity_timeout=_number(
                _optional(data, "inactivity_timeout", int, inactivity_timeout), "inactivity_timeout", 1
            ),
            transfer_id=_given_text(data, "transfer_id", MAX_TRANSFER_ID),
            filename=_filename(_optional(data, "filename", str, None)),
            sparse=_optional(data, "sparse", bool, False),
            dirty=_optional(data, "dirty", bool, False),
            format=_format(_optional(data, "format", str, "raw"), url),
            backing_chain=_optional(data, "backing_chain", bool, True),
            bitmap=_bitmap(_optional(data, "bitmap", str, None)),
            rate=_rate(data),
            tenant=_given_text(data, "tenant", MAX_TENANT, empty=False),
            shared=_optional(data, "shared", bool, False),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a document that from_json() accepts. Keys with seldom used options are left out at their default.

        Existing programs read the key transfer_id: without a transfer id, its value is log_name. An empty transfer id
        is left out, as they expect.
        """
        data: dict[str, Any] = {
            "uuid": self.ticket_id,
            "url": self.url,
            "size": self.size if self.declared_size is None else self.declared_size,
            "ops": [access.value for access in self.ops],
            "timeout": self.timeout,
            "inactivity_timeout": self.inactivity_timeout,
            "sparse": self.sparse,
            "dirty": self.dirty,
        }
        if self.transfer_id != "":
            data["transfer_id"] = self.log_name
        if self.format != "raw":
            data["format"] = self.format
            data["backing_chain"] = self.backing_chain
        if self.shared:
            data["shared"] = True
        if self.bitmap is not None:
            data["bitmap"] = self.bitmap
        for key in ("filename", "rate", "tenant"):
            if (value := getattr(self, key)) is not None:
                data[key] = value
        return data

    @property
    def log_name(self) -> str:
        """Return a name for logs: the transfer id, or a short hash that does not reveal the ticket id."""
        if self.transfer_id:
            return self.transfer_id
        return hashlib.sha256(b"log name of " + self.ticket_id.encode()).hexdigest()[:12]

    def fields(self) -> dict[str, object]:
        """Return the fields of a log line about the ticket."""
        ops = ",".join(access.value for access in self.ops)
        return {"transfer": self.log_name, "url": self.shown_url, "size": self.size, "ops": ops}

    @property
    def path(self) -> str:
        """Return the path of a file url, without percent-decoding."""
        return self.url.removeprefix(_FILE_URL)

    @property
    def nbd(self) -> nbd_url.NbdAddress | None:
        """Return the address of the export if the url is one of an NBD server, else None. Raises InvalidRequest."""
        return nbd_url.parse(self.url) if nbd_url.is_nbd(self.url) else None

    @property
    def http(self) -> http_url.HttpAddress | None:
        """Return the address of the image if the url is one of another server of the images API, else None."""
        return http_url.parse(self.url) if http_url.is_http(self.url) else None

    @property
    def shown_url(self) -> str:
        """Return the url for logs, without the names that may be secrets of other servers."""
        return str(self.nbd or self.http or self.url)

    @property
    def storage(self) -> str:
        """Return what has the image, one of STORAGE."""
        if self.format != "raw":
            return "qemu"
        return "nbd" if nbd_url.is_nbd(self.url) else "http" if http_url.is_http(self.url) else "file"

    def may(self, access: Access) -> bool:
        """Tell whether the ticket allows the access. Write access includes read access."""
        return access in self.ops or Access.WRITE in self.ops

    def counts(self, access: Access) -> bool:
        """Tell whether bytes of this access are progress. On a ticket with both operations, no bytes are."""
        return self.ops == (access,)

    def require_range(self, offset: int, length: int) -> None:
        """Raise OutOfRange unless the bytes are inside the ticket's size. offset, length: in bytes."""
        end = offset + length
        if end > self.size:
            raise OutOfRange(f"Requested range {offset}..{end} is outside of the ticket's {self.size} bytes", self.size)


class Changes(NamedTuple):
    """What a request changes of a ticket; None: not this. timeout: seconds from now. rate: as Ticket.rate."""

    timeout: int | None
    rate: int | None

    @classmethod
    def from_json(cls, data: object) -> "Changes":
        """Return the changes, at least one, of a decoded JSON document. Raises InvalidRequest."""
        if not isinstance(data, dict):
            raise InvalidRequest("Invalid request: expected a JSON object")
        if "rate" in data and "timeout" not in data:
            return cls(None, _rate(data))
        return cls(_number(_required(data, "timeout", int), "timeout", 0), _rate(data))


def _required(data: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    if key not in data:
        raise InvalidRequest(f"Invalid ticket: missing {key!r}")
    return _typed(data[key], key, kind)


def _optional(data: Mapping[str, Any], key: str, kind: type[_T], default: Any) -> Any:
    return _typed(data[key], key, kind) if key in data else default


def _typed(value: object, key: str, kind: type[_T]) -> _T:
    # bool is a subclass of int, but true is not a size.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidRequest(f"Invalid ticket: {key!r} must be of type {kind.__name__}")
    return value


def _number(value: int, key: str, least: int, most: int = MAX_OFFSET) -> int:
    if not least <= value <= most:
        raise InvalidRequest(f"Invalid ticket: {key!r} must be between {least} and {most}")
    return value


def _text(value: str, key: str, limit: int, *, empty: bool = True) -> str:
    if not value and not empty:
        raise InvalidRequest(f"Invalid ticket: {key!r} is empty")
    # JSON can contain lone surrogates, which cannot be encoded in UTF-8.
    if _SURROGATE.search(value) or len(value.encode()) > limit:
        raise InvalidRequest(f"Invalid ticket: {key!r} must be valid text of at most {limit} bytes")
    return value


def _url(value: str) -> str:
    _text(value, "url", MAX_URL, empty=False)
    if "\0" in value:
        raise InvalidRequest("Invalid ticket: 'url' holds a NUL character")
    if nbd_url.is_nbd(value):
        nbd_url.parse(value)
        return value
    if http_url.is_http(value):
        http_url.parse(value)
        return value
    if not value.startswith(_FILE_URL):
        supported = ", ".join(("file", "https", *nbd_url.SCHEMES))
        raise InvalidRequest(f"Invalid ticket: unsupported url scheme, supported: {supported}")
    if not value.startswith(_FILE_URL + "/"):
        raise InvalidRequest("Invalid ticket: a file url names an absolute path: file:///path")
    return value


def _format(value: str, url: str) -> str:
    if value not in FORMATS:
        raise InvalidRequest(f"Invalid ticket: unknown 'format', known: {', '.join(FORMATS)}")
    if value != "raw" and not url.startswith(_FILE_URL):
        raise InvalidRequest("Invalid ticket: 'format' is for file urls; other servers know theirs")
    return value


def _bitmap(value: str | None) -> str | None:
    if value is not None and (not value or _CONTROL.search(value)):
        raise InvalidRequest("Invalid ticket: 'bitmap' is empty or holds control characters")
    return None if value is None else _text(value, "bitmap", MAX_BITMAP)


def _rate(data: Mapping[str, Any]) -> int | None:
    if "rate" not in data:
        return None
    value = _typed(data["rate"], "rate", int)
    if value and not MIN_RATE <= value <= MAX_RATE:
        raise InvalidRequest(f"Invalid ticket: 'rate' must be 0, for no limit, or between {MIN_RATE} and {MAX_RATE}")
    return value


def _given_text(data: Mapping[str, Any], key: str, limit: int, *, empty: bool = True) -> str | None:
    return _text(_typed(data[key], key, str), key, limit, empty=empty) if key in data else None


def _filename(value: str | None) -> str | None:
    if value is None:
        return None
    if _CONTROL.search(value):
        raise InvalidRequest("Invalid ticket: 'filename' holds control characters")
    return _text(value, "filename", MAX_FILENAME)


def _ops(values: list[object]) -> tuple[Access, ...]:
    names = {access.value: access for access in Access}
    found = set()
    for value in values:
        if not isinstance(value, str) or value not in names:
            raise InvalidRequest(f"Invalid ticket: unknown operation in 'ops', known: {', '.join(names)}")
        found.add(names[value])
    return tuple(access for access in Access if access in found)
