# SPDX-License-Identifier: Apache-2.0
"""The objects that the connections of one NBD server share."""

from collections.abc import Callable
from dataclasses import dataclass

from ...lanes.shared import Lanes
from ...nbdproto.server_negotiation import Tls
from ...net.tls_handshake import Handshakes
from ...net.tls_socket import TlsContext
from ...transfers.store import TransferStore
from .admission import NbdAdmission

#: A function that returns the TLS context to use now.
MakeContext = Callable[[], TlsContext]


@dataclass(frozen=True)
class NbdOptions:
    """The options of one listening socket.

    `tls` tells whether clients must, may or cannot use TLS, and `context` returns its context, if there is TLS.
    `handshake_timeout` is the seconds for the negotiation. With `listed`, NBD_OPT_LIST is answered. `name` is the
    service's, for counts.
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

    `handshakes` does those of TLS. Its poller also has connections that lanes have served, for their last second; see
    Poller.linger().
    """

    options: NbdOptions
    admission: NbdAdmission
    handshakes: Handshakes
