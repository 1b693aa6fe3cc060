# SPDX-License-Identifier: Apache-2.0
"""Commands whose system calls the kernel refuses."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import refusing

PROJECT = Path(__file__).resolve().parents[2]

#: A program that prints the error of io_uring_setup(2), which is EFAULT or EINVAL if it is not refused.
CALL = """
import ctypes, errno
from tests.support.refusing import NUMBERS
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(NUMBERS["io_uring_setup"], 0, None)
print(errno.errorcode[ctypes.get_errno()])
"""


def error(refused: str) -> str:
    """Return the error in a process that the command starts."""
    command = [*refusing.wrapper(refused), "sh", "-c", f"{sys.executable} -c '{CALL}'; true"]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("wanted", ["EAGAIN", "EPERM", "ENOSYS"])
def test_a_call_fails_with_the_error(wanted: str) -> None:
    assert error(f"io_setup:EXDEV,io_uring_setup:{wanted}") == wanted


def test_other_calls_are_the_kernels() -> None:
    assert error("io_setup:EXDEV") != "EXDEV"


def test_the_status_is_that_of_the_command() -> None:
    assert subprocess.run([*refusing.wrapper("io_setup:EPERM"), "false"], cwd=PROJECT, check=False).returncode == 1
