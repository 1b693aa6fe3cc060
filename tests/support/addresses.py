# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host."""

import ipaddress
from pathlib import Path

_INTERFACES = Path("/proc/net/if_inet6")


def link_local() -> str | None:
    """Return an IPv6 address that needs a zone (RFC 4007 11), with its zone, or None if this host has none."""
    lines = _INTERFACES.read_text().splitlines() if _INTERFACES.exists() else []
    for address, _, _, _, _, interface in map(str.split, lines):
        found = ipaddress.IPv6Address(int(address, 16))
        if found.is_link_local:
            return f"{found}%{interface}"
    return None
