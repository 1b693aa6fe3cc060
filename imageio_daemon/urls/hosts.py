# SPDX-License-Identifier: Apache-2.0
"""Host names that users and peers give."""

#: Longest name, in bytes, without the final dot (RFC 1035 2.3.4).
MAX_HOST = 253


def is_host(name: str) -> bool:
    """Tell whether a host name or address is valid for a lookup and for the verification of a certificate."""
    if len(name) > MAX_HOST + 1:  # a character is at least a byte; the encoding of long names takes long
        return False
    try:
        encoded = name.encode("idna")  # a label has 1 to 63 bytes
    except UnicodeError:
        return False
    return b"\0" not in encoded and len(encoded.rstrip(b".")) <= MAX_HOST
