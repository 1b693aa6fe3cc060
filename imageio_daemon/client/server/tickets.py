# SPDX-License-Identifier: Apache-2.0
"""Requests about tickets to the control socket of the daemon on this host (docs/images-api.md)."""

import json
import urllib.parse
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ..errors import ServerFailed
from .address import Endpoint, unix_address
from .connection import WORK_TIMEOUT, ClientConnection
from .stopping import Stop

DEFAULT_SOCKET = "/run/imageio-daemon/sock"


class Tickets:
    """The control service on a unix socket, `@NAME` for an abstract one. Methods block; they raise ClientError."""

    def __init__(self, socket: str = DEFAULT_SOCKET) -> None:
        self._connection = ClientConnection(Endpoint(socket, unix=unix_address(socket)), Stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def add(self, ticket: Mapping[str, object]) -> None:
        """Install a ticket, with the keys of docs/images-api.md."""
        self._request("PUT", str(ticket["uuid"]), ticket)

    def show(self, ticket_id: str) -> dict[str, Any]:
        """Return the state of a ticket."""
        answer: dict[str, Any] = self._json(ticket_id)
        return answer

    def list(self) -> list[dict[str, Any]]:
        """Return the states of all tickets."""
        answer: list[dict[str, Any]] = self._json("")
        return answer

    def extend(self, ticket_id: str, timeout: int) -> None:
        """Make a ticket expire timeout seconds from now."""
        self._request("PATCH", ticket_id, {"timeout": timeout})

    def cancel(self, ticket_id: str) -> None:
        """Remove a ticket; return when no operation uses its image any more."""
        self._request("DELETE", ticket_id)

    def _json(self, ticket_id: str) -> Any:
        try:
            return json.loads(self._request("GET", ticket_id))
        except ValueError as e:
            raise ServerFailed(f"{self._connection.endpoint.peer} is not a control socket") from e

    def _request(self, method: str, ticket_id: str, content: Mapping[str, object] | None = None) -> bytes:
        body = None if content is None else json.dumps(content).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        path = f"/tickets/{urllib.parse.quote(ticket_id, safe='')}"
        return self._connection.request(
            method, path, headers=headers, body=body, timeout=WORK_TIMEOUT, expected=(200, 204)
        ).body
