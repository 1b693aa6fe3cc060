# SPDX-License-Identifier: Apache-2.0
"""Lanes on storage that fails."""

import errno
import re

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag, ErrorNumber
from tests.frontends.nbd.calls import Calls
from tests.frontends.nbd.client import Client
from tests.frontends.nbd.conftest import CONTENT
from tests.frontends.nbd.world import MiB, World
from tests.support.polling import eventually

READ, WRITE, FLUSH, ZERO = Command.READ, Command.WRITE, Command.FLUSH, Command.WRITE_ZEROES
FUA, DF = CommandFlag.FUA, CommandFlag.DF


@pytest.fixture
async def world(gated: World) -> World:
    return gated


@pytest.mark.parametrize(
    ("command", "call", "error", "told"),
    [
        (READ, "pread", errno.EIO, ErrorNumber.EIO),
        (READ, "pread", errno.ENOMEM, ErrorNumber.EIO),
        (READ, "pread", errno.ENODATA, ErrorNumber.EIO),  # a medium that cannot be read
        (WRITE, "pwrite", errno.EIO, ErrorNumber.EIO),
        (WRITE, "pwrite", errno.ENOSPC, ErrorNumber.ENOSPC),
        (WRITE, "pwrite", errno.EDQUOT, ErrorNumber.ENOSPC),
        (WRITE, "pwrite", errno.EFBIG, ErrorNumber.ENOSPC),
        (WRITE, "pwrite", errno.EROFS, ErrorNumber.EPERM),
    ],
)
async def test_failure_is_told_and_logged_and_the_connection_lives(
    world: World,
    client: Client,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    command: Command,
    call: str,
    error: int,
    told: ErrorNumber,
) -> None:
    calls.fail(call, error)
    result = await client.request(command, 4096, 4096, data=bytes(4096) if command == WRITE else b"")
    assert result.error == told
    assert result.text in ("", "the server failed to perform the operation")
    what = f"storage failed: {command.name.lower()} {world.image} offset=4096 length=4096"
    await world.until(lambda: what in caplog.text)
    assert errno.errorcode[error] in caplog.text
    calls.mend()
    assert (await client.request(READ, 0, 4096)).data == CONTENT[:4096]


@pytest.mark.parametrize(("command", "flags"), [(FLUSH, 0), (WRITE, FUA), (ZERO, FUA)])
async def test_flush_that_failed_once_fails_for_ever(
    world: World, client: Client, calls: Calls, command: Command, flags: int
) -> None:
    """The kernel forgets that pages were lost: a later success would be a lie."""
    calls.fail("fdatasync", errno.EIO)
    data = bytes(4096) if command == WRITE else b""
    length = 4096 if command == ZERO else 0
    assert (await client.request(command, 0, length, flags, data=data)).error == ErrorNumber.EIO
    calls.mend()
    assert (await client.request(FLUSH)).error == ErrorNumber.EIO
    assert (await client.request(READ, 4096, 4096)).error == 0


async def test_only_known_numbers_appear_whatever_storage_says(world: World, calls: Calls) -> None:
    client = await world.go()
    allowed = {ErrorNumber.EPERM, ErrorNumber.EIO, ErrorNumber.ENOSPC}
    for error in sorted(set(errno.errorcode) - {errno.EINTR, errno.ECANCELED}):
        calls.fail("pread", error)
        calls.fail("pwrite", error)
        assert (await client.request(READ, 0, 4096)).error in allowed
        assert (await client.request(WRITE, 0, data=bytes(4096))).error in allowed
    calls.mend()
    assert (await client.request(READ, 0, 4096)).error == 0


@pytest.mark.parametrize("flags", [0, DF])
async def test_failure_in_a_long_read_ends_it_with_an_error(
    world: World, client: Client, calls: Calls, flags: int
) -> None:
    if flags and not (client.structured or client.extended):
        pytest.skip("no such flag here")
    calls.fail("pread", errno.EIO, after=0 if flags or not client.structured else 2)
    result = await client.request(READ, 0, 7 * MiB, flags)
    assert result.error == ErrorNumber.EIO
    calls.mend()
    assert (await client.request(READ, 0, 7 * MiB, flags)).data == CONTENT[: 7 * MiB]


async def test_failure_in_a_long_write_is_told_once_and_nothing_more_is_written(
    world: World, client: Client, calls: Calls
) -> None:
    calls.fail("pwrite", errno.ENOSPC, after=1)
    assert (await client.request(WRITE, 0, data=b"x" * (7 * MiB))).error == ErrorNumber.ENOSPC
    assert calls.made.count("pwrite") == 1
    calls.mend()
    assert (await client.request(READ, 7 * MiB, 512)).data == CONTENT[7 * MiB :][:512]


async def test_every_failure_is_told(world: World, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    client = await world.go()
    calls.fail("pread", errno.EIO)
    held = calls.hold("pread", 64)
    for i in range(64):
        client.send(READ, i * 4096, 4096)
    await world.until(lambda: held.full)
    held.release()
    eventually(lambda: calls.failed == 64, "all have failed, while the loop could not look")
    assert {result.error for result in (await client.receive_all()).values()} == {ErrorNumber.EIO}
    await world.rest()
    lost = re.findall(r": (\d+) more times", caplog.text)
    assert caplog.text.count("storage failed") - len(lost) + sum(map(int, lost)) == 64
