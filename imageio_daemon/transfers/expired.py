# SPDX-License-Identifier: Apache-2.0
"""What is done with expired tickets: their images are closed at once, and they themselves are removed much later."""

import logging

from ..errors import Error
from ..service.events import Caller
from .store import TransferStore

log = logging.getLogger(__name__)

#: Who removes an expired ticket, for the audit log.
EXPIRED: Caller = {"reason": "expired"}


def release_expired(store: TransferStore) -> None:
    """Release the images of expired tickets on which no request runs; see Transfer.release_expired()."""
    for transfer in store.all():
        transfer.release_expired()


async def purge_expired(store: TransferStore, seconds: float) -> None:
    """Remove tickets that have expired so many seconds ago, and on which no request runs.

    What cannot be removed stays, and the log tells why. Call it on the loop of the control service: between the look at
    a ticket and its cancel nobody extends it.
    """
    for transfer in store.all():
        if transfer.permission.expired_for < seconds or transfer.running:
            continue
        try:
            await store.remove(transfer.ticket.ticket_id, 0, EXPIRED)
        except Error as e:
            log.warning("transfer %s: its expired ticket is not removed: %s", transfer.ticket.log_name, e)
