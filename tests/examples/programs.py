# SPDX-License-Identifier: Apache-2.0
"""Run the examples as a user does, and a server that answers them as the test says."""

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0


@dataclass(frozen=True)
class Result:
    """How a program ended and what it said."""

    status: int
    text: str

    def failed_with(self, pattern: str) -> None:
        """Check that the program failed with one line that matches, and nothing else."""
        assert self.status == 1, self
        assert re.fullmatch(f"(upload|download): [^\n]*(?:{pattern})[^\n]*\n", self.text), self


def command(name: str, *arguments: str | Path) -> list[str]:
    """Return the command line of an example. A ScriptedServer has no TLS, which has to be allowed."""
    given = list(map(str, arguments))
    allowed = ["--insecure"] if any(text.startswith("http://") for text in given) else []
    return [sys.executable, str(PROJECT / "examples" / name), *allowed, *given]


def run(name: str, *arguments: str | Path) -> Result:
    """Run an example to its end."""
    done = subprocess.run(
        command(name, *arguments), check=False, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, env=environment()
    )
    return Result(done.returncode, done.stderr)


def run_on_terminal(name: str, *arguments: str | Path) -> Result:
    """Run an example to its end with a terminal to show its progress on."""
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as terminal:
        process = subprocess.Popen(command(name, *arguments), stderr=slave, env=environment())
        os.close(slave)
        shown = b""
        # A terminal whose other end is closed gives EIO, not an end of file.
        with contextlib.suppress(OSError):
            while piece := terminal.read(4096):
                shown += piece
        return Result(process.wait(TIMEOUT), shown.decode())


def environment() -> dict[str, str]:
    """Return an environment in which only the given authorities are trusted."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT")}


def answer(status: str, body: object = "", *headers: str) -> bytes:
    """Make an answer; a body that is not text is sent as JSON."""
    content = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


def features(*names: str) -> bytes:
    """Make the answer to OPTIONS."""
    return answer("200 OK", {"features": names})


class ScriptedServer:
    """A server that gives one client the answers of a list, whatever it asks, and then closes the connection.

    An answer with "Connection: close", and an empty one, end their connection: the next answer is for the next one.
    None is no answer, until the client ends the connection.

    early: the last answer comes before the body of the request was read. hang: the connection stays open at the end
    and nothing is answered any more.
    """

    def __init__(self, *answers: bytes | None, early: bool = False, hang: bool = False) -> None:
        self.requests: list[str] = []
        self.bodies: list[bytes] = []
        self.done = threading.Event()
        self._answers = answers
        self._early = early
        self._hang = hang
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        """The URL of an image."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/images/some-ticket"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(TIMEOUT)
        self._listener.close()

    def _serve(self) -> None:
        answers = list(self._answers)
        self._serve_connection(answers)
        while answers:
            self._serve_connection(answers)

    def _serve_connection(self, answers: list[bytes | None]) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as stream:
            while answers:
                length = self._read_head(stream)
                if not (self._early and len(answers) == 1):
                    self.bodies.append(stream.read(length))
                raw = answers.pop(0)
                if raw is None:
                    self._drain(stream)
                    return
                connection.sendall(raw)
                if answers and (not raw or b"\r\nConnection: close\r\n" in raw):
                    return
            self.done.set()
            if self._early:
                connection.shutdown(socket.SHUT_WR)
            if self._early or self._hang:
                self._drain(stream)

    def _drain(self, stream: BinaryIO) -> None:
        with contextlib.suppress(ConnectionResetError):  # a client that was interrupted
            while stream.read(65536):
                pass

    def _read_head(self, stream: BinaryIO) -> int:
        """Read a request up to its body, and return the length of that."""
        self.requests.append(stream.readline().decode().rpartition(" ")[0])
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return length
