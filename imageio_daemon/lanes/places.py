# SPDX-License-Identifier: Apache-2.0
"""The limit on the connections that lanes serve at a time, and the queue of those that wait for a place."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ioutil_ext import lib


@dataclass(eq=False)
class WaitingConnection:
    """A connection that waits for a place. Places calls `granted` once, when the connection gets the place."""

    owner: Hashable
    granted: Callable[[], object]


class Places:
    """Give out places, never more than `most`.

    The owner of a connection is its transfer. An owner without a place may take the last one. Others need the consent
    of iou_may_have(), which always leaves some places for new owners. Owners that wait take turns. Places calls
    recall(1) when one more connection waits, and recall(0) when the queue is empty again.
    """

    def __init__(self, most: int, recall: Callable[[int], object]) -> None:
        self.most = most
        #: How many places are taken.
        self.taken = 0
        self._recall = recall
        self._taken_by: Counter[Hashable] = Counter()
        #: In the order of turns; no empty queues.
        self._waiting: OrderedDict[Hashable, deque[WaitingConnection]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Return how many connections wait for a place."""
        return sum(map(len, self._waiting.values()))

    def enter(self, owner: Hashable) -> bool:
        """Take a place if the owner may have one and no connection waits. Return whether it was taken."""
        free = not self._waiting and self._may_have(owner)
        if free:
            self._take(owner)
        return free

    def wait(self, owner: Hashable, granted: Callable[[], object]) -> WaitingConnection:
        """Put a connection into the queue, until its place is granted or abandon() is called."""
        waiting = WaitingConnection(owner, granted)
        self._waiting.setdefault(owner, deque()).append(waiting)
        self._recall(1)
        self._serve()
        return waiting

    def abandon(self, waiting: WaitingConnection) -> bool:
        """Remove a connection from the queue. Return False if it has got a place, which the caller must leave()."""
        others = self._waiting.get(waiting.owner, ())
        if waiting not in others:
            return False
        self._remove(waiting)
        if not self._waiting:
            self._recall(0)
        self._serve()
        return True

    def leave(self, owner: Hashable) -> None:
        """Give a place back."""
        self.taken -= 1
        self._taken_by[owner] -= 1
        if not self._taken_by[owner]:
            del self._taken_by[owner]
        self._serve()

    def _may_have(self, owner: Hashable) -> bool:
        left, taken = self.most - self.taken, self._taken_by[owner]
        return bool(lib.iou_may_have(taken, 1, left) if taken else left)

    def _take(self, owner: Hashable) -> None:
        self.taken += 1
        self._taken_by[owner] += 1

    def _remove(self, waiting: WaitingConnection) -> None:
        others = self._waiting[waiting.owner]
        others.remove(waiting)
        if not others:
            del self._waiting[waiting.owner]

    def _serve(self) -> None:
        served = []
        while (owner := next(filter(self._may_have, self._waiting), None)) is not None:
            waiting = self._waiting[owner][0]
            self._remove(waiting)
            if owner in self._waiting:
                self._waiting.move_to_end(owner)
            self._take(owner)
            served.append(waiting)
        if served and not self._waiting:
            self._recall(0)
        for waiting in served:
            waiting.granted()
