# SPDX-License-Identifier: Apache-2.0
"""imageioctl share."""

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from imageio_daemon.control import cli
from tests.control.conftest import Ctl, run
from tests.support.daemon import Certificates, Daemon


@pytest.fixture(scope="module")
def shared_daemon(certificates: Certificates) -> Iterator[Daemon]:
    with Daemon(certificates, {"ui": {"enable": True}}) as daemon:
        yield daemon


def test_link_leads_to_the_page_with_the_ticket_in_the_fragment(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    told = ctl("share", "--write", "--host", "localhost", image)
    link = urlsplit(told.out.strip())
    daemon.hide(link.fragment)
    assert (told.status, link.scheme, link.netloc, link.path) == (0, "https", f"localhost:{daemon.port}", "/ui/")
    with daemon.connect("tls") as connection:
        assert connection.get(link.path).status == 200
    state = daemon.status(link.fragment)
    assert (state["url"], state["size"], state["ops"], state["timeout"]) == (
        f"file://{image}",
        1024**2,
        ["write"],
        3600,
    )


def test_link_for_a_download_offers_the_name_of_the_image(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    told = ctl("share", "--read", "--json", "--transfer-id", "support-7", image).json()[0]
    daemon.hide(told["uuid"])
    state = daemon.status(told["uuid"])
    assert (state["ops"], state["filename"], told["transfer"]) == (["read"], "image", "support-7")
    assert urlsplit(told["url"]).hostname == socket.getfqdn().lower()


def test_name_that_no_header_can_offer_is_left_out(daemon: Daemon, ctl: Ctl, tmp_path: Path) -> None:
    strange = tmp_path / "a; filename=b"
    strange.write_bytes(bytes(4096))
    told = ctl("share", "--read", "--json", strange).json()[0]
    daemon.hide(told["uuid"])
    assert "filename" not in daemon.status(told["uuid"])


def test_id_is_escaped_in_the_link(daemon: Daemon, ctl: Ctl, image: Path) -> None:
    daemon.hide("a/b#c")
    assert ctl("share", "--read", "--id", "-", image, stdin="a/b#c\n").out.endswith("/ui/#a%2Fb%23c\n")


@pytest.mark.parametrize(("host", "shown"), [("2001:db8::1", "[2001:db8::1]"), ("192.0.2.7", "192.0.2.7")])
def test_address_is_a_host(daemon: Daemon, ctl: Ctl, image: Path, host: str, shown: str) -> None:
    told = ctl("share", "--read", "--json", "--host", host, image).json()[0]
    daemon.hide(told["uuid"])
    assert told["url"].startswith(f"https://{shown}:{daemon.port}/ui/#")


@pytest.mark.parametrize("host", ["a b", "host/path", "host:80", "fe80::1%eth0", ""])
def test_host_that_makes_no_link_is_refused_before_there_is_a_ticket(
    daemon: Daemon, ctl: Ctl, image: Path, host: str
) -> None:
    before = len(daemon.control("GET", "/tickets/").json())
    ctl("share", "--read", "--host", host, image).failed_with("neither a host name nor an address", 2)
    assert len(daemon.control("GET", "/tickets/").json()) == before


def test_daemon_without_the_page_is_told_with_what_to_do(certificates: Certificates, image: Path) -> None:
    with Daemon(certificates) as daemon:
        run("share", "--read", image, "--socket", daemon.control_socket).failed_with(r"enable = true in \[ui\]", 1)


def test_direction_is_asked_for(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["share", str(image)]) == 2
    assert "one of the arguments --read --write is required" in capsys.readouterr().err
