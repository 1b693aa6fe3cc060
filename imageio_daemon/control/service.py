# SPDX-License-Identifier: Apache-2.0
"""Requests to the control socket of the daemon on this host (docs/images-api.md), and the errors of imageioctl.

There is a class for each exit status. The message of an error is one line.
"""

import http.client
import json
import os
import socket
import urllib.parse
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from ..errors import Error


class ControlError(Error):
    """The base class, also of errors without a class of their own. `status` is the exit status of the command."""

    status: ClassVar[int] = 1


class Usage(ControlError):
    """The arguments are invalid, or contradict each other."""

    status = 2


class NoSuchTicket(ControlError):
    """There is no ticket with this name or id, or there are several."""

    status = 3


class Unreachable(ControlError):
    """Nothing answers at the control socket, or something that is not the daemon."""

    status = 4


DEFAULT_SOCKET = "/run/imageio-daemon/sock"
#: Seconds to wait for an answer. The removal of a ticket waits for at most the largest [control] remove_timeout.
TIMEOUT = 60.0
REMOVE_TIMEOUT = 3660.0
#: Most bytes of an error's text that are shown.
MAX_REASON = 1000


class ControlService:
    """The control service on a unix socket. Methods block, and raise ControlError, Unreachable or NoSuchTicket."""

    def __init__(self, path: str = DEFAULT_SOCKET) -> None:
        self._path = path
        self._connection = _UnixConnection(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next request makes another one."""
        self._connection.close()

    # Tickets

    def tickets(self, **only: str) -> list[dict[str, Any]]:
        """Return the states of all tickets. `transfer` selects those with this name, `in_use="y"` those in use."""
        told: list[dict[str, Any]] = self.get(f"/tickets/?{urllib.parse.urlencode(only)}" if only else "/tickets/")
        return told

    def add(self, ticket: Mapping[str, object]) -> None:
        """Install a ticket, with the keys of docs/images-api.md."""
        self._request("PUT", _ticket_path(str(ticket["uuid"])), ticket)

    def ticket(self, ticket_id: str) -> dict[str, Any]:
        """Return the state of a ticket."""
        told: dict[str, Any] = self.get(_ticket_path(ticket_id))
        return told

    def change(self, ticket_id: str, changes: Mapping[str, int]) -> None:
        """Let a ticket expire `timeout` seconds from now, or limit it to `rate` bytes per second; 0 is no limit."""
        self.patch(_ticket_path(ticket_id), changes)

    def remove(self, ticket_id: str) -> None:
        """Remove a ticket, and return when no operation uses its image any more. There need not be such a ticket."""
        self._request("DELETE", _ticket_path(ticket_id), timeout=REMOVE_TIMEOUT)

    # Any resource

    def get(self, path: str) -> Any:
        """Return the JSON document at a path."""
        return self._decoded(self._request("GET", path))

    def ready(self) -> tuple[bool, str]:
        """Return whether the daemon serves, and what it says about that."""
        status, content = self._exchange("GET", "/readyz", None, TIMEOUT)
        return status == 200, content.decode(errors="replace").strip()

    def put(self, path: str, document: Mapping[str, object]) -> Any:
        """Put a JSON document, and return the answer's."""
        return self._decoded(self._request("PUT", path, document))

    def patch(self, path: str, changes: Mapping[str, object]) -> Any:
        """Change the named values of a JSON document. Return the answer's document, or None if it has none."""
        body = self._request("PATCH", path, changes)
        return self._decoded(body) if body else None

    def _decoded(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise Unreachable(f"{self._path} is not the control socket of imageio-daemon") from None

    def _request(
        self, method: str, path: str, document: Mapping[str, object] | None = None, *, timeout: float = TIMEOUT
    ) -> bytes:
        body = None if document is None else json.dumps(document).encode()
        status, content = self._exchange(method, path, body, timeout)
        if status in (200, 204):
            return content
        if status == 404 and path.startswith("/tickets/"):
            raise NoSuchTicket("there is no such ticket")
        raise ControlError(f"the daemon refuses: {status} {content[:MAX_REASON].decode(errors='replace').strip()}")

    def _exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        """Return status and body of an answer. Raises Unreachable."""
        try:
            self._connection.prepare(timeout)
            self._connection.request(method, path, body)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except OSError as e:
            self._connection.close()
            raise Unreachable(f"{self._path}: {_why(e)}") from None
        except http.client.HTTPException:
            self._connection.close()
            raise Unreachable(f"{self._path} does not answer as the control socket of imageio-daemon") from None


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._unix_path = path

    def prepare(self, timeout: float) -> None:
        """Set the seconds to wait for each step of the next request."""
        self.timeout = timeout
        if self.sock is not None:
            self.sock.settimeout(timeout)

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self._unix_path)
        except OSError:
            sock.close()
            raise
        self.sock = sock


def _ticket_path(ticket_id: str) -> str:
    return f"/tickets/{urllib.parse.quote(ticket_id, safe='', errors='surrogateescape')}"


def _why(error: OSError) -> str:
    """Return the reason of an error, and what to do about it."""
    match error:
        case TimeoutError():
            return "the daemon does not answer"
        case FileNotFoundError() | ConnectionRefusedError():
            return f"{error.strerror}: is imageio-daemon running? (systemctl status imageio-daemon)"
        case PermissionError():
            return f"{error.strerror}: only root and the group of the service may use it (user {os.geteuid()} may not)"
    return error.strerror or str(error)
