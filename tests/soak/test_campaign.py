# SPDX-License-Identifier: Apache-2.0
"""Clients of all protocols that vanish, tickets that come and go, slow storage: nothing happens out of order.

A few seconds each time, minutes with IMAGEIO_TEST_LONG=1. IMAGEIO_TEST_SEED=number tries the same once more; when what
happens is another matter.
"""

import json
import os
import secrets
import time
from pathlib import Path

import pytest

from tests.soak.campaign import Round
from tests.support.daemon import SLOW_PROGRAM, Certificates, Daemon, Section

LONG = bool(os.environ.get("IMAGEIO_TEST_LONG"))
#: Seconds of a round, and of all rounds.
ROUND, ALL = (4.0, 150.0) if LONG else (2.5, 0.0)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("writes_zeros", [False, True], ids=["zeroes", "writes-zeros"])
def test_nothing_happens_out_of_order(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_zeros: bool
) -> None:
    seed = int(os.environ.get("IMAGEIO_TEST_SEED") or secrets.randbelow(10**6))
    calls = tmp_path / "calls"
    calls.touch()
    slow = {"seed": seed, "calls": str(calls), "writes_zeros": writes_zeros}
    monkeypatch.setenv("IMAGEIO_TEST_SLOW", json.dumps(slow))
    nbd = {"enable": True, "host": "localhost", "port": 0, "socket": tmp_path / "nbd"}
    config: dict[str, Section] = {
        "control": {"remove_timeout": 1},
        "nbd": nbd,
    }
    until = time.monotonic() + ALL
    with Daemon(certificates, config, program=SLOW_PROGRAM) as daemon:
        while True:
            run_round(daemon, tmp_path, calls, seed)
            seed += 1
            if time.monotonic() >= until:
                break


def run_round(daemon: Daemon, directory: Path, calls: Path, seed: int) -> None:
    """Run one round, and fail with what went wrong in it."""
    images = directory / str(seed)
    images.mkdir()
    round_ = Round(daemon, images, calls, seed, ROUND)
    try:
        round_.run()
    except BaseException as error:
        error.add_note(f"IMAGEIO_TEST_SEED={seed}")
        raise
    finally:
        round_.storage.close()
    violations = round_.history.check()
    told = "\n".join(map(str, violations[:20]))
    assert not violations, f"IMAGEIO_TEST_SEED={seed}: {len(violations)} violations\n{told}"
    daemon.check_log()
