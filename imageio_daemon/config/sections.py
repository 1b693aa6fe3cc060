# SPDX-License-Identifier: Apache-2.0
"""The sections of the configuration: every option with its default, limits and reason. They make conf/daemon.conf."""

from dataclasses import dataclass

from ..units import GiB, KiB, MiB
from .options import byte_rate, choice, directories, flag, mode, number, size, text, unix_address

_DAY = 24 * 3600  # seconds


@dataclass(frozen=True)
class Daemon:
    """Options of the process and of all services."""

    max_connections: int = number(
        8,
        "Number of connections that the daemon recommends for one image (max_readers and max_writers in the answer to "
        "OPTIONS). A ticket may have four times as many; the daemon answers requests on others with 503. Known clients "
        "use at most 8, and a few connections saturate a disk.",
        "connections",
        1,
        1000,
    )
    max_total_connections: int = number(
        1024,
        "HTTP connections of all clients together. When the limit is reached, the daemon makes room for a new "
        "connection by closing the oldest one that has shown no valid ticket. If all have shown one, it answers the "
        "new connection with 503. Connections in their TLS handshake do not count here. Keep the value well below the "
        "limit of open files.",
        "connections",
        1,
        65536,
    )
    max_tickets: int = number(
        10000,
        "Tickets that may be installed at the same time. It bounds the memory for a caller that never removes a "
        "ticket. The daemon answers further ones with 503.",
        "tickets",
        1,
        1000000,
    )
    loops: int = number(
        0,
        "Event loops, each in its own thread. The daemon spreads connections over them. 0 makes one loop for each two "
        "processors, at least 1 and at most 4. More loops gain little: they run in parallel only while they move or "
        "encrypt bytes.",
        "loops",
        0,
        16,
    )
    hash_threads: int = number(
        0,
        "Threads that compute checksums, for all images together. 0 makes one for each processor, at most 4. Checksums "
        "take processor time from transfers.",
        "threads",
        0,
        64,
    )
    inactivity_timeout: int = number(
        60,
        "The daemon closes a connection that is idle, or that makes no progress inside a request, after this time. "
        "The inactivity_timeout of a ticket replaces it for connections that have used the ticket.",
        "seconds",
        1,
        _DAY,
    )
    shutdown_timeout: int = number(
        30,
        "Time for running requests to end after SIGTERM. Keep it below TimeoutStopSec of the systemd service.",
        "seconds",
        0,
        3600,
    )
    buffer_memory: int = size(
        256 * MiB,
        "Memory for data between network and storage, for all connections together. A request that finds no free "
        "memory waits for it. Five eighths are for connections that C serves, a quarter is for those that Python "
        "serves, and an eighth is reserved for TLS.",
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
class Tls:
    """TLS 1.2 and later, for the remote service and for NBD over TCP."""

    enable: bool = flag(
        True, "Use TLS. Without it, ticket ids and images cross the network in the clear: for tests only."
    )
    key_file: str = text(
        "",
        "the path of a PEM file",
        "Private key. Required with TLS. The group group_name must be able to read it, because the daemon loads a "
        "renewed key while it runs.",
    )
    cert_file: str = text(
        "",
        "the path of a PEM file",
        "Certificate, followed by the intermediate certificates. Required with TLS.",
    )
    ca_file: str = text("", "the path of a PEM file", "CA certificates that verify the certificates of clients.")
    client_auth: str = choice(
        "none",
        ("none", "optional", "required"),
        "Whether clients present a certificate. The ticket is the authority, so none is needed. `optional` refuses "
        "only an invalid certificate, `required` also a missing one. Both need ca_file.",
    )


@dataclass(frozen=True)
class Remote:
    """Images for clients on the network."""

    host: str = text(
        "::",
        "an address or host name",
        "Address to listen on. :: is every address of IPv6 and IPv4; 0.0.0.0 is every address of IPv4.",
    )
    port: int = number(
        54322,
        "Port to listen on. Existing clients and firewalls know the default. 0 takes a free port, which the log shows.",
        "port",
        0,
        65535,
    )
    c_lane: bool = flag(
        True,
        "Serve plain uploads and downloads of the remote and local services in C, with most of buffer_memory. If this "
        "is off, Python gives the same answers, but takes longer. Turn it off to find the cause of a fault.",
    )


@dataclass(frozen=True)
class Local:
    """Images for clients on this host, over a unix socket: faster than the remote service, and without TLS."""

    enable: bool = flag(
        True, "Serve images on a unix socket. Clients find its address in the answer to OPTIONS and then use it."
    )
    socket: str = unix_address(
        "", "Address of the socket. If it is empty, the daemon chooses an abstract name at each start."
    )
    mode: int = mode(
        0o666,
        "Mode of a socket that has a path. By default every user may connect, because the ticket is the authority.",
    )


@dataclass(frozen=True)
class Nbd:
    """Images for NBD clients. Each ticket is an export, and its id is the name of the export."""

    enable: bool = flag(False, "Serve NBD in addition to HTTP. This needs a buffer_memory of at least 28M.")
    host: str = text(
        "::",
        "an address or host name",
        "Address to listen on. :: is every address of IPv6 and IPv4; 0.0.0.0 is every address of IPv4.",
    )
    port: int = number(
        10809,
        "TCP port to listen on. NBD clients assume the default. 0 takes a free port; -1 opens none.",
        "port",
        -1,
        65535,
    )
    tls: str = choice(
        "required",
        ("required", "optional", "off"),
        "Whether clients on the network use TLS, with the certificate of [tls]. Without TLS, ticket ids and images "
        "cross the network in the clear, so `optional` and `off` are accepted only for a loopback host.",
    )
    socket: str = unix_address(
        "", "Address of a unix socket for clients on this host, without TLS. If it is empty, there is none."
    )
    mode: int = mode(0o660, "Mode of a socket that has a path. user_name and group_name own the socket.")
    list: bool = flag(
        False,
        "Let clients on the unix socket list the exports, that is, all ticket ids. Then everyone who can connect to "
        "the socket has access to all images.",
    )
    max_connections: int = number(
        256,
        "Connections of NBD clients that have entered an export, for all exports together. The daemon refuses further "
        "ones. Copying tools open 4 for one image.",
        "connections",
        1,
        65536,
    )
    handshake_timeout: int = number(
        10,
        "Time for the negotiation, from connecting to entering an export, with the TLS handshake.",
        "seconds",
        1,
        3600,
    )


@dataclass(frozen=True)
class Control:
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
        "Port, with transport = tcp. 0 takes a free port. -1 is no port, and is accepted only with transport = unix.",
        "port",
        -1,
        65535,
    )
    remove_timeout: int = number(
        60,
        "How long the removal of a ticket waits for its running requests to end, before it answers 409. 0: it does not "
        "wait.",
        "seconds",
        0,
        3600,
    )


@dataclass(frozen=True)
class Metrics:
    """Metrics for Prometheus and health checks, over plain HTTP. The control service has them, too."""

    enable: bool = flag(
        False,
        "Serve /metrics, /livez and /readyz on a port of their own. They tell no ticket ids, paths or addresses of "
        "clients, but how much the daemon does, to everybody who can connect.",
    )
    host: str = text(
        "127.0.0.1",
        "an address or host name",
        "Address to listen on. There is neither TLS nor a password, so with another address than a loopback one only "
        "the network of the monitoring should reach the port.",
    )
    port: int = number(54324, "Port to listen on. 0 takes a free port, which the log shows.", "port", 0, 65535)


@dataclass(frozen=True)
class Limits:
    """Limits on what transfers take from the network and from storage."""

    transfers: int = number(
        0,
        "Most transfers at work at a time. One is at work from its first request until it has no connection and has "
        "been idle for 10 seconds. The daemon answers requests of others with 503 and Retry-After. 0: no limit.",
        "transfers",
        0,
        65536,
    )

    rate: int = byte_rate(
        0,
        "Most bytes that a ticket moves in a second, reads and writes of all of its connections together. The rate of "
        "a ticket replaces it.",
    )
    tenant_rate: int = byte_rate(
        0, "Most bytes that all tickets of one tenant move in a second. Tickets without a tenant have no such limit."
    )


@dataclass(frozen=True)
class BackendFile:
    """Images in files and block devices."""

    buffer_size: int = size(
        4 * MiB,
        "Bytes that one read or write moves. With direct I/O, writes of 1M take up to twice the processor time of "
        "writes of 4M; larger ones gain little.",
        4 * KiB,
        64 * MiB,
        4 * KiB,
    )
    io_threads: int = number(
        32,
        "Most storage calls that run at the same time. The daemon starts threads when it needs them. At most a quarter "
        "of them work for one file system or device, so that one that hangs does not stop the others.",
        "threads",
        1,
        1024,
    )


@dataclass(frozen=True)
class BackendNbd:
    """Images on an NBD server, for instance qemu-nbd."""

    connections: int = number(
        4,
        "Connections to the server for one transfer. Each segment of 128 MiB of the image belongs to one connection, "
        "which is safe with every server. A server that accepts fewer delays the first request by 2 seconds.",
        "connections",
        1,
        16,
    )
    timeout: int = number(
        10, "Time for connecting to the server and negotiating with it, for each connection.", "seconds", 1, 3600
    )
    ca_file: str = text(
        "",
        "the path of a PEM file",
        "CA certificates that verify the servers of nbds: urls. If it is empty, the daemon uses ca_file of [tls]; if "
        "that is empty too, the CA certificates of the system.",
    )
    cert_file: str = text(
        "",
        "the path of a PEM file",
        "Certificate that the daemon presents to these servers, followed by the intermediate certificates.",
    )
    key_file: str = text(
        "", "the path of a PEM file", "Private key of cert_file. If it is empty, cert_file has the key."
    )
    allowed_paths: tuple[str, ...] = directories(
        (),
        "For tickets with a format: directories of the files that the header of an image may name, for instance its "
        "backing file. By default there is none, and the daemon refuses an image that names another file.",
    )


@dataclass(frozen=True)
class BackendHttp:
    """Images on another server of the images API."""

    ca_file: str = text(
        "",
        "the path of a PEM file",
        "CA certificates that verify the other server. If it is empty, the daemon uses ca_file of [tls]; if that is "
        "empty too, the CA certificates of the system.",
    )


@dataclass(frozen=True)
class Log:
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
