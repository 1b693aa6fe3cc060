# SPDX-License-Identifier: Apache-2.0
"""Host names and addresses that users and peers give: as URLs have them, as certificates do, and as peers are told.

A host is a name, maybe with the final dot that keeps resolvers from adding a domain, or an address. An IPv6 address may
have a zone, such as fe80::1%eth0: the interface of this host by which it is reached.
"""

import ipaddress
from urllib.parse import unquote

#: Longest name, in bytes, without the final dot (RFC 1035 2.3.4).
MAX_HOST = 253
#: What separates the parts of a URL or of a head (RFC 3986 2.2), and is in no host.
_DELIMITERS = frozenset(" %/?#[]@\\")


def is_host(name: str) -> bool:
    """Return whether a host name or address is valid for a lookup and for the verification of a certificate."""
    if not name or len(name) > MAX_HOST + 1:  # a character is at least a byte; the encoding of long names takes long
        return False
    address, mark, zone = name.partition("%")
    if ":" in address:
        return _is_ipv6(address) and (_is_plain(zone) and zone != "" if mark else True)
    if not _is_plain(name):
        return False
    try:
        labels = name.encode("idna")  # a label has 1 to 63 bytes
    except UnicodeError:
        return False
    return len(labels.rstrip(b".")) <= MAX_HOST


def decoded(text: str) -> str:
    """Return a host of a URL, which has percent-encoding (RFC 3986 3.2.2), without its brackets.

    The zone of an address is behind %25 (RFC 6874 2). One behind % alone is taken, too, as command lines have it (RFC
    6874 3). Raises ValueError for what is not UTF-8.
    """
    if ":" not in text:
        return unescaped(text)
    address, mark, zone = text.partition("%25" if "%25" in text else "%")
    return f"{address}{mark[:1]}{unescaped(zone)}"


def unescaped(text: str) -> str:
    """Return text without its percent-encoding (RFC 3986 2.1). Raises ValueError for what is not UTF-8."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("percent-encoding that is not UTF-8") from None


def encoded(host: str) -> str:
    """Return a host as a URL has it (RFC 3986 3.2.2, RFC 6874 2)."""
    return f"[{host.replace('%', '%25', 1)}]" if ":" in host else host


def told(host: str, port: int) -> str:
    """Return host and port as others are told, in Host and CONNECT: a zone is of this host only (RFC 6874 4)."""
    return f"{encoded(_without_zone(host))}:{port}"


def certified(host: str) -> str:
    """Return a host as certificates and SNI have it: without a zone, and without the final dot (RFC 6066 3)."""
    return _without_zone(host).removesuffix(".")


def _without_zone(host: str) -> str:
    return host.partition("%")[0] if ":" in host else host


def _is_plain(text: str) -> bool:
    return text.isprintable() and not _DELIMITERS & set(text)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
