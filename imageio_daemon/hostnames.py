# SPDX-License-Identifier: Apache-2.0
"""Names of hosts, as users and peers give them."""

#: Longest name, in bytes, without its last dot (RFC 1035 2.3.4).
MAX_HOST = 253


def is_host(name: str) -> bool:
    """Tell whether a name, or an address, can be looked up, and compared with that of a certificate."""
    if len(name) > MAX_HOST + 1:  # each character is a byte or more; and to encode long ones takes long
        return False
    try:
        encoded = name.encode("idna")  # a label has 1 to 63 bytes
    except UnicodeError:
        return False
    return b"\0" not in encoded and len(encoded.rstrip(b".")) <= MAX_HOST
