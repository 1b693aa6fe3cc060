# SPDX-License-Identifier: Apache-2.0
"""Which loops turn, and whether the lanes do."""

import threading
from types import SimpleNamespace
from typing import Any

from imageio_daemon.monitoring.liveness import Liveness
from imageio_daemon.net.loops import serving_loops


async def test_loop_that_does_not_turn_is_silent_until_it_does() -> None:
    liveness = Liveness(None)
    async with serving_loops(2) as loops:
        liveness.watch(loops)
        go_on = threading.Event()
        loops[1]._loop.call_soon_threadsafe(go_on.wait)
        assert liveness.ask() == []
        for _ in range(3):
            assert await liveness.silent(0.05) == ["loop 2"]
            assert liveness.ask() == ["loop 2"]
        assert len(liveness._asked) == 1 + ("loop 1" in liveness._asked)
        go_on.set()
        assert await liveness.silent(20) == []


async def test_lanes_are_silent_while_a_lock_is_held() -> None:
    lock = threading.Lock()

    def look() -> None:
        with lock:
            pass

    lanes: Any = SimpleNamespace(look=look)
    liveness = Liveness(lanes)
    with lock:
        assert liveness.ask() == []
        assert await liveness.silent(0.05) == ["lanes"]
        threads = threading.active_count()
        assert liveness.ask() == ["lanes"]
        assert threading.active_count() == threads  # no further one waits
    assert await liveness.silent(20) == []
