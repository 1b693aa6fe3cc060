# SPDX-License-Identifier: Apache-2.0
"""The command `imageioctl certificate`, which makes a self-signed certificate for a first try."""

import argparse
import base64
import datetime
import grp
import hashlib
import ipaddress
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import output
from .service import ControlError, ControlService, Usage

#: The files of the service, as [tls] cert_file and key_file have them by default.
CERT_FILE, KEY_FILE = "cert.pem", "key.pem"
#: Most characters of a name (RFC 1035 2.3.4) and of the common name (RFC 5280, ub-common-name); most names.
MAX_NAME, MAX_COMMON_NAME, MAX_NAMES = 253, 64, 64
#: Seconds for each call of openssl, which makes and signs a key in 0.01 s.
OPENSSL_TIMEOUT = 60.0
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)


def make(options: argparse.Namespace, _: ControlService) -> None:
    """Write key and certificate, and print what clients need. Raises Usage, or ControlError if a file exists."""
    names = [*([options.self_signed] if options.self_signed is not None else []), *options.names]
    if not names:
        raise Usage("which name? --self-signed NAME, as clients know this host")
    extension = _alternative_names(names)
    directory = Path(options.directory)
    files = directory / CERT_FILE, directory / KEY_FILE
    if not options.force and (present := [str(path) for path in files if os.path.lexists(path)]):
        raise ControlError(f"{' and '.join(present)} would be replaced: --force does it")
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=".certificate-") as made:
            _sign(Path(made), names[0], extension, options.days)
            pin = _pin(Path(made))
            _install(Path(made), files, options.group)
    except OSError as e:
        raise ControlError(f"{directory}: {e.strerror}{_advice(e, directory)}") from e
    expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=options.days)
    told = {"cert_file": str(files[0]), "key_file": str(files[1]), "names": names, "expires": f"{expires:%Y-%m-%d}"}
    told["pin"] = pin
    if options.json:
        output.json_line(told)
    else:
        output.pairs(told)


def _advice(error: OSError, directory: Path) -> str:
    """Return what to do about a directory in which files cannot be made, or "" if that is not known."""
    if not directory.is_dir():
        return f": make it (mkdir -p {shlex.quote(str(directory))}), or name another one (--directory DIR)"
    if isinstance(error, PermissionError):
        return ": root may write there, or name another one (--directory DIR)"
    return ""


def _alternative_names(names: Sequence[str]) -> str:
    """Return the names as openssl writes subjectAltName. Checks each: the text goes into openssl's configuration."""
    if len(names) > MAX_NAMES:
        raise Usage(f"more than {MAX_NAMES} names")
    return ",".join(map(_alternative_name, names))


def _alternative_name(name: str) -> str:
    if len(name) <= MAX_NAME:
        try:
            if "%" not in name:  # a zone may be any text, and means something on one host only
                return f"IP:{ipaddress.ip_address(name)}"
        except ValueError:
            labels = name.split(".")
            # A name whose last label is a number is a mistyped address, not a domain (RFC 3696, 2).
            if all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdecimal():
                return f"DNS:{name}"
    raise Usage(f"{output.printable(name[:MAX_NAME])} is neither a host name nor an address")


def _sign(made: Path, name: str, extension: str, days: int) -> None:
    """Make key.pem and cert.pem.

    The certificate is not an authority: a client that trusts it trusts only this host (RFC 5280, 4.2.1.9).
    """
    common_name = name if len(name) <= MAX_COMMON_NAME else "imageio-daemon"
    made.joinpath("request").write_text(
        f"""
        [req]
        prompt = no
        distinguished_name = subject
        x509_extensions = extensions
        [subject]
        commonName = {common_name}
        [extensions]
        basicConstraints = critical, CA:FALSE
        keyUsage = critical, digitalSignature
        extendedKeyUsage = serverAuth
        subjectKeyIdentifier = hash
        subjectAltName = {extension}
        """
    )
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
    _openssl(
        made, "req", "-x509", "-config", "request", *key, "-days", str(days), "-keyout", KEY_FILE, "-out", CERT_FILE
    )


def _pin(made: Path) -> str:
    """Return the hash of the public key, as curl's --pinnedpubkey takes it (RFC 7469, 2.4)."""
    public = _openssl(made, "pkey", "-in", KEY_FILE, "-pubout", "-outform", "DER")
    return f"sha256//{base64.b64encode(hashlib.sha256(public).digest()).decode()}"


def _openssl(directory: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            ["openssl", *arguments],  # noqa: S607 - found in the administrator's PATH
            check=False,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=OPENSSL_TIMEOUT,
        )
    except FileNotFoundError:
        raise ControlError("the program openssl is missing; it makes the key") from None
    except subprocess.TimeoutExpired:
        raise ControlError(f"openssl did not end within {OPENSSL_TIMEOUT:.0f} s") from None
    if done.returncode:
        raise ControlError(f"openssl: {output.printable(done.stderr.decode(errors='replace').strip()[-500:])}")
    return done.stdout


def _install(made: Path, files: Sequence[Path], group: str) -> None:
    """Move both files to their places. All may read the certificate; the service, which is not root, reads the key."""
    certificate, key = (made / path.name for path in files)
    certificate.chmod(0o644)
    if os.geteuid() == 0:
        try:
            os.chown(key, 0, grp.getgrnam(group).gr_gid)
        except KeyError:
            raise ControlError(f"no group {output.printable(group)}, which is to read the key: --group") from None
        key.chmod(0o640)
    else:
        key.chmod(0o600)
    for new, path in zip((key, certificate), reversed(files), strict=True):
        new.replace(path)
