# SPDX-License-Identifier: Apache-2.0
"""What the parser in C makes of statuses of several contexts; for other replies see nbdproto/test_client_replies.py."""

import pytest

from imageio_daemon.nbdproto.client_negotiation import ServerViolation
from imageio_daemon.nbdproto.constants import Command
from tests.nbdproto.reply_clients import CHUNKS, CClient

ZERO, HOLE, DIRTY = 1, 2, 4


@pytest.fixture(params=CHUNKS)
def client(request: pytest.FixtureRequest) -> CClient:
    return CClient(request.param)


@pytest.mark.parametrize("step", [1, 1 << 30])
def test_a_status_has_a_payload_for_each_context(client: CClient, step: int) -> None:
    client.step = step
    request = client.begin(Command.BLOCK_STATUS)
    client.feed(client.status(request, 3, (8192, 1), done=False))
    client.feed(client.status(request, 2, (4096, 0), done=False))
    client.feed(client.status(request, 1, (1024, 3), (9999, 0)))
    assert client.ended == [request]
    assert client.replies.extents(request, 0, 4096) == [(0, 1024, ZERO | HOLE | DIRTY), (1024, 3072, HOLE | DIRTY)]


def test_contexts_share_the_memory_for_what_is_told(client: CClient) -> None:
    request = client.begin(Command.BLOCK_STATUS, 0, 1 << 30, most=1 << 20)
    kept, told = (4 << 20) // 16 // CClient.CONTEXTS, [(512, number % 2) for number in range(90_000)]
    for context in range(1, CClient.CONTEXTS + 1):
        client.feed(client.status(request, context, *told, done=context == CClient.CONTEXTS))
    assert kept < len(told)
    found = client.replies.extents(request, 0, 1 << 30, most=1 << 20)
    assert (len(found), found[-1][0] + found[-1][1]) == (kept, 512 * kept)


def told(
    client: CClient, length: int, *contexts: list[tuple[int, int]], most: int = 1000
) -> list[tuple[int, int, int]]:
    """Return the extents of 0..length, if each context tells these."""
    request = client.begin(Command.BLOCK_STATUS, 0, length, most=most)
    for number, extents in enumerate(contexts, 1):
        client.feed(client.status(request, number, *extents, done=number == len(contexts)))
    return client.replies.extents(request, 0, length, most)


DATA_1000, DEPTH_1000, CLEAN_1000 = [(1000, 0)], [(1000, 1)], [(1000, 0)]


def test_extents_that_say_the_same_are_one(client: CClient) -> None:
    zeros = [(100, 3), (100, 2), (300, 0), (500, 3)]
    assert told(client, 1000, zeros, DEPTH_1000, CLEAN_1000) == [(0, 200, ZERO), (200, 300, 0), (500, 500, ZERO)]


def test_extents_are_cut_where_any_context_changes(client: CClient) -> None:
    extents = told(client, 1000, [(600, 3), (400, 0)], [(300, 0), (700, 2)], [(900, 0), (100, 1)])
    assert extents == [(0, 300, ZERO | HOLE), (300, 300, ZERO), (600, 300, 0), (900, 100, DIRTY)]


def test_extents_go_as_far_as_all_contexts_do(client: CClient) -> None:
    assert told(client, 1000, [(2000, 3)], [(400, 1)], CLEAN_1000) == [(0, 400, ZERO)]


def test_extents_end_where_the_range_does(client: CClient) -> None:
    assert told(client, 10, DATA_1000, DEPTH_1000, CLEAN_1000) == [(0, 10, 0)]


def test_extents_that_there_is_no_room_for_are_left_out(client: CClient) -> None:
    changing = [(10, 3 * (i % 2)) for i in range(100)]
    extents = told(client, 1000, changing, DEPTH_1000, CLEAN_1000, most=5)
    assert extents == [(10 * i, 10, i % 2) for i in range(5)]


def test_a_context_that_tells_nothing_is_noticed(client: CClient) -> None:
    with pytest.raises(ValueError, match="nothing was told"):
        told(client, 1000, DATA_1000, DEPTH_1000)


@pytest.mark.parametrize("length", [0, 2**63])
def test_an_extent_that_cannot_be_is_a_violation(length: int) -> None:
    client = CClient("extended")
    with pytest.raises(ServerViolation, match="an empty extent, or one that is too long"):
        told(client, 1000, [(10, 0), (length, 0)], DEPTH_1000, CLEAN_1000)
