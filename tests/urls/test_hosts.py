# SPDX-License-Identifier: Apache-2.0
import pytest

from imageio_daemon.urls import hosts


@pytest.mark.parametrize(
    ("in_url", "host"),
    [
        ("example.org", "example.org"),
        ("example.org.", "example.org."),
        ("ex%61mple.org", "example.org"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("fe80::1%25eth0", "fe80::1%eth0"),
        ("fe80::1%25eth0.100", "fe80::1%eth0.100"),
        ("fe80::1%25a%2Db", "fe80::1%a-b"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fe80::1%252", "fe80::1%2"),
    ],
)
def test_host_of_a_url_is_decoded(in_url: str, host: str) -> None:
    assert hosts.decoded(in_url) == host
    assert hosts.is_host(host)


@pytest.mark.parametrize("in_url", ["%ff", "fe80::1%25%ff"])
def test_host_that_is_not_utf_8_is_an_error(in_url: str) -> None:
    with pytest.raises(ValueError, match="not UTF-8"):
        hosts.decoded(in_url)


@pytest.mark.parametrize(
    ("host", "in_url", "told", "certified"),
    [
        ("example.org", "example.org", "example.org:1", "example.org"),
        ("example.org.", "example.org.", "example.org.:1", "example.org"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1:1", "10.0.0.1"),
        ("::1", "[::1]", "[::1]:1", "::1"),
        ("fe80::1%eth0", "[fe80::1%25eth0]", "[fe80::1]:1", "fe80::1"),
    ],
)
def test_zone_is_told_to_nobody_and_the_last_dot_is_in_no_certificate(
    host: str, in_url: str, told: str, certified: str
) -> None:
    assert hosts.encoded(host) == in_url
    assert hosts.told(host, 1) == told
    assert hosts.certified(host) == certified


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a/b",
        "a\r\nb",
        "a\0",
        "a..b",
        "a%b",
        "1:2",
        "::1::",
        "fe80::1%",
        "fe80::1%a\nb",
        "fe80::1%a b",
        "fe80::1%a%b",
        "x" * 64,
        "x." * 127 + "x",
    ],
)
def test_what_is_no_host(text: str) -> None:
    assert not hosts.is_host(text)
