# SPDX-License-Identifier: Apache-2.0
"""How the transmission begins."""

import pytest

from imageio_daemon.frontends.nbd.exports import PREFERRED_BLOCK
from imageio_daemon.nbdproto.constants import Command, InfoType, OptionType, Reply
from imageio_daemon.nbdproto.messages import RequestHeader
from imageio_daemon.nbdproto.option_payloads import BlockSizes, InfoRequest, OptionHeader, OptionReply
from tests.frontends.nbd.client import Client, Refused
from tests.frontends.nbd.conftest import MakeWorld
from tests.support.nbd_payloads import ChunkHeader


async def answered_options(client: Client) -> list[int]:
    """Read until GO is acknowledged; return what was acknowledged before, too."""
    answered: list[int] = []
    while OptionType.GO not in answered:
        reply = OptionReply.unpack(await client.read(20))
        await client.read(reply.length)
        answered += [reply.option] if reply.reply == Reply.ACK else []
    return answered


@pytest.mark.parametrize("names", [0, 90])
async def test_requests_sent_with_the_options_are_answered_after_them(make_world: MakeWorld, names: int) -> None:
    async with make_world(listed=True) as world:
        for number in range(names):  # so that there is more to answer than C takes: 90,000 bytes
            world.add(f"{number:01000}")
        client = await world.connect()
        options = [
            (OptionType.STRUCTURED_REPLY, b""),
            (OptionType.LIST, b""),
            (OptionType.GO, InfoRequest("disk", ()).pack()),
        ]
        asked = b"".join(OptionHeader(option, len(payload)).pack() + payload for option, payload in options)
        client.writer.write(asked + RequestHeader(Command.READ, 0, 77, 0, 512).pack(extended=False))
        assert await answered_options(client) == [option for option, _ in options]
        assert ChunkHeader.unpack(await client.read(20)).cookie == 77


async def preferred_size(client: Client) -> int:
    """Return what the server advises to send at once."""
    replies = await client.ask(OptionType.INFO, InfoRequest("disk", (InfoType.BLOCK_SIZE,)).pack())
    (sizes,) = [data for reply, data in replies if reply == Reply.INFO and data[:2] == InfoType.BLOCK_SIZE.to_bytes(2)]
    return BlockSizes.unpack(sizes).preferred


async def test_client_is_told_to_send_what_stays_in_the_caches(make_world: MakeWorld) -> None:
    async with make_world() as world:
        assert await preferred_size(await world.connect()) == PREFERRED_BLOCK


async def test_transfer_beyond_the_limit_is_refused_with_the_reason(make_world: MakeWorld) -> None:
    async with make_world() as world:
        world.add("other")
        world.store.at_work.most = 1
        await world.go()
        with pytest.raises(Refused, match="Too many transfers") as error:
            await world.go("other")
        assert error.value.reply == Reply.ERR_POLICY
