# SPDX-License-Identifier: Apache-2.0
"""How large the image of the other server is: what it says, and what we have written since."""

import threading
from collections.abc import Callable

from ...errors import OutOfRange
from ..backend import Operation
from .client import HttpClient, receive, total_size


class ImageSize:
    """The size of an image, in bytes, as far as it is known. Thread-safe.

    resized: called with each size that becomes known, under the lock.
    """

    def __init__(self, client: HttpClient, resized: Callable[[int], None]) -> None:
        self._client = client
        self._resized = resized
        self._lock = threading.Lock()
        self._writes = 0
        #: What is known now.
        self.known = 0

    async def learn(self, op: Operation) -> None:
        """Ask for the first byte: the answer tells the size, with every server. Raises StorageError."""
        writes = self._writes
        what = f"GET {self._client.address}"
        try:
            async with self._client.request(op, "GET", headers={"Range": "bytes=0-0"}) as response:
                size = total_size(response, what)
                await receive(response.content, memoryview(bytearray(1)), what)
        except OutOfRange as e:  # an empty image has no first byte
            size = e.size or 0
        with self._lock:
            # A write of ours may have made the image larger after the answer.
            self._set(size if writes == self._writes else max(size, self.known))

    def written(self, end: int) -> None:
        """Note that the server has answered a change that ends there."""
        with self._lock:
            self._writes += 1
            self._set(max(self.known, end))

    def _set(self, size: int) -> None:
        self.known = size
        self._resized(size)
