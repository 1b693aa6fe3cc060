# SPDX-License-Identifier: Apache-2.0
"""The sections of the process: what it may take, who controls it, its log. Every option has its default and reason."""

from dataclasses import dataclass

from ..units import MAX_TRANSFERS, GiB, MiB
from .options import Limits, byte_rate, choice, flag, number, rates, size, text

_DAY = 24 * 3600  # seconds


@dataclass(frozen=True)
class DaemonSection:
    """Options of the process and of all services."""

    max_connections: int = number(
        8,
        Limits("connections", 1, 1000),
        "Number of connections that the daemon recommends for one image (max_readers and max_writers in the answer to "
        "OPTIONS). A ticket may have four times as many; the daemon answers requests on others with 503. Known clients "
        "use at most 8, and a few connections saturate a disk.",
    )
    max_total_connections: int = number(
        1024,
        Limits("connections", 1, 65536),
        "HTTP connections of all clients together. When the limit is reached, the daemon makes room for a new "
        "connection by closing the oldest one that has shown no valid ticket. If all have shown one, it answers the "
        "new connection with 503. Connections in their TLS handshake do not count here. Keep the value well below the "
        "limit of open files.",
    )
    max_tickets: int = number(
        10000,
        Limits("tickets", 1, 1000000),
        "Tickets that may be installed at the same time. It bounds the memory for a caller that never removes a "
        "ticket. The daemon answers further ones with 503.",
    )
    hash_threads: int = number(
        0,
        Limits("threads", 0, 64),
        "Threads that compute checksums, for all images together. 0 makes one for each processor, at most 4. Checksums "
        "take processor time from transfers.",
    )
    inactivity_timeout: int = number(
        60,
        Limits("seconds", 1, _DAY),
        "The daemon closes a connection that is idle, or that makes no progress inside a request, after this time. "
        "The inactivity_timeout of a ticket replaces it for connections that have used the ticket.",
    )
    shutdown_timeout: int = number(
        30,
        Limits("seconds", 0, 3600),
        "Time for running requests to end after SIGTERM. Keep it below TimeoutStopSec of the systemd service.",
    )
    buffer_memory: int = size(
        256 * MiB,
        "Memory for data between network and storage, for all connections together. A request that finds no free "
        "memory waits for it. Five eighths are for uploads, downloads and NBD, a quarter is for checksums, and an "
        "eighth is reserved for TLS. Less than 28M counts as 28M.",
        1 * MiB,
        64 * GiB,
    )
    run_dir: str = text(
        "/run/imageio-daemon",
        "a path",
        "Directory of the control socket. The daemon makes it if it is missing.",
    )
    state_dir: str = text(
        "",
        "a path",
        "Directory of what outlives the daemon: tickets, and which ranges of their images are on stable storage. The "
        "daemon makes it, for its user only, if it is missing; each daemon needs one of its own. By default it is the "
        "StateDirectory of the systemd service; without one, nothing is kept.",
    )
    keep_tickets: bool = flag(
        True,
        "Keep tickets in the state directory, so that they survive a restart until they expire or are removed. Set it "
        "to false if the program that manages the host installs its tickets again after each start of the daemon.",
    )
    purge_expired: int = number(
        _DAY,
        Limits("seconds", 0, 365 * _DAY),
        "Time after which the daemon removes tickets that have expired, so that a caller may forget to. 0 keeps them "
        "until they are removed. Until then lists show them as expired, and they can be extended.",
    )
    drop_privileges: bool = flag(
        True,
        "If the daemon is started as root, it becomes user_name and group_name after it has opened its sockets.",
    )
    user_name: str = text(
        "imageio", "the name of a user", "User that the daemon becomes. It opens images as this user."
    )
    group_name: str = text(
        "imageio",
        "the name of a group",
        "Group that the daemon becomes. Its members may use the control socket, and so decide which images are served.",
    )
    systemd_enable: bool = flag(
        True,
        "Notify the service manager when the daemon is ready, take listening sockets from it, and give it those for "
        "the next process. This has no effect if the service manager does not set NOTIFY_SOCKET and LISTEN_FDS "
        "(sd_notify(3), sd_listen_fds(3)).",
    )


@dataclass(frozen=True)
class ControlSection:
    """Tickets, for the program that manages the host. Clients of this service need no ticket, so protect its socket."""

    enable: bool = flag(True, "Serve tickets. Without this service, only the tickets of the command line exist.")
    transport: str = choice(
        "unix",
        ("unix", "tcp"),
        "unix: a socket of mode 0660, owned by user_name and group_name. tcp: a port of localhost, to which every user "
        "of the host can connect.",
    )
    socket: str = text(
        "",
        "a path",
        "Path of the socket, with transport = unix. An abstract name is not possible, because every user could connect "
        "to it. If it is empty, the path is `sock` in run_dir.",
    )
    port: int = number(
        54323,
        Limits("port", -1, 65535),
        "Port, with transport = tcp. 0 takes a free port. -1 is no port, and is accepted only with transport = unix.",
    )
    remove_timeout: int = number(
        60,
        Limits("seconds", 0, 3600),
        "How long the removal of a ticket waits for its running requests to end, before it answers 409. 0: it does not "
        "wait.",
    )


@dataclass(frozen=True)
class LimitsSection:
    """Limits on what transfers take from the network and from storage."""

    transfers: int = number(
        0,
        Limits("transfers", 0, MAX_TRANSFERS),
        "Most transfers at work at a time. One is at work from its first request until it has no connection and has "
        "been idle for 10 seconds. The daemon answers requests of others with 503 and Retry-After. 0: no limit.",
    )

    rate: int = byte_rate(
        0,
        "Most bytes that a ticket moves in a second, reads and writes of all of its connections together. The rate of "
        "a ticket replaces it.",
    )
    tenant_rate: int = byte_rate(
        0, "Most bytes that all tickets of one tenant move in a second. Tickets without a tenant have no such limit."
    )
    tenants: tuple[tuple[str, int], ...] = rates(
        (),
        "Rates of single tenants, by the name that their tickets tell, in place of tenant_rate. A rate of 0: no limit.",
    )


@dataclass(frozen=True)
class LogSection:
    """The log, which goes to standard error."""

    level: str = choice(
        "info",
        ("debug", "info", "warning", "error"),
        "Least level of the lines that are logged. info has one line for each connection and each transfer; debug has "
        "one for each request, too.",
    )
    format: str = choice(
        "text", ("text", "json"), "text is for people. json writes one object on each line, for log collectors."
    )
