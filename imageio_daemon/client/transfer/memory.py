# SPDX-License-Identifier: Apache-2.0
"""Buffers of transfers."""

import contextlib
import mmap


def new_buffer(size: int) -> memoryview:
    """Return page-aligned memory of `size` bytes, in huge pages if the kernel supports them (madvise(2))."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # EINVAL from a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)
