# SPDX-License-Identifier: Apache-2.0
"""What the connections of one NBD server share."""

from collections.abc import Callable
from dataclasses import dataclass

from ...lanes.lane import Lanes
from ...nbdproto.server.negotiation import Tls
from ...net.tls_handshake import Pollers
from ...net.tls_socket import TlsContext
from ...transfers.store import TransferStore
from .admission import Admission

#: Returns the context to use now.
MakeContext = Callable[[], TlsContext]


@dataclass(frozen=True)
class Options:
    """How one listening socket is served.

    tls: whether clients must, may or cannot use it; context: for it. handshake_timeout: seconds for the negotiation.
    listed: NBD_OPT_LIST is answered. name: of the service, in the counts of what was served.
    """

    store: TransferStore
    lanes: Lanes
    tls: Tls
    context: MakeContext | None
    handshake_timeout: float
    listed: bool
    name: str = "nbd"


@dataclass(frozen=True)
class Services:
    """What the connections of one server share.

    pollers: for handshakes of TLS, and for the last second of connections that C has served.
    """

    options: Options
    admission: Admission
    pollers: Pollers
