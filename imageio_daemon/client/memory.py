# SPDX-License-Identifier: Apache-2.0
"""Memory for data on its way."""

import contextlib
import mmap


def new_buffer(size: int) -> memoryview:
    """Return page-aligned memory of so many bytes, in huge pages if the system has some."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # EINVAL: a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
