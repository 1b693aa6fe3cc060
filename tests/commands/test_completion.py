# SPDX-License-Identifier: Apache-2.0
"""What packages bring for the completion in shells, in a real bash. zsh's is tried in the lab."""

import subprocess
import sys
from pathlib import Path

import pytest

from imageio_daemon import cli
from imageio_daemon.client import arguments as client
from imageio_daemon.control import arguments as control
from tests.support.commands import MODULES, commands
from tests.support.daemon import PROJECT

#: All commands of each program, by their names.
FOUND = {parser.prog: dict(commands(parser)) for parser in (cli.parser(), client.parser(), control.parser())}

#: Prints what is completed for each line of standard input: a line for each, words with blanks between.
LOOP = """
while read -ra COMP_WORDS; do
    for i in "${!COMP_WORDS[@]}"; do [ "${COMP_WORDS[i]}" != "''" ] || COMP_WORDS[i]=; done
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    "_shtab_${COMP_WORDS[0]//-/_}"
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("completion")
    program = PROJECT / "packaging" / "completion.py"
    subprocess.run([sys.executable, program, directory], check=True, timeout=60, env={"PYTHONPATH": str(PROJECT)})
    return directory


def complete(scripts: Path, *lines: str, cwd: Path | None = None) -> list[list[str]]:
    """Return what the last word of each line is completed to; '' stands for an empty word."""
    sources = "".join(f"source {path}\n" for path in sorted(scripts.joinpath("bash").iterdir()))
    done = subprocess.run(
        ["bash", "--norc", "-c", sources + LOOP],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=True,
        timeout=60,
        cwd=cwd,
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.parametrize("program", FOUND)
def test_each_command_has_its_options(scripts: Path, program: str) -> None:
    found = FOUND[program]
    told = complete(scripts, *(f"{program} {name} -" for name in found))
    for name, options in zip(found, told, strict=True):
        assert set(options) == set(found[name]._option_string_actions), name


def test_commands_follow_commands(scripts: Path) -> None:
    upload, ticket, level = complete(scripts, "imageio-client u", "imageioctl ticket ''", "imageioctl log-level d")
    assert (upload, level) == (["upload"], ["debug"])
    assert {f"ticket {word}" for word in ticket} == {name for name in FOUND["imageioctl"] if name.startswith("ticket ")}


@pytest.mark.parametrize(
    "line",
    [
        "imageio-client upload im",
        "imageio-client upload --cafile im",
        "imageioctl ticket add im",
        "imageioctl share --write im",
        "imageioctl check --ready im",
        "imageio-daemon --ticket im",
    ],
)
def test_files_follow_where_a_file_is_named(scripts: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "image").touch()
    assert complete(scripts, line, cwd=tmp_path) == [["image"]]


def test_names_of_files_may_have_any_bytes(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "d\udcefsk").touch()  # not UTF-8 (PEP 383)
    assert complete(scripts, "imageio-client upload d", cwd=tmp_path) == [["d\udcefsk"]]


def test_directories_follow_where_one_is_named(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etcetera").touch()
    assert complete(scripts, "imageio-daemon -c et", cwd=tmp_path) == [["etc"]]


@pytest.mark.parametrize("program", FOUND)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_program_prints_what_packages_bring(scripts: Path, program: str, shell: str) -> None:
    """So that who installs a wheel has it, too."""
    printed = subprocess.run(
        [*started(program), "--print-completion", shell], check=False, capture_output=True, text=True, timeout=60
    )
    assert (printed.returncode, printed.stderr) == (0, "")
    brought = scripts / shell / (program if shell == "bash" else f"_{program}")
    assert printed.stdout == brought.read_text() + "\n"


def test_program_without_shtab_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "shtab.py").write_text("raise ImportError")
    environment = {"PYTHONPATH": f"{tmp_path}:{PROJECT}"}
    command = [*started("imageio-client"), "--print-completion", "bash"]
    refused = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
    assert refused.returncode == 2
    assert "pip install 'imageio-daemon[completion]'" in refused.stderr


def started(program: str) -> list[str]:
    """Return how a program is started from the sources."""
    return [sys.executable, "-m", MODULES[program]]
