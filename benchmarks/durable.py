# SPDX-License-Identifier: Apache-2.0
"""What the record of durable ranges costs: this tree with a state directory, and without. `make bench-durable`.

python -m benchmarks.durable [--only REGEX] [--rounds N] [--seconds S] [--directory DIR] [--output DIR] [--document]

Both in turns. Each round is an upload by a ticket of its own, whose record is empty at first, until a flush has ended.
A ratio is with a record by without one, of each pair of rounds that follow each other; the table has the geometric mean
of the pairs with its 95 % interval. The state directory is on the disk, whatever the images are on.
"""

import argparse
import functools
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import cases, machine, nbd, nbdcases, report, rounds
from benchmarks.beside import HTTP_IMAGE, NBD_IMAGE, Played, Result, compare
from benchmarks.cases import KiB, MiB
from benchmarks.command import add_places, run_program
from benchmarks.images import Images
from benchmarks.measure import table
from benchmarks.servers import OURS_NBD, Server, running
from tests.support.daemon import Certificates

#: An upload has to keep this part of its rate.
TARGET = 0.97

WITHOUT = replace(OURS_NBD, name="without")
WITH = replace(
    OURS_NBD,
    name="with",
    configuration=OURS_NBD.configuration.replace("[daemon]\n", "[daemon]\nstate_dir = {directory}/state\n"),
)

HTTP = (
    *(cases.Case("put", 64 * MiB, transport, count, "file") for transport in ("tls", "unix") for count in (1, 4)),
    *(cases.Case("put", size, "tls", 4, "file") for size in (1 * MiB, 256 * KiB, 64 * KiB, 4 * KiB)),
    cases.Case("put", 4 * KiB, "unix", 4, "file"),
    cases.Case("zero", 1 * MiB, "tls", 1, "file"),
)

#: Random blocks, the same in each round. The second time they are durable: they leave the record, and are written then.
_RANDOM_BLOCKS = """
import random
choose = random.Random(1)
places = [block * 4096 for block in choose.sample(range(size // 4096), {count})]
data = b"x" * 4096
for _ in range({times}):
    for place in places:
        h.pwrite(data, place, {flags})
{end}
"""


def blocks(
    count: int, times: int, flags: str, end: str, server: nbdcases.Server, _: nbdcases.Images, __: float
) -> float:
    """Write random blocks one after the other, and return 1000 of them a second."""
    script = _RANDOM_BLOCKS.format(count=count, times=times, flags=flags, end=end)
    return count * times / nbdcases.shell(script, server) / 1000


def fio_flushing(each: int, server: nbdcases.Server, images: nbdcases.Images, seconds: float) -> float:
    """Write random blocks with a flush after each so many of them."""
    return nbdcases.fio("randwrite", "4k", server, images, seconds, f"--fsync={each}")


def nbd_cases() -> Iterator[nbdcases.Case]:
    """Yield what is measured of NBD."""
    for connections in (1, 4):
        work = functools.partial(nbdcases.copy_in, connections)
        yield nbdcases.Case(f"nbdcopy in, {cases.connections_text(connections)}", "MiB/s", work)
    yield nbdcases.Case("fio randwrite 4 KiB", "1000/s", functools.partial(nbdcases.fio, "randwrite", "4k"))
    for each in (256, 16):
        work = functools.partial(fio_flushing, each)
        yield nbdcases.Case(f"fio randwrite 4 KiB, a flush each {each}", "1000/s", work)
    fua = "nbd.CMD_FLAG_FUA"
    yield nbdcases.Case("FUA 4 KiB, one by one", "1000/s", functools.partial(blocks, 1000, 1, fua, ""))
    yield nbdcases.Case("FUA 4 KiB, twice", "1000/s", functools.partial(blocks, 500, 2, fua, ""))


def compare_http(case: cases.Case, images: Images, count: int, seconds: float) -> Result:
    """Compare one case of HTTP."""
    image = images.path(case)

    def play(server: Server) -> Played:
        ticket = server.add_ticket(image, images.size)
        one = rounds.play(case, server, ticket, images.size, seconds)
        server.remove_ticket(ticket)
        return Played(rounds.rate(case, one), rounds.cpu(case, one))

    return _compare(case.name, count, play)


def compare_nbd(case: nbdcases.Case, storage: str, images: nbdcases.Images, count: int, seconds: float) -> Result:
    """Compare one case of NBD."""
    path: Path = getattr(images, case.image)

    def play(server: Server) -> Played:
        ticket = server.add_ticket(path, images.size, sparse=True)
        uri = f"nbd+unix:///{ticket}?socket={server.directory}/nbd"
        rate, cpu = nbd.play(case, nbdcases.Server(server.name, uri, server.pid), images, seconds)
        server.remove_ticket(ticket)
        # fio works for a time, so that the quicker server does more: the time of a unit is compared.
        return Played(rate, cpu / rate)

    return _compare(f"NBD {case.name} on {storage}", count, play)


def _compare(name: str, count: int, play: Callable[[Server], Played]) -> Result:
    with ExitStack() as stack:
        # Not below the images: the path of a unix socket may have 107 bytes.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir="/var/tmp")))
        certificates = Certificates.make(directory)
        servers = [
            stack.enter_context(running(program, certificates, directory / program.name)) for program in (WITH, WITHOUT)
        ]
        return compare(name, count, [functools.partial(play, server) for server in servers])


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-durable", description="Measure what the record costs.")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose name matches")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each (default: 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round (default: 1)")
    add_places(parser)
    return parser


def _run(options: argparse.Namespace) -> None:
    started, warning = time.monotonic(), machine.busy()
    with ExitStack() as stack:
        directory, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imageio-bench-", dir=where)))
            for where in (options.directory, "/dev/shm")
        )
        description = machine.describe(directory)
        results = [*_http(options, directory, stack), *_nbd(options, {"disk": directory, "tmpfs": memory})]
    how = f"{options.rounds} rounds of {options.seconds:g} s, in turns. {time.monotonic() - started:.0f} s in all."
    report.publish(document(description, report.with_warning(how, warning), results), options, "durable")


def _http(options: argparse.Namespace, directory: Path, stack: ExitStack) -> Iterator[Result]:
    images = Images(directory, HTTP_IMAGE, stack)
    for case in HTTP:
        if re.search(options.only, case.name):
            yield compare_http(case, images, options.rounds, options.seconds)


def _nbd(options: argparse.Namespace, places: dict[str, Path]) -> Iterator[Result]:
    source = None
    for storage, place in places.items():
        chosen = [case for case in nbd_cases() if re.search(options.only, f"NBD {case.name} on {storage}")]
        if not chosen:
            continue
        source = source or nbd.make_source(places["tmpfs"], NBD_IMAGE)
        images = nbdcases.Images.make(place, source, NBD_IMAGE)
        for case in chosen:
            yield compare_nbd(case, storage, images, options.rounds, options.seconds)


def document(description: dict[str, str], how: str, results: Sequence[Result]) -> str:
    """Return all that a run has to say, as Markdown."""
    lines = [(row.name, str(row.rate), "" if "twice" in row.name else verdict(row), str(row.cpu)) for row in results]
    header = ("work", "rate, with by without", f"{TARGET} wanted", "server CPU for the same work")
    return "\n\n".join((table(("machine", ""), list(description.items())), how, table(header, lines)))


def verdict(result: Result) -> str:
    """Tell whether the rate is what is wanted, as far as the rounds tell."""
    if result.rate.ratio >= TARGET:
        return "pass"
    return "open" if result.rate.ratio * result.rate.factor >= TARGET else "MISS"


if __name__ == "__main__":
    sys.exit(main())
