# SPDX-License-Identifier: Apache-2.0
"""Where the address of a unix socket leads to: on which host, to which file or namespace (docs/adr/0044).

An address alone does not identify a socket. Each network namespace has its own abstract names (unix(7)), each mount
namespace its own paths, and each host its own namespaces.
"""

import hashlib
import os
from pathlib import Path

#: The network namespace of the process (namespaces(7)).
_NETWORK = "/proc/self/ns/net"
#: An id that is different after each boot of a host (random(4)).
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def place_of(address: str | int) -> str:
    """Return a name of the place, in 64 hexadecimal digits: the SHA-256 of `BOOT_ID DEVICE INODE`.

    `address` is a path, its descriptor, or an abstract name with its leading NUL. Device and inode are those of the
    socket's file, or for an abstract name those of the network namespace. Processes that find the same place reach the
    same socket by the address, as long as one listens there. Raises OSError.
    """
    is_abstract = isinstance(address, str) and address.startswith("\0")
    found = os.stat(_NETWORK if is_abstract else address)
    boot = _BOOT.read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{boot} {found.st_dev} {found.st_ino}".encode()).hexdigest()
