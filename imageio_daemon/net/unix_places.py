# SPDX-License-Identifier: Apache-2.0
"""Where the address of a unix socket leads to: on which host, to which file or namespace (docs/adr/0044).

An address alone is no identity. Each network namespace has abstract names of its own (unix(7)), each mount namespace
has paths of its own, and each host has both.
"""

import hashlib
import os
from pathlib import Path

#: The network namespace of the process (namespaces(7)).
_NETWORK = "/proc/self/ns/net"
#: Differs after each start of a host (random(4)).
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def place_of(address: str | int) -> str:
    """Return a name of the place, in 64 hexadecimal digits: the SHA-256 of `BOOT_ID DEVICE INODE`.

    address: a path, its descriptor, or an abstract name with its leading NUL. Device and inode are those of the file of
    the socket, or, for an abstract name, those of the network namespace. Processes for which the place is the same get
    to the same socket by the address, as long as one listens there. Raises OSError.
    """
    is_abstract = isinstance(address, str) and address.startswith("\0")
    found = os.stat(_NETWORK if is_abstract else address)
    boot = _BOOT.read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{boot} {found.st_dev} {found.st_ino}".encode()).hexdigest()
