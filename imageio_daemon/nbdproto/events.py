# SPDX-License-Identifier: Apache-2.0
"""What the server's negotiation asks its caller to do."""

from dataclasses import dataclass

from .transmission import Transmission


@dataclass(frozen=True)
class FindExport:
    """Look the export up and answer with found() or refused()."""

    name: str
    #: The client is about to use it: the last moment to refuse.
    enter: bool


@dataclass(frozen=True)
class StartTls:
    """Send the output, make the connection a TLS one, and say tls_started()."""


@dataclass(frozen=True)
class Transmit:
    """Send the output and serve requests. `rest`: bytes that came after the negotiation."""

    transmission: Transmission
    rest: bytes


@dataclass(frozen=True)
class Close:
    """Send the output and close. `reason`: what the client did wrong; None when it just leaves."""

    reason: str | None = None


Event = FindExport | StartTls | Transmit | Close
