# SPDX-License-Identifier: Apache-2.0
"""The .deb from its installation to its purge. Run by tests/lab/packages inside of a container, as root.

One story: each test needs what those before it did.
"""

import pwd
import re
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.installed import (
    CONFIG,
    ETC,
    IMAGES,
    UNIT,
    Programs,
    configure,
    new_image,
    run,
    service,
    show,
    write_source,
)

BEFORE = Path("/debs/before.deb")
AFTER = Path("/debs/after.deb")
STATE = Path("/var/lib/imageio-daemon")
SIZE = 256 * 1024**2

#: What a purge may leave, besides the images: the user, who may own them, and what dpkg, systemd and the tests write.
LEFT = re.compile(
    r"/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|/etc/\.(pwd\.lock|updated)|/images\b|/checks\b|/results\b"
    r"|/var/(lib/dpkg|log|cache|tmp|lib/systemd|lib/private|spool)\b|/tmp\b|/root\b|/etc/ld\.so\.cache"
)


#: Below /usr/share.
DOCUMENTS = (
    "man/man1/imageio-client.1.gz",
    "man/man1/imageioctl.1.gz",
    "man/man5/imageio-daemon.conf.5.gz",
    "man/man8/imageio-daemon.8.gz",
    "bash-completion/completions/imageio-client",
    "zsh/vendor-completions/_imageio-daemon",
    "doc/imageio-daemon/README.Debian",
    "doc/imageio-daemon/install.md",
    "doc/imageio-daemon/sbom.cdx.json",
    "doc/imageio-daemon/examples/daemon.conf",
)


#: zsh completes only what is typed: this types `imageioctl log-level de` and a tab, and prints what is shown then.
ZSH_COMPLETES = r"""
zmodload zsh/zpty
zpty shell TERM=dumb zsh -fi
zpty -w shell 'autoload -Uz compinit && compinit -uD; bindkey "\t" complete-word; PS1=READY'
zpty -r shell shown $'*\rREADY*'
zpty -nw shell $'imageioctl log-level de\t'
zpty -r shell shown '*log-level debug' && print -r -- $shown
"""


def version(package: Path) -> str:
    return run("dpkg-deb", "--field", package, "Version").split("-")[0]


def everything() -> set[str]:
    """Return the paths of all files that a purge must not leave."""
    found = run("find", "/", "-xdev", "-not", "-type", "s").splitlines()
    return {path for path in found if not LEFT.match(path) and "__pycache__" not in path}


@pytest.fixture(scope="module")
def untouched() -> set[str]:
    return everything()


@pytest.fixture(scope="module")
def programs() -> Programs:
    return service()


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    path = write_source(Path("/var/tmp/source"), SIZE)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def image() -> Path:
    return new_image(IMAGES / "image", SIZE)


def test_there_is_no_compiler() -> None:
    assert run("sh", "-c", "command -v gcc cc clang || echo none") == "none"


def test_installation_makes_the_user_and_starts_nothing(untouched: set[str]) -> None:
    run("dpkg", "-i", BEFORE)
    assert pwd.getpwnam("imageio").pw_dir == "/"
    assert (show("ActiveState"), show("UnitFileState")) == ("inactive", "disabled")
    assert f"imageio-daemon {version(BEFORE)} " in run("imageio-daemon", "--version")


def test_installation_has_what_an_operator_looks_for() -> None:
    listed = set(run("dpkg", "-L", UNIT).splitlines())
    for path in DOCUMENTS:
        assert f"/usr/share/{path}" in listed
    conffiles = run("dpkg-query", "--show", "--showformat=${Conffiles}", UNIT).splitlines()
    assert [line.split()[0] for line in conffiles] == [f"{ETC}/conf.d/10-ui.conf"]


def test_shells_complete_the_commands() -> None:
    load = ". /usr/share/bash-completion/bash_completion; __load_completion imageioctl; complete -p imageioctl"
    assert "_shtab_imageioctl" in run("bash", "--norc", "-c", load)
    assert run("zsh", "-fc", ZSH_COMPLETES).endswith("imageioctl log-level debug")


def test_openssl_is_the_systems() -> None:
    ours, pythons = re.findall(r"OpenSSL (\S+?)[;)]", run("imageio-daemon", "--version"))
    assert ours == pythons


def test_service_starts_when_it_has_a_certificate() -> None:
    IMAGES.mkdir()
    configure()
    run("imageio-daemon", "--check-config")
    run("imageioctl", "check", IMAGES)
    run("systemctl", "enable", "--now", UNIT)
    assert show("ActiveState") == "active"


def test_image_arrives_and_returns(programs: Programs, source: Path, image: Path, tmp_path: Path) -> None:
    ticket = programs.add(image)
    programs.upload(source, ticket, "--no-local", "--verify")
    run("cmp", source, image)
    programs.download(ticket, tmp_path / "copy", "--no-local")
    run("cmp", source, tmp_path / "copy")


def test_link_opens_the_page(programs: Programs, image: Path) -> None:
    link = programs.ctl("share", "--read", "--host", "localhost", image)
    trust = ssl.create_default_context(cafile=ETC / "cert.pem")
    with urllib.request.urlopen(link.partition("#")[0], context=trust, timeout=60) as page:
        assert b"page.js" in page.read()


def test_no_bytecode_is_missing_or_stale() -> None:
    """The service may not write it, and would compile at each start."""
    loaded = run("sh", "-c", "/usr/lib/imageio-daemon/bin/python -v -m imageio_daemon --version 2>&1")
    lines = loaded.splitlines()
    assert any("imageio-daemon/lib" in line and "matches" in line for line in lines)
    assert not [line for line in lines if "imageio-daemon/lib" in line and re.search("wrote|bytecode is stale", line)]


def test_upgrade_lets_transfers_go_on(programs: Programs, source: Path) -> None:
    """Images are uploaded one after the other meanwhile; each arrives, and one is served by both versions."""
    done = threading.Event()
    served_by_both: list[bool] = []
    failures: list[BaseException] = []

    def upload_until_done() -> None:
        pid = show("MainPID")
        while not done.is_set():
            target = new_image(IMAGES / "uploaded", SIZE)
            programs.upload(source, programs.add(target), "--no-local", "--verify")
            run("cmp", source, target)
            target.unlink()
            served_by_both.append(pid != (pid := show("MainPID")))

    def note_failures() -> None:
        try:
            upload_until_done()
        except (AssertionError, OSError, subprocess.SubprocessError) as e:
            failures.append(e)

    thread = threading.Thread(target=note_failures)
    thread.start()
    run("dpkg", "-i", AFTER)
    done.set()
    thread.join()
    print(f"{len(served_by_both)} uploads of {SIZE >> 20} MiB")
    assert not failures
    assert any(served_by_both)
    assert (show("ActiveState"), show("UnitFileState")) == ("active", "enabled")
    assert f"imageio-daemon {version(AFTER)} " in run("imageio-daemon", "--version")


def test_upgrade_asks_nothing_and_keeps_the_configuration() -> None:
    assert (ETC / "conf.d" / "50-host.conf").read_text() == CONFIG


def test_removal_stops_the_service_and_keeps_what_is_the_hosts(image: Path) -> None:
    run("dpkg", "--remove", UNIT)
    assert show("ActiveState") == "inactive"
    assert not Path("/usr/lib/imageio-daemon").exists()
    assert not Path("/usr/bin/imageio-daemon").exists()
    assert (ETC / "conf.d" / "50-host.conf").exists()
    assert STATE.is_dir()
    assert image.exists()


def test_purge_leaves_the_images_and_their_owner(untouched: set[str], source: Path, image: Path) -> None:
    run("dpkg", "--purge", UNIT)
    assert everything() - untouched == set()
    run("cmp", source, image)
    assert image.owner() == "imageio"
