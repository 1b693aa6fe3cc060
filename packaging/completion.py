# SPDX-License-Identifier: Apache-2.0
"""Write what bash and zsh complete of the three commands, from the parsers of their arguments.

packaging/completion.py DIRECTORY

DIRECTORY gets bash/PROGRAM and zsh/_PROGRAM. Needs shtab, and all that the daemon imports.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import shtab

from imageio_daemon import cli
from imageio_daemon.client import arguments as client
from imageio_daemon.control import arguments as control

_PARSERS = (cli.parser, client.parser, control.parser)

#: What is completed for an argument, by its metavar.
_BY_METAVAR = {"FILE": shtab.FILE, "PATH": shtab.FILE, "IMAGE": shtab.FILE, "URL|IMAGE": shtab.FILE, "DIR": shtab.DIR}


def main() -> None:
    directory = Path(sys.argv[1])
    for make in _PARSERS:
        parser = make()
        for action in _actions(parser):
            if action.metavar in _BY_METAVAR:
                action.complete = _BY_METAVAR[action.metavar]  # type: ignore[attr-defined]
        for shell, name in (("bash", parser.prog), ("zsh", f"_{parser.prog}")):
            path = directory / shell / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # Functions of all commands are in one shell, so they have the name of theirs.
            path.write_text(shtab.complete(parser, shell, root_prefix=parser.prog.replace("-", "_")))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a command and of all commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


if __name__ == "__main__":
    main()
