# SPDX-License-Identifier: Apache-2.0
"""The NBD service beside qemu-nbd and nbdkit on the same images. `make bench-nbd` runs this.

python -m benchmarks.nbd [--quick] [--only REGEX] [--rounds N] [--directory DIR] [--output DIR] [--document]

All three serve a unix socket, or TLS on a port of this host, in turns, past the page cache: ours and qemu-nbd with
O_DIRECT, nbdkit by dropping what it read and wrote. It drops late, and what it read ahead not at all: 94 % of 512 MiB
are there after a copy (fincore). So the page cache of the image is emptied before each round, for all three. On tmpfs,
which is memory, the server is all that is measured.
"""

import argparse
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine, report
from benchmarks.cases import MiB
from benchmarks.command import add_places, run_program
from benchmarks.errors import BenchmarkError
from benchmarks.measure import drop_cache, table, turned
from benchmarks.nbdcases import NAMES, OF_SHORT, Case, Images, Server, all_cases, run
from benchmarks.servers import NBD_PORT, OURS_NBD, Program, running
from tests.support.daemon import Certificates
from tests.support.polling import eventually


@dataclass
class Result:
    """All rounds of a case, by server."""

    case: Case
    storage: str
    rates: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NAMES})

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])

    @property
    def ratio(self) -> float:
        """Ours to the best of those that it is compared with."""
        return self.rate(NAMES[0]) / max(self.rate(name) for name in self.case.against)

    @property
    def verdict(self) -> str:
        if not self.case.target:
            return ""
        return "pass" if self.ratio >= self.case.target else "MISS"


# Servers


@contextmanager
def ours(path: Path, directory: Path, program: Program = OURS_NBD, *, secure: bool = False) -> Iterator[Server]:
    certificates = Certificates.make(directory)
    with running(program, certificates, directory / "run") as server:
        ticket = server.add_ticket(path, path.stat().st_size, sparse=True)
        if secure:
            credentials = make_credentials(certificates, directory)
            yield Server(program.name, secure_uri(server.port(NBD_PORT), ticket, credentials), server.pid)
        else:
            yield Server(program.name, f"nbd+unix:///{ticket}?socket={directory}/run/nbd", server.pid)


@contextmanager
def theirs(name: str, path: Path, directory: Path, *, secure: bool = False) -> Iterator[Server]:
    path_of_socket, port = directory / "socket", str(free_port())
    credentials = make_credentials(Certificates.make(directory), directory)
    unsecure = f"nbd+unix:///?socket={path_of_socket}"
    tls = f"tls-creds-x509,id=tls,endpoint=server,dir={credentials},verify-peer=no"
    options: dict[tuple[str, bool], tuple[object, ...]] = {
        ("qemu-nbd", False): ("-k", path_of_socket),
        ("nbdkit", False): ("-U", path_of_socket),
        ("qemu-nbd", True): ("-b", "127.0.0.1", "-p", port, "--tls-creds=tls", "--object", tls),
        ("nbdkit", True): ("-i", "127.0.0.1", "-p", port, "--tls=require", f"--tls-certificates={credentials}"),
    }
    listens = options[name, secure]
    commands = {
        "qemu-nbd": ["qemu-nbd", "-f", "raw", *listens, "--persistent", "-e", "8", "--discard=unmap",
                     "--cache=none", "--aio=native", path],
        "nbdkit": ["nbdkit", "--foreground", *listens, "file", path, "cache=none"],
    }  # fmt: skip
    process = subprocess.Popen([str(word) for word in commands[name]], stderr=subprocess.PIPE)
    try:
        eventually(lambda: accepts(int(port)) if secure else path_of_socket.exists(), f"{name} listens", timeout=20)
        yield Server(name, secure_uri(port, "", credentials) if secure else unsecure, process.pid)
    finally:
        process.kill()
        process.communicate()


def make_credentials(certificates: Certificates, directory: Path) -> Path:
    """Return a directory that has the certificates by the names that qemu, libnbd and nbdkit know."""
    made = directory / "pki"
    made.mkdir()
    shutil.copy(certificates.cafile, made / "ca-cert.pem")
    shutil.copy(certificates.certfile, made / "server-cert.pem")
    shutil.copy(certificates.keyfile, made / "server-key.pem")
    return made


def secure_uri(port: str, export: str, credentials: Path) -> str:
    return f"nbds://localhost:{port}/{export}?tls-certificates={credentials}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def accepts(port: int) -> bool:
    """Tell whether a server listens. It is not asked: servers complain of clients that leave at once."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1:4:2] == [f"0100007F:{port:04X}", "0A"] for line in lines)


@contextmanager
def served(name: str, path: Path, parent: Path, *, secure: bool) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="s-", dir=parent) as text:
        directory = Path(text)
        who = ours(path, directory, secure=secure) if name == NAMES[0] else theirs(name, path, directory, secure=secure)
        with who as server:
            yield server


# Rounds


def measure(case: Case, storage: str, images: Images, rounds: int, seconds: float, parent: Path) -> Result:
    result = Result(case, storage)
    path: Path = getattr(images, case.image)
    with ExitStack() as stack:
        servers = [stack.enter_context(served(name, path, parent, secure=case.secure)) for name in NAMES]
        if case.image != "allocated":
            for server in servers:  # a first round warms up what is not measured
                case.run(server, images, seconds / 4)
        for number in range(rounds):
            for server in turned(servers, number):
                rate, cpu = play(case, server, images, seconds)
                result.rates[server.name].append(rate)
                result.cpu[server.name].append(cpu)
    return result


def play(case: Case, server: Server, images: Images, seconds: float) -> tuple[float, float]:
    """Run one round of a case, and return its rate and the server's processor seconds."""
    path: Path = getattr(images, case.image)
    if case.image == "allocated":
        refill(path, images.size)
    with path.open("r+b") as file:
        drop_cache(file.fileno())
    before = server.cpu
    rate = case.run(server, images, seconds)
    return rate, server.cpu - before


def make_source(directory: Path, size: int) -> Path:
    """Make the file that is copied into images."""
    source = directory / "source"
    with source.open("wb") as file:
        for _ in range(size // MiB):
            file.write(os.urandom(MiB))
    return source


def refill(path: Path, size: int) -> None:
    """Allocate the image anew: what is to be zeroed was zeroed in the last turn."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        os.pwrite(file.fileno(), b"x" * MiB, size // 2)
        os.fsync(file.fileno())


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    def figure(value: float) -> str:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}"

    return [
        (
            result.case.name,
            result.storage,
            *(figure(result.rate(name)) for name in NAMES),
            result.case.unit,
            f"{result.ratio:.2f}",
            " / ".join(f"{1000 * statistics.median(result.cpu[name]):.0f}" for name in NAMES),
            f"≥ {result.case.target} x {result.case.against[0] if len(result.case.against) == 1 else 'the best'}"
            if result.case.target
            else "",
            result.verdict,
        )
        for result in results
    ]


def document(description: dict[str, str], how: str, results: Sequence[Result]) -> str:
    """Return all that a run has to say, as Markdown."""
    header = ("work", "on", *NAMES, "unit", "ratio", "server CPU ms", "to reach", "")
    return "\n\n".join((table(("machine", ""), list(description.items())), how, table(header, rows(results))))


# The command


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-nbd", description="Measure NBD beside qemu-nbd and nbdkit.")
    parser.add_argument("--quick", action="store_true", help="only what is to be reached, in at most 2 minutes")
    parser.add_argument("--only", default="", metavar="REGEX", help='cases whose "name on storage" matches')
    parser.add_argument(
        "--rounds", type=int, help="rounds of each server (default: 7, 21 of what is short; 3 if quick)"
    )
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    for program in ("qemu-nbd", "qemu-img", "nbdkit", "nbdcopy", "nbdsh", "fio"):
        if shutil.which(program) is None:
            raise BenchmarkError(f"{program} is not installed")
    rounds, seconds = options.rounds or (3 if options.quick else 7), 0.4 if options.quick else 1.0
    size = (256 if options.quick else 512) * MiB
    started, warning = time.monotonic(), machine.busy()
    results = []
    with ExitStack() as stack:
        directory, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nbd-bench-", dir=where)))
            for where in (options.directory, "/dev/shm")
        )
        source = make_source(memory, size)
        description = machine.describe(directory) | versions()
        for storage, where in (("disk", directory), ("tmpfs", memory)):
            images = Images.make(where, source, size)
            for case in all_cases():
                if not re.search(options.only, f"{case.name} on {storage}") or (options.quick and not case.target):
                    continue
                times = rounds if options.quick else rounds * case.often
                results.append(measure(case, storage, images, times, seconds, directory))
                print(" | ".join(rows(results[-1:])[0]), file=sys.stderr)
    many = "" if options.quick else f", {OF_SHORT * rounds} of copies and zeroing"
    how = (
        f"{rounds} rounds{many}, in turns; medians. Images of {size // MiB} MiB. "
        f"{time.monotonic() - started:.0f} s in all."
    )
    text = document(description, report.with_warning(how, warning), results)
    report.publish(text, options, "nbd")


def versions() -> dict[str, str]:
    return {name: run(name, "--version").splitlines()[0] for name in ("qemu-nbd", "nbdkit", "nbdcopy", "fio")}


if __name__ == "__main__":
    sys.exit(main())
