# SPDX-License-Identifier: Apache-2.0
"""The sections of the services: where they listen, and their TLS. Every option has its default, limits and reason."""

from dataclasses import dataclass

from .options import Limits, choice, flag, mode, number, text, unix_address


@dataclass(frozen=True)
class TlsSection:
    """TLS 1.2 and later, for the remote service and for NBD over TCP."""

    enable: bool = flag(
        True, "Use TLS. Without it, ticket ids and images cross the network in the clear: for tests only."
    )
    key_file: str = text(
        "/etc/imageio-daemon/key.pem",
        "the path of a PEM file",
        "Private key. Required with TLS. The group group_name must be able to read it, because the daemon loads a "
        "renewed key while it runs.",
    )
    cert_file: str = text(
        "/etc/imageio-daemon/cert.pem",
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
class RemoteSection:
    """Images for clients on the network."""

    host: str = text(
        "::",
        "an address or host name",
        "Address to listen on. :: is every address of IPv6 and IPv4; 0.0.0.0 is every address of IPv4.",
    )
    port: int = number(
        54322,
        Limits("port", 0, 65535),
        "Port to listen on. Existing clients and firewalls know the default. 0 takes a free port, which the log shows.",
    )


@dataclass(frozen=True)
class LocalSection:
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
class NbdSection:
    """Images for NBD clients. Each ticket is an export, and its id is the name of the export."""

    enable: bool = flag(False, "Serve NBD in addition to HTTP.")
    host: str = text(
        "::",
        "an address or host name",
        "Address to listen on. :: is every address of IPv6 and IPv4; 0.0.0.0 is every address of IPv4.",
    )
    port: int = number(
        10809,
        Limits("port", -1, 65535),
        "TCP port to listen on. NBD clients assume the default. 0 takes a free port; -1 opens none.",
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
        Limits("connections", 1, 65536),
        "Connections of NBD clients that have entered an export, for all exports together. The daemon refuses further "
        "ones. Copying tools open 4 for one image.",
    )
    handshake_timeout: int = number(
        10,
        Limits("seconds", 1, 3600),
        "Time for the negotiation, from connecting to entering an export, with the TLS handshake. The time that "
        "storage takes to open the image comes on top, at most a minute.",
    )


@dataclass(frozen=True)
class UiSection:
    """The page on which people upload and download an image with a browser, as part of the remote service."""

    enable: bool = flag(
        False,
        "Serve the page at /ui/. It is for everybody, has no secrets, and needs a ticket to do anything; "
        "`imageioctl share` prints links with one.",
    )
    operator: str = text(
        "",
        "a name for people",
        "Who runs this server. The page shows it beside the name of the host, which is that of the link, so that "
        "people know whom they give a disk.",
    )


@dataclass(frozen=True)
class MetricsSection:
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
    port: int = number(54324, Limits("port", 0, 65535), "Port to listen on. 0 takes a free port, which the log shows.")
