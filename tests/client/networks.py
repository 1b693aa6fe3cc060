# SPDX-License-Identifier: Apache-2.0
"""Two hosts with a slow link between them: network namespaces, tc-tbf(8) for its rate, iptables for what gets lost.

The link is a veth pair, or, if it is a long one, two TUN devices and a program that forwards between them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.daemon import Certificates, Daemon, Section

SERVER_ADDRESS = "198.51.100.1"
CLIENT_ADDRESS = "198.51.100.2"
PORT = 54322
#: Bits per second, as tc has them.
RATE = "40mbit"
#: The queue before the link: bytes that go at once, and milliseconds until a packet is dropped that waits.
BURST, LATENCY = "64kb", "200ms"


def missing() -> str | None:
    """Return why there can be no such hosts; None if there can."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not all(map(shutil.which, ("ip", "tc", "iptables"))):
        return "needs ip and tc (iproute2), and iptables"
    probe = f"imageio-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True).returncode:
        return "needs network namespaces, which this host does not allow"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


class SlowNetwork:
    """The two hosts. `on_server` and `on_client` are what comes before a command that runs there.

    rate: of each direction, as tc has it. round_trip: seconds that the link takes to and fro, about 100 Mbit/s at most.
    loss: the share of packets of each direction that is lost, which needs iptables.
    """

    def __init__(self, rate: str = RATE, *, round_trip: float = 0.0, loss: float = 0.0) -> None:
        name = f"imageio-{os.getpid()}"
        self._server, self._client = f"{name}-server", f"{name}-client"
        self._rate = rate
        self._round_trip = round_trip
        self._loss = loss
        self._forwarder: subprocess.Popen[str] | None = None
        self.on_server = ("ip", "netns", "exec", self._server)
        self.on_client = ("ip", "netns", "exec", self._client)

    def __enter__(self) -> Self:
        for namespace in (self._server, self._client):
            _ip("netns", "add", namespace)
        if self._round_trip:
            self._join_far()
        else:
            self._join()
        for namespace, address in ((self._server, SERVER_ADDRESS), (self._client, CLIENT_ADDRESS)):
            _ip("-netns", namespace, "addr", "add", f"{address}/24", "dev", "link0")
            _ip("-netns", namespace, "link", "set", "lo", "up")
            # A packet that is lost is one of the link, and not a large one that the kernel has not cut yet.
            _ip("-netns", namespace, "link", "set", "link0", "up", *(("gso_max_segs", "1") if self._loss else ()))
            # Each kernel has it, and others would hide what loss does.
            control = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
            subprocess.run(["ip", "netns", "exec", namespace, "sh", "-c", control], check=True)
            shape = ("tbf", "rate", self._rate, "burst", BURST, "latency", LATENCY)
            subprocess.run(["tc", "-netns", namespace, "qdisc", "add", "dev", "link0", "root", *shape], check=True)
            if self._loss:
                random = ("-m", "statistic", "--mode", "random", "--probability", str(self._loss))
                rule = ("iptables", "--append", "INPUT", "--in-interface", "link0", *random, "--jump", "DROP")
                subprocess.run(["ip", "netns", "exec", namespace, *rule], check=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forwarder is not None:
            self._forwarder.communicate()  # closes its standard input
        for namespace in (self._server, self._client):
            _ip("netns", "del", namespace)

    def _join(self) -> None:
        server = ("name", "link0", "netns", self._server)
        _ip("link", "add", *server, "type", "veth", "peer", "link0", "netns", self._client)

    def _join_far(self) -> None:
        program = (sys.executable, "-m", "tests.client.delay", self._server, self._client, str(self._round_trip / 2))
        self._forwarder = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._forwarder.stdout is not None
        assert self._forwarder.stdout.readline() == "ready\n"

    def daemon(
        self, certificates: Certificates, directory: Path, config: Mapping[str, Section] | None = None
    ) -> Daemon:
        """Return a daemon on the server, with a certificate for its address, which is kept in the directory."""
        files = certificates.issue(directory, SERVER_ADDRESS)
        own = replace(certificates, certfile=files["cert_file"], keyfile=files["key_file"])
        config = config or {}
        remote = {**config.get("remote", {}), "port": PORT}
        # The two hosts have one file system, so the client would find the socket.
        return Daemon(own, {"local": {"enable": False}, **config, "remote": remote}, wrapper=self.on_server)

    def take_away(self) -> None:
        """Pull the cable on the client's side: packets get lost, and nobody says so."""
        _ip("-netns", self._client, "link", "set", "link0", "down")

    def bring_back(self) -> None:
        """Put it in again."""
        _ip("-netns", self._client, "link", "set", "link0", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
