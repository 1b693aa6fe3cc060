# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy between the client and a server with https. HTTPS_PROXY and NO_PROXY name it, as for curl(1)."""

import base64
import contextlib
import errno
import ipaddress
import re
import socket
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from ...units import KiB
from ...urls import hosts
from ..errors import ServerFailed, Temporary, Usage

#: Port of a proxy whose URL has none, as for curl.
DEFAULT_PORT = 1080
#: Most bytes of the head of a proxy's answer.
MAX_HEAD = 16 * KiB
#: Most characters of a proxy's reason that are shown.
MAX_REASON = 100

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: ([^\r\n]*))?\r\n")


@dataclass(frozen=True)
class HttpProxy:
    """A proxy that makes tunnels (CONNECT, RFC 9110 9.3.6). `user` has name and password, or is ""."""

    host: str
    port: int
    user: str = field(default="", repr=False)

    @classmethod
    def of(cls, host: str, environment: Mapping[str, str]) -> Self | None:
        """Return the proxy to a host with https, if there is one. Variables in lower case come first. Raises Usage."""
        told = environment.get("https_proxy") or environment.get("HTTPS_PROXY")
        if not told or is_exempt(host, environment.get("no_proxy") or environment.get("NO_PROXY") or ""):
            return None
        with contextlib.suppress(ValueError):  # an impossible port or address
            parts = urllib.parse.urlsplit(told if "://" in told else f"http://{told}")
            port = DEFAULT_PORT if parts.port is None else parts.port
            proxy = hosts.decoded(parts.hostname or "")
            if parts.scheme == "http" and proxy and hosts.is_host(proxy) and port:
                name, password = (urllib.parse.unquote(text or "") for text in (parts.username, parts.password))
                return cls(proxy, port, "" if parts.username is None else f"{name}:{password}")
        # The message does not quote the value, which may have a password.
        raise Usage("HTTPS_PROXY must look like http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")

    @property
    def peer(self) -> str:
        """Return the proxy's name for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def tunnel(self, sock: socket.socket, host: str, port: int, timeout: float) -> None:
        """Have the proxy, to which the socket is connected, connect it to a host.

        All of it may take `timeout` seconds. Raises OSError, Temporary, and ServerFailed if the proxy refuses.
        """
        deadline = time.monotonic() + timeout
        target = hosts.told(host if ":" in host else host.encode("idna").decode(), port)
        head = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", "User-Agent: imageio-client"]
        if self.user:
            head.append(f"Proxy-Authorization: Basic {base64.b64encode(self.user.encode()).decode()}")
        sock.sendall("\r\n".join([*head, "", ""]).encode())
        answer, rest = self._answer(sock, deadline)
        match = _STATUS.match(answer)
        if match is None:
            raise ServerFailed(f"the proxy {self.peer} does not speak HTTP")
        status = int(match[1])
        if not 200 <= status < 300:
            raise self._refusal(target, host, status, (match[2] or b"").decode(errors="replace"))
        if rest:  # the server sends nothing before TLS begins
            raise ServerFailed(f"the proxy {self.peer} sent more than its answer")

    def _answer(self, sock: socket.socket, deadline: float) -> tuple[bytes, bytes]:
        """Receive the head of an answer. Return it, and the bytes after it."""
        got = bytearray()
        searched = 0
        while (end := got.find(b"\r\n\r\n", searched)) < 0:
            searched = max(len(got) - 3, 0)
            if len(got) > MAX_HEAD:
                raise ServerFailed(f"the proxy {self.peer} sent a head of more than {MAX_HEAD} bytes")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            sock.settimeout(left)
            piece = sock.recv(4 * KiB)
            if not piece:
                raise ConnectionResetError(errno.ECONNRESET, "the proxy closed the connection")
            got += piece
        return bytes(got[: end + 4]), bytes(got[end + 4 :])

    def _refusal(self, target: str, host: str, status: int, reason: str) -> ServerFailed:
        told = f"({status} {''.join(filter(str.isprintable, reason[:MAX_REASON]))})".replace(" )", ")")
        if status == 407:
            wanted = "does not take the user and password of HTTPS_PROXY" if self.user else "wants a user and password"
            return ServerFailed(f"the proxy {self.peer} {wanted} {told}: HTTPS_PROXY=http://USER:PASSWORD@{self.peer}")
        if status >= 500 or status in (408, 429):
            return Temporary(f"the proxy {self.peer} has no connection to {target} {told}")
        return ServerFailed(f"the proxy {self.peer} refuses {target} {told}: NO_PROXY={host} goes without it")


def is_exempt(host: str, rules: str) -> bool:
    """Return whether NO_PROXY names a host, by the rules of curl(1).

    `*` alone is every host. Otherwise commas and blanks separate names, addresses, and networks in CIDR notation. A
    name, with or without a dot before it, includes its subdomains. Names are not resolved to addresses.
    """
    if rules.strip() == "*":
        return True
    name = hosts.certified(host.lower())
    address = _network(name)
    return any(_covers(rule, name, address) for rule in re.split(r"[,\s]+", rules.lower()) if rule)


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _covers(rule: str, name: str, address: _Network | None) -> bool:
    if address is not None:
        network = _network(rule.strip("[]"))
        return network is not None and network.version == address.version and address.network_address in network
    domain = rule.removeprefix(".").removesuffix(".")
    return bool(domain) and (name == domain or name.endswith(f".{domain}"))


def _network(text: str) -> _Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
