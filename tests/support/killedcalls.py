# SPDX-License-Identifier: Apache-2.0
"""A process that is killed at one of its system calls, and the trace of those that change an image or a directory.

The trace has a line when a call begins, before it can take effect, and one when it has ended:

    + NUMBER NAME PATH SECOND OFFSET LENGTH CHANGED CHANGED-LENGTH DATA.
    - NUMBER RESULT

NAME: write, zero, sync, truncate, create, empty, rename, unlink. SECOND: the new name, or -. CHANGED: where the content
will differ; blocks are written whole. DATA: what is written to a file of the directory, hexadecimal. `begin()` adds an
empty line and "start" for each process.
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
    """When to die: at the call of this number among those of these kinds.

    kinds: w (an image is changed), f (an image is flushed), j (a file of the directory is changed), s (it is made
    durable), n (something is sent). when: b(efore), m(iddle: half of it is done) or a(fter) the call.
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
    """Have a process that is started in the block die. state, images: the paths that the trace tells of."""
    with trace.open("a") as file:
        file.write(f"\n{START}\n")  # the last line may be torn
    paths = ":".join(map(str, images)) or "-"
    words = f"{trace} {state} {paths} {death.kinds} {death.when} {death.number}"
    os.environ.update(LD_PRELOAD=str(library), IMAGEIO_TEST_CALLS=words)
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"], os.environ["IMAGEIO_TEST_CALLS"]
