# SPDX-License-Identifier: Apache-2.0
"""The images that both servers serve, and the rate of the disk below them."""

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cases import Case, MiB
from benchmarks.errors import BenchmarkError
from benchmarks.measure import drop_cache
from tests.support.realstorage import loop_device


class Images:
    """One image for reading and writing on each storage, and one for zeroing, made when first asked for.

    The first is written once before it is measured: what a file system does to allocate blocks is not the servers'
    work. The other one is allocated, and after the first requests it is zero already: so it is the cost of a request
    that is measured, not that of the disk.
    """

    def __init__(self, directory: Path, size: int, cleanup: ExitStack) -> None:
        self.size = size
        self._directory = directory
        self._cleanup = cleanup
        self._made: dict[tuple[str, bool], Path] = {}
        self._disk: dict[tuple[str, str, int, int], float] = {}

    def path(self, case: Case) -> Path:
        """Return the image that a case works on."""
        zeroed = case.operation == "zero"
        if (case.storage, zeroed) not in self._made:
            self._made[case.storage, zeroed] = self._make(case.storage, zeroed)
        return self._made[case.storage, zeroed]

    def _make(self, storage: str, zeroed: bool) -> Path:
        path = self._directory / f"{storage}-{'zeroed' if zeroed else 'written'}"
        with path.open("xb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, self.size)
            if not zeroed:
                _fill(file.fileno(), self.size)
        if storage == "loop":
            return self._cleanup.enter_context(loop_device(path))
        return path

    def disk_rate(self, case: Case, seconds: float) -> float:
        """Return bytes per second that as many threads as the case has connections move with direct I/O."""
        key = (case.storage, case.operation, case.size, case.connections)
        if key not in self._disk:
            self._disk[key] = _fio(self.path(case), self.size, case, seconds)
        return self._disk[key]


def _fill(fd: int, size: int) -> None:
    piece = os.urandom(MiB)
    for _ in range(size // MiB):
        os.write(fd, piece)
    # Whoever reads through the page cache shall find it as cold as who does not.
    drop_cache(fd)


def _fio(path: Path, size: int, case: Case, seconds: float) -> float:
    operation = {"put": "write", "get": "read"}[case.operation]
    part = size // case.connections
    command = [
        "fio", "--name=disk", f"--filename={path}", f"--rw={operation}", f"--bs={case.size}", "--direct=1",
        "--ioengine=psync", "--thread", f"--numjobs={case.connections}", f"--size={part}", f"--offset_increment={part}",
        "--time_based", f"--runtime={round(1000 * seconds)}ms", "--group_reporting", "--output-format=json",
    ]  # fmt: skip
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode != 0:
        raise BenchmarkError(f"fio failed: {result.stderr.strip() or result.stdout.strip()}")
    return float(json.loads(result.stdout)["jobs"][0][operation]["bw_bytes"])
