# SPDX-License-Identifier: Apache-2.0
"""A link that takes its time: forward packets between the TUN devices of two network namespaces, each after a while.

    python -m tests.client.delay NAMESPACE NAMESPACE SECONDS

It is there because many kernels are built without netem (tc-netem(8)). 100 Mbit/s take a tenth of a processor. It says
`ready` when it forwards, and ends when its standard input does.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

DEVICE = "link0"
#: Longer than any packet: the device has an MTU of 1500.
PACKET = 2048
#: Packets that are read from a device before others have their turn.
BATCH = 64

#: Numbers of linux/if_tun.h and sched.h.
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x1, 0x1000
CLONE_NEWNET = 0x40000000


def tun(namespace: str) -> int:
    """Enter a namespace and return a descriptor of its TUN device, which is made if it is not there."""
    libc = ctypes.CDLL(None, use_errno=True)
    inside = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(inside, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns {namespace}")
    os.close(inside)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return device


class Direction:
    """One direction of the link, and the packets that are on their way, each with the time when it arrives."""

    def __init__(self, source: int, target: int, delay: float) -> None:
        self.source = source
        self._target = target
        self._delay = delay
        self._packets: deque[tuple[float, bytes]] = deque()

    def receive(self) -> None:
        """Take the packets that were sent."""
        due = time.monotonic() + self._delay
        try:
            for _ in range(BATCH):
                self._packets.append((due, os.read(self.source, PACKET)))
        except OSError:  # no more now, or the device is down: its packets are lost
            return

    def deliver(self) -> float | None:
        """Deliver what is due; return the seconds until the next packet is, None if there is none."""
        packets = self._packets
        while packets:
            left = packets[0][0] - time.monotonic()
            if left > 0:
                return left
            _, packet = packets.popleft()
            try:
                os.write(self._target, packet)
            except OSError:  # the device is down
                continue
        return None


def main() -> None:
    """Forward until standard input ends."""
    first, second = tun(sys.argv[1]), tun(sys.argv[2])
    delay = float(sys.argv[3])
    directions = Direction(first, second, delay), Direction(second, first, delay)
    print("ready", flush=True)
    left: float | None = None
    while True:
        readable, _, _ = select.select([0, first, second], [], [], left)
        if 0 in readable:
            return
        for direction in directions:
            if direction.source in readable:
                direction.receive()
        left = min(
            (wait for wait in [direction.deliver() for direction in directions] if wait is not None), default=None
        )


if __name__ == "__main__":
    main()
