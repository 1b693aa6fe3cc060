# SPDX-License-Identifier: Apache-2.0
"""A process that ends a backup job when its owner ends, however that ends: its work is done, it fails, it is killed.

Meanwhile it looks after the machine: if there is no room for the scratch data, the machine is paused at its next write,
and goes on when the job has ended.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import libvirt
from backup_job import Job

#: Seconds between two looks at the machine.
LOOK = 0.5
#: Seconds for which the end is tried again, while libvirt's own service is restarted for instance.
PATIENCE = 60.0

_ASKED, _ANSWERED = b"?", b"!"


class Guard:
    """The owner's side. Nothing may run in another thread when this is made: it forks."""

    def __init__(self, job: Job) -> None:
        ours, self._pipe = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            status = 1
            try:
                os.close(self._pipe)
                status = _guard(ours, job)
            finally:
                os._exit(status)
        os.close(ours)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the job has ended. Raises RuntimeError if that cannot be said."""
        os.close(self._pipe)
        if os.waitpid(self._process, 0)[1] and error is None:
            raise RuntimeError("the backup is complete, but its job could not be ended")

    def asks(self) -> None:
        """Tell that libvirt will be asked to begin the job."""
        os.write(self._pipe, _ASKED)

    def was_answered(self) -> None:
        """Tell that libvirt has begun it, or refused."""
        os.write(self._pipe, _ANSWERED)


def _guard(pipe: int, job: Job) -> int:
    """Wait for the end of the owner, and return the exit status."""
    os.setsid()  # the terminal's signals are for the owner
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told = b""
    while True:
        if select.select([pipe], [], [], LOOK)[0]:
            word = os.read(pipe, 64)
            if not word:
                return _until_done(_end_all, job, told)
            told += word
        elif told == _ASKED + _ANSWERED and _is_short_of_scratch(job):
            _say("the machine was paused, since there is no room for its scratch data: the backup is ended")
            _until_done(_end_job, job, told)


def _is_short_of_scratch(job: Job) -> bool:
    try:
        with _opened(job) as machine:
            return _pauses(machine) and job.is_running(machine)
    except (libvirt.libvirtError, NoMachine):
        return False  # looked at again


def _until_done(end: Callable[[Job, bytes], None], job: Job, told: bytes) -> int:
    """End the job, again if libvirt fails, and return the exit status."""
    give_up = 0.0
    while True:
        try:
            end(job, told)
        except (libvirt.libvirtError, OSError) as e:
            give_up = give_up or time.monotonic() + PATIENCE  # from the first failure: libvirt may have hung until then
            if time.monotonic() > give_up:
                _say(f"the backup job can't be ended: {e}")
                return 1
            time.sleep(1)
        else:
            return 0


def _end_all(job: Job, told: bytes) -> None:
    job.remove_tickets()  # first: their clients are refused, and not told of a server that is gone
    _end_job(job, told)
    job.remove_files()


def _end_job(job: Job, told: bytes) -> None:
    with contextlib.suppress(NoMachine), _opened(job) as machine:
        resumes = _pauses(machine) and job.is_running(machine)
        if told == _ASKED:
            job.thaw(machine)
        job.end(machine, may_begin=told == _ASKED)
        if resumes:
            machine.resume()


class NoMachine(Exception):
    """A machine that is not defined was ended, and its job with it."""


@contextlib.contextmanager
def _opened(job: Job) -> "Iterator[libvirt.virDomain]":
    """Connect anew: libvirt's service may have been restarted. Raises NoMachine, libvirtError."""
    with contextlib.closing(libvirt.open(job.uri)) as connection:
        try:
            machine = connection.lookupByUUIDString(job.machine)
        except libvirt.libvirtError as e:
            if e.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                raise NoMachine from None
            raise
        yield machine


def _pauses(machine: "libvirt.virDomain") -> bool:
    paused = [libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR]
    return bool(machine.state() == paused)


def _say(text: str) -> None:
    print(f"backup: {text}", file=sys.stderr, flush=True)
