# SPDX-License-Identifier: Apache-2.0
"""The limit on connections, and which connection is closed when the limit is reached.

A connection that has shown a valid ticket keeps its place. All others are strangers, and the oldest stranger is closed
for a new connection. Strangers of an address that has more than its share are closed first. Connections over a unix
socket are not closed for those of other hosts. So connections without a ticket cannot keep clients out: a client that
shows its ticket at once is not yet the oldest stranger.
"""

import enum
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address

from ..errors import TooManyConnections

log = logging.getLogger(__name__)

#: Most strangers in each stage before the first request. A silent one costs a descriptor, one in its handshake 55 KiB.
MAX_SILENT = 1024
MAX_GREETING = 1024
#: Most connections that are being sent the reason of their refusal.
MAX_REFUSED = 256
#: The places of a stage have at most 1/n of the descriptors. A connection with a ticket has up to six descriptors: for
#: its socket, its lane and its image. So the places take 57/64, and the rest is for images without a connection.
SILENT_SHARE = GREETING_SHARE = 16
REFUSED_SHARE = 64
CONNECTIONS_SHARE = 8
#: Strangers of an address that has more than 1/ADDRESS_SHARE of a stage's places are closed first.
ADDRESS_SHARE = 4
#: Strangers over unix sockets have 1/LOCAL_SHARE of a stage's places. Beyond that, the oldest of them is closed.
LOCAL_SHARE = 2
#: Seconds between checks whether the tickets are still valid. A check takes up to 0.5 ms for 1024 connections.
LOOK_INTERVAL = 1.0
#: Seconds between two warnings that connections were closed for others.
WARNING_INTERVAL = 60.0

#: The address of clients on unix sockets.
LOCAL = ""


class Stage(enum.Enum):
    """How far a connection has come. A connection passes the stages in this order, but may leave some out."""

    SILENT = "connected"
    GREETING = "in its TLS handshake, or NBD's negotiation"
    REFUSED = "told that there is no place"
    STRANGER = "may send requests, has shown no ticket"
    KNOWN = "has shown a valid ticket"


class Place:
    """The place of one connection in the limit, until leave()."""

    def __init__(self, limit: "ConnectionLimit", address: str, drop: Callable[[], object]) -> None:
        self.address = address
        #: A function that closes the connection.
        self.drop = drop
        #: The stage, or None before the first one and after leave(). Only the limit changes it.
        self.stage: Stage | None = None
        self.has_ticket: Callable[[], bool] = bool
        self._limit = limit

    def spoke(self) -> None:
        """Note that the client has sent its first bytes, of the TLS handshake or of the NBD negotiation."""
        if self.stage is Stage.SILENT:
            self._limit.move(self, Stage.GREETING)

    def know(self, has_ticket: Callable[[], bool]) -> None:
        """Keep the place from now on, because the client has shown a valid ticket.

        `has_ticket` tells whether the ticket is still valid. Raises TooManyConnections, but not in the stage STRANGER.
        """
        if self.stage is not Stage.KNOWN:
            self.has_ticket = has_ticket
            self._limit.move(self, Stage.KNOWN)

    def leave(self) -> None:
        """Give the place back. Later calls do nothing."""
        self._limit.remove(self)


class ConnectionLimit:
    """Limit the connections of several servers.

    `most` is the limit on connections in the stages STRANGER and KNOWN together. `descriptors`, if it is set, limits
    the descriptors of all connections. `clock` returns seconds.
    """

    def __init__(
        self, most: int, clock: Callable[[], float] = time.monotonic, *, descriptors: int | None = None
    ) -> None:
        self._descriptors = descriptors
        self._most = most = self._places(most, CONNECTIONS_SHARE)
        self._clock = clock
        self._known: dict[Place, None] = {}
        self._strangers = {
            Stage.SILENT: _Strangers(self._places(MAX_SILENT, SILENT_SHARE)),
            Stage.GREETING: _Strangers(self._places(MAX_GREETING, GREETING_SHARE)),
            Stage.REFUSED: _Strangers(self._places(MAX_REFUSED, REFUSED_SHARE)),
            Stage.STRANGER: _Strangers(most),
        }
        self._looked = self._warned = -WARNING_INTERVAL
        #: How many strangers were closed for new connections so far.
        self.dropped = 0

    @property
    def count(self) -> int:
        """Return the number of connections in the stages STRANGER and KNOWN."""
        return len(self._known) + len(self._strangers[Stage.STRANGER])

    @property
    def most(self) -> int:
        """Return the limit on connections in the stages STRANGER and KNOWN together."""
        return self._most

    @most.setter
    def most(self, most: int) -> None:
        """Change the limit. Connections beyond it stay."""
        self._most = self._places(most, CONNECTIONS_SHARE)
        self._strangers[Stage.STRANGER].resize(self._most)

    @property
    def strangers(self) -> int:
        """Return the number of connections that have shown no valid ticket."""
        return sum(map(len, self._strangers.values()))

    def places(self) -> dict[Stage, int]:
        """Return the number of connections in each stage."""
        return {Stage.KNOWN: len(self._known), **{stage: len(those) for stage, those in self._strangers.items()}}

    def relieve(self) -> bool:
        """Close the oldest stranger of the earliest stage, to free its descriptor. Return False if there is none."""
        place = next((those.oldest() for those in self._strangers.values() if len(those)), None)
        if place is None:
            return False
        self._take_out(place)
        place.drop()
        self._warn()
        return True

    def _places(self, most: int, share: int) -> int:
        return most if self._descriptors is None else max(1, min(most, self._descriptors // share))

    def enter(self, stage: Stage, address: str, drop: Callable[[], object]) -> Place:
        """Return a place for a new connection.

        `address` is the client's IP address, or LOCAL. `drop` closes the connection, now or soon. It is called at most
        once, when another connection needs the place. Raises TooManyConnections, only for the stages STRANGER and
        KNOWN.
        """
        place = Place(self, address_group(address), drop)
        self._put(place, stage)
        return place

    def move(self, place: Place, stage: Stage) -> None:
        """Move a place that was not given back to another stage. Raises TooManyConnections as enter() does."""
        if place.stage is not None:
            self._put(place, stage)

    def remove(self, place: Place) -> None:
        """Give a place back."""
        self._take_out(place)
        place.drop, place.has_ticket = _nothing, bool  # breaks the reference cycle of place and connection

    def _put(self, place: Place, stage: Stage) -> None:
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
        """Return the place to free, or None if there is room. Raises TooManyConnections."""
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
        """Move places whose ticket has expired or was removed to STRANGER, as the next ones to close."""
        now = self._clock()
        if now - self._looked < LOOK_INTERVAL:
            return
        self._looked = now
        for place in reversed([place for place in self._known if not place.has_ticket()]):
            self._take_out(place)
            place.stage = Stage.STRANGER
            self._strangers[Stage.STRANGER].add(place, first=True)

    def _warn(self) -> None:
        self.dropped += 1
        now = self._clock()
        if now - self._warned >= WARNING_INTERVAL:
            self._warned = now
            log.warning("connections without a ticket are dropped for new ones, so far: %d", self.dropped)


def _nothing() -> None:
    """Do nothing, as the `drop` of a place that was given back."""


class _Strangers:
    """The places of one stage, the oldest first."""

    def __init__(self, most: int) -> None:
        self._elsewhere: OrderedDict[Place, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Place, None]] = {LOCAL: OrderedDict()}
        self._greedy: set[str] = set()  # addresses that have more than their share
        self.resize(most)

    def resize(self, most: int) -> None:
        self.most = most
        self._share = most // ADDRESS_SHARE
        self._local_share = most // LOCAL_SHARE
        self._greedy = {address for address, own in self._of.items() if address != LOCAL and len(own) > self._share}

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

    def oldest(self) -> Place:
        """Return the oldest place of other hosts, or of this host if there is no other."""
        return next(iter(self._elsewhere or self._of[LOCAL]))

    def next_to_go(self, address: str) -> Place | None:
        """Return the place to free for a connection of this address, if a stranger may be closed for it."""
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
    """Return the addresses that count as one: a network of 64 bits for IPv6 (RFC 6177 2), one address for IPv4.

    An IPv4 address that is mapped into IPv6 counts as the IPv4 address.
    """
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    return str(parsed.ipv4_mapped or IPv6Address(int(parsed) >> 64 << 64))
