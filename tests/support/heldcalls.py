# SPDX-License-Identifier: Apache-2.0
"""Have system calls on storage of another process wait for the test, by a library in LD_PRELOAD that replaces them."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import eventually

SOURCE = Path(__file__).with_suffix(".c")


def build_library(directory: Path) -> Path:
    """Compile the library, and return its path for LD_PRELOAD of a process."""
    library = directory / "heldcalls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class HeldCall:
    """The next write or zero of a file, which waits."""

    def __init__(self, path: Path) -> None:
        self._wanted = path.with_name(f"{path.name}.hold")
        self._held = path.with_name(f"{path.name}.held")
        self._wanted.touch()

    def arrived(self) -> None:
        """Wait until there is such a call."""
        eventually(self._held.exists, "a call waits")

    def release(self) -> None:
        """Let the call go on."""
        self._wanted.unlink(missing_ok=True)
        self._held.unlink(missing_ok=True)


@contextmanager
def held_call(path: Path) -> Iterator[HeldCall]:
    """Hold the next write or zero of the file, until it is released or the block ends."""
    call = HeldCall(path)
    try:
        yield call
    finally:
        call.release()
