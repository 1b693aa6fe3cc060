# SPDX-License-Identifier: Apache-2.0
"""Write what bash and zsh complete of the three commands, from the parsers of their arguments.

packaging/completion.py DIRECTORY

DIRECTORY gets bash/PROGRAM and zsh/_PROGRAM. Needs shtab, and all that the daemon imports.
"""

import sys
from pathlib import Path

from imageio_daemon import cli
from imageio_daemon.client import arguments as client
from imageio_daemon.commands.completion import SHELLS, script
from imageio_daemon.control import arguments as control

_NAMES = {"bash": "{}", "zsh": "_{}"}


def main() -> None:
    directory = Path(sys.argv[1])
    for make in (cli.parser, client.parser, control.parser):
        for shell in SHELLS:
            parser = make()
            path = directory / shell / _NAMES[shell].format(parser.prog)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script(parser, shell))


if __name__ == "__main__":
    main()
