# SPDX-License-Identifier: Apache-2.0
"""Register image transfers as CloudStack's agent does, and have imageio-daemon serve them (docs/engines.md).

    python3 examples/engine_adapter.py --listen /run/engine/image-server.sock --control /run/imageio-daemon/sock

Each connection to --listen has one request, a line of JSON, and gets one line back:

    {"action": "register", "transfer_id": ID, "config": {"backend": "nbd", "socket": PATH, "export": NAME or null,
        "export_bitmap": NAME or null, "idle_timeout_seconds": 600}}
    {"action": "register", "transfer_id": ID, "config": {"backend": "file", "file": PATH}}
    {"action": "unregister", "transfer_id": ID}, and {"action": "status"}

Clients find the image at https://HOST:54322/images/ID. The daemon's tickets are the adapter's only state: both may be
restarted. It is a beginning, to be changed for an engine that registers in another way.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import socketserver
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

TENANT = "cloudstack"  # in tickets: which are of this engine
MAX_REQUEST = 64 * 1024  # bytes
IDLE, DAY = 600, 86400  # seconds, as CloudStack's server has it: less than 1 is a day
PATIENCE, POLL = 90.0, 0.1  # seconds: for an answer, and between two questions
NO_LIMIT = 2**63  # as the size of a ticket: the image's own


class RefusedError(Exception):
    """The request cannot be served, for this reason."""


class Daemon:
    """The control service of imageio-daemon, with a connection for each request."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, method: str, path: str, document: object = None, *, expected: tuple[int, ...]) -> tuple[int, Any]:
        """Return the status and the document of an answer. Raises RefusedError: it is not as expected."""
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(PATIENCE)
            connection.sock.connect(self._address)
            connection.request(method, path, None if document is None else json.dumps(document))
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as e:
            raise RefusedError(f"imageio-daemon: {e}") from e
        finally:
            connection.close()
        if answer.status not in expected:
            raise RefusedError(f"imageio-daemon: {answer.status} {body.decode(errors='replace').strip()}")
        return answer.status, json.loads(body) if answer.status == 200 and body else None


def register(daemon: Daemon, request: dict[str, Any]) -> None:
    """Install the ticket of a transfer. One that is there is replaced, and its requests end."""
    transfer, config = transfer_of(request), request.get("config")
    if not isinstance(config, dict):
        raise RefusedError("config is missing")
    idle = config.get("idle_timeout_seconds", IDLE)
    if type(idle) is not int:
        raise RefusedError("idle_timeout_seconds is no integer")
    idle = idle if 0 < idle <= DAY else DAY
    ticket = {
        "uuid": transfer,
        "size": NO_LIMIT,
        "timeout": idle,  # from the end of the last request on
        "inactivity_timeout": idle,  # of a connection: clients keep them open between ranges
        "sparse": True,
        "tenant": TENANT,
    }
    daemon.ask("PUT", f"/tickets/{transfer}", ticket | image_of(config), expected=(200,))


def unregister(daemon: Daemon, request: dict[str, Any]) -> None:
    """Remove a transfer. No request begins any more, and those that run are finished."""
    path = f"/tickets/{transfer_of(request)}"
    status, told = daemon.ask("PATCH", path, {"timeout": 0}, expected=(200, 404))
    while status not in (204, 404):
        status, told = daemon.ask("GET", path, expected=(200, 404))
        if status == 200 and told["active"]:
            time.sleep(POLL)
        elif status == 200:
            status = daemon.ask("DELETE", path, expected=(204, 409))[0]


def count(daemon: Daemon) -> int:
    """Return how many transfers are registered."""
    tickets = daemon.ask("GET", "/tickets/", expected=(200,))[1]
    return sum(ticket.get("tenant") == TENANT and not ticket["expired"] for ticket in tickets)


def transfer_of(request: dict[str, Any]) -> str:
    """Return the id of a transfer, which is the secret of its clients, and a part of a path."""
    transfer = request.get("transfer_id")
    if not isinstance(transfer, str) or not re.fullmatch(r"(?!\.{1,2}$)[A-Za-z0-9._~-]{1,255}", transfer):
        raise RefusedError("transfer_id is missing, or no name")
    return transfer


def image_of(config: dict[str, Any]) -> dict[str, object]:
    """Return what a ticket tells of the image. A registration does not tell whether it is written: its server does."""
    backend = str(config.get("backend", "nbd")).lower()
    if backend == "file":
        return {"url": f"file://{text_of(config, 'file')}", "ops": ["write"]}
    if backend != "nbd":
        raise RefusedError("backend is neither nbd nor file")
    path = text_of(config, "socket")
    export = "" if config.get("export") is None else text_of(config, "export")
    return {
        "url": f"nbd+unix:///{quote(export, safe='')}?socket={quote(path)}",
        "ops": ["read" if is_read_only(path, export) else "write"],  # which may read, too
        "dirty": config.get("export_bitmap") is not None,
    }


def text_of(config: dict[str, Any], key: str) -> str:
    """Return a member of the configuration."""
    if isinstance(value := config.get(key), str) and value:
        return value
    raise RefusedError(f"{key} is missing")


def is_read_only(path: str, export: str) -> bool:
    """Ask an NBD server for the flags of an export, by NBD_OPT_EXPORT_NAME."""
    name = export.encode()
    try:
        with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as stream:
            sock.settimeout(PATIENCE)
            sock.connect(path)
            struct.unpack(">8s8sH", stream.read(18))  # the greeting
            sock.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, len(name)) + name)
            _size, flags = struct.unpack(">QH", stream.read(10))
    except (OSError, struct.error) as e:
        raise RefusedError(f"the NBD server at the socket does not have the export: {e}") from e
    return bool(flags & 2)  # NBD_FLAG_READ_ONLY


ACTIONS: dict[str, Callable[..., None]] = {"register": register, "unregister": unregister, "status": lambda *_: None}


def answer(daemon: Daemon, line: bytes) -> dict[str, object]:
    """Do what a request says, and return the answer."""
    try:
        request = json.loads(line)
        action = ACTIONS.get(str(request.get("action"))) if isinstance(request, dict) else None
        if action:
            action(daemon, request)
            return {"status": "ok", "active_transfers": count(daemon)}
    except (RefusedError, ValueError, RecursionError) as e:
        return {"status": "error", "message": str(e)}
    return {"status": "error", "message": "unknown action"}


class Connection(socketserver.StreamRequestHandler):
    """One request of the engine."""

    timeout = PATIENCE
    server: "Server"

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # an engine that has gone
            line = self.rfile.readline(MAX_REQUEST)
            self.wfile.write(json.dumps(answer(self.server.daemon, line)).encode() + b"\n")


class Server(socketserver.ThreadingUnixStreamServer):
    """Listens for the engine, with a thread for each of its connections."""

    daemon_threads = True
    request_queue_size = 128  # the default is 5, and a caller with a timeout gets EAGAIN when it is full (unix(7))

    def __init__(self, path: Path, daemon: Daemon) -> None:
        self.daemon = daemon
        path.unlink(missing_ok=True)
        os.umask(0o117)  # the socket has mode 0660
        super().__init__(str(path), Connection)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--listen", type=Path, required=True, metavar="PATH", help="the unix socket for the engine")
    parser.add_argument("--control", default="/run/imageio-daemon/sock", metavar="PATH", help="that of the daemon")
    arguments = parser.parse_args()
    with Server(arguments.listen, Daemon(arguments.control)) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"engine_adapter: listening on {arguments.listen}", file=sys.stderr)
        server.serve_forever()
