# SPDX-License-Identifier: Apache-2.0
"""The phase of a connection, which all its parts share."""

import enum
from dataclasses import dataclass


class State(enum.Enum):
    """What a connection does now."""

    IDLE = "between requests"
    SERVING = "in a request"
    HANDED_OVER = "served by C, or waiting until its image is open or a lane is free"
    DISCARDING = "reading what nobody wants, before it closes"
    CLOSED = "closed, though the last bytes may be on their way"


@dataclass
class Phase:
    """The state of one connection."""

    state: State = State.IDLE

    @property
    def ends(self) -> bool:
        """Tell whether no further answer can be sent."""
        return self.state in (State.DISCARDING, State.CLOSED)
