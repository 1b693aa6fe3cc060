# SPDX-License-Identifier: Apache-2.0
"""`/local/{question}`, by which the local service proves that its unix socket is the daemon's (docs/adr/0044)."""

import hmac
import re
import secrets

from aiohttp import web

from ....errors import NotFound
from ..request import exchange_of, name_of
from ..responses import json_response
from ..routes import Resource

#: A question has 128 bits.
QUESTION = re.compile("[0-9a-f]{32}")


class LocalService:
    """Say where the local service is, and prove to clients that it is the daemon's.

    `address` is that of the unix socket, if there is one. `place` is the place to which the address leads; see
    place_of(). If it is None, there is no proof.
    """

    def __init__(self, address: str | None, place: str | None) -> None:
        self._address = address
        self._place = place
        self._key = secrets.token_bytes(32)

    def told(self, request: web.Request) -> dict[str, object]:
        """Return the part of OPTIONS about the local service: its address, and a question with its answer.

        The client compares this answer, which comes by TLS, with the one from the unix socket. A client on a unix
        socket gets neither: there may be a proxy in front of the socket, which would ask for everybody.
        """
        if self._address is None:
            return {}
        if self._place is None or exchange_of(request).is_local:
            return {"unix_socket": self._address}
        question = secrets.token_hex(16)
        proof = {"place": self._place, "question": question, "answer": self._answer(question)}
        return {"unix_socket": self._address, "unix_socket_proof": proof}

    def resource(self) -> Resource:
        """Return the resource `/local/{}`."""
        return Resource({"GET": self._get}, ("GET",))

    async def _get(self, request: web.Request) -> web.Response:
        """Answer a question, on the unix socket only. By TCP, another program could get the answer and pass it on."""
        question = name_of(request)
        if not exchange_of(request).is_local or not QUESTION.fullmatch(question):
            raise NotFound("No such resource")
        return json_response({"answer": self._answer(question)})

    def _answer(self, question: str) -> str:
        return hmac.digest(self._key, question.encode(), "sha256").hex()
