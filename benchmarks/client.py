# SPDX-License-Identifier: Apache-2.0
"""Our client beside others: a sparse image of 6 GiB with 1.1 GiB of data goes up, side by side in turns.

python -m benchmarks.client [--rounds N] [--directory DIR]

Wall seconds, and processor seconds of the client alone; medians. dd copies locally with a flush at the end, qemu-img
with direct I/O. ovirt-imageio's client finds its server's unix socket by itself, so that row is not TLS.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.cases import GiB, MiB
from benchmarks.errors import BenchmarkError
from benchmarks.measure import table
from benchmarks.servers import OURS, OVIRT_IMAGEIO, THEIRS, Server, running
from tests.support.daemon import Certificates

SIZE = 6 * GiB
#: 72 pieces of 16 MiB: 1.1 GiB, 19 %.
PIECE, STEP = 16 * MiB, 80 * MiB


class Turn(NamedTuple):
    """What one run took, in seconds."""

    wall: float
    cpu: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.client", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(os.environ.get("TMPDIR", "/var/tmp")))
    options = parser.parse_args()
    try:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory)))
            run(stack, directory, options.rounds)
    except BenchmarkError as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    return 0


def run(stack: ExitStack, directory: Path, rounds: int) -> None:
    certificates = Certificates.make(directory)
    sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    ours = stack.enter_context(running(OURS, certificates, sockets / "ours"))
    theirs = stack.enter_context(running(THEIRS, certificates, sockets / "theirs"))
    source, target = make_source(directory / "source"), directory / "target"
    turns: dict[tuple[str, str], list[Turn]] = {}
    for _ in range(rounds):
        for kind in ("sparse", "preallocated"):
            for name in ("imageio-client TLS", "imageio-client unix", "ovirt-imageio", "qemu-img convert -W", "dd"):
                make_target(target, allocated=kind == "preallocated")
                server = theirs if name == "ovirt-imageio" else ours
                arguments = command(name, source, target, server, certificates)
                turns.setdefault((kind, name), []).append(timed(arguments))
    rows = [
        (kind, name, *(f"{statistics.median(getattr(turn, what) for turn in found):.2f}" for what in ("wall", "cpu")))
        for (kind, name), found in turns.items()
    ]
    print(table(("target", "program", "seconds", "CPU seconds"), rows))
    print(f"peak memory of any of them: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024} MiB")


def make_source(path: Path) -> Path:
    with path.open("xb") as file:
        file.truncate(SIZE)
        for offset in range(0, 72 * STEP, STEP):
            file.seek(offset)
            file.write(os.urandom(PIECE))
    return path


def make_target(path: Path, *, allocated: bool) -> None:
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        if allocated:
            os.posix_fallocate(file.fileno(), 0, SIZE)
        else:
            file.truncate(SIZE)


def command(name: str, source: Path, target: Path, server: Server, certificates: Certificates) -> list[str]:
    """Return the command line that copies the image."""
    if name == "dd":
        return ["dd", f"if={source}", f"of={target}", "bs=8M", "conv=notrunc,sparse,fsync", "status=none"]
    if name.startswith("qemu-img"):
        return [
            "qemu-img",
            "convert",
            "-f",
            "raw",
            "-O",
            "raw",
            "-W",
            "-m",
            "8",
            "-n",
            "-t",
            "none",
            str(source),
            str(target),
        ]
    port = server.address("tls").partition(":")[2]
    url = f"https://localhost:{port}/images/{server.add_ticket(target, SIZE)}"
    if name == "ovirt-imageio":
        program = (
            f"from ovirt_imageio import client; client.upload({str(source)!r}, {url!r}, {str(certificates.cafile)!r})"
        )
        return [str(OVIRT_IMAGEIO.with_name("python")), "-c", program]
    local = ["--no-local"] if name.endswith("TLS") else []
    client = [sys.executable, "-m", "imageio_daemon.client.cli", "upload", "--quiet", "--no-state"]
    return [*client, *local, "--cafile", str(certificates.cafile), str(source), url]


def timed(arguments: list[str]) -> Turn:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise BenchmarkError(f"{arguments[0]} failed: {done.stderr.strip()}")
    return Turn(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    sys.exit(main())
