# SPDX-License-Identifier: Apache-2.0
"""The limits of requests that come from the size of the image."""

from ..errors import OutOfRange
from ..storage.backend import Backend
from ..transfers.transfer import Transfer


def readable_size(transfer: Transfer, backend: Backend) -> int:
    """Return how many bytes can be read: the size of the ticket, or of the image if that is smaller."""
    size = backend.info.size
    transfer.covered = size >= transfer.ticket.size
    return min(transfer.ticket.size, size)


def require_room(transfer: Transfer, backend: Backend, offset: int, length: int) -> None:
    """Raise OutOfRange unless the image has the bytes, or can grow. `offset` and `length` are in bytes."""
    if transfer.covered:
        return  # the caller has compared the range with the size of the ticket
    info = backend.info
    transfer.covered = info.size >= transfer.ticket.size
    if not info.can_grow and offset + length > info.size:
        size = readable_size(transfer, backend)
        raise OutOfRange(f"Requested range {offset}..{offset + length} is outside of the image's {size} bytes", size)
