# SPDX-License-Identifier: Apache-2.0
"""The sections of the configuration: every option with its default, limits and reason. They make conf/daemon.conf."""

from dataclasses import dataclass

from ..units import GiB, KiB, MiB
from .options import choice, directories, flag, mode, number, size, text, unix_address

_DAY = 24 * 3600  # seconds


@dataclass(frozen=True)
class Daemon:
    """The process, and what holds for all services."""

    max_connections: int = number(
        8,
        "How many connections clients are told to use for one image (max_readers, max_writers). Up to four times as "
        "many are served, then 503. The known clients use 8 at most; a few saturate a disk.",
        "connections",
        1,
        1000,
    )
    max_total_connections: int = number(
        1024,
        "Connections of all clients together. For a new one the oldest is closed that has shown no valid ticket; if "
        "all have, the new one is answered with 503. Those in their TLS handshake are not counted here. Keep it well "
        "below the limit of open files.",
        "connections",
        1,
        65536,
    )
    max_tickets: int = number(
        10000,
        "Tickets that may be installed at a time, so that a caller who never removes any cannot fill the memory.",
        "tickets",
        1,
        1000000,
    )
    loops: int = number(
        0,
        "Event loops, each in a thread, that connections are spread over. 0: one for two processors, 1 to 4. More do "
        "not help: they take turns at all but moving and encrypting bytes.",
        "loops",
        0,
        16,
    )
    inactivity_timeout: int = number(
        60,
        "An idle connection, or one that makes no progress inside a request, is closed after this time. A ticket may "
        "say otherwise for connections that used it.",
        "seconds",
        1,
        _DAY,
    )
    shutdown_timeout: int = number(
        30,
        "How long running requests may take to end after SIGTERM. Keep it below TimeoutStopSec of the service.",
        "seconds",
        0,
        3600,
    )
    buffer_memory: int = size(
        256 * MiB,
        "Memory for data on its way between network and storage, of all connections together. Who finds none waits, "
        "and its peer with it. Five eighths are for connections that C serves, a quarter is for Python, the rest for "
        "what TLS holds.",
        1 * MiB,
        64 * GiB,
    )
    run_dir: str = text(
        "/run/imageio-daemon",
        "a path",
        "Directory of the control socket. It is made if it is missing.",
    )
    drop_privileges: bool = flag(
        True,
        "Become user_name and group_name once the sockets are open, if started as root.",
    )
    user_name: str = text("imageio", "the name of a user", "Whom to become. Images are opened as this user.")
    group_name: str = text(
        "imageio",
        "the name of a group",
        "Members of this group may use the control socket, that is, decide which images are served.",
    )
    systemd_enable: bool = flag(
        True,
        "Tell the service manager when the daemon is ready, if it asks (NOTIFY_SOCKET); otherwise it changes nothing.",
    )


@dataclass(frozen=True)
class Tls:
    """TLS 1.2 and later, on the remote service."""

    enable: bool = flag(True, "Without TLS tickets and images cross the network in the clear: for tests only.")
    key_file: str = text(
        "",
        "the path of a PEM file",
        "Private key. Needed with TLS. group_name must be able to read it: a new one is loaded while the daemon runs.",
    )
    cert_file: str = text(
        "", "the path of a PEM file", "Certificate, with those between it and the CA. Needed with TLS."
    )
    ca_file: str = text("", "the path of a PEM file", "CA certificates that client certificates are checked with.")
    client_auth: str = choice(
        "none",
        ("none", "optional", "required"),
        "Whether clients show a certificate of their own. The ticket is the authority, so they need not. "
        "`optional` refuses only wrong ones. Both others need ca_file.",
    )


@dataclass(frozen=True)
class Remote:
    """Images for clients on the network."""

    host: str = text(
        "::", "an address or host name", "Address to listen on. :: is every address, of IPv4 too; 0.0.0.0 only IPv4."
    )
    port: int = number(
        54322,
        "The port that existing clients and firewalls know. 0 is any free one; the log tells which.",
        "port",
        0,
        65535,
    )
    c_lane: bool = flag(
        True,
        "Serve plain uploads and downloads, here and on the local service, in C, with most of buffer_memory. Without "
        "it the same answers come slower: turn it off to find out where a fault comes from.",
    )


@dataclass(frozen=True)
class Local:
    """Images for clients on this host, over a unix socket: faster, without TLS."""

    enable: bool = flag(True, "Clients learn the address from OPTIONS and come here by themselves.")
    socket: str = unix_address("", "Address of the socket. Empty: an abstract name is chosen at each start.")
    mode: int = mode(0o666, "Mode of a socket at a path. Everybody may connect: the ticket is the authority.")


@dataclass(frozen=True)
class Nbd:
    """Images over NBD, for clients that speak it: every ticket is an export, named by its id."""

    enable: bool = flag(False, "Serve NBD, too.")
    host: str = text(
        "::", "an address or host name", "Address to listen on. :: is every address, of IPv4 too; 0.0.0.0 only IPv4."
    )
    port: int = number(10809, "The port that clients assume. 0 is any free one; -1 is none.", "port", -1, 65535)
    tls: str = choice(
        "required",
        ("required", "optional", "off"),
        "Whether clients on the network use TLS, with the certificate of [tls]. Without it ticket ids and images cross "
        "the network in the clear, so both others are for loopback only.",
    )
    socket: str = unix_address("", "Address of a unix socket for clients on this host, without TLS. Empty: none.")
    mode: int = mode(0o660, "Mode of a socket at a path. Its owners are user_name and group_name.")
    list: bool = flag(
        False,
        "Tell clients on the unix socket the exports, that is, all ticket ids. Who may connect has all access then.",
    )
    max_connections: int = number(
        256,
        "Connections of NBD clients that have entered an export, all together; more are refused. Copying tools open 4 "
        "for an image.",
        "connections",
        1,
        65536,
    )
    handshake_timeout: int = number(
        10,
        "How long a client may take from connecting to its first request, TLS included.",
        "seconds",
        1,
        3600,
    )


@dataclass(frozen=True)
class Control:
    """Tickets, for the program that manages the host. It needs no ticket, so protect it."""

    enable: bool = flag(True, "Without it, only tickets of the command line exist.")
    transport: str = choice(
        "unix",
        ("unix", "tcp"),
        "unix: a socket of mode 0660, owned by user_name and group_name. tcp: localhost only, but every user of the "
        "host can connect.",
    )
    socket: str = text(
        "",
        "a path",
        "The socket, with transport = unix; not an abstract one, which every user could connect to. Empty: `sock` in "
        "run_dir.",
    )
    port: int = number(
        54323,
        "Port, with transport = tcp. 0 is any free one; -1 is none.",
        "port",
        -1,
        65535,
    )
    remove_timeout: int = number(
        60,
        "How long the removal of a ticket waits for its requests to end, before it answers 409. 0: it does not wait.",
        "seconds",
        0,
        3600,
    )


@dataclass(frozen=True)
class BackendFile:
    """Images in files and block devices."""

    buffer_size: int = size(
        4 * MiB,
        "How much one read or write moves. With direct I/O, writes of 1M cost up to twice the CPU time of 4M; above "
        "that little is gained.",
        4 * KiB,
        64 * MiB,
        4 * KiB,
    )
    io_threads: int = number(
        32,
        "Most storage calls that run at a time. Threads start when they are needed. At most a quarter of them work for "
        "one file system or device, so that one that hangs does not stop the others.",
        "threads",
        1,
        1024,
    )


@dataclass(frozen=True)
class BackendNbd:
    """Images that an NBD server has, for instance qemu-nbd."""

    connections: int = number(
        4,
        "Connections to the server for one transfer. Each part of 128 MiB of the image belongs to one of them, so that "
        "this is safe with every server. One that serves fewer costs 2 seconds when it is first asked.",
        "connections",
        1,
        16,
    )
    timeout: int = number(10, "How long connecting and negotiating may take.", "seconds", 1, 3600)
    ca_file: str = text(
        "",
        "the path of a PEM file",
        "CA certificates that servers of nbds: urls are checked with. Empty: ca_file of [tls], or else the system's.",
    )
    cert_file: str = text(
        "", "the path of a PEM file", "Certificate to show to these servers, with those between it and the CA."
    )
    key_file: str = text("", "the path of a PEM file", "Its private key. Empty: it is in cert_file.")
    allowed_paths: tuple[str, ...] = directories(
        (),
        "Tickets with a format: directories in which the files may be that an image's header names, its backing file "
        "above all. By default such images are refused.",
    )


@dataclass(frozen=True)
class BackendHttp:
    """Images on another server of this kind."""

    ca_file: str = text(
        "",
        "the path of a PEM file",
        "CA certificates that the other server is checked with. Empty: ca_file of [tls]; if that is "
        "empty, too, those that the system trusts.",
    )


@dataclass(frozen=True)
class Log:
    """What is logged, to standard error."""

    level: str = choice(
        "info",
        ("debug", "info", "warning", "error"),
        "info: one line for each connection and transfer. debug: one for each request, too.",
    )
    format: str = choice("text", ("text", "json"), "text for people; json, an object on each line, for collectors.")
