# SPDX-License-Identifier: Apache-2.0
"""Build the extension ``ioutil_ext._ioutil`` (cffi, API mode)."""

import os
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
# In rooms: README.md. setuptools wants them relative to setup.py.
SOURCES = sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*/*.c"))
HEADERS = sorted(str(path.relative_to(HERE.parent)) for path in HERE.glob("*/*.h"))

# What Python sees, each behind those that it includes.
INTERFACE = [
    f"api/{name}.h"
    for name in (
        "ioutil",
        "qcow2",
        "hash",
        "durable",
        "tls",
        "nbd_client",
        "bucket",
        "zstd",
        "head",
        "lane",
        "nbd",
    )
]

# The code that cffi generates has parameters that it does not use.
PREAMBLE = """
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
""" + "".join(f'#include "{name}"\n' for name in INTERFACE)

# Against an overlooked mistake: lengths are checked once more, stacks are guarded, and addresses of other libraries'
# functions are found when the module is loaded and cannot be changed later. -U: some Pythons ask for a lower level.
HARDENING = ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong", "-fstack-clash-protection"]
LINK_HARDENING = ["-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]

# From the environment: warnings are errors (development); OpenSSL, zstd and zlib are linked into the extension (wheels:
# docs/adr/0027).
WERROR = os.environ.get("IMAGEIO_WERROR") == "1"
STATIC = os.environ.get("IMAGEIO_STATIC") == "1"
# None of their symbols is seen by others, so that Python's ssl and the extension do not meet.
STATIC_LINK = ["-l:libssl.a", "-l:libcrypto.a", "-l:libzstd.a", "-l:libz.a", "-Wl,--exclude-libs,ALL"]

ffibuilder = FFI()
for name in INTERFACE:
    lines = (HERE / name).read_text().splitlines(keepends=True)
    ffibuilder.cdef("".join(line for line in lines if not line.startswith("#")))
ffibuilder.set_source(
    "ioutil_ext._ioutil",
    PREAMBLE,
    sources=SOURCES,
    depends=HEADERS,
    include_dirs=["ioutil_ext"],
    extra_compile_args=[
        "-O3",
        "-Wall",
        "-Wextra",
        "-std=gnu11",
        "-pthread",
        "-fvisibility=hidden",
        *HARDENING,
        *(["-Werror"] if WERROR else []),
    ],
    libraries=[] if STATIC else ["ssl", "crypto", "zstd", "z"],
    extra_link_args=["-pthread", *LINK_HARDENING, *(STATIC_LINK if STATIC else [])],
)

if __name__ == "__main__":
    ffibuilder.compile(tmpdir=str(HERE.parent), verbose=True)
