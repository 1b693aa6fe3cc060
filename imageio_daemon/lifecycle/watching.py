# SPDX-License-Identifier: Apache-2.0
"""What the daemon looks at again and again while it runs. Each function runs until its task is cancelled."""

import asyncio
import logging
from collections.abc import Callable

from ..errors import Error
from ..net.tls_contexts import ServerTls
from ..runtime.audit_log import Caller
from ..runtime.degraded import Degraded
from ..storage.file.engine import Engine
from ..storage.running import HANGING
from ..transfers.durable_records import DurableRecords
from ..transfers.store import TransferStore

log = logging.getLogger(__name__)

#: Who removes an expired ticket, for the audit log.
EXPIRED: Caller = {"reason": "expired"}
#: Seconds between checks of the certificate and of storage operations.
HOST_INTERVAL = 30.0
#: Seconds between looks at what is not in force. What has failed is in the log at once; this tells that it stays so.
DEGRADED_INTERVAL = 2.0
#: Seconds between checks for expired tickets. Their images are closed at the second check, after C has returned idle
#: connections. A check of 10,000 tickets with open images takes 10 ms, and a sample of each 14 ms.
EXPIRY_INTERVAL = 2.0
#: Seconds between looks for tickets that have expired long ago. It is how often what cannot be removed is logged.
PURGE_INTERVAL = 60.0


async def watch_host(tls: ServerTls | None, engine: Engine) -> None:
    """Load a certificate whose files changed, and log storage operations that hang."""
    while True:
        await asyncio.sleep(HOST_INTERVAL)
        if tls is not None:
            tls.renew_if_changed()
        for operation in engine.running():
            if operation.seconds > HANGING:
                log.warning("storage hangs: %s", operation)


async def watch_degraded(degraded: Degraded) -> None:
    """Log what is not in force any more, or is again."""
    while True:
        await asyncio.sleep(DEGRADED_INTERVAL)
        degraded.look()


async def watch_expired(store: TransferStore, seconds: int) -> None:
    """Remove tickets `seconds` after they have expired. 0 removes none."""
    while seconds:
        await asyncio.sleep(PURGE_INTERVAL)
        await purge_expired(store, seconds)


async def watch_transfers(store: TransferStore, records: DurableRecords, draining: Callable[[int], None]) -> None:
    """Close the images of expired tickets, and take samples for the rates of the others.

    While the store drains, `draining` is called with the number of transfers that are left.
    """
    while True:
        await asyncio.sleep(EXPIRY_INTERVAL)
        release_expired(store)
        for transfer in store.all():
            transfer.sample()
        store.kept_tickets.renew()
        records.watch()
        if store.drain is not None:
            draining(store.drain.left())


def release_expired(store: TransferStore) -> None:
    """Release the images of expired tickets on which no request runs; see Transfer.release_expired()."""
    for transfer in store.all():
        transfer.release_expired()


async def purge_expired(store: TransferStore, seconds: float) -> None:
    """Remove tickets that have expired `seconds` ago or earlier, and on which no request runs.

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
