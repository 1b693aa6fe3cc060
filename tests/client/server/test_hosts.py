# SPDX-License-Identifier: Apache-2.0
"""Hosts as people write them: with a final dot, and addresses with a zone."""

import socket
from pathlib import Path

import pytest

from imageio_daemon.client import Settings, Usage, info
from imageio_daemon.client.server.address import Endpoint, ImageUrl
from tests.support.addresses import link_local
from tests.support.daemon import Certificates, Daemon, MakeDaemon
from tests.support.images import Image, MiB


def test_name_with_a_final_dot_is_verified_without_it(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image, tls: Settings
) -> None:
    looked_up: list[str] = []
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: object, **more: object) -> object:
        looked_up.append(host)
        return look_up(host.removesuffix("."), *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert info(daemon.url(image.ticket, host="localhost."), settings=tls).size == MiB
    assert set(looked_up) == {"localhost."}  # no domain of this host's is to be added


@pytest.mark.skipif(link_local() is None, reason="this host has no link-local address")
@pytest.mark.parametrize("mark", ["%25", "%"], ids=["as in URLs", "as on command lines"])
def test_address_with_a_zone_is_reached_and_verified_without_it(
    certificates: Certificates, make_daemon: MakeDaemon, tmp_path: Path, mark: str
) -> None:
    host = str(link_local())
    daemon = make_daemon(tls=certificates.issue(tmp_path, host.partition("%")[0]))
    image = tmp_path / "image"
    image.write_bytes(bytes(MiB))
    url = daemon.url(daemon.add_ticket(image, MiB), host=f"[{host.replace('%', mark)}]")
    assert info(url, settings=Settings(cafile=str(daemon.cafile), local=False, retry_for=0)).size == MiB


def test_zone_is_not_told_to_the_server() -> None:
    url = ImageUrl.parse("https://[fe80::1%25eth0]:54322/images/x")
    assert url.host == "fe80::1%eth0"
    assert Endpoint(url.peer, url.host, url.port).authority == "[fe80::1]:54322"


@pytest.mark.parametrize("host", ["[fe80::1%25]", "[fe80::1%25%ff]", "a%0d%0ab", "a%2fb", "a%20b"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(Usage, match="the URL must look like"):
        ImageUrl.parse(f"https://{host}:1/images/x")
