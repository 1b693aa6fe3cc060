# SPDX-License-Identifier: Apache-2.0
"""Images that Python has, as lanes of C see them."""

import errno
import os
import warnings

from imageio_daemon.errors import StorageError
from imageio_daemon.storage.external import External, Pieces
from imageio_daemon.units import MiB
from tests.support.backends import MemoryBackend


def new_external() -> External:
    return External(MemoryBackend(bytes(100)), "image", "server", Pieces(MiB, 1))


async def test_closing_is_refused_in_a_forked_child() -> None:
    external = new_external()
    with warnings.catch_warnings():
        # Python 3.12 warns of exactly this: a fork beside threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 0
        try:
            external.close().send(None)  # a step of it, for the child has no loop
        except StorageError as e:
            code = e.errno
        os._exit(code)
    _, status = os.waitpid(child, 0)
    await external.close()
    assert os.waitstatus_to_exitcode(status) == errno.ECHILD


async def test_closing_again_is_no_change() -> None:
    external = new_external()
    await external.close()
    await external.close()
