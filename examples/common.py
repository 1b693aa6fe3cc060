# SPDX-License-Identifier: Apache-2.0
"""What the examples share: how to reach the server, and a bar."""

import argparse
import sys

from imageio_daemon.client import Progress, Settings

WIDTH = 40


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what it takes to reach an image."""
    parser.add_argument("--cafile", metavar="FILE", help="trust the authorities in this file, not those of the system")
    parser.add_argument("--insecure", action="store_true", help="do not verify the server's certificate")
    parser.add_argument(
        "--unix-socket", metavar="PATH", help="connect to the local service of this host; @NAME is an abstract socket"
    )


def settings(args: argparse.Namespace) -> Settings:
    """Say how to connect. One connection and no second try: what is shown here is easy to follow on the wire."""
    return Settings(
        cafile=args.cafile,
        insecure=args.insecure,
        unix_socket=args.unix_socket,
        local=False,
        connections=1,
        retries=0,
    )


def bar(progress: Progress) -> None:
    """Draw how far it is, if somebody looks."""
    if sys.stderr.isatty():
        share = progress.done / progress.total if progress.total else 1.0
        drawn = ("#" * int(share * WIDTH)).ljust(WIDTH)
        sys.stderr.write(f"\r[{drawn}] {share:4.0%}  {human(progress.done)}  {human(progress.rate)}/s\033[K")
        sys.stderr.flush()


def end_of_bar() -> str:
    """Return what removes the bar."""
    return "\r\033[K" if sys.stderr.isatty() else ""


def human(size: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
