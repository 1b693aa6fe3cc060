# SPDX-License-Identifier: Apache-2.0
"""Build the extension ``ioutil_ext._ioutil`` (cffi, API mode)."""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = [
    "admission.c",
    "engine.c",
    "extents.c",
    "guests.c",
    "http_answers.c",
    "http_head.c",
    "http_lane.c",
    "http_patch.c",
    "http_requests.c",
    "http_take.c",
    "image.c",
    "io.c",
    "iszero.c",
    "lane.c",
    "lane_counts.c",
    "lane_depth.c",
    "lane_memory.c",
    "lane_operations.c",
    "lane_receive.c",
    "lane_slabs.c",
    "lane_socket.c",
    "lane_turns.c",
    "lane_waiters.c",
    "mounts.c",
    "names.c",
    "nbd_lane.c",
    "nbd_receive.c",
    "nbd_replies.c",
    "nbd_requests.c",
    "nbd_wire.c",
    "op.c",
    "open.c",
    "queue.c",
    "schedule.c",
    "size.c",
    "syscalls.c",
    "tls.c",
    "tls_bio.c",
    "tls_context.c",
    "workers.c",
    "zero.c",
    "zero_methods.c",
]
HEADERS = [
    "engine.h",
    "http.h",
    "internal.h",
    "ioutil_api.h",
    "lane.h",
    "lane_api.h",
    "lane_depth.h",
    "lane_slabs.h",
    "lane_waiters.h",
    "nbd.h",
    "tls.h",
    "tls_api.h",
    "tls_parts.h",
    "zero.h",
]

# The code that cffi generates has parameters that it does not use.
PREAMBLE = """
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "ioutil_api.h"
#include "tls_api.h"
#include "lane_api.h"
"""

# Against an overlooked mistake: lengths are checked once more, stacks are guarded, and addresses of other libraries'
# functions are found when the module is loaded and cannot be changed later. -U: some Pythons ask for a lower level.
HARDENING = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong", "-fstack-clash-protection"]
LINK_HARDENING = ["-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]

ffibuilder = FFI()
for name in ("ioutil_api.h", "tls_api.h", "lane_api.h"):
    ffibuilder.cdef((HERE / name).read_text())
ffibuilder.set_source(
    "ioutil_ext._ioutil",
    PREAMBLE,
    sources=[f"ioutil_ext/{name}" for name in SOURCES],  # setuptools wants them relative to setup.py
    depends=[f"ioutil_ext/{name}" for name in HEADERS],
    include_dirs=["ioutil_ext"],
    extra_compile_args=[
        "-O3",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-std=gnu11",
        "-pthread",
        "-fvisibility=hidden",
        *HARDENING,
    ],
    libraries=["ssl", "crypto"],
    extra_link_args=["-pthread", *LINK_HARDENING],
)

if __name__ == "__main__":
    ffibuilder.compile(tmpdir=str(HERE.parent), verbose=True)
