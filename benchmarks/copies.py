# SPDX-License-Identifier: Apache-2.0
"""The programs that benchmarks.client compares: what copies an image up to a server, or down from it, or locally."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.servers import OURS_NBD, OVIRT_IMAGEIO, THEIRS, Server

#: Their client takes the unix socket when there is one.
NO_LOCAL = THEIRS.configuration.replace("[local]\n", "[local]\nenable = false\n")
SERVERS = {
    "ours": OURS_NBD,
    "theirs": THEIRS,
    "theirs, TLS": replace(THEIRS, configuration=NO_LOCAL),
}

DIRECTIONS = ("up, sparse", "up, preallocated", "down", "up, fragmented", "down, fragmented")


@dataclass(frozen=True)
class Job:
    """One copy from source to target: `server` has the target of an upload, the source of a download."""

    direction: str
    source: Path
    target: Path
    size: int
    cafile: Path
    server: Server | None = None
    ticket: str = ""

    @property
    def is_up(self) -> bool:
        return self.direction.startswith("up")

    @property
    def is_sparse(self) -> bool:
        """Whether the target reads as zeros."""
        return self.direction != "up, preallocated"

    @contextmanager
    def at(self, server: Server) -> Iterator["Job"]:
        """Give the job a ticket on a server, which keeps the image open as long."""
        ticket = server.add_ticket(self.target if self.is_up else self.source, self.size, sparse=self.is_sparse)
        yield replace(self, server=server, ticket=ticket)
        server.remove_ticket(ticket)

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"https://localhost:{self.server.address('tls').partition(':')[2]}/images/{self.ticket}"


def imageio_client(*options: str) -> Callable[[Job], list[str]]:
    def command(job: Job) -> list[str]:
        client = [sys.executable, "-m", "imageio_daemon.client.cli", "upload" if job.is_up else "download"]
        client += ["--quiet", *options, "--cafile", str(job.cafile)]
        return [*client, str(job.source), job.url] if job.is_up else [*client, job.url, str(job.target)]

    return command


def ovirt_client(job: Job) -> list[str]:
    call = (
        f"upload({str(job.source)!r}, {job.url!r}, {str(job.cafile)!r})"
        if job.is_up
        else f"download({job.url!r}, {str(job.target)!r}, {str(job.cafile)!r}, fmt='raw')"
    )
    return [str(OVIRT_IMAGEIO.with_name("python")), "-c", f"from ovirt_imageio import client; client.{call}"]


def nbdcopy(job: Job) -> list[str]:
    assert job.server is not None
    there = f"nbd+unix:///{job.ticket}?socket={job.server.directory}/nbd"
    ends = [str(job.source), there] if job.is_up else [there, str(job.target)]
    return ["nbdcopy", "--flush", *(["--destination-is-zero"] if job.is_up and job.is_sparse else []), *ends]


def qemu_nbd(job: Job) -> list[str]:
    """Convert as qemu_img() does, with our server at the other end."""
    assert job.server is not None
    there = f"nbd+unix:///{job.ticket}?socket={job.server.directory}/nbd"
    *options, source, target = qemu_img(job)
    return [*options, source, there] if job.is_up else [*options, there, target]


def qemu_img(job: Job) -> list[str]:
    options = ["-f", "raw", "-O", "raw", "-W", "-m", "8", "-t", "none"]
    if job.is_up:
        options += ["-n", *(["--target-is-zero"] if job.is_sparse else [])]
    return ["qemu-img", "convert", *options, str(job.source), str(job.target)]


def dd(job: Job) -> list[str]:
    sparse = ",sparse" if job.is_sparse else ""
    return ["dd", f"if={job.source}", f"of={job.target}", "bs=8M", f"conv=notrunc,fsync{sparse}", "status=none"]


class Way(NamedTuple):
    """A program, and the server that it needs."""

    command: Callable[[Job], list[str]]
    server: str | None = None


WAYS = {
    "imageio-client, TLS": Way(imageio_client("--no-local"), "ours"),
    "imageio-client, unix socket": Way(imageio_client(), "ours"),
    "ovirt-imageio, TLS": Way(ovirt_client, "theirs, TLS"),
    "ovirt-imageio, unix socket": Way(ovirt_client, "theirs"),
    "nbdcopy to our NBD, unix socket": Way(nbdcopy, "ours"),
    "qemu-img convert -W -m 8 and our NBD, unix socket": Way(qemu_nbd, "ours"),
    "qemu-img convert -W -m 8, local": Way(qemu_img),
    "dd, local": Way(dd),
}
