# SPDX-License-Identifier: Apache-2.0
"""The options of an NBD server."""

from collections.abc import Callable
from dataclasses import dataclass

from ...lanes.shared import Lanes
from ...nbdproto.server_negotiation import Tls
from ...net.tls_socket import TlsContext
from ...transfers.store import TransferStore
from ...units import KiB

#: The preferred block size, in bytes (proto.md, "Block size constraints"). nbdcopy also looks for zeros in pieces of
#: this size. Small pieces stay in the caches of the processor. Measured with nbdcopy and 512 MiB, in MiB/s, with 1 MiB
#: and 256 KiB. tmpfs, 7 rounds: 1 connection, downloads 1308 and 1289, uploads 803 and 881; 4 connections, downloads
#: 1642 and 1775, uploads 1152 and 1120. Disk, 21 rounds: 1 connection, downloads 560 and 608, uploads 754 and 754;
#: 4 connections, downloads 588 and 651, uploads 741 and 770.
PREFERRED_BLOCK = 256 * KiB
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
