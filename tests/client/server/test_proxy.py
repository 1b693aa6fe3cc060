# SPDX-License-Identifier: Apache-2.0
"""HTTPS_PROXY and NO_PROXY: who is asked for a tunnel, how, and what its answers mean."""

import base64
import socket
import subprocess
from pathlib import Path

import pytest

from imageio_daemon.client import ClientError, ServerFailed, Settings, Temporary, download, info, upload
from imageio_daemon.client.errors import Usage
from imageio_daemon.client.server.proxy import DEFAULT_PORT, MAX_HEAD, HttpProxy, is_exempt
from tests.client.tunnels import TunnelProxy
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.polling import eventually
from tests.support.ports import unused_port

SIZE = 4 * MiB


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    return new_image(pattern(SIZE))


@pytest.fixture
def asked_once(tls: Settings) -> Settings:
    return Settings(cafile=tls.cafile, local=False, retry_for=0)


def _use(monkeypatch: pytest.MonkeyPatch, proxy: TunnelProxy, user: str = "") -> None:
    monkeypatch.setenv("https_proxy", f"http://{user}127.0.0.1:{proxy.port}")


def test_transfers_go_by_the_proxy(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image, tls: Settings, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    with TunnelProxy(daemon.port) as proxy:
        _use(monkeypatch, proxy)
        download(daemon.url(image.ticket), target, settings=tls)
        upload(target, daemon.url(image.ticket), settings=tls)
        connections = len(proxy.requests)
    assert target.read_bytes() == pattern(SIZE)
    assert connections >= 2
    assert proxy.requests[0] == (
        f"CONNECT localhost:{daemon.port} HTTP/1.1\r\n"
        f"Host: localhost:{daemon.port}\r\nUser-Agent: imageio-client\r\n\r\n"
    )


def test_proxy_looks_up_the_name(monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image) -> None:
    with TunnelProxy(daemon.port) as proxy:
        _use(monkeypatch, proxy)
        url = f"https://images.example.invalid:8443/images/{image.ticket}"
        assert info(url, settings=Settings(insecure=True)).size == SIZE
    assert proxy.requests[0].startswith("CONNECT images.example.invalid:8443 HTTP/1.1\r\n")


def test_user_and_password_are_decoded_and_sent(monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image) -> None:
    with TunnelProxy(daemon.port) as proxy:
        _use(monkeypatch, proxy, "me%40home:p%3Aw%C3%A9@")
        info(daemon.url(image.ticket), settings=Settings(insecure=True))
    sent = base64.b64encode("me@home:p:wé".encode()).decode()
    assert f"\r\nProxy-Authorization: Basic {sent}\r\n" in proxy.requests[0]


def test_server_has_an_ipv6_address(monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image) -> None:
    with TunnelProxy(daemon.port) as proxy:
        _use(monkeypatch, proxy)
        info(f"https://[::1]:{daemon.port}/images/{image.ticket}", settings=Settings(insecure=True))
    assert proxy.requests[0].startswith(f"CONNECT [::1]:{daemon.port} HTTP/1.1\r\nHost: [::1]:{daemon.port}\r\n")


def test_proxy_has_an_ipv6_address(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image, tls: Settings
) -> None:
    with TunnelProxy(daemon.port, address="::1") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"[::1]:{proxy.port}")
        assert info(daemon.url(image.ticket), settings=tls).size == SIZE
    assert proxy.requests


def test_proxy_on_this_host_is_not_taken_for_the_server(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image
) -> None:
    with TunnelProxy(daemon.port) as proxy:
        _use(monkeypatch, proxy)
        assert not info(daemon.url(image.ticket), settings=Settings(cafile=str(daemon.cafile))).local


def test_unix_socket_needs_no_proxy(monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    settings = Settings(unix_socket=daemon.local_socket, retry_for=0)
    assert info(daemon.url(image.ticket), settings=settings).local


def test_host_of_no_proxy_is_reached_without(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image, asked_once: Settings
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "example.org, localhost")
    assert info(daemon.url(image.ticket), settings=asked_once).size == SIZE


# What answers mean


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            b"403 Filtered",
            ServerFailed,
            r"the proxy \S+ refuses localhost:\d+ \(403 Filtered\): NO_PROXY=localhost goes",
        ),
        (b"302 Found", ServerFailed, r"refuses localhost:\d+ \(302 Found\)"),
        (
            b"407 Authentication Required",
            ServerFailed,
            r"wants a user and password \(407 .*HTTPS_PROXY=http://USER:PASS",
        ),
        (b"502 Bad Gateway", Temporary, r"the proxy \S+ has no connection to localhost:\d+ \(502 Bad Gateway\)"),
        (b"500", Temporary, r"has no connection to localhost:\d+ \(500\)"),
        (b"429 \x1b[31mToo many", Temporary, r"\(429 \[31mToo many\)"),
        (b"403 " + b"x" * 5000, ServerFailed, r"\(403 x{100}\)"),
    ],
)
def test_refusal_of_the_proxy_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    daemon: Daemon,
    asked_once: Settings,
    answer: bytes,
    kind: type[ClientError],
    text: str,
) -> None:
    with TunnelProxy(daemon.port, b"HTTP/1.1 " + answer + b"\r\n\r\nSorry.") as proxy:
        _use(monkeypatch, proxy)
        with pytest.raises(ServerFailed, match=text) as raised:
            info(daemon.url("ticket"), settings=asked_once)
    assert type(raised.value) is kind


def test_wrong_password_is_told_without_it(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, asked_once: Settings
) -> None:
    with TunnelProxy(daemon.port, b"HTTP/1.1 407 No\r\n\r\n") as proxy:
        _use(monkeypatch, proxy, "me:secret@")
        with pytest.raises(ServerFailed, match="does not take the user and password of HTTPS_PROXY") as raised:
            info(daemon.url("ticket"), settings=asked_once)
    assert "secret" not in str(raised.value)


def test_proxy_without_a_connection_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image, tls: Settings
) -> None:
    with TunnelProxy(daemon.port, b"HTTP/1.0 503 Later\r\n\r\n") as proxy:
        _use(monkeypatch, proxy)
        assert info(daemon.url(image.ticket), settings=tls).size == SIZE
    assert len(proxy.requests) == 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nmore", "sent more than its answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEAD // 6), f"sent a head of more than {MAX_HEAD} bytes"),
        (b"HTTP/1.1 4", "can't connect to localhost:.* by the proxy .*: the proxy closed the connection"),
    ],
)
def test_answer_that_is_none_is_told(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, asked_once: Settings, answer: bytes, text: str
) -> None:
    with TunnelProxy(daemon.port, answer) as proxy:
        _use(monkeypatch, proxy)
        with pytest.raises(ServerFailed, match=text):
            info(daemon.url("ticket"), settings=asked_once)


def test_proxy_that_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, asked_once: Settings
) -> None:
    monkeypatch.setattr("imageio_daemon.client.server.address.CONNECT_TIMEOUT", 0.1)
    with TunnelProxy(daemon.port, b"HTTP/1.1 200 OK\r\n") as proxy:
        _use(monkeypatch, proxy)
        with pytest.raises(Temporary, match=r"can't connect to .* by the proxy .*: timed out"):
            info(daemon.url("ticket"), settings=asked_once)


def test_proxy_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, asked_once: Settings) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    with pytest.raises(Temporary, match=r"can't connect to host:443 by the proxy 127.0.0.1:1: Connection refused"):
        info("https://host/images/x", settings=asked_once)


def test_tinyproxy_is_asked_as_it_wants(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image, tls: Settings, tmp_path: Path
) -> None:
    port = unused_port()
    config = tmp_path / "tinyproxy.conf"
    config.write_text(f"Port {port}\nListen 127.0.0.1\nAllow 127.0.0.1\nBasicAuth me secret\nTimeout 60\n")
    with subprocess.Popen(["tinyproxy", "-d", "-c", str(config)], stdout=subprocess.DEVNULL) as program:
        try:
            eventually(lambda: _listens(port), "tinyproxy listens")
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            with pytest.raises(ServerFailed, match="wants a user and password"):
                info(daemon.url(image.ticket), settings=tls)
            monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{port}")
            download(daemon.url(image.ticket), tmp_path / "copy", settings=tls)
        finally:
            program.terminate()
    assert (tmp_path / "copy").read_bytes() == pattern(SIZE)


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


# Variables


@pytest.mark.parametrize(
    ("variables", "peer"),
    [
        ({}, None),
        ({"https_proxy": ""}, None),
        ({"HTTPS_PROXY": "http://one:3128"}, "one:3128"),
        ({"HTTPS_PROXY": "http://one:3128", "https_proxy": "two:8080"}, "two:8080"),
        ({"HTTPS_PROXY": "http://one/"}, f"one:{DEFAULT_PORT}"),
        ({"https_proxy": "http://user:pass@[2001:db8::1]:3128"}, "[2001:db8::1]:3128"),
        ({"http_proxy": "http://one:3128", "HTTP_PROXY": "http://one:3128"}, None),
        ({"https_proxy": "one:1", "NO_PROXY": "host.example"}, None),
        ({"https_proxy": "one:1", "NO_PROXY": "*", "no_proxy": "other"}, "one:1"),
    ],
)
def test_lower_case_comes_before_upper_case(variables: dict[str, str], peer: str | None) -> None:
    proxy = HttpProxy.of("host.example", variables)
    assert (proxy and proxy.peer) == peer


@pytest.mark.parametrize(
    "told", ["https://host:1", "socks5://host:1", "http://", "host:0", "host:65536", "host:x", "http://[::1", "a..b:1"]
)
def test_variable_that_names_no_http_proxy_is_refused_without_its_password(told: str) -> None:
    told = told.replace("host", "me:secret@host")
    with pytest.raises(Usage, match=r"HTTPS_PROXY must look like http://HOST:PORT") as raised:
        HttpProxy.of("localhost", {"https_proxy": told})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("host", "rules", "exempt"),
    [
        ("host", "", False),
        ("host", "*", True),
        ("host", "*,other", False),
        ("host", "*.example.org", False),
        ("example.org", "example.org", True),
        ("example.org", ".example.org", True),
        ("example.org", "example.org.", True),
        ("EXAMPLE.org.", "example.ORG", True),
        ("www.example.org", "example.org", True),
        ("www.example.org", "a, .example.org ,b", True),
        ("www.example.org", "a b example.org", True),
        ("wwwexample.org", "example.org", False),
        ("example.org", "www.example.org", False),
        ("example.org", ",. ,", False),
        ("example.org", "example.org..", False),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.0/24", True),
        ("192.0.2.7", "192.0.2.9/29", False),
        ("192.0.2.7", "2.7", False),
        ("192.0.2.7", "2001:db8::/32", False),
        ("192.0.2.7", "192.0.2.0/99", False),
        ("2001:db8::7", "2001:db8:0::7", True),
        ("2001:db8::7", "[2001:db8::7]", True),
        ("2001:db8::7", "2001:db8::/32", True),
        ("2001:db9::7", "2001:db8::/32", False),
        ("example.org", "0.0.0.0/0", False),
    ],
)
def test_no_proxy_has_the_rules_of_curl(host: str, rules: str, *, exempt: bool) -> None:
    assert is_exempt(host, rules) is exempt


def test_proxy_is_told_no_zone(monkeypatch: pytest.MonkeyPatch, daemon: Daemon, asked_once: Settings) -> None:
    with TunnelProxy(daemon.port, b"HTTP/1.1 403 No\r\n\r\n") as proxy:
        _use(monkeypatch, proxy)
        with pytest.raises(ServerFailed, match=r"refuses \[fe80::1\]:1 "):
            info("https://[fe80::1%25eth0]:1/images/x", settings=asked_once)
    assert proxy.requests[0].startswith("CONNECT [fe80::1]:1 HTTP/1.1\r\nHost: [fe80::1]:1\r\n")


def test_no_proxy_covers_an_address_with_a_zone() -> None:
    assert is_exempt("fe80::1%eth0", "fe80::/10")
