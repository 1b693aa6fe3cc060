# SPDX-License-Identifier: Apache-2.0
"""The command imageioctl."""

import os
import signal
import sys
from collections.abc import Sequence

from .arguments import parser
from .errors import ControlError
from .output import json_line
from .service import ControlService

#: Exit status after a signal: this plus its number, as in shells.
SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or that of the error; see docs/imageioctl.1."""
    options = parser().parse_args(arguments)
    try:
        with ControlService(options.socket) as service:
            options.run(options, service)
        sys.stdout.flush()
    except ControlError as e:
        if options.json:
            json_line({"error": str(e), "status": e.status})
        print(f"imageioctl: {e}", file=sys.stderr)
        return e.status
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    except BrokenPipeError:
        # The reader of standard output has closed it. A flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
