# SPDX-License-Identifier: Apache-2.0
"""The sections of storage. Every option has its default, limits and reason."""

from dataclasses import dataclass

from .options import Limits, choice, directories, flag, number, pools, text


@dataclass(frozen=True)
class BackendFile:
    """Images in files and block devices."""

    io_threads: int = number(
        1024,
        Limits("threads", 1, 1024),
        "Most storage calls that run at the same time. The daemon starts threads when it needs them. At most a quarter "
        "of them work for one file system or device, so that one that hangs does not stop the others.",
    )
    lock: bool = flag(
        True,
        "Lock images that a ticket may write, as qemu does, and open block devices exclusively. The daemon answers 409 "
        "if another program uses the image. A ticket with `shared` takes no lock. Set it to false if images are shared "
        "and the program that gives out tickets cannot say so.",
    )
    qcow2: str = choice(
        "native",
        ("native", "qemu-nbd"),
        "Who opens images of tickets with the format qcow2: the daemon itself, or a qemu-nbd for each ticket. What the "
        "daemon does not do itself, qemu-nbd does in both cases; the log says why. A later release has no such option.",
    )


@dataclass(frozen=True)
class BackendNbd:
    """Images on an NBD server, for instance qemu-nbd."""

    connections: int = number(
        4,
        Limits("connections", 1, 16),
        "Connections to the server for one transfer. Each segment of 128 MiB of the image belongs to one connection, "
        "which is safe with every server. A server that accepts fewer delays the first request by 2 seconds.",
    )
    timeout: int = number(
        10,
        Limits("seconds", 1, 3600),
        "Time for connecting to the server and negotiating with it, for each connection.",
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
class BackendRbd:
    """Images on Ceph, which tickets name as rbd:POOL/IMAGE."""

    conf: str = text(
        "/etc/ceph/ceph.conf", "the path of a ceph.conf", "Where the cluster is, and where its keys are on this host."
    )
    user: str = text(
        "imageio",
        "a name, without client. before it",
        "The user of the cluster whose key the daemon has: the pools are the limit of its access.",
    )
    allowed_pools: tuple[str, ...] = pools(
        (),
        "The pools in which images of tickets may be, with all their namespaces, or single namespaces of them. By "
        "default there is none, and the daemon opens no image on Ceph.",
    )
