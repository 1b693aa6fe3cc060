# SPDX-License-Identifier: Apache-2.0
"""A daemon in a process of its own, seen from outside: its sockets, its log, its /proc entries.

Every daemon that a test starts is also checked at its end: it stops on SIGTERM with status 0, its log has no ticket
id, and every exception was handled.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import trustme

from tests.support.http_client import Answer, Connection, connect_tcp, connect_tls, connect_unix
from tests.support.manager import Manager
from tests.support.openapi import CONTROL, IMAGES
from tests.support.polling import SOON, eventually
from tests.support.processes import open_files

PROJECT = Path(__file__).resolve().parents[2]

#: Started with leaks made visible in the log.
_WITH_LEAKS: tuple[str, ...] = ("-W", "default::ResourceWarning", "-m")
_PYTHON: tuple[str, ...] = (sys.executable, *_WITH_LEAKS)
PROGRAM = "imageio_daemon"
#: The same, and the log names requests that C could have served and did not get.
EAGER_PROGRAM = "tests.support.eager"
#: A daemon in which Python decides all requests, even plain ones.
DECIDED_PROGRAM = "tests.support.decided"
#: The same on slow storage.
SLOW_PROGRAM = "tests.support.slow"
#: A daemon whose periodic checks run often.
PROMPT_PROGRAM = "tests.support.prompt"

START_TIMEOUT = 30.0
#: More than the shutdown_timeout of a daemon under test.
STOP_TIMEOUT = 20.0

#: A pattern that is never in the log of a healthy daemon.
_ACCIDENTS = re.compile(r"Traceback \(most recent|never retrieved|never awaited|was destroyed|ResourceWarning|Fatal")

Section = Mapping[str, object]


@dataclass(frozen=True)
class Certificates:
    """Files of a certificate authority and of a server's and a client's certificate that it signed."""

    ca: trustme.CA
    cafile: Path
    certfile: Path
    keyfile: Path
    client_certfile: Path

    @classmethod
    def make(cls, directory: Path, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> Self:
        """Write the files. The server's certificate is for localhost and the two loopback addresses."""
        ca = trustme.CA()
        server = ca.issue_cert("localhost", "127.0.0.1", "::1", key_type=key_type)
        client = ca.issue_cert("client@example.org")
        made = cls(ca, *(directory / name for name in ("ca.pem", "cert.pem", "key.pem", "client.pem")))
        ca.cert_pem.write_to_path(str(made.cafile))
        server.cert_chain_pems[0].write_to_path(str(made.certfile))
        server.private_key_pem.write_to_path(str(made.keyfile))
        client.private_key_and_cert_chain_pem.write_to_path(str(made.client_certfile))
        return made

    def issue(self, directory: Path, host: str) -> dict[str, Path]:
        """Write the certificate of another host and its key, and return them as [tls] of the configuration."""
        issued = self.ca.issue_cert(host)
        files = {"cert_file": directory / "cert.pem", "key_file": directory / "key.pem"}
        issued.cert_chain_pems[0].write_to_path(str(files["cert_file"]))
        issued.private_key_pem.write_to_path(str(files["key_file"]))
        return files


#: As [daemon] state_dir: a state directory of the daemon's own, which restart() finds again.
STATE = object()


class Daemon:
    """One running daemon. It has its own `directory`, which is removed at the end.

    `config` has sections of the configuration, which replace defaults for tests (a free port, path sockets). The log
    has its usual level. `program` is another module to run as the daemon, and `checkout` another work tree of this
    project, built by its scripts/setup. The daemon notifies the `manager`, which keeps its sockets during a restart.
    `wrapper` is the beginning of a command line that runs the daemon elsewhere, in the same process.
    """

    def __init__(
        self,
        certificates: Certificates,
        config: Mapping[str, Section] | None = None,
        *,
        arguments: Sequence[str] = (),
        program: str = PROGRAM,
        checkout: Path | None = None,
        manager: Manager | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self._manager = manager
        self.certificates = certificates
        # Not below pytest's directory, because the path of a unix socket may have only 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="imageio-"))
        self.log = Log()
        self._config = self._with_defaults(config or {})
        self.eager = program == EAGER_PROGRAM
        self._checkout = checkout or PROJECT
        python = _PYTHON if checkout is None else (str(checkout / ".venv/bin/python"), *_WITH_LEAKS)
        self._command = [*wrapper, *python, program, "-c", str(self.directory), *arguments]
        self._secrets: set[str] = set()
        self._process: subprocess.Popen[str] | None = None
        self._ended = False  # a test has ended the process on purpose

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.stop()
        finally:
            self.kill()
            shutil.rmtree(self.directory, ignore_errors=True)

    # Process

    def start(self) -> None:
        """Start the process and wait until it serves."""
        write_config(self.directory / "conf.d" / "test.conf", self._config)
        manager = self._manager
        self._process = subprocess.Popen(
            self._command if manager is None else manager.command(self._command),
            cwd=self._checkout,
            # A crash writes where each thread was in Python.
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **({} if manager is None else manager.environment())},
            pass_fds=() if manager is None else manager.descriptors(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
        )
        assert self._process.stderr is not None
        self.log.follow(self._process.stderr)
        try:
            eventually(self._ready, "the daemon serves", timeout=START_TIMEOUT)
        except BaseException as error:
            self.kill()
            error.add_note(f"its log:\n{self.log.text()}")
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the daemon ended with status {self._process.returncode}:\n{self.log.text()}")
        return self.log.find(r"\bready\b") is not None

    def stop(self, *, timeout: float = STOP_TIMEOUT, status: int = 0) -> None:
        """Stop the daemon as systemd does, and check how it ends."""
        assert self._process is not None
        if self._ended:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        got = self.wait(timeout)
        assert got == status, f"the daemon ended with status {got}:\n{self.log.text()}"

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait for the end of the process, check its log, and return its exit status."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon does not end:\n{self.log.text()}") from None
        self._ended = True
        self.log.join()
        self.check_log()
        return status

    def kill(self) -> None:
        """End the process without a chance to clean up."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._ended = True
            self.log.join()

    def restart(self) -> None:
        """Start the process again, in the same directory, after it has ended."""
        self.log = Log()
        self._ended = False
        self.start()

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def served(self, service: str, by: str) -> dict[str, int]:
        """Return the counts of a service: requests, received, sent, refused and failed. `by` is lane or python."""
        answer = self.control("GET", "/status")
        assert answer.status == 200, answer
        none = {"requests": 0, "received": 0, "sent": 0, "refused": 0, "failed": 0}
        counts: dict[str, int] = answer.json()["served"].get(service, {}).get(by, none)
        return counts

    def served_by_lane(self) -> int:
        """Return how many requests of HTTP for images C has served so far."""
        return sum(self.served(service, "lane")["requests"] for service in ("remote", "local"))

    def check_log(self) -> None:
        """Fail if the new part of the log holds a ticket id or the trace of an accident."""
        for line in self.log.unchecked():
            for secret in self._secrets:
                assert secret not in line, f"a ticket id in the log: {line}"
            assert not _ACCIDENTS.search(line), f"an accident in the log:\n{self.log.around(line)}"

    # Addresses

    @property
    def port(self) -> int:
        """The port of the remote service."""
        return self._port_of("remote")

    @property
    def control_port(self) -> int:
        """The port of the control service, where it runs over TCP."""
        return self._port_of("control")

    def _port_of(self, service: str) -> int:
        # The text has service=remote … port=54322, the JSON has "service": "remote", … "port": 54322.
        match = self.log.find(rf"listening.*\bservice\W+{service}\b.*\bport\W+(\d+)")
        assert match is not None
        return int(match[1])

    @property
    def cafile(self) -> Path:
        return self.certificates.cafile

    @property
    def local_socket(self) -> str:
        """The address of the local service, in the form that the kernel takes."""
        address = str(self._config["local"]["socket"])
        return "\0" + address[1:] if address.startswith("@") else address

    @property
    def control_socket(self) -> str:
        return str(self.directory / "control")

    def url(self, ticket_id: str, *, host: str = "localhost") -> str:
        """Return the https URL of an image."""
        return f"https://{host}:{self.port}/images/{ticket_id}"

    def connect(self, service: str, *, timeout: float = 20.0) -> Connection:
        """Connect to a service: tls, unix or control, or tcp if the configuration has no TLS."""
        described = CONTROL if service == "control" else IMAGES
        return Connection(self._socket(service, timeout), described if self._checkout == PROJECT else None)

    def _socket(self, service: str, timeout: float) -> socket.socket:
        if service == "tls":
            context = ssl.create_default_context(cafile=str(self.cafile))
            return connect_tls("localhost", self.port, context, timeout=timeout)
        if service == "tcp":
            return connect_tcp("localhost", self.port, timeout=timeout)
        return connect_unix(self.local_socket if service == "unix" else self.control_socket, timeout=timeout)

    # Tickets

    def control(self, method: str, target: str, body: bytes | None = None) -> Answer:
        """Send one request to the control service on a new connection, as managers do."""
        with self.connect("control", timeout=60) as connection:
            return connection.request(method, target, None, body)

    def add_ticket(self, path: Path | str, size: int, **fields: Any) -> str:
        """Install a ticket that may write, unless `ops` says otherwise, and return its id."""
        return self.put_ticket(ticket(path, size, **fields))

    def put_ticket(self, fields: Mapping[str, Any]) -> str:
        """Install a ticket with these fields."""
        ticket_id: str = fields["uuid"]
        self.hide(ticket_id)
        answer = self.control("PUT", f"/tickets/{ticket_id}", json.dumps(fields).encode())
        assert answer.status == 200, answer
        return ticket_id

    def hide(self, ticket_id: str) -> None:
        """Fail at the end of the test if the log has this ticket id."""
        self._secrets.add(ticket_id)

    def status(self, ticket_id: str) -> dict[str, Any]:
        """Return the status of a ticket from the control service."""
        answer = self.control("GET", f"/tickets/{ticket_id}")
        assert answer.status == 200, answer
        status: dict[str, Any] = answer.json()
        return status

    def extend(self, ticket_id: str, timeout: int) -> None:
        """Let a ticket expire timeout seconds from now; 0 lets it expire now."""
        answer = self.control("PATCH", f"/tickets/{ticket_id}", b'{"timeout": %d}' % timeout)
        assert answer.status == 200, answer

    def remove(self, ticket_id: str) -> None:
        """Remove a ticket."""
        answer = self.control("DELETE", f"/tickets/{ticket_id}")
        assert answer.status == 204, answer

    # What the process holds

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def descriptors(self) -> list[str]:
        """Return the targets of the process's descriptors."""
        return list(open_files(self.pid).values())

    def has_open(self, path: Path) -> bool:
        """Return whether the process has the file open."""
        return str(path.resolve()) in self.descriptors()

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def resident_memory(self) -> int:
        """Return the memory in use, in bytes."""
        return self._memory("VmRSS")

    def peak_memory(self) -> int:
        """Return the most memory ever in use, in bytes."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        match = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    def _with_defaults(self, config: Mapping[str, Section]) -> dict[str, dict[str, object]]:
        certificates = self.certificates
        merged: dict[str, dict[str, object]] = {
            "daemon": {
                "run_dir": self.directory,
                "drop_privileges": False,
                "systemd_enable": self._manager is not None,
                "shutdown_timeout": 5,
            },
            "tls": {"cert_file": certificates.certfile, "key_file": certificates.keyfile},
            "remote": {"port": 0},
            "local": {"socket": self.directory / "local"},
            "control": {"socket": self.control_socket},
        }
        for section, options in config.items():
            merged.setdefault(section, {}).update(options)
        if merged["daemon"].get("state_dir") is STATE:
            merged["daemon"]["state_dir"] = self.directory / "state"
        return merged


def ticket(path: Path | str, size: int, **fields: Any) -> dict[str, Any]:
    """Return the JSON of a ticket with an id of its own."""
    return {
        "uuid": secrets.token_hex(16),
        "url": f"file://{path}",
        "size": size,
        "timeout": 300,
        "ops": ["write"],
        **fields,
    }


def write_config(path: Path, config: Mapping[str, Section]) -> None:
    """Write an INI file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for section, options in config.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {value}" for name, value in options.items()]
    path.write_text("\n".join(lines) + "\n")


class Log:
    """The lines that a process wrote, collected while it runs."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._checked = 0
        self._thread: threading.Thread | None = None

    def follow(self, stream: IO[str]) -> None:
        """Collect lines until the stream ends."""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line.rstrip("\n"))

    def join(self) -> None:
        """Wait until the stream has ended."""
        if self._thread is not None:
            self._thread.join()

    def lines(self) -> list[str]:
        return list(self._lines)

    def text(self) -> str:
        return "\n".join(self.lines())

    def find(self, pattern: str, *, start: int = 0) -> re.Match[str] | None:
        """Return the first match in a line at or after start, or None."""
        return next((match for line in self.lines()[start:] if (match := re.search(pattern, line))), None)

    def wait_for(self, pattern: str, *, start: int = 0, timeout: float = SOON) -> re.Match[str]:
        """Return the first match as soon as there is one."""
        eventually(lambda: self.find(pattern, start=start), f"{pattern!r} in the log", timeout=timeout)
        match = self.find(pattern, start=start)
        assert match is not None
        return match

    def end(self) -> int:
        """Return the number of lines so far, which is the place of the next line."""
        return len(self._lines)

    def around(self, line: str, context: int = 40) -> str:
        """Return the line and the lines that follow it."""
        lines = self.lines()
        start = lines.index(line)
        return "\n".join(lines[max(0, start - 3) : start + context])

    def unchecked(self) -> list[str]:
        """Return the lines that came since the last call."""
        lines = self.lines()[self._checked :]
        self._checked += len(lines)
        return lines


class Baseline:
    """The descriptors of an idle daemon that was used before, to check later that it has no more."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._use_storage()
        self._descriptors = daemon.descriptors()

    def _use_storage(self) -> None:
        """Have the daemon do storage I/O, because it opens some descriptors at the first I/O, and keeps them."""
        path = self._daemon.directory / "baseline"
        path.write_bytes(bytes(4096))
        ticket_id = self._daemon.add_ticket(path, 4096, inactivity_timeout=60)
        with self._daemon.connect("unix") as connection:
            connection.request("OPTIONS", f"/images/{ticket_id}")  # opens the image, so C can serve the next one
            assert connection.get(f"/images/{ticket_id}").status == 200
        eventually(lambda: self._daemon.status(ticket_id)["connections"] == 0, "nobody is connected")
        self._daemon.remove(ticket_id)

    def check(self) -> None:
        """Wait until every descriptor that was opened since is closed."""
        try:
            eventually(lambda: len(self._daemon.descriptors()) <= len(self._descriptors), "descriptors are closed")
        except AssertionError as e:
            more = Counter(self._daemon.descriptors()) - Counter(self._descriptors)
            raise AssertionError(f"{e}: {dict(more)}") from None


def run_to_end(arguments: Sequence[str], *, timeout: float = START_TIMEOUT) -> subprocess.CompletedProcess[str]:
    """Run the daemon's command with arguments that make it end by itself."""
    return subprocess.run(
        [*_PYTHON, PROGRAM, *arguments], check=False, cwd=PROJECT, capture_output=True, text=True, timeout=timeout
    )


def now() -> float:
    """Return the time of the clock that `expires` uses."""
    return time.monotonic()


MakeDaemon = Callable[..., Daemon]
