# SPDX-License-Identifier: Apache-2.0
"""Run a command on a host whose kernel refuses some system calls: `make test REFUSE=io_setup:EAGAIN`.

    python -m tests.support.refusing CALL:ERROR[,CALL:ERROR...] COMMAND...

The filter is like those of services (SystemCallFilter=) and containers. All processes of the command inherit it.
Asynchronous I/O is io_setup: EAGAIN is the answer of a host whose fs.aio-max-nr is used up, or 0; EPERM and ENOSYS are
those of filters. io_uring is io_uring_setup: EPERM is the answer if it is switched off (kernel.io_uring_disabled).
"""

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Mapping, Sequence

#: By machine: the number of the architecture (linux/audit.h), and those of the calls (asm/unistd.h).
MACHINES = {
    "x86_64": (0xC000003E, {"io_setup": 206, "io_uring_setup": 425}),
    "aarch64": (0xC00000B7, {"io_setup": 0, "io_uring_setup": 425}),
}
ARCHITECTURE, NUMBERS = MACHINES.get(platform.machine(), (0, {}))  # on other machines, no call can be refused

# linux/prctl.h
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
# linux/seccomp.h: the mode, the places of a call's data for a filter, and the results of a filter
SECCOMP_MODE_FILTER = 2
DATA_NUMBER, DATA_ARCHITECTURE = 0, 4
FAIL_WITH = 0x00050000
ALLOW = 0x7FFF0000
# linux/filter.h
LOAD = 0x20
JUMP_IF_EQUAL = 0x15
RETURN = 0x06


class Instruction(ctypes.Structure):
    """A code, how many instructions to skip if it is true and if it is false, and a value."""

    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction)))


#: What programs of this project say where the kernel refuses asynchronous I/O.
NO_AIO = "the kernel refuses asynchronous I/O"


def without_no_aio(text: str) -> str:
    """Return the lines but those that say NO_AIO: on a host that refuses it everywhere, they mean nothing."""
    return "".join(line for line in text.splitlines(keepends=True) if NO_AIO not in line)


def wrapper(refused: str) -> list[str]:
    """Return the beginning of a command line that runs a command with the filter in this project's directory."""
    return [sys.executable, "-m", __name__, refused]


def parse(refused: str) -> dict[int, int]:
    """Return the numbers of errors by the numbers of calls."""
    pairs = (each.split(":") for each in refused.split(","))
    return {NUMBERS[call]: getattr(errno, error) for call, error in pairs}


def refuse(errors: Mapping[int, int]) -> None:
    """Let calls fail in this process from now on, and in those that it starts. Raises OSError."""
    code = [(LOAD, 0, 0, DATA_ARCHITECTURE), (JUMP_IF_EQUAL, 1, 0, ARCHITECTURE), (RETURN, 0, 0, ALLOW)]
    code.append((LOAD, 0, 0, DATA_NUMBER))
    for call, error in errors.items():
        code += [(JUMP_IF_EQUAL, 0, 1, call), (RETURN, 0, 0, FAIL_WITH | error)]
    code.append((RETURN, 0, 0, ALLOW))
    _prctl(PR_SET_NO_NEW_PRIVS, 1, 0)  # only root may set a filter without it
    program = Program(len(code), (Instruction * len(code))(*(Instruction(*each) for each in code)))
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def _prctl(option: int, value: int, more: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, more, 0, 0) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(arguments: Sequence[str]) -> None:
    refused, *command = arguments
    refuse(parse(refused))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
