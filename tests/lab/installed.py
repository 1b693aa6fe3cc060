# SPDX-License-Identifier: Apache-2.0
"""The installed programs and service, as the checks of the lab use them. With Debian's pytest, as root."""

import os
import pwd
import subprocess
from pathlib import Path

UNIT = "imageio-daemon"
ETC = Path("/etc/imageio-daemon")
RUN = Path("/run/imageio-daemon")
IMAGES = Path("/images")
#: Seconds for one command.
TIMEOUT = 300.0

CONFIG = f"""\
[tls]
cert_file = {ETC}/cert.pem
key_file = {ETC}/key.pem
"""


def run(*command: object, ok: bool = True) -> str:
    """Run a command, which must succeed unless not `ok`, and return what it prints."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert not ok or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return (done.stdout + done.stderr).strip()


def show(name: str) -> str:
    """Return a property of the unit."""
    return run("systemctl", "show", "--value", "--property", name, UNIT)


def make_certificate(directory: Path, group: str = "root") -> None:
    """Write cert.pem and key.pem of localhost, for two days. The group may read the key."""
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
        "-keyout", directory / "key.pem", "-out", directory / "cert.pem")  # fmt: skip
    run("chgrp", group, directory / "key.pem")
    (directory / "key.pem").chmod(0o640)


def configure(more: str = "") -> None:
    """Do what the guide leaves to the operator: certificate and configuration; and a loopback interface."""
    make_certificate(ETC, "imageio")
    (ETC / "conf.d" / "50-host.conf").write_text(CONFIG + more)
    run("ip", "link", "set", "lo", "up")


def write_source(path: Path, size: int) -> Path:
    """Make a disk image with data and a hole."""
    with path.open("wb") as file:
        file.write(os.urandom(size // 2))
        file.truncate(size)
    return path


def new_image(path: Path, size: int, user: str = "imageio") -> Path:
    """Make an empty image of a user."""
    with path.open("wb") as file:
        file.truncate(size)
    owner = pwd.getpwnam(user)
    os.chown(path, owner.pw_uid, owner.pw_gid)
    return path


class Programs:
    """Tickets and transfers on this host, by the programs of one installation."""

    def __init__(self, directory: Path, control: Path, *trust: object) -> None:
        self._client = directory / "imageio-client"
        self._ctl = directory / "imageioctl"
        self._control = control
        self._trust = trust

    def ctl(self, command: str, *arguments: object, ok: bool = True) -> str:
        """Run a command of imageioctl, as `ticket add`."""
        return run(self._ctl, *command.split(), "--socket", self._control, *arguments, ok=ok)

    def add(self, image: object, *arguments: object) -> str:
        """Install a ticket for an image, and return its id."""
        return self.ctl("ticket add", "--sparse", *arguments, image)

    def upload(self, source: Path, ticket: str, *arguments: object) -> None:
        run(self._client, "upload", "--quiet", "--no-state", *self._trust, *arguments, source, url(ticket))

    def download(self, ticket: str, target: Path, *arguments: object) -> None:
        run(self._client, "download", "--quiet", *self._trust, *arguments, url(ticket), target)


def service() -> Programs:
    """Return the programs of the package, for its service."""
    return Programs(Path("/usr/bin"), RUN / "sock", "--cafile", ETC / "cert.pem")


def url(ticket: str) -> str:
    return f"https://localhost:54322/images/{ticket}"
