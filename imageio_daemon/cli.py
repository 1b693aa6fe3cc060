# SPDX-License-Identifier: Apache-2.0
"""The command imageio-daemon."""

import argparse
import json
import logging
import platform
import ssl
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import __version__, daemon
from .checks import run
from .checks.finding import Verdict
from .commands import completion, standard_streams
from .commands.standard_streams import Streams
from .config import config, files
from .config.config import Config
from .errors import ConfigError, InvalidRequest
from .image import zstd
from .net import tls_socket
from .runtime import descriptors, logs

log = logging.getLogger(__name__)

#: Exit status for an invalid configuration or ticket; argparse uses the same for arguments.
BAD_CONFIGURATION = 2
#: For what it was to print and could not.
FAILED = 1
#: Largest file with tickets, in bytes; the same as for the body of a request to the control service.
MAX_TICKET_FILE = 64 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0; 1 if operations did not end in time; 2 for bad input."""
    return standard_streams.run("imageio-daemon", partial(_main, arguments), lost=FAILED)


def _main(arguments: Sequence[str] | None, _: Streams) -> int:
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except ConfigError as e:
        return _refuse(str(e))
    except InvalidRequest as e:
        # Before the first request only the tickets of the command line can be invalid.
        return _refuse(f"{options.ticket}: {e}")


def _run(options: argparse.Namespace) -> int:
    if options.check_config:
        return _check(options)
    loaded = files.load(options.conf_dir)
    if options.show_config:
        json.dump(config.show(loaded.config), sys.stdout, indent=4)
        print()
        return 0
    loaded.check()
    tickets = _read_tickets(options.ticket) if options.ticket is not None else []
    with logs.setup(loaded.config.log.level, loaded.config.log.format):
        for warning in loaded.warnings:
            log.warning("%s", warning)
        descriptors.raise_limit()
        return daemon.run(loaded.config, tickets, partial(_load, options.conf_dir))


def _load(conf_dir: Path) -> Config:
    """Read the configuration, for a reload. Raises ConfigError."""
    loaded = files.load(conf_dir)
    loaded.check()
    return loaded.config


def _check(options: argparse.Namespace) -> int:
    """Print what keeps the service from starting, or needs a look, and return the exit status."""
    if options.ticket is not None:
        _read_tickets(options.ticket)
    findings = [finding for finding in run.check(options.conf_dir) if finding.verdict is not Verdict.OK]
    for finding in findings:
        print(f"imageio-daemon: {finding.verdict}: {finding.check}: {finding.text}", file=sys.stderr)
    return BAD_CONFIGURATION if any(finding.verdict is Verdict.FAILED for finding in findings) else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    command = argparse.ArgumentParser(prog="imageio-daemon", description="Serve disk images to holders of tickets.")
    command.add_argument(
        "-c",
        "--conf-dir",
        type=Path,
        metavar="DIR",
        default=files.DEFAULT_CONF_DIR,
        help="read DIR/conf.d/*.conf (default: %(default)s)",
    )
    command.add_argument(
        "--ticket", type=Path, metavar="FILE", help="install the ticket, or the list of tickets, in FILE"
    )
    only = command.add_mutually_exclusive_group()
    only.add_argument("--show-config", action="store_true", help="print the configuration as JSON, and end")
    only.add_argument(
        "--check-config",
        action="store_true",
        help="check configuration and host, as the service's user: 0 good, 2 bad",
    )
    only.add_argument("--version", action="version", version=f"%(prog)s {__version__} ({_libraries()})")
    completion.add_option(command)
    return command


def _libraries() -> str:
    """Return the OpenSSL of connections, and the one of Python, which may be another; and zstd."""
    ours, pythons = (" ".join(version.split()[:2]) for version in (tls_socket.OPENSSL_VERSION, ssl.OPENSSL_VERSION))
    return f"{ours}; Python {platform.python_version()} with {pythons}; {zstd.VERSION}"


def _read_tickets(path: Path) -> list[object]:
    """Return the tickets of a file, decoded from JSON. Their content is checked when they are installed."""
    try:
        with path.open("rb") as f:
            text = f.read(MAX_TICKET_FILE + 1)
    except OSError as e:
        raise ConfigError(f"{path}: cannot read it: {e.strerror}") from None
    if len(text) > MAX_TICKET_FILE:
        raise ConfigError(f"{path}: expected at most {MAX_TICKET_FILE} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path}: expected a ticket in JSON: {e}") from None
    return data if isinstance(data, list) else [data]


def _refuse(reason: str) -> int:
    print(f"imageio-daemon: {reason}", file=sys.stderr)
    return BAD_CONFIGURATION
