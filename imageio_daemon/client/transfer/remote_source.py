# SPDX-License-Identifier: Apache-2.0
"""An image of a server as the source of an upload to another server, without a copy on a local disk."""

import hashlib
from collections.abc import Iterator, Mapping

from ...image.extents import Extent
from ...image.ranges import RangeSet
from ...units import MiB
from ..errors import LocalError, Refused
from ..server.remote_image import RemoteImage
from ..server.session import ClientSession
from .digest import Digest, told
from .plan import Unit


class RemoteSource:
    """A remote image that several threads read, each over its own connection while it reads.

    The source closes the session. Methods raise as RemoteImage does.
    """

    is_stream = False
    portion = 32 * MiB

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        first = session.open()
        self.size = first.size()
        features = session.abilities.features
        self._knows_extents = "extents" in features
        self._lists_blocks = "checksum_blocks" in features
        session.more(first, session.connections(session.abilities.max_readers))

    @property
    def identity(self) -> Mapping[str, object]:
        """Return server and image. These do not show a change of the image, so claims are always proven."""
        url = self._session.url
        return {"server": f"{url.host}:{url.port}", "path": hashlib.sha256(url.path.encode()).hexdigest()}

    def extents(self) -> Iterator[Extent]:
        """Yield all present extents in order, without gaps."""
        if self._knows_extents:
            with self._session.lent() as image:
                extents = image.extents()
            yield from extents  # without the connection: there may be no other to read by meanwhile
        elif self.size:
            yield Extent(0, self.size)

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer."""
        with self._session.lent() as image:
            image.read_into(offset, buffer)

    def hash_unit(self, unit: Unit, digest: Digest, index: int) -> bool:
        """Add the digests of a unit's blocks, from the server. Return False if the server does not list digests."""
        if not self._lists_blocks:
            return False
        moved = index * digest.block_size - unit.start
        with self._session.lent() as image:
            blocks = image.blocks(digest.algorithm, digest.block_size, (unit.start, unit.end - unit.start))
        for start, end, found in told(blocks):
            digest.add_listed(start + moved, end + moved, found)
        return True

    def changed(self) -> RangeSet | None:
        """Return the ranges changed since the server's checkpoint, or larger ones. None if the server lacks them."""
        with self._session.lent() as image:
            return changed_there(image, self._session)

    def check(self) -> None:
        """Raise LocalError if the image has another size now."""
        with self._session.lent() as image:
            if image.size() != self.size:
                raise LocalError(f"the image at {self._session.peer} has another size than it had: start anew")

    def stop(self) -> None:
        """Make waiting reads raise Stopped."""
        self._session.stop.stop()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


def changed_there(image: RemoteImage, session: ClientSession) -> RangeSet | None:
    """Return an image's changed ranges, or larger ones, or None if its server lacks them. Raises as RemoteImage."""
    if "extents" not in session.abilities.features:
        return None
    try:
        extents = image.extents("dirty")
    except Refused as e:
        if e.http_status == 404:
            return None
        raise
    marked = RangeSet()
    for extent in extents:
        if extent.dirty:
            marked.add(extent.start, extent.end)
    return marked
