# SPDX-License-Identifier: Apache-2.0
"""Opens of qcow2 images that outlast the task that has asked for them."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path

from imageio_daemon.image.chain import ChainMemory, File
from imageio_daemon.storage.engine import Engine
from imageio_daemon.storage.operation import Operation
from tests.ioutil.syscall_table import real_open, replaced
from tests.qcow2.disk import create


async def test_the_memory_of_a_chain_is_kept_until_its_open_has_ended(tmp_path: Path) -> None:
    path = str(create(tmp_path / "disk", 1 << 20))
    reached, go_on = threading.Event(), threading.Event()

    def open_slowly(name: str, flags: int) -> int:
        reached.set()
        assert go_on.wait(60)
        return real_open(name, flags)

    with replaced(open=open_slowly):
        engine = Engine(io_threads=2)
        memory = ChainMemory([File(path, "qcow2", None)])
        kept = weakref.ref(memory)
        opening = engine.submit_open_qcow2(memory, path, writable=False, shared=False, op=Operation())
        assert await asyncio.to_thread(reached.wait, 60)
        del memory
        gc.collect()
        assert kept() is not None
        go_on.set()
        await engine.close(await opening, path)
        await engine.release()
        assert engine.stop(timeout=10) == []
