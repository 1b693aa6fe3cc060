# SPDX-License-Identifier: Apache-2.0
"""Completion of the commands in bash and zsh. shtab makes it from the parsers of their arguments.

Packages contain the scripts. shtab is imported only for --print-completion, because a wheel may be installed without it
(the extra `completion` of pyproject.toml).
"""

import argparse
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

SHELLS = ("bash", "zsh")
#: What shtab completes for an argument, by its metavar.
_BY_METAVAR = {"FILE": "FILE", "PATH": "FILE", "IMAGE": "FILE", "URL|IMAGE": "FILE", "DIR": "DIR"}


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --print-completion to the parser of a whole command."""
    text = "print what this shell completes, and end: for files of bash-completion, or a directory of zsh's fpath"
    parser.add_argument("--print-completion", action=_Print, choices=SHELLS, help=text)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell of SHELLS. Raises ImportError without shtab."""
    shtab: Any = importlib.import_module("shtab")
    for action in _actions(parser):
        if action.metavar in _BY_METAVAR:
            action.complete = getattr(shtab, _BY_METAVAR[str(action.metavar)])  # type: ignore[attr-defined]
    # One shell has the functions of all commands, so their names begin with the command's.
    return str(shtab.complete(parser, shell, root_prefix=parser.prog.replace("-", "_")))


class _Print(argparse.Action):
    """Print the script and end, as --help does."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            print(script(parser, str(values)))
        except ImportError:
            parser.error("this needs shtab: pip install 'imageio-daemon[completion]'; packages bring the completion")
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a command and of all commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
