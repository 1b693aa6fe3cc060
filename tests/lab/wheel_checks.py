# SPDX-License-Identifier: Apache-2.0
"""The wheel in an environment of its own. Run by tests/lab/packages inside of a fresh tree, as root."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.installed import Programs, make_certificate, new_image, run, write_source
from tests.support.polling import eventually

PREFIX = Path("/opt/imageio-daemon")
AUTHORITY = Path("/usr/local/share/ca-certificates/lab.crt")
SIZE = 64 * 1024**2

CONFIG = """\
[daemon]
run_dir = {0}
user_name = nobody
group_name = nogroup
[tls]
cert_file = {0}/cert.pem
key_file = {0}/key.pem
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """A daemon that was started by hand; its directory. It ends well."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "lab.conf").write_text(CONFIG.format(tmp_path))
    make_certificate(tmp_path)
    tmp_path.chmod(0o755)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([PREFIX / "bin" / "imageio-daemon", "-c", tmp_path], stderr=log)
    try:
        eventually(lambda: "ready" in (tmp_path / "log").read_text(), "the daemon serves", timeout=60)
        yield tmp_path
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
        print((tmp_path / "log").read_text())
    assert status == 0


@pytest.fixture
def trusted(daemon: Path) -> Iterator[None]:
    """Let the system trust the daemon's certificate, as an administrator does."""
    AUTHORITY.write_text((daemon / "cert.pem").read_text())
    run("update-ca-certificates")
    yield
    AUTHORITY.unlink()
    run("update-ca-certificates", "--fresh")


def test_there_is_no_compiler() -> None:
    assert run("sh", "-c", "command -v gcc cc clang || echo none") == "none"


def test_extension_needs_libc_alone() -> None:
    extension = next(PREFIX.glob("lib/python3*/site-packages/ioutil_ext/_ioutil*.so"))
    libraries = {line.split()[0] for line in run("ldd", extension).splitlines()}
    assert {name for name in libraries if "ssl" in name or "crypto" in name} == set()


def test_files_for_the_service_are_in_the_environment() -> None:
    share = PREFIX / "share"
    for name in ("imageio-daemon.service", "daemon.conf", "sysusers.d/imageio-daemon.conf"):
        assert (share / "imageio-daemon" / name).is_file()
    assert (share / "man/man5/imageio-daemon.conf.5").is_file()
    assert (share / "man/man8/imageio-daemon.8").is_file()


@pytest.mark.usefixtures("trusted")
def test_image_arrives_and_returns_with_the_authorities_of_the_system(daemon: Path) -> None:
    source = write_source(Path("/var/tmp/source"), SIZE)
    image = new_image(Path("/var/tmp/image"), SIZE, "nobody")
    copy = Path("/var/tmp/copy")
    programs = Programs(PREFIX / "bin", daemon / "sock")
    ticket = programs.add(image)
    programs.upload(source, ticket, "--no-local", "--verify")
    run("cmp", source, image)
    programs.download(ticket, copy, "--no-local")
    run("cmp", source, copy)
