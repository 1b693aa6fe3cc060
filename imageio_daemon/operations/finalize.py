# SPDX-License-Identifier: Apache-2.0
"""The finalize operation: flush an image, compare its checksum, and let nothing change it through the ticket any more.

A verification is no request: it goes on when its client has left, and ends with the transfer.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from ..errors import DENIED, Canceled, Error, InUse
from ..image.blockhash import Total
from ..storage.lending import Buffers
from ..transfers.store import TransferStore
from ..transfers.transfer import FINALIZED, Transfer
from . import operations
from .checksum import WantedChecksum, checksum
from .hashing import Hashing

#: Seconds after which the answer to a finalize does not wait for the result. Proxies give up after 60 s.
ANSWER_TIMEOUT = 30.0


class ExpectedImage(NamedTuple):
    """What the client says the image is. block_size: in bytes. checksum: in lower-case hexadecimal.

    blocks: the raw digests of all blocks; empty: not told.
    """

    algorithm: str
    block_size: int
    checksum: str
    blocks: tuple[bytes, ...] = ()

    @property
    def shown(self) -> dict[str, object]:
        """Return what identifies it, for JSON."""
        return {"algorithm": self.algorithm, "block_size": self.block_size, "checksum": self.checksum}


class ComparedDigest(Total):
    """The digest of an image, and the blocks that are not what they should be."""

    def __init__(self, expected: ExpectedImage) -> None:
        super().__init__(expected.algorithm)
        self._blocks = expected.blocks
        #: The number of blocks so far.
        self.count = 0
        #: The numbers of those that differ, as far as it is known which blocks are expected.
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
    """A comparison that runs or has ended. size: of the image, in bytes."""

    def __init__(self, expected: ExpectedImage, size: int) -> None:
        self.expected = expected._replace(blocks=())
        self.size = size
        self.comparison = ComparedDigest(expected)
        #: The report for the client when the image has been read. An exception if it could not be read.
        self.report: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self.report.add_done_callback(asyncio.Future.exception)  # retrieved: nobody may wait for it
        self.task: asyncio.Task[None] | None = None

    @property
    def done(self) -> int:
        """Return how many bytes were compared."""
        return min(self.comparison.count * self.expected.block_size, self.size)


class Finalizer:
    """Finalize images, each by one verification at a time."""

    def __init__(self, store: TransferStore, buffers: Buffers, hashing: Hashing) -> None:
        self._store = store
        self._buffers = buffers
        self._hashing = hashing
        self._last: dict[Transfer, Verification] = {}  # an entry ends with its transfer
        self._images: dict[object, asyncio.Event] = {}  # those that are being read

    def last(self, transfer: Transfer) -> Verification | None:
        """Return the verification of a transfer that runs, or the last one; None: there was none in this process."""
        return self._last.get(transfer)

    async def finalize(self, transfer: Transfer, expected: ExpectedImage) -> dict[str, object] | None:
        """Verify an image, and return the report; None: it takes longer than ANSWER_TIMEOUT, and goes on.

        The report has "mismatch" if the image is not what is expected; then it may be written again. Otherwise the
        ticket is read-only from now on, and so kept. An equal call gets the same report. Raises InUse while another
        checksum is being compared, or if the image is finalized with another one; Forbidden, Canceled, Unavailable,
        CannotFlush, StorageError.
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
        """Start a verification, or return the equal one that runs. Raises InUse, Forbidden."""
        running = self._last.get(transfer)
        if running is not None and not running.report.done():
            if running.expected != expected._replace(blocks=()):
                raise InUse("The image is being compared with another checksum")
            return running
        quiet = transfer.permission.seal.begin_closing()
        verification = self._last[transfer] = Verification(expected, transfer.ticket.size)
        if running is None:
            transfer.end.when_ended(lambda _: self._forget(transfer))
        verification.task = asyncio.get_running_loop().create_task(self._run(transfer, verification, quiet))
        return verification

    def _forget(self, transfer: Transfer) -> None:
        self._last.pop(transfer, None)

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
        """Verify an image that nothing begins to change; quiet: when nothing changes it any more."""
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
        """Run the block when no other verification reads the image, through any ticket."""
        backend = transfer.opened
        image = None if backend is None else backend.info.identity
        key = image or transfer.ticket.url
        mine = asyncio.Event()
        while (other := self._images.setdefault(key, mine)) is not mine:
            await other.wait()
            transfer.permission.require_not_canceled()
        try:
            yield
        finally:
            del self._images[key]
            mine.set()
