# SPDX-License-Identifier: Apache-2.0
"""How many connections there may be, and which one goes when there are too many.

A connection that has shown a valid ticket keeps its place. The others are strangers, whatever they ask for: where there
are too many, the oldest of them goes. An address that has more than its share goes first, and clients of this host,
which came over a unix socket, are not dropped for others. So nobody is kept out by those who only connect: a client
that shows its ticket at once does so before it is its turn to go.
"""

import enum
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address

from .errors import TooManyConnections

log = logging.getLogger(__name__)

#: Strangers at each stage before they may ask for anything. A silent one costs a descriptor; in a handshake, 55 KiB.
MAX_SILENT = 1024
MAX_GREETING = 1024
#: Connections that are told why they are refused, and close.
MAX_REFUSED = 256
#: An address that has more than one part in so many of a stage's places goes first.
ADDRESS_SHARE = 4
#: Clients of this host that have shown no ticket have one part in so many; of more, the oldest goes.
LOCAL_SHARE = 2
#: Seconds between looks for tickets that are not valid any more: each takes up to 0.5 ms for 1024 connections.
LOOK_INTERVAL = 1.0
#: Seconds between warnings that connections are dropped.
WARNING_INTERVAL = 60.0

#: In the place of an address: the client is on this host.
LOCAL = ""


class Stage(enum.Enum):
    """What a connection has shown of itself."""

    SILENT = "connected"
    GREETING = "in its TLS handshake, or NBD's negotiation"
    REFUSED = "told that there is no place"
    STRANGER = "may send requests, has shown no ticket"
    KNOWN = "has shown a valid ticket"


class Place:
    """One connection's place, until leave(). Thread-safe."""

    def __init__(self, limit: "ConnectionLimit", address: str, drop: Callable[[], object]) -> None:
        self.address = address
        #: Ends the connection. Called in any thread.
        self.drop = drop
        #: None: it has none, or none any more. Changed by the limit only.
        self.stage: Stage | None = None
        self.has_ticket: Callable[[], bool] = bool
        self._limit = limit

    def spoke(self) -> None:
        """Note that the client has said something, before its handshake or in its negotiation."""
        if self.stage is Stage.SILENT:
            self._limit.move(self, Stage.GREETING)

    def know(self, has_ticket: Callable[[], bool]) -> None:
        """Keep the place: the client has shown a valid ticket. has_ticket: it still is; called in any thread.

        Raises TooManyConnections, only if the connection was not a stranger before.
        """
        if self.stage is not Stage.KNOWN:
            self.has_ticket = has_ticket
            self._limit.move(self, Stage.KNOWN)

    def leave(self) -> None:
        """Give the place back. Again is no change."""
        self._limit.remove(self)


class ConnectionLimit:
    """Count the connections of several servers on several loops. Thread-safe.

    most: strangers that may ask, and those that have shown a ticket, together.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Place, None] = {}
        self._strangers = {
            Stage.SILENT: _Strangers(MAX_SILENT),
            Stage.GREETING: _Strangers(MAX_GREETING),
            Stage.REFUSED: _Strangers(MAX_REFUSED),
            Stage.STRANGER: _Strangers(most),
        }
        self._looked = self._warned = -WARNING_INTERVAL
        self._dropped = 0

    @property
    def count(self) -> int:
        """Return how many places are taken by connections that may ask."""
        return len(self._known) + len(self._strangers[Stage.STRANGER])

    def enter(self, stage: Stage, address: str, drop: Callable[[], object]) -> Place:
        """Return a place for a new connection. address: of a client elsewhere, or LOCAL.

        drop: ends the connection; called in any thread, once at most, when another one needs the place. Raises
        TooManyConnections, for strangers that may ask and for known ones.
        """
        place = Place(self, address_group(address), drop)
        self._put(place, stage)
        return place

    def move(self, place: Place, stage: Stage) -> None:
        """Put a place, unless it was given back, to another stage. Raises TooManyConnections as enter() does."""
        if place.stage is not None:
            self._put(place, stage)

    def remove(self, place: Place) -> None:
        """Give a place back."""
        with self._lock:
            self._take_out(place)
        place.drop, place.has_ticket = _nothing, bool  # they hold the connection, which holds the place

    def _put(self, place: Place, stage: Stage) -> None:
        with self._lock:
            dropped = self._find_room(place, stage)
            if dropped is not None:
                self._take_out(dropped)
            self._take_out(place)
            place.stage = stage
            if stage is Stage.KNOWN:
                self._known[place] = None
            else:
                self._strangers[stage].add(place)
        if dropped is not None:
            dropped.drop()
            self._warn()

    def _take_out(self, place: Place) -> None:
        stage, place.stage = place.stage, None
        if stage is Stage.KNOWN:
            del self._known[place]
        elif stage is not None:
            self._strangers[stage].remove(place)

    def _find_room(self, place: Place, stage: Stage) -> Place | None:
        """Return who has to go for a connection. Raises TooManyConnections."""
        if stage not in (Stage.STRANGER, Stage.KNOWN):
            strangers = self._strangers[stage]
            return strangers.next_to_go(place.address) if len(strangers) >= strangers.most else None
        if self.count < self._most or place.stage is Stage.STRANGER:
            return None
        self._look_at_tickets()
        gone = self._strangers[Stage.STRANGER].next_to_go(place.address)
        if gone is None:
            raise TooManyConnections(f"Too many connections, the limit is {self._most}")
        return gone

    def _look_at_tickets(self) -> None:
        """Make strangers of those whose ticket has expired or was deleted; they are the next to go."""
        now = self._clock()
        if now - self._looked < LOOK_INTERVAL:
            return
        self._looked = now
        for place in reversed([place for place in self._known if not place.has_ticket()]):
            self._take_out(place)
            place.stage = Stage.STRANGER
            self._strangers[Stage.STRANGER].add(place, first=True)

    def _warn(self) -> None:
        self._dropped += 1
        now = self._clock()
        if now - self._warned >= WARNING_INTERVAL:
            self._warned = now
            log.warning("connections without a ticket are dropped for new ones, so far: %d", self._dropped)


def _nothing() -> None:
    """Drop what has gone."""


class _Strangers:
    """Places of one stage, the oldest first. next_to_go() is asked when there are as many as there may be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._share = most // ADDRESS_SHARE
        self._local_share = most // LOCAL_SHARE
        self._elsewhere: OrderedDict[Place, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Place, None]] = {LOCAL: OrderedDict()}
        self._greedy: set[str] = set()  # addresses that have more than their share

    def __len__(self) -> int:
        return len(self._elsewhere) + len(self._of[LOCAL])

    def add(self, place: Place, *, first: bool = False) -> None:
        own = self._of.setdefault(place.address, OrderedDict())
        for places in (own,) if place.address == LOCAL else (own, self._elsewhere):
            places[place] = None
            places.move_to_end(place, last=not first)
        if place.address != LOCAL and len(own) > self._share:
            self._greedy.add(place.address)

    def remove(self, place: Place) -> None:
        own = self._of[place.address]
        del own[place]
        if place.address == LOCAL:
            return
        del self._elsewhere[place]
        if len(own) <= self._share:
            self._greedy.discard(place.address)
        if not own:
            del self._of[place.address]

    def next_to_go(self, address: str) -> Place | None:
        """Return the connection that makes room for one from this address; None: there is none."""
        local = self._of[LOCAL]
        if address == LOCAL and local and (len(local) >= self._local_share or not self._elsewhere):
            return next(iter(local))
        if not self._elsewhere:
            return next(iter(local)) if len(local) > self._local_share else None
        if address in self._greedy:
            return next(iter(self._of[address]))
        if self._greedy:
            greediest = max(self._greedy, key=lambda greedy: len(self._of[greedy]))
            return next(iter(self._of[greediest]))
        return next(iter(self._elsewhere))


def address_group(address: str) -> str:
    """Return what of an address counts: a network of 64 bits is one client's (RFC 6177 2), IPv4 in IPv6 is IPv4."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    return str(parsed.ipv4_mapped or IPv6Address(int(parsed) >> 64 << 64))
