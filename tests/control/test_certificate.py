# SPDX-License-Identifier: Apache-2.0
"""imageioctl certificate."""

import json
import os
import ssl
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.control import certificate, cli
from tests.control.conftest import run
from tests.support.commands import Result
from tests.support.daemon import Certificates, Daemon
from tests.support.images import MiB

#: Runs `imageioctl certificate --self-signed NAME ARGUMENTS…` with a directory and a group that are there.
Make = Callable[..., Result]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def run_there(*arguments: str) -> Result:
        return run(*ARGUMENTS, str(tmp_path), *arguments)

    return run_there


#: Up to the value of --directory.
ARGUMENTS = ("certificate", "--group", "root", "--self-signed", "localhost", "--directory")


def text_of(path: Path) -> str:
    show = ["openssl", "x509", "-in", str(path), "-noout", "-text"]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout


def test_daemon_serves_with_it_and_clients_verify_it(make: Make, certificates: Certificates, tmp_path: Path) -> None:
    told = make("127.0.0.1", "--json").json()[0]
    config = {"tls": {"cert_file": told["cert_file"], "key_file": told["key_file"]}}
    with Daemon(certificates, config) as daemon:
        image = tmp_path / "image"
        image.write_bytes(bytes(MiB))
        url = f"https://localhost:{daemon.port}/images/{daemon.add_ticket(image, MiB)}"
        for pinned in (["--cacert", told["cert_file"]], ["--insecure", "--pinnedpubkey", told["pin"]]):
            got = subprocess.run(["curl", "-sS", *pinned, url], check=True, capture_output=True, timeout=60)
            assert got.stdout == bytes(MiB)


def test_python_accepts_it_by_the_strict_rules(make: Make, tmp_path: Path) -> None:
    make()
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    peers = [
        context.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for peer in peers:
            try:
                peer.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert peers[0].version() == "TLSv1.3"
    assert peers[0].getpeercert()


def test_it_has_all_names_and_is_no_authority(make: Make, tmp_path: Path) -> None:
    told = make("h.example", "192.0.2.1", "2001:db8::1", "--days", "90", "--json").json()[0]
    assert told["names"] == ["localhost", "h.example", "192.0.2.1", "2001:db8::1"]
    assert told["expires"] == time.strftime("%Y-%m-%d", time.gmtime(time.time() + 90 * 86400))
    text = text_of(tmp_path / "cert.pem")
    assert "DNS:localhost, DNS:h.example, IP Address:192.0.2.1, IP Address:2001:DB8:0:0:0:0:0:1" in text
    assert "CA:FALSE" in text


def test_key_is_for_the_group_of_the_service_only(make: Make, tmp_path: Path) -> None:
    make()
    key, public = (tmp_path.joinpath(name).stat() for name in ("key.pem", "cert.pem"))
    assert stat.S_IMODE(key.st_mode) == (0o640 if os.geteuid() == 0 else 0o600)
    assert stat.S_IMODE(public.st_mode) == 0o644
    assert sorted(os.listdir(tmp_path)) == ["cert.pem", "key.pem"]


@pytest.mark.parametrize("name", ["cert.pem", "key.pem"])
def test_nothing_is_replaced_unless_it_is_asked_for(make: Make, tmp_path: Path, name: str) -> None:
    tmp_path.joinpath(name).write_text("old")
    make().failed_with(f"{tmp_path}/{name} would be replaced: --force does it", 1)
    assert tmp_path.joinpath(name).read_text() == "old"
    assert make("--force").status == 0
    assert tmp_path.joinpath(name).read_text() != "old"


def test_link_to_what_is_not_there_is_not_replaced(make: Make, tmp_path: Path) -> None:
    tmp_path.joinpath("cert.pem").symlink_to("not-mounted/cert.pem")
    make().failed_with(f"{tmp_path}/cert.pem would be replaced: --force does it", 1)
    assert tmp_path.joinpath("cert.pem").is_symlink()


#: What is neither a host name nor an address, for one reason each.
NO_NAMES = ("", "a b", "a\nb", "a,DNS:b", "-a.example", "a..b", "fe80::1%eth0", "fe80::1%\nx = y", "x" * 254, "a" * 64)
NO_ADDRESSES = ("a.1", "192.0.2.256", "192.0.2")


@pytest.mark.parametrize("name", NO_NAMES + NO_ADDRESSES)
def test_what_is_no_name_is_refused(make: Make, tmp_path: Path, name: str) -> None:
    make("--", name).failed_with("is neither a host name nor an address", 2)
    assert not list(tmp_path.iterdir())


def test_names_are_bounded(make: Make) -> None:
    make(*["a.example"] * certificate.MAX_NAMES).failed_with("more than 64 names", 2)


def test_long_name_is_not_the_common_name(tmp_path: Path) -> None:
    name = ".".join(["a" * 60] * 4)
    words = [name if word == "localhost" else word for word in ARGUMENTS]
    assert run(*words, str(tmp_path)).status == 0
    assert f"DNS:{name}" in text_of(tmp_path / "cert.pem")


@pytest.mark.parametrize("days", ["0", "826", "x", "9" * 5000])
def test_days_are_bounded(make: Make, days: str) -> None:
    done = make("--days", days)
    assert done.status == 2
    assert done.err.endswith("argument --days: between 1 and 825\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to groups")
def test_group_that_is_missing_is_told(tmp_path: Path) -> None:
    words = ["no-such" if word == "root" else word for word in ARGUMENTS]
    run(*words, str(tmp_path)).failed_with("no group no-such, which is to read the key: --group", 1)
    assert not list(tmp_path.iterdir())


def test_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    run(*ARGUMENTS, f"{tmp_path}/none").failed_with(f"{tmp_path}/none: No such file or directory", 1)


def test_openssl_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main([*ARGUMENTS, str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "the program openssl is missing; it makes the key"


@pytest.mark.parametrize(
    ("lines", "message"),
    [("echo wrong >&2; exit 1", "openssl: wrong"), ("exec sleep 100", "openssl did not end within 0 s")],
)
def test_openssl_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: str, message: str
) -> None:
    program = tmp_path / "openssl"
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if "sleep" in lines:
        monkeypatch.setattr(certificate, "OPENSSL_TIMEOUT", 0.1)
    assert cli.main([*ARGUMENTS, str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"imageioctl: {message}\n"


def test_names_and_options_come_in_any_order(tmp_path: Path) -> None:
    options = ("--directory", str(tmp_path), "--group", "root", "--json", "--days", "3")
    for order in (
        ("--self-signed", *options, "a", "b", "c"),
        ("--self-signed", "a", *options, "b", "--force", "c"),
        ("a", *options, "b", "c", "--self-signed"),
        ("--self-signed", "a", *options, "b", "--", "c"),
    ):
        assert run("certificate", "--force", *order).json()[0]["names"] == ["a", "b", "c"], order


def test_certificate_needs_a_name(tmp_path: Path) -> None:
    run("certificate", "--self-signed", "--directory", str(tmp_path)).failed_with("which name?", 2)


def test_directory_that_is_missing_comes_with_advice(tmp_path: Path) -> None:
    done = run("certificate", "--self-signed", "localhost", "--directory", str(tmp_path / "a b"))
    done.failed_with(rf"a b: No such file or directory: make it \(mkdir -p '{tmp_path}/a b'\)", 1)


def test_directory_of_another_user_comes_with_advice(tmp_path: Path) -> None:
    assert certificate._advice(PermissionError(), tmp_path).startswith(": root may write there")
    assert certificate._advice(IsADirectoryError(), tmp_path) == ""
