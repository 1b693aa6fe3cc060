# SPDX-License-Identifier: Apache-2.0
"""The .rpm: what it has lies where EL and Fedora look for it, and its programs run. Run by tests/lab/rpm."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

CLIENT, PACKAGE, TREE = (Path(os.environ[name]) for name in ("CLIENT", "PACKAGE", "TREE"))
VENV = "/usr/lib/imageio-daemon"

#: Where each program of EL and Fedora looks, beside the environment.
FILES = (
    "/etc/imageio-daemon/conf.d",
    "/etc/imageio-daemon/conf.d/10-ui.conf",
    "/usr/bin/imageio-client",
    "/usr/bin/imageio-daemon",
    "/usr/bin/imageioctl",
    "/usr/lib/systemd/system/imageio-daemon.service",
    "/usr/lib/sysusers.d/imageio-daemon.conf",
    "/usr/lib/tmpfiles.d/imageio-daemon.conf",
    "/usr/share/bash-completion/completions/imageio-client",
    "/usr/share/bash-completion/completions/imageio-daemon",
    "/usr/share/bash-completion/completions/imageioctl",
    "/usr/share/man/man1/imageio-client.1",
    "/usr/share/man/man1/imageioctl.1",
    "/usr/share/man/man5/imageio-daemon.conf.5",
    "/usr/share/man/man8/imageio-daemon.8",
    "/usr/share/zsh/site-functions/_imageio-client",
    "/usr/share/zsh/site-functions/_imageio-daemon",
    "/usr/share/zsh/site-functions/_imageioctl",
)
#: Directories of which the package has what it wants.
DOCUMENTS = tuple(f"/usr/share/{of}/imageio-{name}" for of in ("doc", "licenses") for name in ("client", "daemon"))


def query(text: str, *packages: Path) -> list[str]:
    """Return the lines that rpm prints for a query of packages; both, if none is named."""
    command = ["rpm", "-qp", "--qf", text, *map(str, packages or (CLIENT, PACKAGE))]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_files_are_where_they_are_looked_for() -> None:
    files = [name for name in query("[%{FILENAMES}\n]") if not name.startswith((VENV, *DOCUMENTS))]
    assert sorted({*files} - {"/etc/imageio-daemon"}) == sorted(FILES)


def test_no_file_is_in_both_packages() -> None:
    client, daemon = (query("[%{FILEMODES:octal} %{FILENAMES}\n]", package) for package in (CLIENT, PACKAGE))
    assert not {line for line in {*client} & {*daemon} if not stat.S_ISDIR(int(line.split()[0], 8))}
    assert [line.split()[1] for line in client if "/usr/bin/" in line] == ["/usr/bin/imageio-client"]


def test_files_are_of_root_and_only_its_to_write() -> None:
    lines = [line.split() for line in query("[%{FILEUSERNAME} %{FILEGROUPNAME} %{FILEMODES:octal} %{FILENAMES}\n]")]
    assert {(user, group) for user, group, *_ in lines} == {("root", "root")}
    modes = {name: int(mode, 8) for _, _, mode, name in lines}
    assert [name for name, mode in modes.items() if not stat.S_ISLNK(mode) and mode & 0o6022] == []


def test_it_requires_what_it_does_not_bring() -> None:
    required = {line for line in query("[%{REQUIRENAME}\n]") if not line.startswith("rpmlib(")}
    own = "config(imageio-daemon)"  # of the version whose configuration it has
    client = "imageio-client(x86-64)"
    assert required == {own, "/bin/sh", client, "libzstd", "openssl-libs", "python3.12", "shadow-utils"}
    assert "shadow-utils" not in query("[%{REQUIRENAME}\n]", CLIENT)
    provided = {own, "imageio-client", client, "imageio-daemon", "imageio-daemon(x86-64)"}
    assert set(query("[%{PROVIDENAME}\n]")) == provided


@pytest.mark.parametrize("program", ["imageio-client", "imageio-daemon", "imageioctl"])
def test_program_runs(program: str) -> None:
    """By the environment's own interpreter, which finds it wherever the environment is."""
    link = TREE / "usr/bin" / program
    assert link.resolve() == (TREE / VENV[1:] / "bin" / program).resolve()
    assert link.read_text().startswith(f"#!{VENV}/bin/python\n")
    command = [f"{TREE}{VENV}/bin/python", "-I", str(link.resolve()), "--version"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout.startswith(f"{program} {query('%{VERSION}')[0]}")


def test_service_starts_the_program_that_is_there() -> None:
    unit = (TREE / "usr/lib/systemd/system/imageio-daemon.service").read_text()
    (start,) = (line.partition("=")[2].split()[0] for line in unit.splitlines() if line.startswith("ExecStart="))
    assert (TREE / start[1:]).exists()


def test_nothing_tells_where_it_was_built() -> None:
    found = subprocess.run(["grep", "-rlaF", "packages-work", str(TREE)], check=False, capture_output=True, text=True)
    assert found.stdout == ""
