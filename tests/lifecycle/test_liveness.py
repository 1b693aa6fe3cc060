# SPDX-License-Identifier: Apache-2.0
"""Whether the lanes turn."""

import threading

from imageio_daemon.lifecycle.health import Liveness


async def test_lanes_do_not_answer_while_a_lock_is_held() -> None:
    lock = threading.Lock()

    def look() -> None:
        with lock:
            pass

    liveness = Liveness(look)
    with lock:
        assert liveness.ask()
        assert not await liveness.answered(0.05)
        threads = threading.active_count()
        assert not liveness.ask()
        assert threading.active_count() == threads  # no further one waits
    assert await liveness.answered(20)
    assert liveness.ask()
