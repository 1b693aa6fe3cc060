# SPDX-License-Identifier: Apache-2.0
"""An open image for coroutines: the calls of Image, each in a thread."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from ...image.extents import Extent
from ..errors import Usage
from ..server.session import DEFAULTS, ClientSession, Settings
from .image import Image

if TYPE_CHECKING:
    from typing_extensions import Buffer

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncImage:
    """An open image, whose methods are those of Image as coroutines. They may run at the same time.

    A call that is cancelled is not begun any more, or it ends when its request has been answered or has failed, because
    until then the buffer is the request's; close() ends it at once.
    """

    def __init__(self, image: Image, threads: ThreadPoolExecutor) -> None:
        self._image = image
        self._threads = threads
        self._closed = False
        #: As those of Image.
        self.size = image.size
        self.features = image.features
        self.writable = image.writable
        self.connections = image.connections

    @classmethod
    async def open(cls, session: ClientSession, threads: ThreadPoolExecutor) -> Self:
        """Connect. The image closes the session and ends the threads. Raises ClientError."""
        opened = asyncio.wrap_future(threads.submit(Image, session))
        opened.add_done_callback(_look_at)
        try:
            return cls(await asyncio.shield(opened), threads)
        except BaseException:
            session.stop.stop()
            await asyncio.to_thread(threads.shutdown)
            session.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the calls that run, and close the connections. It does not flush."""
        self._closed = True
        await asyncio.to_thread(self._image.close)
        await asyncio.to_thread(self._threads.shutdown)

    async def read(self, offset: int, buffer: "Buffer") -> None:
        """Fill a writable buffer with the bytes from offset on."""
        await self._call(self._image.read, offset, buffer)

    async def write(self, offset: int, data: "Buffer") -> None:
        """Write data at offset."""
        await self._call(self._image.write, offset, data)

    async def zero(self, offset: int, size: int) -> None:
        """Make a range read as zeros."""
        await self._call(self._image.zero, offset, size)

    async def flush(self) -> None:
        """Return when all that was written by calls which had returned before is on stable storage.

        Raises WritesLost, FlushFailed: Image.flush().
        """
        await self._call(self._image.flush)

    async def extents(self, context: str = "zero") -> Sequence[Extent]:
        """Return what of the image is data and what reads as zeros, or with the context "dirty", what has changed."""
        return await self._call(self._image.extents, context)

    async def _call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a function in a thread. If this is cancelled, return when it has ended or will not begin."""
        if self._closed:
            raise Usage("the image was closed")
        job = self._threads.submit(function, *args, **kwargs)
        ended = asyncio.wrap_future(job)
        ended.add_done_callback(_look_at)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            while not job.cancel() and not ended.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([ended])
            raise


async def open_async(url: str, *, settings: Settings = DEFAULTS) -> AsyncImage:
    """Open the image at url as open() does, for coroutines: `async with await open_async(url) as image`."""
    session = ClientSession(url, settings)
    threads = ThreadPoolExecutor(session.most_connections, thread_name_prefix="image")
    return await AsyncImage.open(session, threads)


def _look_at(future: "asyncio.Future[_T]") -> None:
    """Retrieve the exception of a call; asyncio logs those that are never retrieved."""
    if not future.cancelled():
        future.exception()
