# SPDX-License-Identifier: Apache-2.0
"""The command imageioctl."""

import signal
import sys
from collections.abc import Sequence
from functools import partial

from ..commands import standard_streams
from ..commands.standard_streams import Streams
from .arguments import parser
from .output import json_line
from .service import ControlError, ControlService

#: Exit status after a signal: this plus its number, as in shells.
SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or that of the error; see docs/imageioctl.1."""
    return standard_streams.run("imageioctl", partial(_run, arguments), lost=ControlError.status)


def _run(arguments: Sequence[str] | None, streams: Streams) -> int:
    options = parser().parse_args(arguments)
    streams.output.is_result = not options.changes
    try:
        with ControlService(options.socket) as service:
            options.run(options, service)
    except ControlError as e:
        if options.json:
            json_line({"error": str(e), "status": e.status})
        print(f"imageioctl: {e}", file=sys.stderr)
        return e.status
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
