# SPDX-License-Identifier: Apache-2.0
"""Conversations: the bytes that a client sends on a connection, and the answers of a server."""

import contextlib
import itertools
import json
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from tests.support.daemon import Daemon
from tests.support.http_client import Connection, DisconnectedError, ProtocolError

#: Fields that differ between two servers that answer alike, by lower-case name, with the value to compare instead.
_OWN_FIELDS = {"date": "DATE", "etag": "TAG"}
#: Keys in the JSON of OPTIONS for which the same holds.
_OWN_KEYS = {
    "available": "AVAILABLE",
    "instance": "INSTANCE",
    "unix_socket": "SOCKET",
    "unix_socket_proof": "PROOF",
}

#: A server that sends nothing for this many seconds is waiting. It is more than a server reads a refused body.
SILENCE = 5.0


class Round(NamedTuple):
    """Pieces to send, one after the other, and the methods of the requests that are answered after that.

    An answer 100 counts as an answer.
    """

    pieces: tuple[bytes, ...]
    methods: tuple[str, ...]


class End(Enum):
    """The client's action at the end of a conversation."""

    ASKS_AGAIN = "it asks for a byte, to see whether the connection goes on"
    ENDS_SENDING = "it sends no more, and reads until the server closes"


@dataclass(frozen=True)
class Conversation:
    """A whole conversation. Its name says what it is about."""

    name: str
    rounds: tuple[Round, ...]
    end: End = End.ASKS_AGAIN

    def __str__(self) -> str:
        return self.name

    def after(self, *rounds: Round) -> "Conversation":
        """Return this conversation after these rounds."""
        return replace(self, rounds=(*rounds, *self.rounds))


class Told(NamedTuple):
    """An answer. The fields are sorted by name, without a server's own values. `body` is None if it was cut."""

    status: int
    version: str
    fields: tuple[tuple[str, str], ...]
    body: bytes | None

    def __str__(self) -> str:
        fields = "".join(f" {name}: {value};" for name, value in self.fields)
        body = "cut" if self.body is None else _shortened(self.body)
        return f"HTTP/{self.version} {self.status}{fields} body {body}"


@dataclass
class Transcript:
    """The answers of a server, and the end of the connection."""

    answers: list[Told] = field(default_factory=list)
    end: str = ""

    def __str__(self) -> str:
        return "\n".join([*(f"    {answer}" for answer in self.answers), f"    then {self.end}"])


def request(method: str, target: str, *lines: str, body: bytes | None = None) -> bytes:
    """Return the bytes of a request with these lines in its head. Host and Content-Length are added if missing."""
    given = {line.partition(":")[0].lower() for line in lines}
    head = [f"{method} {target} HTTP/1.1"]
    if "host" not in given:
        head.append("Host: localhost")
    head += lines
    if body is not None and not given & {"content-length", "transfer-encoding"}:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + (body or b"")


def one(name: str, sent: bytes, *, end: End = End.ASKS_AGAIN) -> Conversation:
    """Return a conversation with one request."""
    return Conversation(name, (exchange(sent),), end)


def exchange(*sent: bytes) -> Round:
    """Return a round of whole requests that are sent at once."""
    return Round((b"".join(sent),), tuple(_method(each) for each in sent))


def split(sent: bytes, *at: int) -> Round:
    """Return a round of one request, which is sent in pieces that end at these offsets."""
    ends = [0, *at, len(sent)]
    return Round(tuple(sent[start:end] for start, end in itertools.pairwise(ends)), (_method(sent),))


def _method(sent: bytes) -> str:
    return sent.lstrip(b"\r\n").partition(b" ")[0].decode("latin-1")


def hold(conversation: Conversation, daemon: Daemon, service: str, probe: bytes) -> Transcript:
    """Hold the conversation with a daemon. `probe` is a request for one byte, to see whether the connection goes on."""
    transcript = Transcript()
    with daemon.connect(service, timeout=SILENCE) as connection:
        try:
            for each in conversation.rounds:
                _speak(connection, each, transcript)
            if conversation.end is End.ASKS_AGAIN and not _closes(transcript):
                _speak(connection, Round((probe,), ("GET",)), transcript)
                transcript.end = "the connection goes on"
            else:
                connection.end_sending()
                while True:
                    transcript.answers.append(_receive(connection, "GET"))
        except DisconnectedError as e:
            transcript.end = "closed in the middle of an answer" if e.received else "closed"
        except TimeoutError:
            transcript.end = "silence"
        except ProtocolError as e:
            transcript.end = f"no HTTP: {e}"
    return transcript


def _closes(transcript: Transcript) -> bool:
    return bool(transcript.answers) and ("connection", "close") in transcript.answers[-1].fields


def _speak(connection: Connection, each: Round, transcript: Transcript) -> None:
    for piece in each.pieces:
        # A server that closes early has answered before, and this answer is read below.
        with contextlib.suppress(ConnectionError, OSError):
            connection.send(piece)
    for method in each.methods:
        transcript.answers.append(_receive(connection, method))


def _receive(connection: Connection, method: str) -> Told:
    answer = connection.receive(to=method)
    fields = [(name.lower(), _OWN_FIELDS.get(name.lower(), value)) for name, value in answer.headers.fields]
    body = answer.body
    if ("content-type", "application/json") in fields and b'"instance"' in body:
        told = json.loads(body)
        body = json.dumps({key: _OWN_KEYS.get(key, value) for key, value in told.items()}).encode()
        fields = [(name, str(len(body)) if name == "content-length" else value) for name, value in fields]
    fields = [(name, value.lower() if name == "connection" else value) for name, value in fields]
    return Told(answer.status, answer.version, tuple(sorted(fields)), body)


def _shortened(data: bytes) -> str:
    text = repr(data[:100])
    return text if len(data) <= 100 else f"{text}... {len(data)} bytes"
