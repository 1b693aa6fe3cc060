# SPDX-License-Identifier: Apache-2.0
"""NBD URIs, and the older `nbd:` URLs of qemu and ovirt-imageio.

nbd://host[:port]/name, nbds:// the same with TLS, nbd+unix:///name?socket=/path, nbds+unix://, as specified by
https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md.
"""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from ..errors import InvalidRequest
from . import hosts
from .hosts import MAX_HOST, is_host, unescaped

DEFAULT_PORT = 10809
#: Longest export name, in bytes: the longest string of the protocol.
MAX_NAME = 4096
#: Longest path of a unix socket, in bytes: sun_path without the NUL (unix(7)).
MAX_SOCKET_PATH = 107

SCHEMES = ("nbd", "nbds", "nbd+unix", "nbds+unix")

_OLD = re.compile(
    r"""nbd:(?:
        unix:(?P<path>[^:]+)
        | (?:\[(?P<ipv6>[^\]]+)\] | (?P<host>[^:\[\]/]+)) : (?P<port>[0-9]{1,5})
    )(?::exportname=(?P<name>.*))?""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(frozen=True)
class NbdAddress:
    """The address of an export: `socket`, or `host` and `port`.

    `socket` is the path of a unix socket, or an abstract name after a NUL. With `tls`, the server has to have TLS, with
    a certificate for `tls_hostname`.
    """

    host: str = ""
    port: int = DEFAULT_PORT
    socket: str = ""
    export: str = ""
    tls: bool = False
    tls_hostname: str = ""

    def __str__(self) -> str:
        where = "unix:" + self.socket.replace("\0", "@", 1) if self.socket else f"{self.host}:{self.port}"
        return f"{'nbds' if self.tls else 'nbd'}:{where}"


def is_nbd(url: str) -> bool:
    """Return whether the URL has a scheme of NBD."""
    return url.partition(":")[0] in SCHEMES


def parse(url: str) -> NbdAddress:
    """Parse a URL. Raises InvalidRequest; the message is for the author of the URL."""
    try:
        return _checked(_parse(url))
    except ValueError as e:
        raise InvalidRequest(f"Invalid NBD url: {e}") from None


def _parse(url: str) -> NbdAddress:
    if url.startswith("nbd:") and not url.startswith("nbd://"):
        return _parse_old(url)
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"unknown scheme, known: {', '.join(SCHEMES)}")
    if not url.startswith(f"{parts.scheme}://"):
        raise ValueError(f"expected {parts.scheme}://")
    if parts.fragment:
        raise ValueError("a fragment has no meaning")
    query = _query(parts.query)
    tls = parts.scheme.startswith("nbds")
    hostname = _tls_hostname(query, tls=tls)
    export = unescaped(parts.path.removeprefix("/"))
    if parts.scheme.endswith("+unix"):
        address = _unix(parts, query, export, hostname, tls=tls)
    else:
        address = _tcp(parts, export, hostname, tls=tls)
    if query:
        raise ValueError(f"unknown parameter {next(iter(query))[:40]!r}")
    return address


def _parse_old(url: str) -> NbdAddress:
    match = _OLD.fullmatch(url)
    if match is None:
        raise ValueError("expected nbd:unix:/PATH[:exportname=NAME] or nbd:HOST:PORT[:exportname=NAME]")
    name = match["name"] or ""
    if match["path"]:
        return NbdAddress(socket=match["path"], export=name)
    return NbdAddress(host=match["ipv6"] or match["host"], port=int(match["port"]), export=name)


def _unix(parts: SplitResult, query: dict[str, str], export: str, hostname: str, *, tls: bool) -> NbdAddress:
    if parts.netloc:
        raise ValueError("a host beside a unix socket")
    socket = query.pop("socket", "")
    if not socket:
        raise ValueError("missing the parameter 'socket', as in nbd+unix:///NAME?socket=/PATH")
    if tls and not hostname:
        raise ValueError("missing the parameter 'tls-hostname': a unix socket has no name that TLS could check")
    return NbdAddress(socket=socket, export=export, tls=tls, tls_hostname=hosts.certified(hostname))


def _tcp(parts: SplitResult, export: str, hostname: str, *, tls: bool) -> NbdAddress:
    if not parts.hostname:
        raise ValueError("missing the host")
    if parts.password is not None:
        raise ValueError("a password has no meaning")
    host, port = hosts.decoded(parts.hostname), parts.port
    return NbdAddress(
        host=host,
        port=DEFAULT_PORT if port is None else port,
        export=export,
        tls=tls,
        tls_hostname=hosts.certified(hostname or host) if tls else "",
    )


def _query(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=16):
        if key in found:
            raise ValueError(f"{key[:40]!r} is there twice")
        found[key] = value
    return found


def _tls_hostname(query: dict[str, str], *, tls: bool) -> str:
    """Remove the parameters of TLS from the query; return the host name to verify, "" if it is not given.

    Raises ValueError for parameters that disable the verification: without it TLS does not protect.
    """
    hostname = query.pop("tls-hostname", "")
    if query.pop("tls-type", "x509") != "x509":
        raise ValueError("'tls-type' can only be x509")
    if query.pop("tls-verify-peer", "1") not in ("1", "true"):
        raise ValueError("'tls-verify-peer' can only be 1")
    if hostname and not tls:
        raise ValueError("'tls-hostname' without TLS")
    return hostname


def _checked(address: NbdAddress) -> NbdAddress:
    if "\0" in address.export or len(address.export.encode()) > MAX_NAME:
        raise ValueError(f"an export name has at most {MAX_NAME} bytes and no NUL")
    if address.socket:
        if not address.socket.startswith(("/", "\0")) or "\0" in address.socket[1:]:
            raise ValueError("a unix socket is an absolute path, or an abstract name after %00")
        if len(address.socket.encode()) > MAX_SOCKET_PATH:
            raise ValueError(f"the path of a unix socket has at most {MAX_SOCKET_PATH} bytes")
    elif not 0 < address.port < 65536:
        raise ValueError("the port is 1 to 65535")
    for name in (address.host, address.tls_hostname):
        if name and not is_host(name):
            raise ValueError(f"a host name has at most {MAX_HOST} bytes, 1 to 63 between two dots, and no NUL")
    return address
