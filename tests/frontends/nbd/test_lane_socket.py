# SPDX-License-Identifier: Apache-2.0
"""The descriptor that a lane gives up."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.heldcalls import build_library

#: Cuts a lane that has closed its socket, and has not ended, when other sockets have got the number.
CUT = """
import asyncio, socket, sys
from pathlib import Path
from tests.frontends.nbd.world import World
from tests.support.heldcalls import held_call

async def main(directory):
    async with World(directory=directory).running() as world:
        client = await world.go()
        (lane,) = world.lanes.alive
        with held_call(directory / "closed") as call:
            await client.close()
            await asyncio.to_thread(call.arrived)
            pairs = [socket.socketpair() for _ in range(16)]
            lane.abort()
        for near, far in pairs:
            near.send(b"x")
            assert far.recv(1) == b"x", "the socket of somebody else was cut"
            near.close()
            far.close()

asyncio.run(main(Path(sys.argv[1])))
"""


def test_lane_that_is_cut_after_it_has_closed_its_socket_cuts_no_other_one(tmp_path: Path) -> None:
    held = {"LD_PRELOAD": str(build_library(tmp_path)), "IMAGEIO_TEST_CLOSED": str(tmp_path / "closed")}
    ended = subprocess.run(
        [sys.executable, "-c", CUT, tmp_path], env={**os.environ, **held}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
