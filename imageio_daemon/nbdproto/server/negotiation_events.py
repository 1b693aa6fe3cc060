# SPDX-License-Identifier: Apache-2.0
"""Events of the server's negotiation, each of which the caller has to act on."""

from dataclasses import dataclass

from .transmission import Transmission


@dataclass(frozen=True)
class FindExport:
    """Look up the export and call found() or refused()."""

    name: str
    #: The client enters the export (GO, EXPORT_NAME), which cannot be refused after found().
    enter: bool
    #: The client has asked for a dirty bitmap. If the image should have one that cannot be read, call refused().
    changes: bool = False


@dataclass(frozen=True)
class StartTls:
    """Send the output, complete the TLS handshake, and call tls_started()."""


@dataclass(frozen=True)
class Transmit:
    """Send the output and begin the transmission phase. `rest` has the bytes received after the negotiation."""

    transmission: Transmission
    rest: bytes


@dataclass(frozen=True)
class Close:
    """Send the output and close. `reason` is the client's violation, for the log, or None if the client has left."""

    reason: str | None = None


Event = FindExport | StartTls | Transmit | Close
