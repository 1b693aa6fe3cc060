# SPDX-License-Identifier: Apache-2.0
"""Transfers over HTTP, beside ovirt-imageio on the same images. `make bench` runs this.

python -m benchmarks.transfer [--quick] [--only REGEX] [--rounds N] [--seconds S] [--directory DIR] [--output DIR]
                              [--document]
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import machine, plot, report
from benchmarks.cases import GOALS, Case, GiB, all_cases
from benchmarks.command import add_places, run_program
from benchmarks.errors import BenchmarkError
from benchmarks.images import Images
from benchmarks.rounds import Measured, measure
from tests.support.daemon import Certificates

PICTURE = report.DOCUMENT.with_name("http.png")
FIGURES = "http.json"


def main() -> int:
    """Run what the command line asks for, and return the exit status: 1 if it could not be measured."""
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure transfers beside ovirt-imageio.")
    parser.add_argument("--quick", action="store_true", help="only what is to be reached, in at most 3 minutes")
    parser.add_argument("--only", default="", metavar="REGEX", help='only cases whose name matches: "put 64 KiB tls"')
    parser.add_argument("--rounds", type=_count, default=5, help="rounds of each server (default: 5)")
    parser.add_argument("--seconds", type=_duration, help="length of a round (default: 1.5; 0.8 if quick)")
    add_places(parser)
    return parser


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _duration(text: str) -> float:
    if not 0 < (value := float(text)) <= 3600:
        raise argparse.ArgumentTypeError("more than 0, at most 3600")
    return value


def _run(options: argparse.Namespace) -> None:
    cases = _cases(options.quick, options.only)
    if not options.directory.is_dir():
        raise BenchmarkError(f"{options.directory} is not a directory")
    seconds = options.seconds or (0.8 if options.quick else 1.5)
    started = time.monotonic()
    warning = machine.busy()
    if warning:
        print(f"bench: {warning}", file=sys.stderr)
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="imageio-bench-", dir=options.directory))
        )
        description = machine.describe(directory)
        images = Images(directory, _image_size(directory, cases, options.quick), stack)
        certificates = Certificates.make(directory)
        results = [
            _measure(number, len(cases), case, images, certificates, options.rounds, seconds)
            for number, case in enumerate(cases, 1)
        ]
    how = (
        f"{options.rounds} rounds of {seconds:g} s for each server, in turns; medians. "
        f"Images of {images.size // GiB} GiB. Measured in {time.monotonic() - started:.0f} s."
    )
    _publish(options, description, report.with_warning(how, warning), results)


def _publish(options: argparse.Namespace, description: dict[str, str], how: str, results: Sequence[Measured]) -> None:
    """Show the results and write them: tables, every figure of every round, and the plot."""
    report.publish(report.document(description, how, results), options, "http")
    figures, picture = options.output / FIGURES, options.output / PICTURE.name
    data = {"machine": description, "how": how, "results": [result.to_json() for result in results]}
    figures.write_text(json.dumps(data, indent=1) + "\n")
    plot.draw(results, picture)
    if options.document:
        shutil.copy(picture, PICTURE)
    print(f"bench: {options.output}/http.md, {figures.name}, {picture.name}", file=sys.stderr)


def _cases(quick: bool, pattern: str) -> list[Case]:
    cases = [goal.case for goal in GOALS] if quick else list(all_cases())
    try:
        cases = [case for case in cases if re.search(pattern, case.name, re.IGNORECASE)]
    except re.error as e:
        raise BenchmarkError(f"--only {pattern}: {e}") from e
    if os.geteuid() != 0 and any(case.storage == "loop" for case in cases):
        print("bench: loop devices are left out, they need root", file=sys.stderr)
        cases = [case for case in cases if case.storage != "loop"]
    if not cases:
        raise BenchmarkError(f"no case matches {pattern!r}")
    return cases


def _image_size(directory: Path, cases: Sequence[Case], quick: bool) -> int:
    size = (1 if quick else 2) * GiB
    images = len({(case.storage, case.operation == "zero") for case in cases})
    if shutil.disk_usage(directory).free < images * size:
        raise BenchmarkError(f"{directory.parent} has no space for {images} images of {size // GiB} GiB")
    return size


def _measure(
    number: int, count: int, case: Case, images: Images, certificates: Certificates, rounds: int, seconds: float
) -> Measured:
    result = measure(case, images, certificates, rounds, seconds)
    rate, cpu = result.ratio(result.rate), result.ratio(result.cpu)
    print(f"{number}/{count} {case.name}: rate {rate:.2f}, server CPU {cpu:.2f}", file=sys.stderr)
    return result


if __name__ == "__main__":
    sys.exit(main())
