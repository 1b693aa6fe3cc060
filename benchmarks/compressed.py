# SPDX-License-Identifier: Apache-2.0
"""Uploads over slow links, compressed on the wire and not, beside other programs. `make bench-compressed` runs this.

python -m benchmarks.compressed [--quick] [--rounds N] [--only REGEX] [--data FILE] [--directory DIR] [--output DIR]
                                [--document]

The data of an ext4 image of this host's /usr, without its holes. Two network namespaces, a veth pair and a token bucket
(tc-tbf(8)) for the rate in each direction. All programs in turns; each ends when all is on stable storage, rsync and
qemu-img as far as they do. Both ends share the processors of one host.
"""

import argparse
import dataclasses
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import machine, report
from benchmarks.cases import GiB, MiB
from benchmarks.client import Turn, timed
from benchmarks.command import add_places, run_program
from benchmarks.copies import NO_LOCAL
from benchmarks.errors import BenchmarkError
from benchmarks.measure import table, turned
from benchmarks.servers import OURS, OVIRT_IMAGEIO, THEIRS, Program, Server, running
from tests.client.networks import SERVER_ADDRESS, SlowNetwork
from tests.client.networks import missing as missing_network
from tests.support.daemon import Certificates
from tests.support.polling import eventually

#: Links by their name, as tc has them, with the bytes of data that are uploaded over them.
LINKS = {"1 Gbit/s": ("1gbit", 1 * GiB), "100 Mbit/s": ("100mbit", 64 * MiB)}
#: How many times as fast compressed uploads shall be as others of ours.
GOAL = 2.0
PLAIN, COMPRESSED = "imageio-client, never", "imageio-client, auto"

NBD_PORT, RSYNC_PORT = 10809, 873


@dataclass(frozen=True)
class Place:
    """Two hosts with a link, and what is copied."""

    network: SlowNetwork
    directory: Path
    certificates: Certificates
    source: Path
    target: Path
    size: int

    def on_server(self, program: Program) -> Program:
        text = program.configuration.replace("127.0.0.1", SERVER_ADDRESS)
        port = program.port.replace(r"127\.0\.0\.1", re.escape(SERVER_ADDRESS))
        command = (*self.network.on_server, *program.command)
        return dataclasses.replace(program, command=command, configuration=text, port=port)


Command = tuple[list[str], Server | None]


@contextmanager
def imageio(place: Place, mode: str) -> Iterator[Command]:
    with _server(place, OURS) as (server, url):
        client = [sys.executable, "-m", "imageio_daemon.client.cli", "upload", "--quiet", "--no-local", "--no-state"]
        client += [f"--wire-compression={mode}", "--cafile", str(place.certificates.cafile), str(place.source), url]
        yield client, server


@contextmanager
def ovirt(place: Place) -> Iterator[Command]:
    with _server(place, dataclasses.replace(THEIRS, configuration=NO_LOCAL)) as (server, url):
        call = f"upload({str(place.source)!r}, {url!r}, {str(place.certificates.cafile)!r})"
        python = str(OVIRT_IMAGEIO.with_name("python"))
        yield [python, "-c", f"from ovirt_imageio import client; client.{call}"], server


@contextmanager
def _server(place: Place, program: Program) -> Iterator[tuple[Server, str]]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        running(place.on_server(program), place.certificates, Path(directory) / "server") as server,
    ):
        ticket = server.add_ticket(place.target, place.size, sparse=True)
        yield server, f"https://{SERVER_ADDRESS}:{server.port(server.program.port)}/images/{ticket}"


@contextmanager
def qemu_img(place: Place) -> Iterator[Command]:
    serve = ["qemu-nbd", "--persistent", "--format=raw", "--cache=none", "--aio=native", "--discard=unmap"]
    serve += ["--shared=8", f"--bind={SERVER_ADDRESS}", f"--port={NBD_PORT}", str(place.target)]
    with _listening(place, serve, NBD_PORT):
        url = f"nbd://{SERVER_ADDRESS}:{NBD_PORT}"
        yield ["qemu-img", "convert", "-f", "raw", "-O", "raw", "-n", "-W", "-m", "8", str(place.source), url], None


@contextmanager
def rsync(place: Place, *options: str) -> Iterator[Command]:
    """Its daemon, without encryption."""
    configuration = place.directory / "rsyncd.conf"
    configuration.write_text(
        f"use chroot = no\nuid = root\ngid = root\n[images]\npath = {place.target.parent}\nread only = no\n"
    )
    serve = ["rsync", "--daemon", "--no-detach", f"--config={configuration}", f"--address={SERVER_ADDRESS}"]
    place.target.unlink()
    with _listening(place, serve, RSYNC_PORT):
        url = f"rsync://{SERVER_ADDRESS}/images/{place.target.name}"
        yield ["rsync", "--whole-file", "--fsync", *options, str(place.source), url], None


@contextmanager
def _listening(place: Place, command: list[str], port: int) -> Iterator[None]:
    """Run a server on the other host."""
    process = subprocess.Popen([*place.network.on_server, *command])
    look = [*place.network.on_server, "ss", "--listening", "--tcp", "--numeric", "--no-header", f"sport = :{port}"]
    try:
        eventually(lambda: bool(subprocess.run(look, check=True, capture_output=True).stdout), f"{command[0]} listens")
        yield
    finally:
        process.kill()
        process.wait()


PROGRAMS: dict[str, Callable[[Place], AbstractContextManager[Command]]] = {
    PLAIN: lambda place: imageio(place, "never"),
    COMPRESSED: lambda place: imageio(place, "auto"),
    "imageio-client, always": lambda place: imageio(place, "always"),
    "ovirt-imageio, TLS": ovirt,
    "qemu-img convert over NBD, no TLS": qemu_img,
    "rsync, no TLS": rsync,
    "rsync --compress, no TLS": lambda place: rsync(place, "--compress"),
}


def make_source(path: Path, size: int, directory: Path) -> None:
    """Make an ext4 image of files of /usr, and copy its data without the holes into a file."""
    tree, image = directory / "usr", directory / "usr.img"
    files = [Path(top) / name for top, _, names in os.walk("/usr") for name in names]
    files = [file for file in files if file.is_file() and not file.is_symlink()]
    sizes = {file: file.stat().st_size for file in files}
    each = max(1, sum(sizes.values()) // (size * 5 // 4))
    for number, file in enumerate(files[::each]):
        (tree / str(number // 1000)).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, tree / str(number // 1000) / f"{number}-{file.name}")
    with image.open("xb") as new:
        new.truncate(sum(sizes[file] for file in files[::each]) * 3 // 2 + 256 * MiB)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", str(tree), str(image)], check=True)
    with image.open("rb") as data, path.open("xb") as copy:
        position = 0
        while copy.tell() < size:
            position = os.lseek(data.fileno(), position, os.SEEK_DATA)
            end = os.lseek(data.fileno(), position, os.SEEK_HOLE)
            data.seek(position)
            position += copy.write(data.read(min(MiB, end - position, size - copy.tell())))
    shutil.rmtree(tree)
    image.unlink()


# Rounds

Results = dict[tuple[str, str], list[Turn]]


def measure(directory: Path, data: Path | None, only: str, rounds: int, share: int) -> Results:
    cases = [case for case in ((link, name) for link in LINKS for name in PROGRAMS) if re.search(only, " ".join(case))]
    results: Results = {case: [] for case in cases}
    whole = data or directory / "data"
    if data is None:
        make_source(whole, max((LINKS[link][1] for link, _ in cases), default=MiB), directory)
    for link in dict.fromkeys(link for link, _ in cases):
        rate, size = LINKS[link]
        size //= share
        source = directory / "source"
        with whole.open("rb") as file:
            source.write_bytes(file.read(size))
        with SlowNetwork(rate) as network:
            place = Place(network, directory, certificates(directory), source, directory / "target", size)
            of_link = [case for case in cases if case[0] == link]
            for number in range(rounds):
                for case in turned(of_link, number):
                    results[case].append(play(place, case[1]))
                    print(f"{number + 1}/{rounds} {link}: {case[1]}: {results[case][-1]}", file=sys.stderr)
    return results


def certificates(directory: Path) -> Certificates:
    """Return those of a server that is known by its address."""
    made = Certificates.make(directory)
    issued = made.ca.issue_cert(SERVER_ADDRESS)
    issued.cert_chain_pems[0].write_to_path(str(made.certfile))
    issued.private_key_pem.write_to_path(str(made.keyfile))
    return made


def play(place: Place, name: str) -> Turn:
    place.target.unlink(missing_ok=True)
    with place.target.open("xb") as file:
        file.truncate(place.size)
    os.sync()
    with PROGRAMS[name](place) as (command, server):
        turn = timed([*place.network.on_client, *command], server)
    if subprocess.run(["cmp", "--silent", str(place.source), str(place.target)], check=False).returncode != 0:
        raise BenchmarkError(f"{name}: the target is not the source")
    return turn


# The command


def document(description: dict[str, str], how: str, results: Results, share: int) -> str:
    """Return all that a run has to say, as Markdown."""
    rows = []
    for (link, name), turns in results.items():
        wall, client, server = (statistics.median(column) for column in zip(*turns, strict=True))
        cpu = f"{server:.2f}" if server else ""
        rows.append((link, name, f"{wall:.2f}", f"{LINKS[link][1] / share / wall / 1e6:.0f}", f"{client:.2f}", cpu))
    rates = table(("link", "program", "seconds", "MB/s", "client CPU", "server CPU"), rows)
    parts = [table(("machine", ""), list(description.items())), how, goals(results), rates]
    return "\n\n".join(part for part in parts if part)


def goals(results: Results) -> str:
    """Return the table of what is to be reached, for what was measured."""
    rows = []
    for link in LINKS:
        turns = [results.get((link, name)) for name in (PLAIN, COMPRESSED)]
        if all(turns):
            plain, compressed = (statistics.median(turn.wall for turn in each or ()) for each in turns)
            verdict = "pass" if plain / compressed >= GOAL else "MISS"
            rows.append((link, f"{plain / compressed:.2f} (≥ {GOAL})", verdict))
    return table(("link", "times as fast, compressed", ""), rows) if rows else ""


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-compressed", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the data, one round")
    parser.add_argument("--rounds", type=int, help="rounds of each program (default: 3; 1 if quick)")
    parser.add_argument("--only", default="", metavar="REGEX", help='cases whose "link program" matches')
    parser.add_argument("--data", type=Path, metavar="FILE", help="take the data from here (default: made of /usr)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    for program in ("qemu-img", "qemu-nbd", "rsync", "ss"):
        if shutil.which(program) is None:
            raise BenchmarkError(f"{program} is not installed")
    if reason := missing_network():
        raise BenchmarkError(reason)
    rounds, warning = options.rounds or (1 if options.quick else 3), machine.busy()
    share = 4 if options.quick else 1
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=options.directory)))
        description = machine.describe(directory)
        results = measure(directory, options.data, options.only, rounds, share)
    sizes = ", ".join(f"{size // MiB // share} MiB at {link}" for link, (_, size) in LINKS.items())
    how = (
        f"{rounds} rounds, in turns; medians. Data of an ext4 image of /usr without holes: {sizes}. Client and server "
        "share the processors."
    )
    report.publish(document(description, report.with_warning(how, warning), results, share), options, "compressed")


if __name__ == "__main__":
    sys.exit(main())
