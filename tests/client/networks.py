# SPDX-License-Identifier: Apache-2.0
"""Two hosts with a slow link between them: network namespaces and a veth pair (ip-netns(8), veth(4), tc-tbf(8))."""

import os
import shutil
import subprocess
from types import TracebackType
from typing import Self

SERVER_ADDRESS = "198.51.100.1"
CLIENT_ADDRESS = "198.51.100.2"
#: Bits per second.
RATE = "40mbit"


def missing() -> str | None:
    """Return why there can be no such hosts; None if there can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not all(map(shutil.which, ("ip", "tc"))):
        return "needs ip and tc (iproute2)"
    probe = f"imageio-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True).returncode:
        return "needs network namespaces, which this host does not allow"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


class SlowNetwork:
    """The two hosts. `on_server` and `on_client` are what comes before a command that runs there."""

    def __init__(self) -> None:
        name = f"imageio-{os.getpid()}"
        self._server, self._client = f"{name}-server", f"{name}-client"
        self.on_server = ("ip", "netns", "exec", self._server)
        self.on_client = ("ip", "netns", "exec", self._client)

    def __enter__(self) -> Self:
        for namespace in (self._server, self._client):
            _ip("netns", "add", namespace)
        _ip(
            "link",
            "add",
            "name",
            "link0",
            "netns",
            self._server,
            "type",
            "veth",
            "peer",
            "link0",
            "netns",
            self._client,
        )
        for namespace, address in ((self._server, SERVER_ADDRESS), (self._client, CLIENT_ADDRESS)):
            _ip("-netns", namespace, "addr", "add", f"{address}/24", "dev", "link0")
            _ip("-netns", namespace, "link", "set", "lo", "up")
            _ip("-netns", namespace, "link", "set", "link0", "up")
            shape = ("qdisc", "add", "dev", "link0", "root", "tbf", "rate", RATE, "burst", "64kb", "latency", "200ms")
            subprocess.run(["tc", "-netns", namespace, *shape], check=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for namespace in (self._server, self._client):
            _ip("netns", "del", namespace)

    def take_away(self) -> None:
        """Pull the cable on the client's side: packets get lost, and nobody says so."""
        _ip("-netns", self._client, "link", "set", "link0", "down")

    def bring_back(self) -> None:
        """Put it in again."""
        _ip("-netns", self._client, "link", "set", "link0", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
