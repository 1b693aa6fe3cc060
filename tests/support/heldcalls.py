# SPDX-License-Identifier: Apache-2.0
"""Storage below another process that waits for the test: a library that is loaded before it replaces system calls."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.polling import eventually

SOURCE = Path(__file__).with_suffix(".c")


def build_library(directory: Path) -> Path:
    """Compile the library; its path goes into LD_PRELOAD of a process that is to be started."""
    library = directory / "heldcalls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class HeldCall:
    """The next write or zero of a file."""

    def __init__(self, path: Path) -> None:
        self._wanted = path.with_name(f"{path.name}.hold")
        self._held = path.with_name(f"{path.name}.held")
        self._wanted.touch()

    def arrived(self) -> None:
        """Wait until a call waits."""
        eventually(self._held.exists, "a call waits")

    def release(self) -> None:
        """Let it go on."""
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
