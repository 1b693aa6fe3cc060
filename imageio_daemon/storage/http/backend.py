# SPDX-License-Identifier: Apache-2.0
"""Images on another server of the images API: this daemon is a proxy then."""

import errno
import logging
import ssl
import time
from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

from ...errors import CannotFlush, NotFast, NotFound, StorageError, Unanswered
from ...image.extents import Extent, ExtentList, ExtentStream
from ...image.extents_json import ExtentReader
from ...units import MiB
from ...urls.http import HttpAddress
from ..backend import BackendInfo, Context, Memory, Operation, ZeroMethod
from ..durable import NO_RECORD, DurableRecord
from ..exclusion import Exclusion, Turn
from ..external import External, Pieces, RemoteImage
from ..home_loop import HomeLoop
from . import options as http_options
from .client import DATA_TIMEOUT, Body, HttpClient, receive, unexpected
from .options import Options
from .size import ImageSize
from .unflushed import Unflushed
from .zeroing import ZeroSteps

log = logging.getLogger(__name__)

#: How lanes cut long requests; see Pieces.
PIECES = Pieces(2 * MiB, 3)


class HttpBackend(RemoteImage):
    """Serve an image through requests to another server; see Backend for the contract.

    Changes that overlap are sent one after the other, each when the one before was answered. A change or flush that was
    begun is not cancelled. When no answer comes the server may still make it, and flushing fails from then on. Others
    end at once when they are cancelled. Writes and zeroing name their range, so repeating one is safe: aiohttp repeats
    a PUT whose kept-alive connection had just been closed, and nothing else.
    """

    def __init__(self, client: HttpClient, options: Options, max_connections: int) -> None:
        self._client = client
        self._options = options
        self._max_connections = max_connections
        self._unflushed = Unflushed(self._ask_instance, options.instance)
        self._home_loop = HomeLoop()
        self._exclusion = Exclusion()
        self._record = NO_RECORD
        #: Why each flush fails from now on, as Backend.flush() says: a change without an answer may still be made.
        self._flush_failed: StorageError | None = None
        self._external = External(self, str(client.address), client.address, PIECES, grows=True)
        self._size = ImageSize(client, self._external.resized)

    @classmethod
    async def open(cls, address: HttpAddress, *, context: ssl.SSLContext, max_connections: int) -> "HttpBackend":
        """Ask the server about the image. max_connections: to it, from one loop, at most.

        Raises StorageError, and what the server refuses with: Forbidden, NotFound, Unavailable.
        """
        client = HttpClient(address, context, max_connections)
        try:
            options = await http_options.ask(client, Operation(), max_connections)
            if "zero" in options.features and "flush" not in options.features:
                log.warning("%s cannot flush: what is written may be lost, and each flush fails", address)
            await client.limit(max(options.max_readers, options.max_writers))
            backend = cls(client, options, max_connections)
        except BaseException:
            await client.close()
            raise
        try:
            await backend._size.learn(Operation())
        except BaseException:
            await backend.close()
            raise
        return backend

    @property
    def info(self) -> BackendInfo:
        """Return what is known now; asks nobody."""
        return BackendInfo(
            size=self._size.known,
            block_size=1,
            can_grow=True,  # the other server decides
            can_fast_zero=False,
            can_flush="flush" in self._options.features,
            has_dirty="extents" in self._options.features,
            max_readers=self._options.max_readers,
            max_writers=self._options.max_writers,
            unflushed=self._unflushed.pending > 0 or self._flush_failed is not None,
            lasting=self._client.address.url,
        )

    @property
    def generation(self) -> int:
        """Return 0: others may write through the other server."""
        return 0

    async def refresh(self, op: Operation) -> None:
        """Ask for the size again."""
        await self._size.learn(op)

    async def available(self, op: Operation) -> int | None:
        """Return what the other server tells."""
        return (await http_options.ask(self._client, op, self._max_connections)).available

    async def pread(self, op: Operation, piece: Memory, offset: int) -> None:
        """Fill the piece with the bytes at offset."""
        if not len(piece):
            op.require_running()
            return
        last = offset + len(piece) - 1
        piece.buffer.retain()
        try:
            async with self._client.request(
                op, "GET", headers={"Range": f"bytes={offset}-{last}"}, timeout=DATA_TIMEOUT
            ) as response:
                expected = f"bytes {offset}-{last}/"
                if response.status != 206 or not response.headers.get("Content-Range", "").startswith(expected):
                    raise unexpected(f"GET {self._client.address}", "another range than was asked for")
                await receive(response.content, piece.view, str(self._client.address))
        finally:
            piece.buffer.release()
        op.advance(len(piece))

    def pwrite(self, op: Operation, piece: Memory, offset: int, *, fua: bool = False) -> Awaitable[object]:
        """Write the piece at offset."""
        view = piece.view
        turn = self._exclusion.hold(op, offset, offset + len(view))  # in this call: the task starts later
        return self._home_loop.run_here(self._write(op, turn, view, offset, fua=fua), op, piece.buffer)

    def zero(
        self, op: Operation, offset: int, length: int, *, allocate: bool, fast_only: bool = False, fua: bool = False
    ) -> Awaitable[ZeroMethod]:
        """Make the range read as zeros. Whether it stays provisioned is for the other server's ticket to say."""
        if fast_only:
            raise NotFast("The other server does not tell what is fast")
        turn = self._exclusion.hold(op, offset, offset + length)
        return self._home_loop.run_here(self._zero(op, turn, offset, length, fua=fua), op)

    async def trim(self, op: Operation, offset: int, length: int) -> None:
        """Do nothing: there is no such request."""
        op.require_running()
        op.advance(length)

    def flush(self, op: Operation) -> Awaitable[object]:
        """Put everything that completed before on stable storage. Raises CannotFlush: the server does not offer it.

        A server that was started anew meanwhile has nothing to flush, says so, and what it had not flushed may be lost.
        Its answer is waited for, also when the operation is cancelled: a failure fails all later flushes.
        """
        return self._home_loop.run_here(self._recorded_flush(op), op)

    async def _recorded_flush(self, op: Operation) -> None:
        async with self._record.flushing(op.offset, op.length):
            await self._flush(op)

    async def _flush(self, op: Operation) -> None:
        if self._flush_failed is not None:
            raise self._flush_failed.with_traceback(None)
        if "flush" not in self._options.features:
            raise CannotFlush(str(self._client.address))
        pending = self._unflushed.pending
        try:
            async with self._client.request(op, "PATCH", json={"op": "flush"}, finishes=True):
                pass
        except StorageError as e:
            self._flush_failed = e
            raise
        if not await self._unflushed.flushed(op, pending):
            why = "(the server was started anew before all changes were flushed)"
            self._flush_failed = StorageError(errno.EIO, f"flush {self._client.address}", "http", why)
            raise self._flush_failed

    async def extents(self, op: Operation, offset: int, length: int, context: Context) -> ExtentStream:
        """Tell what the other server tells, as it comes."""
        told = "extents" in self._options.features
        if not told and context is not Context.ZERO:
            raise NotFound("The other server has no dirty extents")
        await self._size.learn(op)
        length = min(length, self._size.known - offset)
        if length <= 0:
            return
        if not told:
            yield ExtentList.of([Extent(offset, length)], offset)
            return
        failure = unexpected(f"GET {self._client.address}/extents", "invalid extents")
        reader = ExtentReader(offset, length, context, failure)
        async with self._client.request(op, "GET", f"/extents?context={context}", timeout=None) as response:
            async for data, _ in response.content.iter_chunks():
                found = ExtentList.of(reader.feed(data), offset)
                offset = found.end
                yield found
                if reader.complete:
                    return
        reader.end()

    async def extent_at(self, op: Operation, offset: int, length: int) -> ExtentList:
        """Tell the first of all."""
        async with aclosing(self.extents(op, offset, length, Context.ZERO)) as lists:
            async for found in lists:
                if found:
                    return found
        return ExtentList.of((), offset)

    def keep(self, record: DurableRecord) -> None:
        """Record what the other server has said is on stable storage."""
        self._record = record

    def interrupt(self) -> None:
        """End operations that were cancelled and wait for the other server, or for those before them."""
        self._exclusion.drop_canceled()
        self._client.interrupt()

    async def close(self) -> None:
        """Close the connections."""
        await self._home_loop.run(self._external.close())
        await self._client.close()

    # Changes: once begun they are not cancelled

    async def _write(self, op: Operation, turn: Turn, view: memoryview, offset: int, *, fua: bool) -> None:
        end = offset + len(view)
        async with turn:
            if offset == end:
                return
            await self._record.changing(offset, len(view))
            instance = None if fua else await self._unflushed.instance(op)
            target, headers = f"?flush={'y' if fua else 'n'}", {"Content-Range": f"bytes {offset}-{end - 1}/*"}
            try:
                await self._change(op, "PUT", target, headers=headers, body=Body(view), timeout=DATA_TIMEOUT)
            except StorageError as e:
                if fua:
                    self._flush_failed = e
                raise
            if not fua:
                self._unflushed.changed(instance)  # first: a flush that covers the change must know its process
            self._changed(offset, len(view), durable=fua)
        self._size.written(end)
        op.advance(len(view))

    async def _zero(self, op: Operation, turn: Turn, offset: int, length: int, *, fua: bool) -> ZeroMethod:
        end, steps = offset + length, ZeroSteps()
        async with turn:
            await self._record.changing(offset, length)
            while offset < end:
                step = min(steps.most, end - offset)
                instance = await self._unflushed.instance(op)
                asked = time.monotonic()
                await self._change(op, "PATCH", json={"op": "zero", "offset": offset, "size": step, "flush": False})
                self._unflushed.changed(instance)
                steps.answered(time.monotonic() - asked)
                offset += step
                self._size.written(offset)
                op.advance(step)
            self._changed(end - length, length)
        if fua:
            await self.flush(op)
        return ZeroMethod.REMOTE

    async def _change(self, op: Operation, method: str, target: str = "", **request: Any) -> None:
        try:
            async with self._client.request(op, method, target, finishes=True, **request):
                pass
        except Unanswered as e:
            self._flush_failed = e
            raise

    def _changed(self, offset: int, length: int, *, durable: bool = False) -> None:
        """Record a change, but none after one without an answer, which may still be made: over this one, too."""
        if self._flush_failed is None:
            self._record.changed(offset, length, durable=durable)

    async def _ask_instance(self, op: Operation) -> str | None:
        return (await http_options.ask(self._client, op, self._max_connections)).instance
