# SPDX-License-Identifier: Apache-2.0
"""Shared by the examples: options of the connection, and a progress bar."""

import argparse
import sys

from imageio_daemon.client import Progress, Settings

WIDTH = 40


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the connection to the server."""
    parser.add_argument("--cafile", metavar="FILE", help="trust the authorities in this file, not those of the system")
    parser.add_argument("--insecure", action="store_true", help="do not verify the server's certificate")
    parser.add_argument(
        "--unix-socket", metavar="PATH", help="connect to the local service of this host; @NAME is an abstract socket"
    )


def settings(args: argparse.Namespace) -> Settings:
    """Return the settings of the connection. With one connection and no retries the requests are easy to trace."""
    return Settings(
        cafile=args.cafile,
        insecure=args.insecure,
        unix_socket=args.unix_socket,
        local=False,
        connections=1,
        retry_for=0,
    )


def bar(progress: Progress) -> None:
    """Draw the progress if standard error is a terminal."""
    if sys.stderr.isatty():
        share = progress.done / progress.total if progress.total else 1.0
        drawn = ("#" * int(share * WIDTH)).ljust(WIDTH)
        sys.stderr.write(f"\r[{drawn}] {share:4.0%}  {human(progress.done)}  {human(progress.rate)}/s\033[K")
        sys.stderr.flush()


def end_of_bar() -> str:
    """Return the control characters that clear the bar."""
    return "\r\033[K" if sys.stderr.isatty() else ""


def human(size: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
