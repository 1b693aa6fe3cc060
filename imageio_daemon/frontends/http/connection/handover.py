# SPDX-License-Identifier: Apache-2.0
"""The handover of a connection to a lane, for plain requests for one image, or for one request of a handler.

A lane serves plain requests one after the other, and gives the connection back when another request comes. A handler
reads and decides that one. If it moves bytes of the image, a lane carries it out, and gives the connection back again.
Python also answers a request that fails in a lane, so that each refusal and error is written in one place.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ....errors import Error, Unavailable
from ....lanes.http import HttpEnd, HttpLane, Instruction
from ....operations import operations
from ....runtime import logs
from ....runtime.request_activity import RequestActivity
from ....runtime.sums import Count
from ....transfers.ticket import Access
from ....transfers.transfer import Transfer
from .. import errors
from .exchange import Exchange
from .framing import RequestHead
from .lane_service import LanePlace, LaneService, busy, ticket_id
from .transport import ClientTransport

log = logging.getLogger(__name__)


class LaneHandover:
    """Hand one connection over to lanes, one after the other. A server without images has no `service` for lanes.

    Lanes do not open images. The first plain request for an image waits here until the image is open. If that fails, a
    handler goes on with the request: it answers the same error, and does not try again. Handlers also serve the
    requests that lanes give back. A request also waits here for a place, at most for the inactivity timeout of its
    ticket; then it gets 503.
    """

    def __init__(self, service: LaneService | None, exchange: Exchange, transport: ClientTransport) -> None:
        self._service = service
        self._exchange = exchange
        self._transport = transport
        self._place = None if service is None else LanePlace(service.places)
        self._returned: Callable[[HttpEnd], None] | None = None
        self._given_back = False  # the next request is for a handler
        self._lost = False
        self._aborted = False  # a lane that had ended before was not aborted
        self._opening: asyncio.Task[None] | None = None
        self._waits = b""  # while a request waits for a place: the received bytes from its head on
        self._lane: HttpLane | None = None

    @property
    def active(self) -> bool:
        """Return whether a lane has the connection."""
        return self._lane is not None

    def begin(self, head: RequestHead, received: bytes | bytearray, returned: Callable[[HttpEnd], None]) -> bool:
        """Hand the connection over if a lane can serve the request. `received` has the bytes from this head on.

        Return True if `returned` will be called, unless the connection is lost before; False if the request is for a
        handler.
        """
        given_back, self._given_back = self._given_back, False
        service, place, transport = self._service, self._place, self._transport
        if given_back or service is None or place is None or self._lost:
            return False
        if not head.plain or transport.unsent:
            return False
        self._returned = returned
        reads = head.method == "GET"
        lane = None
        try:
            transfer = service.find(self._exchange, ticket_id(head), Access.READ if reads else Access.WRITE)
            if transfer.ticket.proxied or (reads and not service.covers(transfer)):
                return False
            if transfer.opened is None:
                self._open(transfer, bytes(received))
                return True
            if not place.enter(transfer):
                self._wait(place, transfer, head, bytes(received))
                return True
            lane = service.start(self._exchange, transport, transfer, bytes(received))
        except (Error, OSError) as e:
            log.debug("connection is not handed over: %s", e, extra=logs.fields(client=self._exchange.peer))
        if lane is not None:
            self._watch(lane, transfer)
        else:
            place.leave()
        return lane is not None

    async def carry_out(
        self, transfer: Transfer, instruction: Instruction, received: bytearray
    ) -> "asyncio.Future[HttpEnd]":
        """Start a lane that carries out the instruction on the open image, as soon as there is a place.

        Return a future of the lane's result. When this returns, the lane has the connection and the bytes that were
        `received` after the head. Raises Unavailable, Error.
        """
        service, place = self._service, self._place
        if service is None or place is None:
            raise RuntimeError("this service has no images")
        await place.get(transfer, transfer.ticket.inactivity_timeout)
        try:
            lane = service.start(self._exchange, self._transport, transfer, bytes(received), instruction)
        except BaseException as e:
            place.leave()
            if isinstance(e, OSError):
                raise Unavailable("There is no descriptor for the request now") from e
            raise
        received.clear()
        ended: asyncio.Future[HttpEnd] = asyncio.get_running_loop().create_future()
        self._returned = partial(_settle, ended)
        self._watch(lane, transfer)
        return ended

    def refuse(self) -> None:
        """Have the lane give the connection back as soon as no request runs. Stop waiting for a place."""
        if self._lane is not None:
            self._lane.refuse()
        if self._waits and self._place is not None and self._place.abandon():
            self._give_back(HttpEnd(self._waits))

    def abort(self) -> None:
        """Have the lane close the connection now."""
        if self._lane is not None:
            self._aborted = True
            self._lane.abort()

    def lost(self) -> Count:
        """End what waits or runs, because the connection is lost. Return the counts of a lane that has it."""
        self._lost = True
        self._returned = None  # breaks a reference cycle
        if self._opening is not None:
            self._opening.cancel()
        if self._place is not None:
            self._place.abandon()
        self.abort()
        return Count() if self._lane is None else self._lane.served()

    def _give_back(self, end: HttpEnd) -> None:
        self._waits = b""
        if self._returned is not None:
            self._returned(end)

    # Before the lane

    def _open(self, transfer: Transfer, received: bytes) -> None:
        """Open the image, then give the connection back, which begins again and now finds the image open."""
        request = RequestActivity()
        self._opening = asyncio.get_running_loop().create_task(operations.open_image(transfer, request))
        self._opening.add_done_callback(lambda task: self._opened(task, request, received))

    def _opened(self, task: "asyncio.Task[None]", request: RequestActivity, received: bytes) -> None:
        self._opening = None
        self._given_back = task.cancelled() or task.exception() is not None
        if self._given_back:
            self._exchange.begun = request
        self._give_back(HttpEnd(received))

    def _wait(self, place: LanePlace, transfer: Transfer, head: RequestHead, received: bytes) -> None:
        """Wait for a place, then give the connection back, which begins again and now has the place."""
        late = HttpEnd(received[len(head.data) :], error=busy(), asks=head.asks, unread=head.length)
        self._waits = received
        seconds = transfer.ticket.inactivity_timeout
        place.wait(transfer, seconds, lambda: self._granted(place), lambda: self._give_back(late))

    def _granted(self, place: LanePlace) -> None:
        self._give_back(HttpEnd(self._waits))
        if self._lane is None:  # the connection was not handed over: it does not need the place
            place.leave()

    # While a lane has it

    def _watch(self, lane: HttpLane, transfer: Transfer) -> None:
        self._lane = lane
        self._exchange.worker = lane
        lane.watch(transfer.traffic.collect, lambda: self._ended(lane, transfer))

    def _ended(self, lane: HttpLane, transfer: Transfer) -> None:
        self._lane = None
        self._exchange.worker = None
        end = lane.end()
        self._given_back = end.other
        transfer.remove_lane(lane)
        if self._place is not None:
            self._place.leave()
        if self._aborted:
            end = end._replace(cut="cut")
        if end.error is not None and (end.cut is not None or self._lost):
            errors.answer(end.error, self._exchange.peer)  # not sent, but it logs the error
        self._give_back(end)


def _settle(ended: "asyncio.Future[HttpEnd]", end: HttpEnd) -> None:
    if not ended.done():  # it is if the handler was cancelled
        ended.set_result(end)
