# SPDX-License-Identifier: Apache-2.0
"""A transfer with one connection has its part of a device beside one with many.

The device is a loop device whose rate the kernel limits (blkio.throttle of cgroups), so that it is what limits.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemon import MakeDaemon
from tests.support.images import MiB, make_image
from tests.support.polling import eventually
from tests.support.pump import Pump
from tests.support.realstorage import loop_device

GROUPS = Path("/sys/fs/cgroup/blkio")
RATE = 200 * MiB
SIZE = 128 * MiB
MANY = 8

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (GROUPS / "blkio.throttle.read_bps_device").exists(),
        reason="needs root and blkio.throttle of cgroups",
    ),
]


@pytest.fixture
def throttled() -> Iterator[Callable[[int, Path], None]]:
    """Limit the rate at which a process uses a device."""
    group = GROUPS / f"imageio-test-{os.getpid()}"
    group.mkdir()

    def throttle(pid: int, device: Path) -> None:
        number = device.stat().st_rdev
        for way in ("read", "write"):
            limit = f"{os.major(number)}:{os.minor(number)} {RATE}"
            (group / f"blkio.throttle.{way}_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(pid))

    def removed() -> bool:
        try:
            group.rmdir()
        except OSError:
            return False  # the daemon has not ended yet
        return True

    yield throttle
    eventually(removed, "the group is removed")


@pytest.mark.parametrize("uploads", [True, False], ids=["up", "down"])
def test_one_connection_has_its_part_beside_many_of_another_ticket(
    throttled: Callable[[int, Path], None], make_daemon: MakeDaemon, tmp_path: Path, *, uploads: bool
) -> None:
    backing = tmp_path / "backing"
    backing.touch()
    os.truncate(backing, 3 * SIZE)
    with loop_device(backing) as device, ExitStack() as ends:
        directory = tmp_path / "mounted"
        directory.mkdir()
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        subprocess.run(["mount", device, directory], check=True)
        ends.callback(partial(subprocess.run, ["umount", directory], check=True))
        own = make_daemon()
        ends.callback(own.stop)
        throttled(own.pid, device)
        make = make_image(own, directory)
        one, other = (make(content=os.urandom(SIZE)) for _ in range(2))
        alone = ends.enter_context(Pump(own, one, SIZE, uploads=uploads))
        many = [ends.enter_context(Pump(own, other, SIZE, uploads=uploads)) for _ in range(MANY)]
        alone.until(5)
        all_of_it = alone.rate(2, 5) + sum(pump.rate(2, 5) for pump in many)
        # In order of arrival it is 0.11 to 0.23.
        assert alone.rate(2, 5) > 0.24 * all_of_it
        assert all_of_it > 0.85 * RATE, "the device is busy"
