# SPDX-License-Identifier: Apache-2.0
"""A process that begins a backup job, and ends it when its owner ends, however that ends.

Meanwhile it looks after the machine: if there is no room for the scratch data, the machine is paused at its next write,
and goes on when the job has ended.
"""

import contextlib
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import libvirt
from backup_job import BackupError, Job

#: Seconds between two looks at the machine.
LOOK = 0.5
#: How often the end is tried, and seconds in between: libvirt's own service may be restarting.
TRIES, AGAIN = 300, 0.2
#: Seconds for which the owner waits until the job has begun, and until it has ended.
BEGIN_TIME = 90.0
END_TIME = 90.0
#: What has become of the checkpoint of the last backup: an increment can't begin.
_LOST = {libvirt.VIR_ERR_NO_DOMAIN_CHECKPOINT, libvirt.VIR_ERR_CHECKPOINT_INCONSISTENT}
#: For the owner alone. `systemctl stop` sends SIGTERM to all processes of a unit.
_OWNERS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def guarded(job: Job) -> Iterator[None]:
    """Have a job. Raises BackupError. Nothing may run in another thread: this forks."""
    ours, theirs = multiprocessing.Pipe()
    # Python may lose the KeyboardInterrupt of one during a fork.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OWNERS)
    process = os.fork()
    if process == 0:
        status = 1
        try:
            ours.close()
            status = _guard(job, theirs)
        finally:
            os._exit(status)
    theirs.close()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if refused := _heard(ours):
            raise BackupError(refused)
        yield
    finally:
        ours.close()  # which ends the job
        has_ended = _has_ended(process)
    if not has_ended:
        raise BackupError("the backup is complete, but its job has not ended")


def _heard(guard: Connection) -> str:
    """Return what is against the job."""
    try:
        return str(guard.recv()) if guard.poll(BEGIN_TIME) else "libvirt does not answer"
    except EOFError:
        return "the process that begins the job was ended"


def _has_ended(process: int) -> bool:
    """Wait for the guard, and tell whether it has ended the job."""
    with open(os.pidfd_open(process)) as guard:
        is_over = select.select([guard], [], [], END_TIME)[0]
    if is_over:
        return os.waitpid(process, 0)[1] == 0
    _say("libvirt does not answer. A process waits to end the job, until its service was restarted for instance")
    return False


def _guard(job: Job, owner: Connection) -> int:
    """Do all that needs libvirt, and return the exit status. The signals of the owner are blocked."""
    os.setsid()  # nor are other signals of the terminal for this process
    refused = _begin(job)
    with contextlib.suppress(BrokenPipeError):  # it was killed meanwhile
        owner.send(refused)
    while not owner.poll(LOOK):
        if _is_short_of_scratch(job):
            _say("the machine was paused, since there is no room for its scratch data: the backup is ended")
            _is_done(job.end)
    # Tickets first: clients are refused, and not told of a server that is gone.
    return 0 if all(_is_done(step) for step in (job.remove_tickets, job.end, job.remove_files)) else 1


def _begin(job: Job) -> str:
    """Begin the job, and return what libvirt has against it."""
    try:
        job.begin()
    except libvirt.libvirtError as e:
        return f"libvirt: {e}{': a full backup begins anew' if e.get_error_code() in _LOST else ''}"
    return ""


def _is_short_of_scratch(job: Job) -> bool:
    try:
        return job.has_paused()
    except libvirt.libvirtError:
        return False  # looked at again


def _is_done(step: Callable[[], None]) -> bool:
    """Do a step of the end, again if it fails, and tell whether it was done."""
    for _ in range(TRIES):
        try:
            step()
        except (libvirt.libvirtError, OSError) as e:
            reason = e
            time.sleep(AGAIN)
        else:
            return True
    _say(f"the backup job can't be ended: {reason}")
    return False


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody may read it any more
        print(f"backup: {text}", file=sys.stderr, flush=True)
