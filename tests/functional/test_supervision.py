# SPDX-License-Identifier: Apache-2.0
"""What the service manager is told."""

import re
import signal

from tests.support.daemon import MakeDaemon
from tests.support.manager import Manager
from tests.support.polling import eventually


def test_the_manager_is_told_of_the_life_of_the_daemon(make_daemon: MakeDaemon) -> None:
    with Manager(watchdog=0.3) as manager:
        daemon = make_daemon(manager=manager, daemon={"shutdown_timeout": 100})
        eventually(lambda: manager.states.count("WATCHDOG=1") >= 3, "signs of life come")
        daemon.send_signal(signal.SIGHUP)
        eventually(lambda: "READY=1" in manager.states, "the reload is done")
        reload, done = (state for state in manager.states if state == "READY=1" or "RELOADING" in state)
        assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", reload)
        assert done == "READY=1"
        daemon.stop()
    # The unit allows less than [daemon] shutdown_timeout.
    assert "STOPPING=1\nEXTEND_TIMEOUT_USEC=112000000" in manager.states
