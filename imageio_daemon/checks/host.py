# SPDX-License-Identifier: Apache-2.0
"""The checks of files, sockets and programs of this host, as the configuration names them.

Each check runs in a process of the user that is checked. Checks change nothing: they make no file, and afterwards no
socket listens.
"""

import contextlib
import os
import pwd
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..config.config import Config
from ..config.sections import DaemonSection
from ..errors import ConfigError
from ..lifecycle import memory_shares
from ..lifecycle.user import state_path
from ..net import connection_limits, listening, tls_contexts
from ..operations.opener import Opener
from ..runtime import state
from ..storage.engine import async_io_error
from ..units import MiB
from ..urls.rbd import is_rbd
from . import ceph
from .finding import Finding, failed, ok, warning

#: Days before the end of a certificate when the warning begins. Usual renewals come 30 days before the end.
EXPIRES_SOON = 14
DAY = 24 * 3600
#: Directories that the unit hides from the service (ProtectHome=, PrivateTmp=).
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - nothing is made there


def of_user(config: Config, paths: Sequence[str], *, prepared: bool, unit_state: str = "") -> Iterator[Finding]:
    """Check what the service's user needs. It should be able to read and write the images and directories in `paths`.

    `prepared` tells that root prepares run_dir and the directories of sockets before the daemon becomes this user.
    `unit_state` is the StateDirectory= of the unit.
    """
    yield ok("user", f"checked as {_user_name()}")
    yield certificate(config)
    yield authorities(config)
    yield run_dir(config, prepared=prepared)
    yield from sockets(config, prepared=prepared)
    if path := state_path(config):
        yield state_dir(path, prepared=prepared)
    elif unit_state:
        yield unit_state_dir(unit_state)
    yield formats(config)
    yield lanes(config)
    yield from ceph.cluster(config, [path for path in paths if is_rbd(path)])
    for path in paths:
        if not is_rbd(path):
            yield image(path)


def certificate(config: Config) -> Finding:
    """Check that the server's certificate and key can be read and used, and for how long."""
    if not config.tls.enable:
        return ok("certificate", "none, for [tls] enable is false: images and ids of tickets are sent in the clear")
    try:
        expires = tls_contexts.ServerTls(config.tls).context.expires
    except ConfigError as e:
        return failed("certificate", f"{e} (as user {_user_name()})")
    days = int(expires - time.time()) // DAY
    if days < 0:
        return failed("certificate", f"{config.tls.cert_file} has expired")
    text = f"{config.tls.cert_file}: {days} days left"
    return warning("certificate", text) if days < EXPIRES_SOON else ok("certificate", text)


def authorities(config: Config) -> Finding:
    """Check the certificates for connections to other servers, of the images API and of NBD."""
    try:
        Opener(config)
    except ConfigError as e:
        return failed("authorities", str(e))
    named = (backend.ca_file or config.tls.ca_file for backend in (config.backend_http, config.backend_nbd))
    return ok("authorities", ", ".join(dict.fromkeys(filter(None, named))) or "those of the system")


def open_files(config: Config, limit: int) -> Finding:
    """Check that the limit on open files is enough for the connections that the configuration allows."""
    text = connection_limits.shortage(config, limit)
    return warning("open_files", text) if text else ok("open_files", f"{limit}")


def run_dir(config: Config, *, prepared: bool) -> Finding:
    """Check that the run directory can be made or written. systemd prepares the default one (RuntimeDirectory=)."""
    path = config.daemon.run_dir
    if prepared or path == DaemonSection().run_dir:
        return ok("run_dir", f"{path}: it is prepared at the start")
    reason = _why_unusable(path if os.path.lexists(path) else os.path.dirname(os.path.abspath(path)))
    return failed("run_dir", f"[daemon] run_dir {path}: {reason}") if reason else ok("run_dir", path)


def state_dir(path: str, *, prepared: bool) -> Finding:
    """Check that the state directory can be made or used. Without it, the daemon keeps nothing, and is not ready."""
    if os.path.lexists(path):
        return _state_dir(path, state.why_unusable(path))
    return _state_dir(path, "" if prepared else _why_unusable(os.path.dirname(os.path.abspath(path))))


def unit_state_dir(path: str) -> Finding:
    """Check a state directory that systemd makes at the start, and sets its owner and mode (systemd.exec(5))."""
    return _state_dir(path, state.why_unusable(path, private=False) if os.path.lexists(path) else "")


def _state_dir(path: str, reason: str) -> Finding:
    return failed("state_dir", f"{path}: {reason}: nothing is kept") if reason else ok("state_dir", path)


def sockets(config: Config, *, prepared: bool) -> Iterator[Finding]:
    """Check the paths of unix sockets."""
    paths = {"local": config.local.socket if config.local.enable else ""}
    paths["nbd-local"] = config.nbd.socket if config.nbd.enable else ""
    if config.control.enable and config.control.transport == "unix":
        paths["control"] = control_socket(config)
    for service, path in paths.items():
        if path:
            yield _unix(service, path, made=_is_inside(path, config.daemon.run_dir) or prepared)


def _unix(service: str, path: str, *, made: bool) -> Finding:
    if len(os.fsencode(path)) > listening.MAX_UNIX_ADDRESS:
        return failed(service, f"{path}: the path is longer than {listening.MAX_UNIX_ADDRESS} bytes")
    if path.startswith("@") or made:
        return ok(service, path)
    reason = _why_unusable(os.path.dirname(os.path.abspath(path)))
    return failed(service, f"{path}: {reason}") if reason else ok(service, path)


#: Addresses that take a port of all others.
_ALL = frozenset(("::", "0.0.0.0"))  # noqa: S104  # nothing listens there by this


class _Port(NamedTuple):
    """The port of a service."""

    service: str
    host: str
    port: int

    def is_taken_by(self, other: "_Port") -> bool:
        """Return whether another service of the configuration has the same port of the same address."""
        return self.port == other.port and (self.host == other.host or not _ALL.isdisjoint((self.host, other.host)))


def ports(config: Config, *, running: bool) -> Iterator[Finding]:
    """Check that all services together can listen, unless a `running` daemon with this configuration does."""
    wanted = [_Port("remote", config.remote.host, config.remote.port)]
    if config.nbd.enable and config.nbd.port >= 0:
        wanted.append(_Port("nbd", config.nbd.host, config.nbd.port))
    if config.metrics.enable:
        wanted.append(_Port("metrics", config.metrics.host, config.metrics.port))
    if config.control.enable and config.control.transport == "tcp":
        wanted.append(_Port("control", "127.0.0.1", config.control.port))
    with contextlib.ExitStack() as held:  # until the last one listens, too
        for number, port in enumerate(wanted):
            yield _listens(port, wanted[:number], held, running=running)


def _listeners(port: _Port) -> Sequence[socket.socket]:
    if port.service == "control":
        return listening.listen_localhost(port.port)
    return [listening.listen_tcp(port.host, port.port)]


def _listens(port: _Port, others: Sequence[_Port], held: contextlib.ExitStack, *, running: bool) -> Finding:
    service, place = port.service, f"{port.host} port {port.port}"
    try:
        for listener in _listeners(port):
            held.enter_context(listener)
    except ConfigError as e:
        busy = isinstance(e.__cause__, OSError) and "in use" in str(e)
        owner = next((f"[{other.service}]" for other in others if port.is_taken_by(other)), "another program")
        if busy and running and owner == "another program":
            return ok(service, f"{place}: the running daemon has it")
        return failed(service, f"[{service}] {e}{f': {owner} has it' if busy else ''}")
    return ok(service, place)


def formats(config: Config) -> Finding:
    """Check what tickets with a format need: qemu-nbd, and the directories in allowed_paths."""
    native = config.backend_file.qcow2 == "native"
    own = "raw and qcow2" if native else "raw"
    if shutil.which("qemu-nbd") is None:
        verdict = ok if not config.backend_nbd.allowed_paths else warning if native else failed
        return verdict("formats", f"{own} only: qemu-nbd is not installed (qemu-utils)")
    wrong = [path for path in config.backend_nbd.allowed_paths if not os.access(path, os.R_OK | os.X_OK)]
    if wrong:
        return warning("formats", f"[backend_nbd] allowed_paths: {_user_name()} cannot read {', '.join(wrong)}")
    return ok("formats", f"{own}, and those of qemu-nbd")


def lanes(config: Config) -> Finding:
    """Check the memory for lanes, and that the kernel allows asynchronous I/O."""
    if memory_shares.is_raised(config):
        return warning("lanes", f"[daemon] buffer_memory is too small: {memory_shares.LEAST // MiB}M counts")
    if error := async_io_error():
        return warning("lanes", f"the kernel refuses asynchronous I/O ({error}, fs.aio-max-nr): threads read and write")
    return ok("lanes", "there is memory, and asynchronous I/O")


def image(path: str) -> Finding:
    """Check that an image can be read and written, or that a directory can be entered."""
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as e:
        return failed("image", f"{path}: {_user_name()} cannot reach it: {e.strerror}{_hidden(path)}")
    if is_directory:
        if not os.access(path, os.X_OK):
            return failed("image", f"{path}: {_user_name()} cannot enter it")
        return ok("image", f"{path}: a directory{_hidden(path)}")
    if not os.access(path, os.R_OK):
        return failed("image", f"{path}: {_user_name()} cannot read it")
    if not os.access(path, os.W_OK):
        return warning("image", f"{path}: {_user_name()} can read it, and not write it")
    return ok("image", f"{path}: {_user_name()} can read and write it{_hidden(path)}")


def _hidden(path: str) -> str:
    """Return a note on a path that is in one of the HIDDEN directories."""
    resolved = os.path.realpath(path)
    return next((f"; the systemd unit hides {d} from the service" for d in HIDDEN if _is_inside(resolved, d)), "")


def control_socket(config: Config) -> str:
    """Return the path of the control socket."""
    return config.control.socket or os.path.join(config.daemon.run_dir, "sock")


def is_running(config: Config) -> bool:
    """Return whether a daemon listens on the control socket."""
    return not listening.why_no_listener(control_socket(config))


def _why_unusable(directory: str) -> str:
    """Return why files cannot be made in a directory, or "" if they can."""
    if not os.path.isdir(directory):
        return f"{directory} is no directory"
    return "" if os.access(directory, os.W_OK | os.X_OK) else f"{_user_name()} cannot write to {directory}"


def _is_inside(path: str, directory: str) -> bool:
    return Path(directory) in Path(path).parents


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
