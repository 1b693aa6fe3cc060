# SPDX-License-Identifier: Apache-2.0
"""The finalize operation: flush an image, compare its checksum, and make its ticket read-only.

A verification does not depend on its request. It goes on when the client has left, and ends with the transfer.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from ..errors import DENIED, Canceled, Error, InUse
from ..image.blockhash import Total
from ..storage.buffers import BufferPool
from ..storage.operation import Kind
from ..transfers.store import TransferStore
from ..transfers.transfer import FINALIZED, Transfer
from . import operations
from .checksum import WantedChecksum, checksum
from .hashing import Hashing

#: Seconds that the answer to a finalize waits for the result. Proxies give up after 60 s.
ANSWER_TIMEOUT = 30.0


class ExpectedImage(NamedTuple):
    """The image as the client expects it. `block_size` is in bytes, and `checksum` in lower-case hexadecimal.

    `blocks` has the raw digests of all blocks, or is empty if the client does not send them.
    """

    algorithm: str
    block_size: int
    checksum: str
    blocks: tuple[bytes, ...] = ()

    @property
    def shown(self) -> dict[str, object]:
        """Return what identifies the expected checksum, for JSON."""
        return {"algorithm": self.algorithm, "block_size": self.block_size, "checksum": self.checksum}


class ComparedDigest(Total):
    """The digest of an image, and the numbers of blocks that are not as expected."""

    def __init__(self, expected: ExpectedImage) -> None:
        super().__init__(expected.algorithm)
        self._blocks = expected.blocks
        #: The number of blocks so far.
        self.count = 0
        #: The numbers of blocks that differ. Empty if the client has not sent the digests of blocks.
        self.mismatch: list[int] = []

    def add(self, digest: bytes, count: int = 1) -> None:
        """Add the digest of a block, or of several equal ones."""
        super().add(digest, count)
        known = self._blocks[self.count : self.count + count]
        self.mismatch += (number for number, block in enumerate(known, self.count) if block != digest)
        self.count += count

    def end(self) -> None:
        """Add the first block that only one side has."""
        if self._blocks and self.count != len(self._blocks):
            self.mismatch.append(min(self.count, len(self._blocks)))


class Verification:
    """A comparison that runs or has ended. `size` is the size of the image, in bytes."""

    def __init__(self, expected: ExpectedImage, size: int) -> None:
        self.expected = expected._replace(blocks=())
        self.size = size
        self.comparison = ComparedDigest(expected)
        #: The report for the client, after the image was read, or an exception if it could not be read.
        self.report: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self.report.add_done_callback(asyncio.Future.exception)  # otherwise asyncio logs one for which nobody waits
        self.task: asyncio.Task[None] | None = None

    @property
    def done(self) -> int:
        """Return how many bytes were compared."""
        return min(self.comparison.count * self.expected.block_size, self.size)


class Finalizer:
    """Finalize images, each by one verification at a time."""

    def __init__(self, store: TransferStore, buffers: BufferPool, hashing: Hashing) -> None:
        self._store = store
        self._buffers = buffers
        self._hashing = hashing
        self._last: dict[Transfer, Verification] = {}  # an entry ends with its transfer
        self._images: dict[object, asyncio.Event] = {}  # images that are being read, and the end of each

    def last(self, transfer: Transfer) -> Verification | None:
        """Return the running or last verification of a transfer, or None if this process has had none."""
        return self._last.get(transfer)

    async def finalize(self, transfer: Transfer, expected: ExpectedImage) -> dict[str, object] | None:
        """Verify an image, and return the report, or None if this takes longer than ANSWER_TIMEOUT. It goes on then.

        The report has "mismatch" if the image is not as expected. Then it may be written again. Otherwise the ticket is
        read-only from now on, and is kept as such. An equal call, while this runs or after it has succeeded, gets the
        same report. Raises InUse while another checksum is being compared, or if the image is finalized with another
        one. Also raises Forbidden, Canceled, Unavailable, CannotFlush, StorageError.
        """
        report: dict[str, object] | None = transfer.kept_state.get(FINALIZED)
        if report is None:
            verification = self._begin(transfer, expected)
            await asyncio.wait([verification.report], timeout=ANSWER_TIMEOUT)
            return verification.report.result() if verification.report.done() else None
        if any(report[key] != value for key, value in expected.shown.items()):
            raise InUse("The image is finalized with another checksum")
        await self._store.keep(transfer)
        return report

    def _begin(self, transfer: Transfer, expected: ExpectedImage) -> Verification:
        """Start a verification, or return the running one if it is equal. Raises InUse, Forbidden."""
        running = self._last.get(transfer)
        if running is not None and not running.report.done():
            if running.expected != expected._replace(blocks=()):
                raise InUse("The image is being compared with another checksum")
            return running
        quiet = transfer.permission.seal.begin_closing()
        verification = self._last[transfer] = Verification(expected, transfer.ticket.size)
        if running is None:
            transfer.end.on_ended.append(partial(self._last.pop, transfer, None))
        verification.task = asyncio.get_running_loop().create_task(self._run(transfer, verification, quiet))
        return verification

    async def _run(self, transfer: Transfer, verification: Verification, quiet: asyncio.Event) -> None:
        try:
            report = await self._verify(transfer, verification, quiet)
        except BaseException as e:
            verification.report.set_exception(Canceled(DENIED) if isinstance(e, asyncio.CancelledError) else e)
            if not isinstance(e, Error):
                raise
        else:
            verification.report.set_result(report)

    async def _verify(self, transfer: Transfer, verification: Verification, quiet: asyncio.Event) -> dict[str, object]:
        """Verify an image. No new change of it can begin, and `quiet` is set when all earlier changes have ended."""
        expected, comparison, seal = verification.expected, verification.comparison, transfer.permission.seal
        try:
            await quiet.wait()
            await operations.flush(transfer)
            async with self._turn(transfer):
                wanted = WantedChecksum(expected.algorithm, expected.block_size)
                verification.size = await checksum(transfer, self._buffers, self._hashing, wanted, comparison)
            comparison.end()
            found = comparison.hexdigest()
            if found != expected.checksum:
                return {**expected.shown, "checksum": found, "mismatch": comparison.mismatch}
            report: dict[str, Any] = {**expected.shown, "size": verification.size, "verified": "read"}
            transfer.kept_state[FINALIZED] = report
            seal.close()
        finally:
            if not seal.closed:
                seal.reopen()
        await self._store.keep(transfer)
        return report

    @asynccontextmanager
    async def _turn(self, transfer: Transfer) -> AsyncIterator[None]:
        """Run the block when no other verification reads the image through any ticket.

        The wait for others is an operation: a cancel of the transfer ends it, and the ticket does not expire meanwhile.
        """
        backend = transfer.opened
        image = None if backend is None else backend.info.identity
        key = image or transfer.ticket.url
        mine = asyncio.Event()
        async with operations.tracked(transfer, None, kind=Kind.CHECKSUM, part=True):
            while (other := self._images.setdefault(key, mine)) is not mine:
                await other.wait()
        try:
            yield
        finally:
            del self._images[key]
            mine.set()
