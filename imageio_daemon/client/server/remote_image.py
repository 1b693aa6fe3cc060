# SPDX-License-Identifier: Apache-2.0
"""A remote image: the requests of the images API on one connection, with retries (docs/images-api.md)."""

import collections
import contextlib
import json
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from ...image.block_list import Block, BlockListHead
from ...image.extents import Extent, ExtentList
from ...units import MAX_OFFSET
from ..errors import FlushFailed, NoDecoder, Refused, ServerFailed, StorageFailed, Temporary
from ..stopping import Stop
from . import lists
from .abilities import Abilities
from .address import Endpoint, ImageUrl
from .client_connection import MAX_REASON, WORK_TIMEOUT, Answer, ClientConnection
from .data import Encoded, FilePiece, Piece, Range, first, get, plain, put
from .pace import UNLIMITED, Pace
from .patience import Patience
from .restarts import Restarts
from .retries import Retries
from .sending import Moved, Request, not_counted

#: What 403 means after a connection was lost.
GONE = (
    "It was valid before the connection was lost: either it has expired, or the server was restarted and keeps no "
    "tickets ([daemon] keep_tickets)"
)
#: The field of a PATCH with a body.
JSON = {"Content-Type": "application/json"}
#: Most bytes of the first request to zero. Storage that has to write zeros takes long for longer ones.
FIRST_ZERO = 1024**3
#: After a request to zero that took fewer seconds than this, the longest range is doubled.
SHORT_ZERO = 1.0

_T = TypeVar("_T")


class RemoteImage:
    """One connection to an image, for one thread. A request that fails with Temporary is sent again, see Patience.

    For `retry_for`, see Patience; `retries` counts them. `lost` tells that connections to the image were lost before
    this one. `moved` is called with numbers of bytes of data, as they move. Methods raise Refused, Temporary (after the
    last try), ServerFailed, Stopped. Offsets and lengths are in bytes.
    """

    def __init__(
        self,
        url: ImageUrl,
        endpoint: Endpoint,
        stop: Stop,
        retry_for: float | None,
        restarts: Restarts,
        retries: Retries,
        *,
        lost: bool = False,
        pace: Pace = UNLIMITED,
    ) -> None:
        self._path = url.path
        self._peer = endpoint.peer
        self._patience = Patience(stop, retry_for, retries)
        self._restarts = restarts
        self._lost = lost  # a connection was lost, and a restart of the server was not checked for yet
        self._max_zero = FIRST_ZERO
        #: Restarts.count before the last request was sent, or sent again for the last time.
        self.restarts_before = 0
        self.connection = ClientConnection(endpoint, stop, pace, secret=url.ticket)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def connect(self) -> None:
        """Connect before the first request. A later connect then means that a connection was lost."""
        self._repeated(self.connection.connect)

    def abilities(self) -> Abilities:
        """Return the answer to OPTIONS."""
        return self._repeated(self._abilities_once)

    def upgrade(self, protocol: str) -> tuple[socket.socket, bytes]:
        """Change the connection to another protocol, see ClientConnection.upgrade()."""
        return self._repeated(lambda: self.connection.upgrade(self._path, protocol))

    def size(self) -> int:
        """Return the size of the image, from the Content-Range of an answer to a range (RFC 9110 14.4)."""
        wanted, expected = {"Range": "bytes=0-0"}, (206, 416)
        answer = self._repeated(lambda: self.connection.request("GET", self._path, headers=wanted, expected=expected))
        total = (answer.headers["Content-Range"] or "").partition("/")[2]
        if not re.fullmatch("[0-9]{1,19}", total) or int(total) > MAX_OFFSET:
            raise ServerFailed(f"{self._peer} did not tell the size of the image")
        return int(total)

    def write(self, pieces: Sequence[Piece | FilePiece | Encoded], moved: Moved = not_counted) -> bool:
        """Write pieces, and all of them again after a failure. They are on stable storage after the next flush().

        Return whether they were sent as they are. A server without memory to decode gets them without coding.
        """
        sent = pieces

        def send() -> None:
            nonlocal sent
            try:
                put(self.connection, self._path, sent, alone=self._patience.is_failing, moved=moved)
            except NoDecoder:
                sent, self._lost = plain(pieces), True
                self._recognise()
                put(self.connection, self._path, sent, alone=True, moved=moved)

        self._repeated(send)
        return sent is pieces

    def zero(self, offset: int, length: int) -> Iterator[int]:
        """Make a range read as zeros, in steps. Yield the length of each step when it is done."""
        end = offset + length
        while offset < end:
            step = min(end - offset, self._max_zero)
            started = time.monotonic()
            self._repeated(partial(self._change, {"op": "zero", "offset": offset, "size": step, "flush": False}))
            if step == self._max_zero and time.monotonic() - started < SHORT_ZERO:
                self._max_zero *= 2
            yield step
            offset += step

    def flush(self) -> None:
        """Put everything written so far on stable storage. Raises FlushFailed.

        A failed flush is not repeated, because the storage reports a lost write only once.
        """
        self._repeated(self._flush_once)

    def look_for_restart(self) -> None:
        """Note a restart of the server, if the server tells its instance. A proxy may keep the connection over it."""
        if self._restarts.instance is not None:
            self._restarts.reconnected(self.abilities().instance)

    def _flush_once(self) -> None:
        with self._failing_flush():
            self._change({"op": "flush"})

    @contextlib.contextmanager
    def _failing_flush(self) -> Iterator[None]:
        try:
            yield
        except (StorageFailed, Temporary) as e:
            if isinstance(e, Temporary) and e.http_status != 500:
                raise
            failed = FlushFailed(f"{e}; what was written may be lost: upload anew, with a new ticket")
            failed.code, failed.status = e.code, e.status
            raise failed from e

    def extents(self, context: str = "zero") -> Sequence[Extent]:
        """Return the extents of the whole image, in order and without gaps."""
        return self._repeated(lambda: ExtentList.of(lists.extents(self.connection, self._path, self.size(), context)))

    def checksum(self, algorithm: str, block_size: int, part: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return the server's digest of the image, with its parameters. image/blockhash.py defines it.

        `part` is the offset, a multiple of 4096, and the length of a part, for servers with `checksum_range`.
        """
        parameters: dict[str, object] = {"algorithm": algorithm, "block_size": block_size}
        parameters |= {"offset": part[0], "length": part[1]} if part is not None else {}
        path = f"{self._path}/checksum?{urllib.parse.urlencode(parameters)}"
        answer = self._repeated(lambda: self.connection.request("GET", path, timeout=WORK_TIMEOUT))
        return lists.checked(self._parse("GET", answer), part, self._peer)

    def blocks(self, algorithm: str, block_size: int, part: tuple[int, int]) -> list[Block]:
        """Return the server's digests of the blocks of a part; see checksum(). For servers with `checksum_blocks`."""
        wanted = BlockListHead(algorithm, block_size, part[0])
        return self._repeated(lambda: lists.blocks(self.connection, self._path, wanted, part[1]))

    def finalize(self, checksum: dict[str, object]) -> dict[str, Any]:
        """Have the server flush, compare the image with a checksum, and make the ticket read-only. Return its report.

        The report has `mismatch` if the image differs, and `state` if the comparison is not finished. Raises
        FlushFailed, and Refused if the image was finalized with another checksum.
        """
        return self._repeated(partial(self._finalize_once, checksum))

    def _finalize_once(self, checksum: dict[str, object]) -> dict[str, Any]:
        body, expected = json.dumps({"op": "finalize", "checksum": checksum}).encode(), (200, 202, 409)
        with self._failing_flush():
            request = partial(self.connection.request, "PATCH", self._path, headers=JSON, body=body)
            answer = request(timeout=WORK_TIMEOUT, expected=expected)
        if answer.status == 409 and not answer.body.startswith(b"{"):
            reason = answer.body[:MAX_REASON].decode(errors="replace")
            raise Refused("".join(filter(str.isprintable, reason)), 409)
        return self._object("PATCH", answer)

    def finalize_state(self) -> dict[str, Any]:
        """Return the server's document on a verification: its progress or its report."""
        return self._repeated(
            lambda: self._object("GET", self.connection.request("GET", f"{self._path}/finalize", timeout=WORK_TIMEOUT))
        )

    def read(
        self, ranges: Sequence[Range], buffer: memoryview, moved: Moved = not_counted, size: int | None = None
    ) -> Iterator[Piece]:
        """Yield ranges in pieces, in their order, in the buffer. A piece is valid until the next one is requested.

        `size` is the image's, as the server has told it. Raises ServerFailed also if an answer has another size.
        """
        left = collections.deque(ranges)
        while left:
            with self._going_on():
                self._recognise()
                ranges = first(left, alone=self._patience.is_failing)
                for piece in get(self.connection, self._path, ranges, buffer, moved, size):
                    offset, length = left.popleft()
                    if len(piece.data) < length:
                        left.appendleft(Range(offset + len(piece.data), length - len(piece.data)))
                    self._patience.succeeded()
                    yield piece

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from offset on."""
        while buffer:
            with self._going_on():
                self._recognise()
                wanted = [Range(offset, len(buffer))]
                for piece in get(self.connection, self._path, wanted, buffer, not_counted):
                    offset += len(piece.data)
                    buffer = buffer[len(piece.data) :]
                    self._patience.succeeded()

    def _change(self, operation: dict[str, object]) -> None:
        body = json.dumps(operation).encode()
        self.connection.change(Request(self.connection.head("PATCH", self._path, JSON, body), body))

    def _abilities_once(self) -> Abilities:
        answer = self.connection.request("OPTIONS", self._path, timeout=WORK_TIMEOUT)
        try:
            return Abilities.from_json(self._parse("OPTIONS", answer))
        except (KeyError, TypeError, ValueError) as e:
            raise ServerFailed(f"{self._peer} does not speak the images API") from e

    def _parse(self, method: str, answer: Answer) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as e:
            raise ServerFailed(f"{self._peer} answered {method} with something that is not JSON") from e

    def _object(self, method: str, answer: Answer) -> dict[str, Any]:
        if not isinstance(told := self._parse(method, answer), dict):
            raise ServerFailed(f"{self._peer} answered {method} with something that is no JSON object")
        return told

    def _repeated(self, send: Callable[[], _T]) -> _T:
        while True:
            with self._going_on():
                self._recognise()
                self.restarts_before = self._restarts.count
                answer = send()
                self._patience.succeeded()
                return answer

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        """Pause after a temporary failure in the block. Raise it if failures last too long."""
        try:
            yield
        except Temporary as e:
            self._lost = True
            self._patience.wait(e)
        except Refused as e:
            if e.http_status == 403 and self._patience.failed:
                raise Refused(f"{e}. {GONE}", 403) from e
            raise

    def _recognise(self) -> None:
        """After a lost connection, connect and note whether the server was restarted."""
        if not self._lost and self.connection.has_ended():
            self._lost = True
            self.connection.close()
        if not self._lost:
            return
        instance = None
        if self._restarts.instance is None:
            self.connection.connect()
        else:
            instance = self._abilities_once().instance
        self._restarts.reconnected(instance)
        self._lost = False
