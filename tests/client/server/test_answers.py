# SPDX-License-Identifier: Apache-2.0
"""Heads of answers."""

import socket
import tracemalloc

from imageio_daemon.client.server.answers import KEPT, AnswerHead, Answers
from imageio_daemon.client.server.pace import UNLIMITED, Paced
from imageio_daemon.client.stopping import Stop
from imageio_daemon.units import KiB, MiB


def test_long_heads_that_all_differ_take_no_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(KEPT // 16):
            head = AnswerHead([b"HTTP/1.1 200 OK\r\n", b"X-Number: %d\r\n" % number, b"X: " + b"x" * 32 * KiB], "")
            assert head.framing.status == 200
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MiB


def test_answer_that_was_not_read_is_freed_without_a_word_after_the_connection() -> None:
    """Since Python 3.13 each error of a finalizer is printed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nlater")
        answers = Answers(ours, Paced(UNLIMITED, Stop()))
        response = answers.response("GET", answers.head())
        answers.end()
        response.close()  # as its finalizer does
