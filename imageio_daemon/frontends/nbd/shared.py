# SPDX-License-Identifier: Apache-2.0
"""The objects that the connections of one NBD server share."""

from collections.abc import Callable
from dataclasses import dataclass

from ...lanes.shared import Lanes
from ...nbdproto.server.negotiation import Tls
from ...net.tls_handshake import Handshakes
from ...net.tls_socket import TlsContext
from ...transfers.store import TransferStore
from .admission import NbdAdmission

#: Returns the TLS context to use now.
MakeContext = Callable[[], TlsContext]


@dataclass(frozen=True)
class NbdOptions:
    """The options of one listening socket.

    tls: whether clients must, may or cannot use TLS. context: returns its context; None: there is no TLS.
    handshake_timeout: seconds for the negotiation. listed: NBD_OPT_LIST is answered. name: of the service, for counts.
    """

    store: TransferStore
    lanes: Lanes
    tls: Tls
    context: MakeContext | None
    handshake_timeout: float
    listed: bool
    name: str = "nbd"


@dataclass(frozen=True)
class NbdShared:
    """The objects that the connections of one server share.

    handshakes: of TLS. Their poller has the last second of connections that lanes have served; see Poller.linger().
    """

    options: NbdOptions
    admission: NbdAdmission
    handshakes: Handshakes
