# SPDX-License-Identifier: Apache-2.0
"""A unix socket on this host, by which programs use the NBD export of a URL (docs/nbd.md, docs/adr/0059)."""

import contextlib
import errno
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from ..commands.printable import printable
from .errors import ClientError, LocalError, Stopped
from .relay import relay
from .server.session import ClientSession, Settings

log = logging.getLogger(__name__)

PROTOCOL = "nbd"
#: Most connections of programs that wait for accept(2).
BACKLOG = 64
#: Errors of accept(2) that pass when other connections end, and seconds before the next try.
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE = 1.0


def serve(url: str, path: str | None, settings: Settings, listening: Callable[[str, str], None]) -> None:
    """Serve the export on a unix socket until Ctrl-C. Each connection to the socket gets one to the server.

    The path of the socket must not exist; by default it is in a new directory. Only this user may connect. `listening`
    is called with the URI of the export and the path, when programs can connect. Raises ClientError if the server
    refuses the ticket or does not serve NBD, or if the socket cannot be made.
    """
    with ClientSession(url, settings) as session:
        first = session.open()
        first.upgrade(PROTOCOL)  # so that a refusal comes now, not for each program
        session.release(first)
        with _listening(path) as (sock, place):
            listening(f"nbd+unix:///?socket={quote(place)}", place)
            _accept(session, sock)


@contextlib.contextmanager
def _listening(path: str | None) -> Iterator[tuple[socket.socket, str]]:
    """Make the socket, and remove it at the end. Raises LocalError."""
    with contextlib.ExitStack() as made:
        place = path
        if place is None:
            try:
                directory = made.enter_context(tempfile.TemporaryDirectory(prefix="imageio-nbd-"))
            except OSError as e:
                raise LocalError(f"can't make a directory for the socket: {e.strerror}") from e
            place = os.path.join(directory, "socket")
        sock = made.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        mask = os.umask(0o177)  # for the whole process, but no other thread makes files now
        try:
            sock.bind(place)
            made.callback(Path(place).unlink, missing_ok=True)
            sock.listen(BACKLOG)
        except OSError as e:
            raise LocalError(f"can't listen on {printable(place)}: {e.strerror or e}") from e
        finally:
            os.umask(mask)
        yield sock, place


def _accept(session: ClientSession, listening: socket.socket) -> None:
    """Serve connections until Ctrl-C, then end them."""
    threads: set[threading.Thread] = set()
    try:
        while True:
            client = _next(session, listening)
            threads = {thread for thread in threads if thread.is_alive()}
            thread = threading.Thread(target=_serve_one, args=(session, client), name="nbd")
            thread.start()
            threads.add(thread)
    except KeyboardInterrupt:
        pass
    finally:
        session.stop.stop()
        for thread in threads:
            thread.join()


def _next(session: ClientSession, listening: socket.socket) -> socket.socket:
    """Return the next connection. Without room for one, wait until others have ended."""
    while True:
        try:
            return listening.accept()[0]
        except OSError as e:
            if e.errno not in NO_ROOM:
                raise
            log.warning("no more connections for now: %s", e.strerror)
            session.stop.sleep(PAUSE)


def _serve_one(session: ClientSession, client: socket.socket) -> None:
    """Serve one connection to its end. A failure ends it, and so the program learns of it."""
    image = session.connect()
    with client:
        try:
            session.stop.add(client)
            server, received = image.upgrade(PROTOCOL)
            relay(client, server, received)
        except Stopped:
            pass
        except (ClientError, OSError) as e:
            if not session.stop.is_set:
                log.warning("a connection has ended: %s", e)
        finally:
            session.stop.discard(client)
            session.release(image)
