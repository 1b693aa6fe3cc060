# SPDX-License-Identifier: Apache-2.0
"""What the daemon looks at again and again while it runs. Each function runs until its task is cancelled."""

import asyncio
import logging
from collections.abc import Callable

from .net.tls_contexts import ServerTls
from .storage.file.engine import Engine
from .storage.running import HANGING
from .transfers.durable import DurableRecords
from .transfers.expired import purge_expired, release_expired
from .transfers.notices import Notices
from .transfers.store import TransferStore

log = logging.getLogger(__name__)

#: Seconds between checks of the certificate and of storage operations.
HOST_INTERVAL = 30.0
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


async def watch_expired(store: TransferStore, seconds: int) -> None:
    """Remove tickets so many seconds after they have expired; 0: never."""
    while seconds:
        await asyncio.sleep(PURGE_INTERVAL)
        await purge_expired(store, seconds)


async def watch_transfers(
    store: TransferStore, records: DurableRecords, notices: Notices, draining: Callable[[int], None]
) -> None:
    """Close the images of expired tickets, take samples for the rates of the others, and tell what is new.

    draining: is told how many transfers are left, while the store drains.
    """
    while True:
        await asyncio.sleep(EXPIRY_INTERVAL)
        release_expired(store)
        for transfer in store.all():
            transfer.sample()
        notices.look()
        store.keeping.renew()
        records.watch()
        if store.drain is not None:
            draining(store.drain.left())
