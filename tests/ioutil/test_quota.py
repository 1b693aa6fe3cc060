# SPDX-License-Identifier: Apache-2.0
"""The memory of lanes: what devices that hang leave for others."""

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture(scope="module")
def quota(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """quota/, built by itself."""
    library = tmp_path_factory.mktemp("quota") / "quota.so"
    extension = TREE / "ioutil_ext"
    sources = [TREE / "tests/ioutil/quota.c", *extension.glob("quota/*.c"), *extension.glob("base/*.c")]
    subprocess.check_call(["cc", "-O1", "-std=gnu11", "-shared", "-fPIC", f"-I{extension}", *sources, "-o", library])
    functions = ctypes.CDLL(str(library))
    for name in ("quota_pool", "quota_join", "quota_ask"):
        getattr(functions, name).restype = ctypes.c_void_p
    return functions


class Pool:
    """The pool, and what of it is in use."""

    def __init__(self, quota: ctypes.CDLL, memory: int) -> None:
        self.quota = quota
        self.pool = ctypes.c_void_p(quota.quota_pool(ctypes.c_uint64(memory)))
        self.end = ExitStack()
        self.end.callback(quota.quota_end, self.pool)

    def user(self, device: int) -> Any:
        user = ctypes.c_void_p(self.quota.quota_join(self.pool, ctypes.c_uint64(device)))
        self.end.callback(self.quota.quota_leave, user)
        return user

    def take(self, user: Any, size: int) -> bool:
        """Take memory for the rest of the test, if there is some."""
        memory = ctypes.c_void_p(self.quota.quota_ask(user, ctypes.c_size_t(size)))
        if memory:
            self.end.callback(self.quota.memory_put, user, memory)
        return bool(memory)

    def take_all(self, device: int) -> int:
        """Take pieces for new tickets of a device until none gets any more."""
        count = 0
        while self.take(user := self.user(device), 2 * MIB):
            count += 1
            while self.take(user, 2 * MIB):
                count += 1
        return count


@pytest.fixture
def pool(quota: ctypes.CDLL) -> Iterator[Pool]:
    """Of 256 MiB, of which 32 are for a long READ."""
    pool = Pool(quota, 256 * MIB + 4096)
    with pool.end:
        yield pool


def test_each_device_that_hangs_leaves_memory_for_another_one(pool: Pool) -> None:
    assert [pool.take_all(device) for device in range(1, 4)] == [84, 21, 5]
    assert pool.take(pool.user(4), 2 * MIB)


def test_a_device_without_memory_may_have_the_last_slab(quota: ctypes.CDLL) -> None:
    pool = Pool(quota, 16 * MIB + 8192)
    with pool.end:
        assert pool.take_all(1) == 3
        assert pool.take_all(2) == 1


def test_a_long_read_that_hangs_stops_those_of_its_device_only(pool: Pool) -> None:
    hung = pool.user(1)
    assert pool.take(hung, 32 * MIB)
    assert not pool.take(pool.user(1), 32 * MIB)
    assert pool.take(pool.user(2), 32 * MIB)
    assert not pool.take(pool.user(2), 3 * MIB)
    assert pool.take(pool.user(3), 32 * MIB)
    assert pool.take(pool.user(1), 2 * MIB)


def test_a_long_read_has_of_the_slabs_what_a_ticket_may_have(pool: Pool) -> None:
    """It counts, and leaves memory for another ticket."""
    assert pool.take(pool.user(1), 32 * MIB)
    assert pool.take_all(2) == 84
    assert pool.take(pool.user(3), 28 * MIB)
    assert pool.take_all(3) == 7
    assert not pool.take(pool.user(4), 32 * MIB)
    assert pool.take(pool.user(4), 2 * MIB)


def test_what_a_long_read_had_is_there_again(quota: ctypes.CDLL) -> None:
    pool = Pool(quota, 256 * MIB + 4096)
    with pool.end:
        for _ in range(3):
            with ExitStack() as round_end:
                pool.end, kept = round_end, pool.end
                assert pool.take(pool.user(1), 32 * MIB)
                assert pool.take(pool.user(2), 32 * MIB)
                pool.end = kept
        assert pool.take_all(1) == 84
