# SPDX-License-Identifier: Apache-2.0
"""Tickets: the access of a client to one image. A ticket is validated once and immutable, and its id is secret."""

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from ..errors import DENIED, Forbidden, InvalidRequest, OutOfRange
from ..units import MAX_OFFSET, MAX_TENANT
from ..urls import http as http_url
from ..urls import nbd as nbd_url
from ..urls import rbd as rbd_url
from . import keys

#: Where the image of a ticket may be: in a file or device, on an NBD server, on another server of the images API, in a
#: file with a format, or on Ceph.
STORAGE = ("file", "nbd", "http", "qemu", "rbd")


class Access(Enum):
    """An access that a ticket allows."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True)
class Ticket:
    """Authorise a transfer of one image.

    No request may touch a byte at or past `size`. `declared_size` is set if the document has a size that no image can
    have; then only the image limits requests. The ticket is valid for `timeout` seconds without use. A connection that
    has used it may be idle for `inactivity_timeout` seconds. With `sparse`, zeroing may deallocate. `format` is that of
    a file. With `backing_chain`, the file is served with its backing files, otherwise only its top layer. `bitmap`
    names the bitmap of the file with the dirty extents, and `since` the snapshot of an image on Ceph to compare with
    for them. `rate` is the most bytes per second in both directions together, 0 for no limit, or None for the default.
    The tickets of a `tenant` share a limit. With `shared`, other programs may use the image at the same time.
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
    since: str | None = None
    rate: int | None = None
    tenant: str | None = None
    shared: bool = False
    declared_size: int | None = None

    @classmethod
    def from_json(cls, data: object, *, inactivity_timeout: int) -> "Ticket":
        """Make a ticket of a decoded JSON document.

        Ignores unknown keys. Raises InvalidRequest with the reason, which never has the ticket id.
        """
        if not isinstance(data, dict):
            raise InvalidRequest("Invalid ticket: expected a JSON object")
        url = keys.image_url(keys.required(data, "url", str))
        size = keys.number(keys.required(data, "size", int), "size", 0, keys.MAX_SIZE)
        ops = _ops(keys.required(data, "ops", list))
        if Access.WRITE in ops and rbd_url.is_rbd(url) and rbd_url.parse(url).snapshot:
            raise InvalidRequest("Invalid ticket: a snapshot is read-only, 'ops' can be read only")
        return cls(
            ticket_id=keys.text(keys.required(data, "uuid", str), "uuid", keys.MAX_ID, empty=False),
            url=url,
            size=min(size, MAX_OFFSET),
            declared_size=size if size > MAX_OFFSET else None,
            ops=ops,
            timeout=keys.number(keys.required(data, "timeout", int), "timeout", 0),
            inactivity_timeout=keys.number(
                keys.optional(data, "inactivity_timeout", int, inactivity_timeout), "inactivity_timeout", 1
            ),
            transfer_id=keys.given_text(data, "transfer_id", keys.MAX_TRANSFER_ID),
            filename=keys.filename(keys.optional(data, "filename", str, None)),
            sparse=keys.optional(data, "sparse", bool, False),
            dirty=keys.optional(data, "dirty", bool, False),
            format=keys.image_format(keys.optional(data, "format", str, "raw"), url),
            backing_chain=keys.optional(data, "backing_chain", bool, True),
            bitmap=keys.bitmap(keys.optional(data, "bitmap", str, None)),
            since=keys.since(keys.optional(data, "since", str, None), url),
            rate=keys.rate(data),
            tenant=keys.given_text(data, "tenant", MAX_TENANT, empty=False),
            shared=keys.optional(data, "shared", bool, False),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a document that from_json() accepts, without seldom used keys that have their default.

        Existing programs read the key transfer_id. Without a transfer id, its value is log_name. An empty transfer id
        is left out, as these programs expect.
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
        for key in ("bitmap", "since", "filename", "rate", "tenant"):
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
        return self.url.removeprefix(keys.FILE_URL)

    @property
    def nbd(self) -> nbd_url.NbdAddress | None:
        """Return the address of the export if the url is one of an NBD server, else None. Raises InvalidRequest."""
        return nbd_url.parse(self.url) if nbd_url.is_nbd(self.url) else None

    @property
    def http(self) -> http_url.HttpAddress | None:
        """Return the address of the image if the url is one of another server of the images API, else None."""
        return http_url.parse(self.url) if http_url.is_http(self.url) else None

    @property
    def proxied(self) -> bool:
        """Return whether requests for the image are passed on to another server of the images API."""
        return http_url.is_http(self.url)

    @property
    def rbd(self) -> rbd_url.RbdAddress | None:
        """Return the address of the image if it is one on Ceph, else None."""
        return rbd_url.parse(self.url) if rbd_url.is_rbd(self.url) else None

    @property
    def shown_url(self) -> str:
        """Return the url for logs, without names that may be secrets of other servers."""
        return str(self.nbd or self.http or self.url)

    @property
    def storage(self) -> str:
        """Return where the image is, one of STORAGE."""
        if self.format != "raw":
            return "qemu"
        known = {"nbd": nbd_url.is_nbd, "http": http_url.is_http, "rbd": rbd_url.is_rbd}
        return next((name for name, has in known.items() if has(self.url)), "file")

    def may(self, access: Access) -> bool:
        """Return whether the ticket allows the access. Write access includes read access."""
        return access in self.ops or Access.WRITE in self.ops

    def require(self, access: Access) -> None:
        """Raise Forbidden unless the ticket allows the access."""
        if not self.may(access):
            raise Forbidden(f"{DENIED}: ticket forbids {access.value}")

    def counts(self, access: Access) -> bool:
        """Return whether bytes of this access count as progress. On a ticket with both operations, none do."""
        return self.ops == (access,)

    def require_range(self, offset: int, length: int) -> None:
        """Raise OutOfRange unless the range, in bytes, is inside the ticket's size."""
        end = offset + length
        if end > self.size:
            raise OutOfRange(f"Requested range {offset}..{end} is outside of the ticket's {self.size} bytes", self.size)


class Changes(NamedTuple):
    """The changes of a ticket in a request. None leaves a value as it is.

    `timeout` is in seconds from now, and `rate` is as in Ticket.
    """

    timeout: int | None
    rate: int | None

    @classmethod
    def from_json(cls, data: object) -> "Changes":
        """Return the changes, at least one, of a decoded JSON document. Raises InvalidRequest."""
        if not isinstance(data, dict):
            raise InvalidRequest("Invalid request: expected a JSON object")
        if "rate" in data and "timeout" not in data:
            return cls(None, keys.rate(data))
        return cls(keys.number(keys.required(data, "timeout", int), "timeout", 0), keys.rate(data))


def _ops(values: list[object]) -> tuple[Access, ...]:
    names = {access.value: access for access in Access}
    found = set()
    for value in values:
        if not isinstance(value, str) or value not in names:
            raise InvalidRequest(f"Invalid ticket: unknown operation in 'ops', known: {', '.join(names)}")
        found.add(names[value])
    return tuple(access for access in Access if access in found)
