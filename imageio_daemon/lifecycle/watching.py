# SPDX-License-Identifier: Apache-2.0
"""Periodic checks of a running daemon. Each watch_*() runs until its task is cancelled."""

import asyncio
import logging
from collections.abc import Callable

from ..errors import Error
from ..net.tls_contexts import ServerTls
from ..runtime.audit_log import Caller
from ..runtime.degraded import Degraded
from ..storage.engine import Engine
from ..storage.operation import HANGING
from ..transfers.durable_records import DurableRecords
from ..transfers.store import TransferStore

log = logging.getLogger(__name__)

#: The caller in the audit log when an expired ticket is removed.
EXPIRED: Caller = {"reason": "expired"}
#: Seconds between checks of the certificate and of storage operations.
HOST_INTERVAL = 30.0
#: Seconds between checks for features that are not in force. A failure is logged at once, and here that it lasts.
DEGRADED_INTERVAL = 2.0
#: Seconds between checks for expired tickets. Their images are closed at the second check, after C has returned idle
#: connections. With 10,000 tickets and open images, a check takes 10 ms, and a sample of each ticket 14 ms.
EXPIRY_INTERVAL = 2.0
#: Seconds between checks for tickets to remove, which have expired long ago. A ticket that cannot be removed is logged
#: as often.
PURGE_INTERVAL = 60.0


async def watch_host(tls: ServerTls | None, engine: Engine) -> None:
    """Load the certificate again if its files have changed, and log storage operations that hang."""
    while True:
        await asyncio.sleep(HOST_INTERVAL)
        if tls is not None:
            tls.renew_if_changed()
        for operation in engine.running():
            if operation.seconds > HANGING:
                log.warning("storage hangs: %s", operation)


async def watch_degraded(degraded: Degraded) -> None:
    """Log features that are not in force any more, or are again."""
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

    While the store drains, call `draining` with the number of transfers that are left.
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

    A ticket that cannot be removed stays, and the log has the reason. Nobody can extend a ticket between its check and
    its cancel, which are one step.
    """
    for transfer in store.all():
        ticket_id = transfer.ticket.ticket_id
        if transfer.permission.expired_for < seconds or transfer.running:
            continue
        if store.get(ticket_id) is not transfer:  # replaced during the removal of another
            continue
        try:
            await store.remove(ticket_id, 0, EXPIRED)
        except Error as e:
            log.warning("transfer %s: its expired ticket is not removed: %s", transfer.ticket.log_name, e)
