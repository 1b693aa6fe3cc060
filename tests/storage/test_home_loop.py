# SPDX-License-Identifier: Apache-2.0
"""Work that belongs to one loop."""

import asyncio
import threading

from imageio_daemon.storage.home_loop import HomeLoop


async def test_work_begins_in_the_order_in_which_it_was_asked_for_on_any_loop() -> None:
    home_loop, begun = HomeLoop(), []

    async def work(name: str) -> None:
        begun.append(name)

    async def elsewhere() -> None:
        asked = home_loop.run(work("elsewhere"))
        others_may_ask.set()
        await asked

    others_may_ask = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    others_may_ask.wait()  # the home loop does nothing meanwhile
    await home_loop.run(work("here"))
    await asyncio.to_thread(thread.join)
    assert begun == ["elsewhere", "here"]
