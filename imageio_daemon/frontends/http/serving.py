# SPDX-License-Identifier: Apache-2.0
"""Who serves a connection's requests: callbacks, the fast lane, or aiohttp, whoever takes one first."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from . import fastlane
from .account import Account
from .framing import Head
from .gate import Gate, Gatekeeper
from .incoming import Incoming
from .owner import Owner
from .receiver import Receiver
from .short import Short, ShortLine
from .wire import Wire


class ServedLine(ShortLine, Gatekeeper, Protocol):
    """What is needed of the connection, whoever serves."""

    def begin(self, on_body_error: Callable[[Exception], None]) -> None:
        """Note that a request is being handled; the callback ends its wait for a body that will not come."""
        ...

    def failed(self, error: BaseException) -> None:
        """Note that a request ended without an answer, by a bug."""
        ...


class Serving:
    """Serve the requests of one connection, one at a time."""

    def __init__(self, owner: Owner, wire: Wire, incoming: Incoming, account: Account) -> None:
        self._owner = owner
        self._wire = wire
        self._incoming = incoming
        self._account = account
        self._short: Short | None = None
        self._task: asyncio.Task[None] | None = None
        self._handler: asyncio.Protocol | None = None

    def start(self, line: ServedLine, head: Head, data: bytes) -> Exception | None:
        """Begin to serve a request, or return why nobody does. data: its head as it was received."""
        owner = self._owner
        express = owner.express
        short = express.take(head, line) if express is not None else None
        if short is not None:
            self._serve_short(line, short)
            return None
        self._incoming.body = head.body()
        refusal = owner.refusal(head)
        if refusal is not None:
            return refusal
        if owner.fast_lane and fastlane.takes(head):
            self._serve_fast(line, head, int(head.fields.get("content-length", "0")))
        else:
            self._serve_by_handler(line, data)
        self._incoming.feed_ahead()
        return None

    def hand_over(self, line: ServedLine, head: Head, body: bytes) -> None:
        """Serve a short request, whose body has come, by the fast lane."""
        self._short = None
        self._account.requests -= 1  # it is counted once more
        self._serve_fast(line, head, len(body)).feed(body)

    def answered(self) -> None:
        """Note that the request was answered."""
        self._short = None
        self._incoming.end()
        self._wire.release("body")

    def pause_writing(self) -> None:
        """Note that the client reads slower than we write. aiohttp wants to be told, the others ask the wire."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        if self._handler is not None:
            self._handler.resume_writing()

    def lost(self, exc: Exception | None) -> None:
        """End what runs: the client is gone."""
        if self._task is not None:
            self._task.cancel()
        if self._short is not None:
            self._short.lost()
            self._short = None
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(exc)

    def _serve_short(self, line: ServedLine, short: Short) -> None:
        self._short = short
        self._incoming.give_to(short)
        line.begin(short.fail)
        short.start()
        self._incoming.feed_ahead()
        if not short.body.ended:
            line.waiting_for_body(waiting=True)

    def _serve_fast(self, line: ServedLine, head: Head, length: int) -> Receiver:
        wire = self._wire
        receiver = Receiver(length, hold=lambda: wire.hold("body"), release=lambda: wire.release("body"))
        self._incoming.give_to(receiver)
        line.begin(receiver.fail)
        serve = fastlane.serve(self._owner.routes, line, head, receiver)
        self._task = asyncio.get_running_loop().create_task(serve)
        self._task.add_done_callback(lambda task: self._served_fast(line, task))
        return receiver

    def _served_fast(self, line: ServedLine, task: "asyncio.Task[None]") -> None:
        if self._task is task:
            self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            line.failed(error)

    def _serve_by_handler(self, line: ServedLine, data: bytes) -> None:
        if self._handler is None:
            self._handler = self._owner.make_handler()
            self._handler.connection_made(Gate(line, self._wire, self._account))
        self._incoming.pass_to(self._handler)
        self._handler.data_received(data)
