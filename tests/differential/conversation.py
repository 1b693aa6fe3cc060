# SPDX-License-Identifier: Apache-2.0
"""What a client says on one connection, as data: the same bytes for every server; and what each answered."""

import contextlib
import itertools
import json
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from tests.support.daemon import Daemon
from tests.support.http_client import Connection, DisconnectedError, ProtocolError

#: What differs between two servers that answer alike: by lower-case name of the field.
_OWN_FIELDS = {"date": "DATE", "etag": "TAG"}
#: The same in the JSON of OPTIONS.
_OWN_KEYS = {
    "available": "AVAILABLE",
    "instance": "INSTANCE",
    "unix_socket": "SOCKET",
    "unix_socket_proof": "PROOF",
}

#: A server that says nothing for so long is waiting, in seconds: longer than it reads what it has refused.
SILENCE = 5.0


class Round(NamedTuple):
    """Pieces to send, one after the other, and the methods of the requests whose answers come then.

    An answer of 100 is one of its own.
    """

    pieces: tuple[bytes, ...]
    methods: tuple[str, ...]


class End(Enum):
    """What the client does when all is said."""

    ASKS_AGAIN = "it asks for a byte, to see whether the connection goes on"
    ENDS_SENDING = "it sends no more, and reads until the server closes"


@dataclass(frozen=True)
class Conversation:
    """All of it. name: what it is about."""

    name: str
    rounds: tuple[Round, ...]
    end: End = End.ASKS_AGAIN

    def __str__(self) -> str:
        return self.name

    def after(self, *rounds: Round) -> "Conversation":
        """Return it with something said before it."""
        return replace(self, rounds=(*rounds, *self.rounds))


class Told(NamedTuple):
    """One answer. fields: in the order of their names, what is a server's own left out. body: whole, or None."""

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
    """What a server did: its answers, and how the connection ended."""

    answers: list[Told] = field(default_factory=list)
    end: str = ""

    def __str__(self) -> str:
        return "\n".join([*(f"    {answer}" for answer in self.answers), f"    then {self.end}"])


def request(method: str, target: str, *lines: str, body: bytes | None = None) -> bytes:
    """Return the bytes of a request. lines: of the head, as they are; Host and the body's length if none has them."""
    given = {line.partition(":")[0].lower() for line in lines}
    head = [f"{method} {target} HTTP/1.1"]
    if "host" not in given:
        head.append("Host: localhost")
    head += lines
    if body is not None and not given & {"content-length", "transfer-encoding"}:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + (body or b"")


def one(name: str, sent: bytes, *, end: End = End.ASKS_AGAIN) -> Conversation:
    """Return the conversation of one request."""
    return Conversation(name, (exchange(sent),), end)


def exchange(*sent: bytes) -> Round:
    """Return a round of whole requests, sent at once."""
    return Round((b"".join(sent),), tuple(_method(each) for each in sent))


def split(sent: bytes, *at: int) -> Round:
    """Return a round of one request, sent in pieces that end there."""
    ends = [0, *at, len(sent)]
    return Round(tuple(sent[start:end] for start, end in itertools.pairwise(ends)), (_method(sent),))


def _method(sent: bytes) -> str:
    return sent.lstrip(b"\r\n").partition(b" ")[0].decode("latin-1")


def hold(conversation: Conversation, daemon: Daemon, service: str, probe: bytes) -> Transcript:
    """Have the conversation with a daemon. probe: the request that asks for a byte."""
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
        # Who closes early has answered before, and that is read.
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
