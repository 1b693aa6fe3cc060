# SPDX-License-Identifier: Apache-2.0
"""A daemon on unix sockets, for the checks in the virtual machine, where only the installed package is."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.http_client import Answer, Connection, connect_unix
from tests.support.polling import eventually
from tests.support.processes import thread_names

#: Of the only daemon of the machine that HTTP clients are told of.
PORT = 54322
#: Seconds for the answer to a request.
TIMEOUT = 120.0

CONFIG = """\
[daemon]
run_dir = {0}
drop_privileges = false
systemd_enable = false
{2}
[tls]
enable = false
[remote]
host = localhost
port = {1}
[local]
socket = {0}/local
[nbd]
enable = true
port = -1
socket = {0}/nbd
[control]
socket = {0}/control
"""


class Daemon:
    """A running daemon, by its directory."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self._directory = directory
        self._process = process
        self.nbd = directory / "nbd"
        self.local = directory / "local"

    def add_ticket(self, name: str, image: Path | str, size: int, **more: object) -> None:
        """Install a ticket of this name: nothing here is a secret. image: a path, or a url."""
        fields = {
            "uuid": name,
            "url": image if isinstance(image, str) else f"file://{image}",
            "size": size,
            "timeout": 3600,
            "ops": ["write"],
            "sparse": True,
            **more,
        }
        self._request("control", "PUT", f"/tickets/{name}", json.dumps(fields).encode())

    def remove_ticket(self, name: str, status: int = 204) -> None:
        self._request("control", "DELETE", f"/tickets/{name}", status=status)

    def change_ticket(self, name: str, **changes: object) -> None:
        self._request("control", "PATCH", f"/tickets/{name}", json.dumps(changes).encode())

    def get(self, name: str, below: str = "", *, status: int | None = 200) -> Answer:
        """Return the answer to GET of an image, or of a resource below it. status: None: any."""
        return self._request("local", "GET", f"/images/{name}{below}", status=status)

    def options(self, name: str) -> Any:
        """Return what the server tells of an image."""
        return self._request("local", "OPTIONS", f"/images/{name}").json()

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text()

    def status(self, name: str) -> Any:
        """Return what the control service tells of a ticket."""
        return self._request("control", "GET", f"/tickets/{name}").json()

    @property
    def threads(self) -> list[str]:
        """Return the names of its threads."""
        return thread_names(self._process.pid)

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait(60)

    def url(self, name: str) -> str:
        """Return what a client is given."""
        return f"http://localhost:{PORT}/images/{name}"

    def nbd_uri(self, name: str) -> str:
        """Return the same for a client of NBD."""
        return f"nbd+unix:///{name}?socket={self.nbd}"

    def upload(self, name: str, offset: int, data: bytes, *, flush: bool, status: int = 200) -> None:
        """Write a range; the answer has to have this status."""
        headers = {"Content-Range": f"bytes {offset}-{offset + len(data) - 1}/*"}
        self._request("local", "PUT", f"/images/{name}?flush={'y' if flush else 'n'}", data, headers, status)

    def patch(self, name: str, body: str, *, status: int = 200, timeout: float = TIMEOUT) -> None:
        """Zero or flush."""
        self._request("local", "PATCH", f"/images/{name}", body.encode(), status=status, timeout=timeout)

    def _request(
        self,
        service: str,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        status: int | None = 200,
        timeout: float = TIMEOUT,
    ) -> Answer:
        with Connection(connect_unix(str(self._directory / service), timeout=timeout)) as connection:
            answer = connection.request(method, target, headers, body)
        assert status in (None, answer.status), answer
        return answer


@contextlib.contextmanager
def running_daemon(
    port: int = PORT, state: Path | None = None, more: str = "", command: Sequence[str] = ()
) -> Iterator[Daemon]:
    """Run a daemon; it must end well, unless it was killed.

    state: its state directory. more: of its configuration. command: what runs it, with its arguments.
    """
    with tempfile.TemporaryDirectory(prefix="lab-") as name:
        directory = Path(name)
        (directory / "conf.d").mkdir()
        (directory / "conf.d" / "lab.conf").write_text(
            CONFIG.format(directory, port, f"state_dir = {state}" if state else "")
        )
        (directory / "conf.d" / "more.conf").write_text(more)
        with (directory / "log").open("w") as log:
            process = subprocess.Popen([*command, sys.executable, "-m", "imageio_daemon", "-c", name], stderr=log)
        try:
            eventually(lambda: "ready" in (directory / "log").read_text(), "the daemon serves", timeout=120)
            yield Daemon(directory, process)
        finally:
            process.terminate()
            status = process.wait(120)
            print((directory / "log").read_text())
        assert status in (0, -signal.SIGKILL)
