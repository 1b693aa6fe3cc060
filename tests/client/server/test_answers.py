# SPDX-License-Identifier: Apache-2.0
"""Heads of answers."""

import tracemalloc

from imageio_daemon.client.server.answers import KEPT, Head
from imageio_daemon.units import KiB, MiB


def test_long_heads_that_all_differ_take_no_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(KEPT // 16):
            head = Head([b"HTTP/1.1 200 OK\r\n", b"X-Number: %d\r\n" % number, b"X: " + b"x" * 32 * KiB], "")
            assert head.framing.status == 200
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MiB
