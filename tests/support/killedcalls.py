# SPDX-License-Identifier: Apache-2.0
"""Kill a process at one of its system calls, and trace the calls that change an image or a directory.

The trace has a line when a call begins, before it can take effect, and a line when the call has ended:

    + NUMBER NAME PATH SECOND OFFSET LENGTH CHANGED CHANGED-LENGTH DATA.
    - NUMBER RESULT

NAME is write, zero, sync, truncate, create, empty, rename or unlink. SECOND is the new name, or -. CHANGED and
CHANGED-LENGTH are the range whose content will differ; blocks are written as a whole. DATA is, for a write to a file of
the directory, the data in hexadecimal. `begin()` adds an empty line and "start" for each process.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
START = "start"


@dataclass(frozen=True)
class Death:
    """The moment of death: at the call with this number among the calls of these kinds.

    The letters of `kinds` are w (a change of an image), f (a flush of an image), j (a change of a file of the
    directory), s (a sync of such a file), n (sending). `when` is b before the call, m in the middle, when half of it is
    done, or a after the call.
    """

    kinds: str
    when: str
    number: int


NEVER = Death("-", "b", 0)


def build_library(directory: Path) -> Path:
    """Compile the library."""
    library = directory / "killedcalls.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@contextmanager
def begin(library: Path, trace: Path, state: Path, images: Sequence[Path], death: Death) -> Iterator[None]:
    """Have a process that is started in the block die. The trace has the calls on the paths `state` and `images`."""
    with trace.open("a") as file:
        file.write(f"\n{START}\n")  # the last line may be torn
    paths = ":".join(map(str, images)) or "-"
    words = f"{trace} {state} {paths} {death.kinds} {death.when} {death.number}"
    os.environ.update(LD_PRELOAD=str(library), IMAGEIO_TEST_CALLS=words)
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"], os.environ["IMAGEIO_TEST_CALLS"]
