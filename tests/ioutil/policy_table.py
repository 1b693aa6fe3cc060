# SPDX-License-Identifier: Apache-2.0
"""The zeroing policy once more, in the words of the documentation, to predict what the C code does."""

import errno
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ioutil_ext import lib

ZEROING_CALLS = ("punch_hole", "zero_range", "fallocate", "blkzeroout", "pwrite")

UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENODEV, errno.ENOSYS)
REFUSED = (errno.EINVAL, errno.EBUSY, errno.EREMOTEIO)
#: Who says so may have changed something.
NOT_SURE = (errno.EREMOTEIO,)
REAL = (
    errno.ENOSPC,
    errno.EIO,
    errno.EPERM,
    errno.EDQUOT,
    errno.EFBIG,
    errno.ENXIO,
    errno.ENOMEM,
    errno.EROFS,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
EVERY_ERRNO = UNSUPPORTED + REFUSED + REAL
ONE_OF_EACH = (0, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO)


def unsupported(call: str, number: int) -> bool:
    """Whether the image lacks the call; writing is what is left then, whatever it says is an error."""
    return call != "pwrite" and (number in UNSUPPORTED or (call == "blkzeroout" and number == errno.ENOTTY))


SYSCALLS = {
    "punch_hole": lib.IOU_SYS_PUNCH_HOLE,
    "zero_range": lib.IOU_SYS_ZERO_RANGE,
    "fallocate": lib.IOU_SYS_FALLOCATE,
    "blkzeroout": lib.IOU_SYS_BLKZEROOUT,
    "pwrite": lib.IOU_SYS_PWRITE,
}

CAPABILITY = {
    "punch_hole": "can_punch_hole",
    "zero_range": "can_zero_range",
    "fallocate": "can_fallocate",
    "blkzeroout": "can_blkzeroout",
}


@dataclass(frozen=True)
class Method:
    """System calls that zero a range together, and what the caller is told."""

    reported: int
    calls: tuple[str, ...]
    fast: bool = True
    past_end_only: bool = False


PUNCH = Method(lib.IOU_METHOD_PUNCH_HOLE, ("punch_hole",))
ZERO_RANGE = Method(lib.IOU_METHOD_ZERO_RANGE, ("zero_range",))
SLOW_ZERO_RANGE = Method(lib.IOU_METHOD_ZERO_RANGE, ("zero_range",), fast=False)
PUNCH_AND_ALLOCATE = Method(lib.IOU_METHOD_PUNCH_AND_ALLOCATE, ("punch_hole", "fallocate"))
ALLOCATE = Method(lib.IOU_METHOD_ALLOCATE, ("fallocate",), past_end_only=True)
BLKZEROOUT = Method(lib.IOU_METHOD_BLKZEROOUT, ("blkzeroout",), fast=False)
WRITE = Method(lib.IOU_METHOD_WRITE, ("pwrite",), fast=False)

POLICY = {
    ("file", False): (PUNCH, ZERO_RANGE, WRITE),
    ("file", True): (ZERO_RANGE, PUNCH_AND_ALLOCATE, ALLOCATE, WRITE),
    ("block", False): (PUNCH, SLOW_ZERO_RANGE, BLKZEROOUT, WRITE),
    ("block", True): (SLOW_ZERO_RANGE, BLKZEROOUT, WRITE),
}


@dataclass
class Outcome:
    error: int = 0
    syscall: int = lib.IOU_SYS_NONE
    method: int = lib.IOU_METHOD_NONE
    calls: list[str] = field(default_factory=list)
    cannot: set[str] = field(default_factory=set)
    given_up: dict[str, int] = field(default_factory=dict)  # call: errno


def predict(kind: str, allocate: bool, faults: dict[str, int]) -> Outcome:
    """Walk the policy table for an aligned range inside the image."""
    outcome = Outcome()
    for method in POLICY[kind, allocate]:
        if method.past_end_only or any(call in outcome.cannot for call in method.calls):
            continue
        for call in method.calls:
            outcome.calls.append(call)
            number = faults.get(call, 0)
            if unsupported(call, number):
                outcome.cannot.add(call)
                outcome.given_up[call] = number
                break
            if number in REFUSED and call != "pwrite":
                outcome.given_up[call] = number
                break
            if number:
                outcome.error, outcome.syscall = number, SYSCALLS[call]
                return outcome
        else:
            outcome.method = method.reported
            return outcome
    raise AssertionError("writing zeros always ends it")


def all_faults(calls: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """Yield each combination of one errno of each meaning, and each errno of each call after others that can't."""
    for numbers in itertools.product(ONE_OF_EACH, repeat=len(calls)):
        yield dict(zip(calls, numbers, strict=True))
    for before, call in itertools.product(((), calls), calls):
        for number in (*EVERY_ERRNO, *((errno.ENOTTY,) if call == "blkzeroout" else ())):
            yield {**{other: errno.EOPNOTSUPP for other in before if other != "pwrite"}, call: number}


def calls_of(kind: str) -> tuple[str, ...]:
    return ("punch_hole", "zero_range", "fallocate", "pwrite") if kind == "file" else (
        "punch_hole",
        "zero_range",
        "blkzeroout",
        "pwrite",
    )  # fmt: skip


FAST = {
    ("file", False): (PUNCH, ZERO_RANGE),
    ("file", True): (ZERO_RANGE, PUNCH_AND_ALLOCATE),
    ("block", False): (PUNCH,),
    ("block", True): (),
}


def predict_fast(kind: str, allocate: bool, faults: dict[str, int]) -> list[Outcome]:
    """Return what may come of methods that are fast only.

    More than one thing where a method has two calls that both fail: which comes first is free here, as what counts is
    that nothing changed.
    """
    may_end: list[Outcome] = []
    for method in FAST[kind, allocate]:
        numbers = {call: faults[call] for call in method.calls if faults.get(call)}
        if not numbers:
            return [Outcome(method=method.reported), *may_end]
        real = {
            call: n for call, n in numbers.items() if not unsupported(call, n) and (n not in REFUSED or n in NOT_SURE)
        }
        may_end += [Outcome(error=number, syscall=SYSCALLS[call]) for call, number in real.items()]
        if len(real) == len(numbers):
            return may_end
    return [*may_end, Outcome(error=errno.ENOTSUP)]
