# SPDX-License-Identifier: Apache-2.0
"""A private daemon, with a configuration that needs nothing from the host."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

START_TIMEOUT = 30  # seconds
STOP_TIMEOUT = 40  # seconds; the daemon gives running requests 30

CONFIGURATION = """\
[daemon]
run_dir = {directory}
drop_privileges = false
systemd_enable = false

[tls]
enable = true
key_file = {directory}/key.pem
cert_file = {directory}/cert.pem
ca_file =

[remote]
host = 127.0.0.1
port = 0

[local]
enable = true
socket = {directory}/local.sock

[control]
enable = true
transport = unix
socket = {directory}/control.sock

[log]
level = info
format = text
"""

LISTENING = re.compile(r"\blistening\b.*\bservice=remote\b.*\bport=(\d+)")


class DaemonError(Exception):
    """The daemon failed. The message is one line."""


class Daemon:
    """A running daemon."""

    def __init__(self, directory: Path, log: Callable[[str], object]) -> None:
        self.directory = directory
        self.cafile = directory / "cert.pem"
        self.local_socket = directory / "local.sock"
        self.control_socket = directory / "control.sock"
        self.port = 0
        self._log = log
        self._listening = threading.Event()
        self._process: subprocess.Popen[str]

    def start(self) -> None:
        """Start the daemon and wait until it listens."""
        make_certificate(self.directory)
        conf_d = self.directory / "conf.d"
        conf_d.mkdir()
        (conf_d / "daemon.conf").write_text(CONFIGURATION.format(directory=self.directory))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "imageio_daemon", "-c", str(self.directory)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # Ctrl-C must not reach the daemon, which stop() ends
        )
        self._pump = threading.Thread(target=self._read_log, daemon=True)
        self._pump.start()
        self._listening.wait(START_TIMEOUT)
        if not self.port:
            self.stop()
            raise DaemonError("the daemon did not start")

    def _read_log(self) -> None:
        assert self._process.stderr
        with self._process.stderr:
            for line in self._process.stderr:
                self._log(line)
                if match := LISTENING.search(line):
                    self.port = int(match[1])
                    self._listening.set()
        self._listening.set()  # the daemon has ended: start() must not wait

    def wait(self) -> int:
        """Wait until the daemon ends by itself, and return its exit status."""
        return self._process.wait()

    def stop(self) -> int:
        """Stop the daemon as systemd does, and return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._pump.join()
        return status

    def url(self, ticket_id: str) -> str:
        """Return the URL of a ticket's image."""
        return f"https://127.0.0.1:{self.port}/images/{ticket_id}"

    def add_ticket(self, image: Path, size: int, timeout: int) -> str:
        """Add a ticket to read and write an image, for timeout seconds; return its id. Raises DaemonError."""
        ticket_id = str(uuid.uuid4())
        ticket = {
            "uuid": ticket_id,
            "url": f"file://{image}",
            "size": size,
            "timeout": timeout,
            "ops": ["read", "write"],
            "sparse": True,
        }
        connection = UnixConnection(self.control_socket)
        try:
            with contextlib.closing(connection):
                connection.request("PUT", f"/tickets/{ticket_id}", json.dumps(ticket))
                response = connection.getresponse()
                reason = response.read().decode()
        except (OSError, http.client.HTTPException) as e:
            raise DaemonError(f"the control service does not answer: {e}") from e
        if response.status != 200:
            raise DaemonError(f"the ticket was refused: {response.status} {reason.strip()}")
        return ticket_id


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=START_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(START_TIMEOUT)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def work_directory(purpose: str) -> Iterator[Path]:
    """Create a directory that is removed at the end.

    It is in TMPDIR, by default in /var/tmp: images are large, and /tmp is in memory on many systems.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"imageio-{purpose}-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def make_certificate(directory: Path) -> None:
    """Create a key and a self-signed certificate for this host."""
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem"))  # fmt: skip


def make_image(path: Path, contents: Path, size: int) -> None:
    """Create a sparse ext4 file system with the files of a directory."""
    with path.open("xb") as f:
        f.truncate(size)
    run("mke2fs", "-q", "-F", "-t", "ext4", "-d", str(contents), str(path))


def run(*command: str, timeout: float = 300) -> str:
    """Run a program and return its standard output. timeout: seconds. Raises DaemonError."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    env = os.environ | {"PATH": path}
    program = shutil.which(command[0], path=path)
    if not program:
        raise DaemonError(f"{command[0]} is not installed: run scripts/setup")
    try:
        result = subprocess.run(
            [program, *command[1:]], env=env, timeout=timeout, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired as e:
        raise DaemonError(f"{command[0]} took more than {timeout:.0f} s") from e
    if result.returncode != 0:
        raise DaemonError(f"{command[0]} failed: {(result.stderr or result.stdout).strip()}")
    return result.stdout
