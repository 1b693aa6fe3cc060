# SPDX-License-Identifier: Apache-2.0
"""The image at the other end: one connection to it, whose requests are sent again when that may help."""

import itertools
import json
import logging
import random
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..extentjson import ExtentReader
from ..extents import Extent, ExtentList
from ..units import MAX_OFFSET
from .address import Endpoint, ImageUrl
from .connection import WORK_TIMEOUT, Answer, Connection
from .errors import FlushFailed, ServerFailed, Temporary
from .lives import Lives
from .stopping import Stop

log = logging.getLogger(__name__)

#: A server that tells more connections than this does not mean it.
MAX_CONNECTIONS = 10**6
#: 36 MiB of memory.
MAX_EXTENTS = 4 * 10**6

#: Seconds before a request is sent again; doubled each time, and up to a quarter more, so that connections which
#: broke together don't come back together.
FIRST_DELAY = 0.1
MAX_DELAY = 10.0
#: When a request was sent again so often in vain, after some 2 s, users are told what they wait for.
TOLD_TRY = 4

#: The longest range of a first zero request. Writing zeros takes time where the storage can't do it by itself.
FIRST_ZERO = 1024**3
#: A range that took less than this many seconds may be twice as long the next time.
SHORT_ZERO = 1.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class Abilities:
    """What a server tells of an image: the answer to OPTIONS.

    `reads_zero`: all of the image reads as zeros. `instance`: the name of the process.
    """

    features: frozenset[str]
    max_readers: int = 1
    max_writers: int = 1
    unix_socket: str | None = None
    reads_zero: bool = False
    instance: str | None = None


class Image:
    """One connection to an image, used by one thread. Requests that fail for a while are repeated `retries` times.

    `lost`: others to the same image were before. Each method raises Refused, Temporary (after the last try),
    ServerFailed or Stopped.
    """

    def __init__(
        self, url: ImageUrl, endpoint: Endpoint, stop: Stop, retries: int, lives: Lives, *, lost: bool = False
    ) -> None:
        self._path = url.path
        self._peer = endpoint.peer
        self._stop = stop
        self._retries = retries
        self._lives = lives
        self._lost = lost  # the connection was, and nobody has looked yet whether the server is still the same
        self._max_zero = FIRST_ZERO
        self.connection = Connection(endpoint, stop)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def connect(self) -> None:
        """Connect, so that whatever is connected later is known to come after a loss."""
        self._repeated(self.connection.connect)

    def abilities(self) -> Abilities:
        """Ask what can be done with the image."""
        return self._abilities(self._repeated(self._options))

    def size(self) -> int:
        """Ask for the size of the image, by its first byte: the answer to a range names the size of the whole."""
        headers = {"Range": "bytes=0-0"}
        answer = self._repeated(
            lambda: self.connection.request("GET", self._path, headers=headers, expected=(206, 416))
        )
        total = (answer.headers["Content-Range"] or "").partition("/")[2]
        if not re.fullmatch("[0-9]{1,19}", total) or int(total) > MAX_OFFSET:
            raise ServerFailed(f"{self._peer} did not tell the size of the image")
        return int(total)

    def write(self, offset: int, data: memoryview) -> None:
        """Write at offset. The data is on stable storage after the next flush."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(data)),
            "Content-Range": f"bytes {offset}-{offset + len(data) - 1}/*",
        }
        self._repeated(lambda: self.connection.request("PUT", f"{self._path}?flush=n", headers=headers, body=data))

    def zero(self, offset: int, length: int) -> Iterator[int]:
        """Make a range read as zeros, in steps; yields the length of each step that is done."""
        end = offset + length
        while offset < end:
            step = min(end - offset, self._max_zero)
            operation: dict[str, object] = {"op": "zero", "offset": offset, "size": step, "flush": False}
            started = time.monotonic()
            self._repeated(partial(self._patch, operation))
            if step == self._max_zero and time.monotonic() - started < SHORT_ZERO:
                self._max_zero *= 2
            yield step
            offset += step

    def flush(self) -> None:
        """Wait until everything written so far is on stable storage.

        A flush that the storage failed is not repeated: what was lost would not be told again. Raises FlushFailed.
        """
        self._repeated(self._flush_once)

    def _flush_once(self) -> None:
        try:
            self._patch({"op": "flush"})
        except Temporary as e:
            if e.http_status == 500:
                raise FlushFailed(f"{e}; what was written may be lost: upload anew") from e
            raise

    def extents(self, context: str = "zero") -> Sequence[Extent]:
        """List the extents of the whole image, in order and without gaps."""
        return self._repeated(lambda: ExtentList.of(self._extents(context)))

    def checksum(self, algorithm: str, block_size: int) -> dict[str, Any]:
        """Let the server compute the digest of the image; see blockhash."""
        query = urllib.parse.urlencode({"algorithm": algorithm, "block_size": block_size})
        answer = self._json(f"{self._path}/checksum?{query}")
        if not isinstance(answer, dict) or not isinstance(answer.get("checksum"), str):
            raise ServerFailed(f"{self._peer} sent a malformed checksum")
        return answer

    def read(self, offset: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
        """Read a range piece by piece, each in the buffer: it is valid until the next one is asked for."""
        end = offset + length
        tries = 0
        while offset < end:
            try:
                self._recognise()
                for piece in self._read_once(offset, end - offset, buffer):
                    offset += len(piece)
                    tries = 0
                    yield piece
            except Temporary as e:
                if tries >= self._retries:
                    raise
                self._wait(tries, e)
                tries += 1

    def _read_once(self, offset: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
        wanted = f"bytes {offset}-{offset + length - 1}"
        body = self.connection.open(self._path, {"Range": wanted.replace(" ", "=")})
        if body.content_range.partition("/")[0] != wanted or body.length != length:
            self.connection.close()
            raise ServerFailed(f"{self._peer} sent another range than asked for")
        try:
            for position in range(0, length, len(buffer)):
                piece = buffer[: length - position]
                try:
                    body.read_into(piece)
                except Temporary:
                    if body.filled:
                        yield piece[: body.filled]  # a connection that breaks often gets to the end, too
                    raise
                yield piece
        except BaseException:
            self.connection.close()  # the rest of the body is still to come
            raise
        body.end()

    def _patch(self, operation: dict[str, object]) -> None:
        headers = {"Content-Type": "application/json"}
        body = json.dumps(operation).encode()
        self.connection.request("PATCH", self._path, headers=headers, body=body, timeout=WORK_TIMEOUT)

    def _extents(self, context: str) -> Iterator[Extent]:
        size, count = self.size(), 0
        malformed = ServerFailed(f"{self._peer} sent extents that are not those of {size} bytes")
        reader = ExtentReader(0, size, context, malformed)
        query = "" if context == "zero" else f"?context={context}"
        for data in self.connection.stream(f"{self._path}/extents{query}", timeout=WORK_TIMEOUT):
            for extent in reader.feed(data):
                count += 1
                if count > MAX_EXTENTS:
                    raise ServerFailed(f"{self._peer} sent more than {MAX_EXTENTS} extents")
                yield extent
        reader.end()

    def _options(self) -> Answer:
        return self.connection.request("OPTIONS", self._path, timeout=WORK_TIMEOUT)

    def _abilities(self, answer: Answer) -> Abilities:
        try:
            return _abilities(self._parse("OPTIONS", answer))
        except (KeyError, TypeError, ValueError) as e:
            raise ServerFailed(f"{self._peer} does not speak the images API") from e

    def _json(self, path: str) -> Any:
        return self._parse("GET", self._repeated(lambda: self.connection.request("GET", path, timeout=WORK_TIMEOUT)))

    def _parse(self, method: str, answer: Answer) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as e:
            raise ServerFailed(f"{self._peer} answered {method} with something that is not JSON") from e

    def _repeated(self, send: Callable[[], _T]) -> _T:
        for tries in itertools.count():
            try:
                self._recognise()
                return send()
            except Temporary as e:
                if tries >= self._retries:
                    raise
                self._wait(tries, e)
        raise AssertionError("unreachable")

    def _recognise(self) -> None:
        """Connect after a loss, and note whether the server is another one now."""
        if not self._lost:
            return
        instance = None
        if self._lives.instance is None:
            self.connection.connect()
        else:
            instance = self._abilities(self._options()).instance
        self._lives.reconnected(instance)
        self._lost = False

    def _wait(self, tries: int, error: Temporary) -> None:
        """Wait before the next try."""
        self._lost = True
        delay = min(FIRST_DELAY * 2**tries, MAX_DELAY)
        log.log(logging.WARNING if tries == TOLD_TRY else logging.INFO, "%s; again in %.1f s", error, delay)
        self._stop.sleep(delay * random.uniform(1, 1.25))  # noqa: S311 - no secret


def _abilities(answer: Any) -> Abilities:
    if not isinstance(answer, dict) or not isinstance(answer["features"], list):
        raise TypeError("no object")
    unix_socket = answer.get("unix_socket")
    if unix_socket is not None and not isinstance(unix_socket, str):
        raise TypeError("unix_socket")
    return Abilities(
        frozenset(map(str, answer["features"])),
        _connections(answer.get("max_readers", 1)),
        _connections(answer.get("max_writers", 1)),
        unix_socket,
        answer.get("zero_state") == "zero",
        instance if isinstance(instance := answer.get("instance"), str) else None,
    )


def _connections(told: object) -> int:
    if type(told) is not int or told > MAX_CONNECTIONS:
        raise TypeError("no number of connections")
    return max(1, told)
