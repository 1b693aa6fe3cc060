# SPDX-License-Identifier: Apache-2.0
"""How long a ticket's request waits while strangers shake hands. `make bench-handshakes`.

python -m benchmarks.handshakes [--before PATH] [--seconds S] [--rate N] [--burst N]

A client with a ticket asks for extents, which Python answers, on a connection that it has, and then on a new one. It
does so alone; while as many clients as a burst has connect at once, again and again; and while strangers shake hands
at the rate and leave. The strangers are a process of their own, on the same processors. --before: the work tree of
another build of this project, which is measured, too.
"""

import argparse
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import trustme

from benchmarks.command import run_program
from benchmarks.measure import processor_seconds, table
from benchmarks.servers import OURS, PROJECT, running
from tests.support.daemon import Certificates
from tests.support.http_client import Connection

#: Threads of strangers: each has one handshake at a time.
STRANGERS = 32
#: Seconds between two requests of the client, and between two bursts.
INTERVAL = 0.02
BURST_INTERVAL = 0.5


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _connect(context: ssl.SSLContext, port: int) -> ssl.SSLSocket:
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=30))


# The strangers, a process of their own


def _shake(context: ssl.SSLContext, port: int, made: list[float]) -> None:
    with suppress(OSError):
        _connect(context, port).close()
        made.append(time.monotonic())


def _at_rate(port: int, rate: float) -> None:
    """Shake hands at a rate, and tell each second how often it was done."""
    context, made, began = _context(), list[float](), time.monotonic()
    turns, turn = iter(range(sys.maxsize)), threading.Lock()

    def go_on() -> None:
        while True:
            with turn:
                due = began + next(turns) / rate
            time.sleep(max(0.0, due - time.monotonic()))
            _shake(context, port, made)

    for _ in range(STRANGERS):
        threading.Thread(target=go_on, daemon=True).start()
    while True:
        time.sleep(1)
        print(len(made), flush=True)


def _in_bursts(port: int, count: int) -> None:
    """Let so many clients connect at once, again and again."""
    context, made = _context(), list[float]()
    while True:
        clients = [threading.Thread(target=_shake, args=(context, port, made)) for _ in range(count)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        print(len(made), flush=True)
        time.sleep(BURST_INTERVAL)


@contextmanager
def strangers(how: str, port: int, number: int) -> Iterator[Callable[[], int]]:
    """Run strangers; what is yielded returns how many handshakes they have done."""
    command = [sys.executable, "-m", "benchmarks.handshakes", "--strangers", how, str(port), str(number)]
    done = [0]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:

        def follow() -> None:
            for line in process.stdout or ():
                done[0] = int(line)

        following = threading.Thread(target=follow)
        following.start()
        try:
            time.sleep(1.5)
            yield lambda: done[0]
        finally:
            process.kill()
            following.join()


# The client with a ticket


def ask(port: int, ticket: str, seconds: float) -> tuple[list[float], list[float]]:
    """Return the seconds of each request, on one connection and each on a new one."""
    context, waits, waits_of_new = _context(), list[float](), list[float]()
    target = f"/images/{ticket}/extents"
    known = Connection(_connect(context, port))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        assert known.get(target).status == 200
        waits.append(time.monotonic() - began)
        began = time.monotonic()
        with Connection(_connect(context, port)) as new:
            assert new.get(target).status == 200
        waits_of_new.append(time.monotonic() - began)
        time.sleep(INTERVAL)
    known.close()
    return waits, waits_of_new


def _shown(waits: list[float]) -> str:
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return " / ".join(f"{wait * 1000:.1f}" for wait in (cuts[49], cuts[98], max(waits)))


def measure(checkout: Path, options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yield the rows of one build."""
    program = replace(OURS, checkout=checkout)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        image = directory / "image"
        image.write_bytes(bytes(1 << 20))
        certificates = Certificates.make(directory, trustme.KeyType.RSA)  # the kind whose handshakes take longest
        server = stack.enter_context(running(program, certificates, directory / "server"))
        port = int(server.port(OURS.port))
        ticket = server.add_ticket(image, 1 << 20)
        for name, how, number in (
            ("alone", "", 0),
            (f"{options.burst} at once", "burst", options.burst),
            (f"{options.rate} handshakes/s wanted", "rate", options.rate),
        ):
            with ExitStack() as around:
                done = around.enter_context(strangers(how, port, number)) if how else lambda: 0
                before, cpu, began = done(), processor_seconds(server.pid), time.monotonic()
                known, new = ask(port, ticket, options.seconds)
                took = time.monotonic() - began
                rate, load = (done() - before) / took, (processor_seconds(server.pid) - cpu) / took
            yield checkout.name, name, f"{rate:.0f}/s", f"{load:.2f}", _shown(known), _shown(new)


def main() -> int:
    """Run what the command line asks for, and return the exit status."""
    if sys.argv[1:2] == ["--strangers"]:
        _, _, how, port, number = sys.argv
        (_at_rate if how == "rate" else _in_bursts)(int(port), int(number))
    return run_program(_parser(), _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-handshakes", description="Measure what handshakes delay.")
    parser.add_argument("--before", type=Path, help="the work tree of another build")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement (default: 10)")
    parser.add_argument("--rate", type=int, default=500, help="handshakes of strangers a second (default: 500)")
    parser.add_argument("--burst", type=int, default=64, help="clients that connect at once (default: 64)")
    return parser


def _run(options: argparse.Namespace) -> None:
    rows = []
    for checkout in (options.before, PROJECT) if options.before else (PROJECT,):
        rows += list(measure(checkout.resolve(), options))
    header = ("build", "strangers", "done", "processors", "request, ms: median / 99 % / most", "on a new connection")
    print(table(header, rows))


if __name__ == "__main__":
    sys.exit(main())
