# SPDX-License-Identifier: Apache-2.0
"""What checks of installed packages share: tickets by the control socket, transfers by the installed client."""

import json
import subprocess
import uuid
from pathlib import Path

#: Seconds for one command.
TIMEOUT = 300.0


def run(*command: object) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return (done.stdout + done.stderr).strip()


def make_certificate(directory: Path) -> None:
    """Write cert.pem and key.pem of localhost, for two days."""
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
        "-keyout", directory / "key.pem", "-out", directory / "cert.pem")  # fmt: skip
    (directory / "key.pem").chmod(0o640)


class Transfers:
    """Transfers through a daemon on this host, over TLS."""

    def __init__(self, client: str, control: Path, *trust: object) -> None:
        self._client = client
        self._control = control
        self._options = ("--quiet", "--no-local", *trust)

    def add(self, image: Path, size: int) -> str:
        """Install a ticket for an image, and return its id."""
        ticket = str(uuid.uuid4())
        fields = {
            "uuid": ticket,
            "url": f"file://{image}",
            "size": size,
            "timeout": 900,
            "ops": ["write"],
            "sparse": True,
        }
        target = f"http://localhost/tickets/{ticket}"
        run("curl", "-sSf", "--unix-socket", self._control, "-X", "PUT", target, "-d", json.dumps(fields))
        return ticket

    def upload(self, source: Path, ticket: str) -> None:
        """Upload a file, and let the checksum be verified."""
        run(self._client, "upload", "--no-state", "--verify", *self._options, source, _url(ticket))

    def download(self, ticket: str, target: Path) -> None:
        run(self._client, "download", *self._options, _url(ticket), target)


def _url(ticket: str) -> str:
    return f"https://localhost:54322/images/{ticket}"
