# SPDX-License-Identifier: Apache-2.0
"""Answers with digests that are not what was asked for."""

from types import SimpleNamespace
from typing import Any

import pytest

from imageio_daemon.client.errors import ServerFailed
from imageio_daemon.client.server.lists import blocks, checked
from imageio_daemon.image.block_list import Block, BlockListHead, ListWriter
from imageio_daemon.image.blockhash import Total, new_hash
from tests.support.images import MiB

WANTED = BlockListHead("sha256", MiB, 4096)


def answering(text: bytes) -> Any:
    """Return a connection whose server answers so."""
    return SimpleNamespace(endpoint=SimpleNamespace(peer="host:1"), stream=lambda path, timeout: iter([text]))


def listed(head: BlockListHead, length: int) -> bytes:
    zeros, total, text = new_hash("sha256"), Total("sha256"), ListWriter(head)
    zeros.update(bytes(length))
    total.add(zeros.digest())
    text.zeros(length)
    text.end(length, total.hexdigest())
    return text.take()


def test_list_is_received() -> None:
    assert blocks(answering(listed(WANTED, MiB)), "/images/x", WANTED, MiB) == [Block(4096, MiB, None)]


@pytest.mark.parametrize("text", [b"", b"{}", listed(WANTED, MiB)[:-2]])
def test_malformed_list_is_told(text: bytes) -> None:
    with pytest.raises(ServerFailed, match="host:1 sent a malformed list of digests"):
        blocks(answering(text), "/images/x", WANTED, MiB)


@pytest.mark.parametrize("text", [listed(BlockListHead("sha256", MiB, 0), MiB), listed(WANTED, MiB - 1)])
def test_list_of_another_part_is_told(text: bytes) -> None:
    with pytest.raises(ServerFailed, match="host:1 sent the digests of another part"):
        blocks(answering(text), "/images/x", WANTED, MiB)


@pytest.mark.parametrize("answer", [[], {}, {"checksum": 1}])
def test_malformed_checksum_is_told(answer: object) -> None:
    with pytest.raises(ServerFailed, match="malformed checksum"):
        checked(answer, None, "host:1")


def test_checksum_of_another_part_is_told() -> None:
    with pytest.raises(ServerFailed, match="the checksum of another part"):
        checked({"checksum": "00", "offset": 0, "length": 1}, (0, 2), "host:1")
