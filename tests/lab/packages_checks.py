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
from collections.abc import Iterator, Sequence
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

CLIENT = "imageio-client"
#: The packages of the client and of the daemon, of a lower version and of this one.
BEFORE = (Path("/debs/before-client.deb"), Path("/debs/before-daemon.deb"))
AFTER = (Path("/debs/after-client.deb"), Path("/debs/after-daemon.deb"))
#: As the guides say it. dpkg alone does not deconfigure the one while it unpacks the other.
INSTALL = ("apt-get", "--yes", "--no-install-recommends", "install")
#: What was one package before, with the client in it.
FORMER = Path("/debs/former.deb")
STATE = Path("/var/lib/imageio-daemon")
SIZE = 256 * 1024**2

#: What a purge may leave, besides the images: the user, who may own them, and what apt, dpkg, systemd and the tests
#: write.
LEFT = re.compile(
    r"/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|/etc/\.(pwd\.lock|updated)|/images\b|/checks\b|/results\b"
    r"|/var/(lib/apt|lib/dpkg|log|cache|tmp|lib/systemd|lib/private|spool)\b|/tmp\b|/root\b|/etc/ld\.so\.cache"
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


def version(packages: Sequence[Path]) -> str:
    (one,) = {run("dpkg-deb", "--field", package, "Version").split("-")[0] for package in packages}
    return one


def files(package: str) -> set[str]:
    """Return what a package has installed, without directories."""
    return {path for path in run("dpkg", "-L", package).splitlines() if path.startswith("/") and not is_directory(path)}


def is_directory(path: str) -> bool:
    return Path(path).is_dir() and not Path(path).is_symlink()


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


def test_client_alone_has_no_daemon_and_transfers(untouched: set[str], tmp_path: Path) -> None:
    run("dpkg", "-i", AFTER[0])
    assert f"imageio-client {version(AFTER)}" in run("imageio-client", "--version")
    for name in ("imageio-daemon", "imageioctl"):
        assert not Path("/usr/bin", name).exists()
    assert show("LoadState") == "not-found"
    with pytest.raises(KeyError):
        pwd.getpwnam("imageio")
    # All that it may import is there.
    walk = (
        "import importlib, pkgutil, imageio_daemon.client as c;"
        "print([importlib.import_module(m.name).__name__ for m in pkgutil.walk_packages(c.__path__, c.__name__ + '.')])"
    )
    assert "imageio_daemon.client.transfer.upload" in run("/usr/lib/imageio-daemon/bin/python", "-c", walk)
    source = write_source(tmp_path / "source", 1024**2)
    assert "127.0.0.1" in run(
        "imageio-client", "upload", "--retry-for", "0", source, "https://127.0.0.1:9/images/x", ok=False
    )
    run("dpkg", "--purge", CLIENT)
    assert everything() - untouched == set()


def test_daemon_takes_no_client_of_another_version() -> None:
    run("dpkg", "-i", BEFORE[0])
    assert "depends on imageio-client (= " in run("dpkg", "-i", AFTER[1], ok=False)
    run("dpkg", "--purge", UNIT, CLIENT)


def test_installation_makes_the_user_and_starts_nothing(untouched: set[str]) -> None:
    run("dpkg", "-i", *BEFORE)
    assert pwd.getpwnam("imageio").pw_dir == "/"
    assert (show("ActiveState"), show("UnitFileState")) == ("inactive", "disabled")
    assert f"imageio-daemon {version(BEFORE)} " in run("imageio-daemon", "--version")


def test_installation_has_what_an_operator_looks_for() -> None:
    assert not files(UNIT) & files(CLIENT)
    for path in DOCUMENTS:
        assert f"/usr/share/{path}" in files(UNIT) | files(CLIENT)
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
    run(*INSTALL, *AFTER)
    done.set()
    thread.join()
    print(f"{len(served_by_both)} uploads of {SIZE >> 20} MiB")
    assert not failures
    assert any(served_by_both)
    assert (show("ActiveState"), show("UnitFileState")) == ("active", "enabled")
    assert f"imageio-daemon {version(AFTER)} " in run("imageio-daemon", "--version")


def test_upgrade_asks_nothing_and_keeps_the_configuration() -> None:
    assert (ETC / "conf.d" / "50-host.conf").read_text() == CONFIG


def test_way_back_to_an_older_version_is_the_one_of_the_guide(programs: Programs) -> None:
    """apt-get refuses it with -y alone."""
    assert "--allow-downgrades" in run(*INSTALL, *BEFORE, ok=False)
    run(*INSTALL, "--allow-downgrades", *BEFORE)
    assert f"imageio-daemon {version(BEFORE)} " in run("imageio-daemon", "--version")
    assert show("ActiveState") == "active"
    run(*INSTALL, *AFTER)


def test_removal_stops_the_service_and_keeps_what_is_the_hosts(image: Path) -> None:
    run("dpkg", "--remove", UNIT, CLIENT)
    assert show("ActiveState") == "inactive"
    assert not Path("/usr/lib/imageio-daemon").exists()
    assert not Path("/usr/bin/imageio-daemon").exists()
    assert (ETC / "conf.d" / "50-host.conf").exists()
    assert STATE.is_dir()
    assert image.exists()


def test_purge_leaves_the_images_and_their_owner(untouched: set[str], source: Path, image: Path) -> None:
    run("dpkg", "--purge", UNIT, CLIENT)
    assert everything() - untouched == set()
    run("cmp", source, image)
    assert image.owner() == "imageio"


def test_client_takes_over_its_files_from_the_package_that_had_all(tmp_path: Path) -> None:
    old = tmp_path / "old"
    for path in ("usr/bin/imageio-client", "usr/bin/imageioctl"):
        (old / path).parent.mkdir(parents=True, exist_ok=True)
        (old / path).write_text("old")
    (old / "DEBIAN").mkdir(mode=0o755)
    (old / "DEBIAN" / "control").write_text(
        f"Package: {UNIT}\nVersion: 0.0.0\nArchitecture: all\nMaintainer: nobody <x@example.org>\nDescription: old\n"
    )
    run("dpkg-deb", "--build", "--root-owner-group", old, FORMER)
    run("dpkg", "-i", FORMER)
    run(*INSTALL, *AFTER)
    assert run("dpkg", "-S", "/usr/bin/imageio-client").startswith(f"{CLIENT}: ")
    assert run("dpkg", "-S", "/usr/bin/imageioctl").startswith(f"{UNIT}: ")
    assert f"imageio-client {version(AFTER)}" in run("imageio-client", "--version")
    run("dpkg", "--purge", UNIT, CLIENT)
