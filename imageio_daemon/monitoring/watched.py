# SPDX-License-Identifier: Apache-2.0
"""The objects of the daemon that metrics are read from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..lanes.shared import Lanes
from ..net.connection_limit import ConnectionLimit
from ..net.tls_contexts import ServerTls
from ..service.notifying import Notifier
from ..service.served import Served
from ..storage.buffers import BufferPool
from ..storage.file.engine import Engine
from ..transfers.store import TransferStore


@dataclass(frozen=True)
class Watched:
    """What is read at a scrape, in any thread.

    services: the names of those that listen. limits: on connections, by name.
    lanes, tls: None: there are none.
    """

    services: Sequence[str]
    served: Served
    store: TransferStore
    engine: Engine
    pool: BufferPool
    lanes: Lanes | None
    limits: Mapping[str, ConnectionLimit]
    tls: ServerTls | None
    notifier: Notifier
