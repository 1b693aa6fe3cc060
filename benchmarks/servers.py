# SPDX-License-Identifier: Apache-2.0
"""The two servers, each a process of its own, with the same settings, certificate and images."""

import contextlib
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.measure import processor_seconds
from tests.support.daemon import Certificates
from tests.support.http_client import Connection, connect_unix
from tests.support.polling import eventually

PROJECT = Path(__file__).resolve().parents[1]
OVIRT_IMAGEIO = PROJECT / ".cache/ovirt-imageio/bin/ovirt-imageio"

START_TIMEOUT = 30.0  # seconds

#: All that differs from what either server does by default: where it listens, and that it needs nothing from the host.
CONFIGURATION = """\
[daemon]
run_dir = {directory}
drop_privileges = false
systemd_enable = false
max_connections = 8

[tls]
key_file = {key}
cert_file = {certificate}
ca_file =

[remote]
host = 127.0.0.1
port = 0

[local]
socket = {directory}/local

[control]
transport = unix
socket = {directory}/control
"""

#: The level is the default of both; by default it would log to files below /var/log.
LOG_TO_STDERR = """
[handlers]
keys = stderr

[logger_root]
level = INFO
handlers = stderr
"""


@dataclass(frozen=True)
class Program:
    """How to run a server and to read its log."""

    name: str
    command: tuple[str, ...]
    configuration: str
    ready: str
    port: str
    checkout: Path = PROJECT  # where it is started


OURS = Program(
    "imageio-daemon",
    (sys.executable, "-m", "imageio_daemon"),
    CONFIGURATION,
    r"\bready\b",
    r"listening.*\bservice=remote\b.*\bport=(\d+)",
)
THEIRS = Program(
    "ovirt-imageio",
    (str(OVIRT_IMAGEIO),),
    CONFIGURATION + LOG_TO_STDERR,
    r"Ready for requests",
    r"remote\.service listening on \('127\.0\.0\.1', (\d+)\)",
)
PROGRAMS = (OURS, THEIRS)
#: Ours with its NBD service.
OURS_NBD = replace(
    OURS,
    configuration=CONFIGURATION + "\n[nbd]\nenable = true\nhost = 127.0.0.1\nport = 0\nsocket = {directory}/nbd\n",
)
#: Where its log tells the port of that.
NBD_PORT = r"listening.*\bservice=nbd\b.*\bport=(\d+)"


def before(checkout: Path) -> Program:
    """Return the server of another checkout of this project, built there by scripts/setup; with NBD."""
    python = checkout / ".venv/bin/python"
    if not python.exists():
        raise BenchmarkError(f"{checkout} is not built: run its scripts/setup")
    return replace(OURS_NBD, name="before", command=(str(python), "-m", "imageio_daemon"), checkout=checkout)


@dataclass(frozen=True)
class Server:
    """A running server."""

    program: Program
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def cpu(self) -> float:
        """Processor seconds of all threads so far."""
        return processor_seconds(self.pid)

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def check(self) -> None:
        """Raise BenchmarkError if the server has ended."""
        if self.process.poll() is not None:
            last = "\n".join(self.log().splitlines()[-20:])
            raise BenchmarkError(f"{self.name} ended with status {self.process.returncode}:\n{last}")

    def is_ready(self) -> bool:
        self.check()
        return re.search(self.program.ready, self.log()) is not None

    def address(self, transport: str) -> str:
        """Return the address of a service, tls or unix, as the load generator wants it."""
        if transport == "unix":
            return f"unix:{self.directory}/local"
        return f"tls:{self.port(self.program.port)}"

    def port(self, pattern: str) -> str:
        """Return the port that the log tells by a line of this pattern."""
        match = re.search(pattern, self.log())
        if match is None:
            raise BenchmarkError(f"{self.name} does not tell its port")
        return match[1]

    def add_ticket(self, image: Path | str, size: int, **fields: object) -> str:
        """Let clients read and write an image, a path or a url, and return the ticket's id."""
        ticket = {
            "uuid": secrets.token_hex(16),
            "url": f"file://{image}" if isinstance(image, Path) else image,
            "size": size,
            "timeout": 3600,
            "ops": ["read", "write"],
            "shared": True,  # servers that are compared have one image
            **fields,
        }
        self._control("PUT", str(ticket["uuid"]), json.dumps(ticket).encode())
        return str(ticket["uuid"])

    def remove_ticket(self, ticket_id: str) -> None:
        """Let the server close the image."""
        self._control("DELETE", ticket_id)

    def _control(self, method: str, ticket_id: str, body: bytes | None = None) -> None:
        with Connection(connect_unix(str(self.directory / "control"), timeout=START_TIMEOUT)) as connection:
            answer = connection.request(method, f"/tickets/{ticket_id}", None, body)
        if answer.status not in (200, 204):
            raise BenchmarkError(f"{self.name} refused {method} of a ticket: {answer}")

    def reset_peak_memory(self) -> None:
        """Let the peak start anew at what is in use now: proc(5), clear_refs."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_memory(self) -> int:
        """Return the most memory resident at once, in bytes."""
        match = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        if match is None:
            raise BenchmarkError(f"/proc does not tell the memory of {self.name}")
        return int(match[1]) * 1024


@contextlib.contextmanager
def running(program: Program, certificates: Certificates, directory: Path) -> Iterator[Server]:
    """Run a server in a new directory until the end of the block."""
    (directory / "conf.d").mkdir(parents=True)
    text = program.configuration.format(
        directory=directory, key=certificates.keyfile, certificate=certificates.certfile
    )
    (directory / "conf.d/benchmark.conf").write_text(text)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [*program.command, "-c", str(directory)],
            cwd=program.checkout,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    server = Server(program, directory, process)
    try:
        try:
            eventually(server.is_ready, f"{program.name} serves", timeout=START_TIMEOUT)
        except AssertionError as e:
            raise BenchmarkError(str(e)) from e
        yield server
        server.check()
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # At once: the images are thrown away, and ending in order takes one of them a second.
    process.kill()
    process.wait()
