# SPDX-License-Identifier: Apache-2.0
import pytest

from imageio_daemon.errors import InvalidRequest
from imageio_daemon.urls.http import is_http, parse


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://host:54322/images/id", "https://host:54322/images/id"),
        ("https://host/images/id", "https://host:443/images/id"),
        ("http://host:1/images/a%20b", "https://host:1/images/a%20b"),
        ("https://[::1]:54322/images/id", "https://[::1]:54322/images/id"),
        ("https://[fe80::1%25eth0]:54322/images/id", "https://[fe80::1%25eth0]:54322/images/id"),
        ("https://host./images/id", "https://host.:443/images/id"),
        ("https://10.0.0.1:65535/images/id", "https://10.0.0.1:65535/images/id"),
    ],
)
def test_the_image_is_asked_for_with_tls(url: str, asked: str) -> None:
    assert is_http(url)
    assert parse(url).url == asked


def test_libraries_get_a_zone_as_it_stands() -> None:
    assert parse("https://[fe80::1%25eth0]/images/id").url_to_connect == "https://[fe80::1%eth0]:443/images/id"


def test_the_text_of_an_address_does_not_hold_the_ticket() -> None:
    address = parse("https://host:54322/images/secret")
    assert str(address) == "https://host:54322/images/..."
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https://host:54322",
        "https://host:54322/",
        "https://host:54322/images/",
        "https://host:54322/other/id",
        "https://host:54322/images/id/extents",
        "https://host:54322/images/id?flush=n",
        "https://host:54322/images/id#part",
        "https://user:password@host:54322/images/id",
        "https://user@host:54322/images/id",
        "https://host:0/images/id",
        "https://host:65536/images/id",
        "https://host:123456/images/id",
        "https://host:/images/id",
        "https:///images/id",
        "https://host name/images/id",
        "https://h\u00f6st/images/id",
        "https://host/images/a b",
        "https://host/images/a\nb",
        "https://host/images/\u00e9",
        "https://" + "h" * 254 + "/images/id",
        "https://" + "h." * 127 + "h/images/id",
        "https://" + "h" * 64 + "/images/id",
        "https://host..example/images/id",
        "https://[::1::]/images/id",
        "https://[fe80::1%25]/images/id",
        "https://[fe80::1%eth0]/images/id",
        "https://[fe80::1%25%ff]/images/id",
        "https:/host/images/id",
    ],
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="https://host"):
        parse(url)
