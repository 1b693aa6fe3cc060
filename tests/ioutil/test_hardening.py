# SPDX-License-Identifier: Apache-2.0
"""What the compiler and the linker were told to put into the extension: ioutil_ext/build_ioutil.py."""

import re
import subprocess

import pytest

from ioutil_ext import _ioutil


@pytest.fixture(scope="module")
def elf() -> str:
    """Return what readelf(1), which comes with the compiler, tells of the extension that is in use."""
    command = ["readelf", "--wide", "--dynamic", "--program-headers", "--dyn-syms", _ioutil.__file__]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "trait",
    [
        pytest.param(r"\bFLAGS_1\b.*\bNOW\b", id="all addresses are found when it is loaded"),
        pytest.param(r"\bGNU_RELRO\b", id="found addresses cannot be changed"),
        pytest.param(r"\bGNU_STACK\b.*\bRW\s", id="the stack is no program"),
        pytest.param(r"\bUND __stack_chk_fail\b", id="stacks are guarded"),
        pytest.param(r"\bUND __\w+_chk\b", id="lengths are checked"),
    ],
)
def test_extension_is_hardened(elf: str, trait: str) -> None:
    assert re.search(trait, elf)
