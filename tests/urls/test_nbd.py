# SPDX-License-Identifier: Apache-2.0
import pytest

from imageio_daemon.errors import InvalidRequest
from imageio_daemon.urls.nbd import NbdAddress, is_nbd, parse


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nbd:unix:/run/nbd.sock", NbdAddress(socket="/run/nbd.sock")),
        ("nbd:unix:/run/nbd.sock:exportname=disk", NbdAddress(socket="/run/nbd.sock", export="disk")),
        ("nbd:unix:/run/nbd.sock:exportname=", NbdAddress(socket="/run/nbd.sock")),
        ("nbd:unix:/run/s:exportname=a:b/c d", NbdAddress(socket="/run/s", export="a:b/c d")),
        ("nbd:localhost:10810", NbdAddress(host="localhost", port=10810)),
        ("nbd:[::1]:10810:exportname=x", NbdAddress(host="::1", port=10810, export="x")),
        ("nbd://example.org", NbdAddress(host="example.org")),
        ("nbd://example.org/", NbdAddress(host="example.org")),
        ("nbd://example.org:1234/disk", NbdAddress(host="example.org", port=1234, export="disk")),
        ("nbd://example.org//disk", NbdAddress(host="example.org", export="/disk")),
        ("nbd://[::1]/hello%20world", NbdAddress(host="::1", export="hello world")),
        ("nbd://[fe80::1%25eth0]/x", NbdAddress(host="fe80::1%eth0", export="x")),
        ("nbd:[fe80::1%eth0]:10809", NbdAddress(host="fe80::1%eth0")),
        ("nbd://user@h/x", NbdAddress(host="h", export="x")),
        ("nbds://h/x", NbdAddress(host="h", export="x", tls=True, tls_hostname="h")),
        ("nbds://h./x", NbdAddress(host="h.", export="x", tls=True, tls_hostname="h")),
        ("nbds://[fe80::1%25eth0]/", NbdAddress(host="fe80::1%eth0", tls=True, tls_hostname="fe80::1")),
        ("nbds://h/?tls-hostname=other.", NbdAddress(host="h", tls=True, tls_hostname="other")),
        ("nbds://1.2.3.4/?tls-hostname=h", NbdAddress(host="1.2.3.4", tls=True, tls_hostname="h")),
        ("nbds://h/?tls-type=x509&tls-verify-peer=1", NbdAddress(host="h", tls=True, tls_hostname="h")),
        ("nbd+unix:///disk?socket=/run/s", NbdAddress(socket="/run/s", export="disk")),
        ("nbd+unix://?socket=/run/a%20b", NbdAddress(socket="/run/a b")),
        ("nbd+unix:///?socket=%00name", NbdAddress(socket="\0name")),
        (
            "nbds+unix:///x?socket=/run/s&tls-hostname=h",
            NbdAddress(socket="/run/s", export="x", tls=True, tls_hostname="h"),
        ),
    ],
)
def test_what_a_url_names(url: str, expected: NbdAddress) -> None:
    assert is_nbd(url)
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nbd:", "expected nbd:unix:"),
        ("nbd:unix:", "expected nbd:unix:"),
        ("nbd:unix:run/s", "absolute path"),
        ("nbd:localhost", "expected nbd:unix:"),
        ("nbd:localhost:x", "expected nbd:unix:"),
        ("nbd:localhost:10809:name=x", "expected nbd:unix:"),
        ("nbd:localhost:0", "port"),
        ("nbd:localhost:70000", "port"),
        ("nbd://", "missing the host"),
        ("nbd://h:0/", "port"),
        (f"nbd://{'h' * 64}/", "host name"),
        ("nbd://h..example/", "host name"),
        ("nbd://h%00x/", "host name"),
        (f"nbd:{'h' * 64}:1234", "host name"),
        (f"nbds+unix:///?socket=/run/s&tls-hostname={'h' * 64}", "host name"),
        ("nbds://h/?tls-hostname=h%00x", "host name"),
        (f"nbd://{'h.' * 127}h/", "host name"),
        ("nbd://h:70000/", "[Pp]ort"),
        ("nbd://u:p@h/", "password"),
        ("nbd://h/x#y", "fragment"),
        ("nbd://h/%ff", "UTF-8"),
        ("nbd://h/a%00b", "NUL"),
        ("nbd://h/" + "x" * 4097, "4096"),
        ("nbd://h/?socket=/run/s", "unknown parameter 'socket'"),
        ("nbd://h/?tls-psk-file=/etc/shadow", "unknown parameter 'tls-psk-file'"),
        ("nbd://h/?tls-hostname=h", "without TLS"),
        ("nbds://h/?tls-verify-peer=0", "tls-verify-peer"),
        ("nbds://h/?tls-type=psk", "x509"),
        ("nbds:h:1", "expected nbds://"),
        ("nbd+unix:///x", "missing the parameter 'socket'"),
        ("nbd+unix://h/x?socket=/run/s", "host beside"),
        ("nbd+unix:///x?socket=run/s", "absolute path"),
        ("nbd+unix:///x?socket=/a&socket=/b", "twice"),
        ("nbd+unix:///x?socket=/" + "a" * 107, "107"),
        ("nbd+unix:///x?socket=/a%00b", "absolute path"),
        ("nbds+unix:///x?socket=/run/s", "tls-hostname"),
        ("nbd://[::1/", "IPv6"),
        ("nbd+ssh://h/x", "unknown scheme"),
    ],
)
def test_what_is_no_url_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse(url)


@pytest.mark.parametrize("url", ["file:///x", "http://h/x", "nbdx://h", "NBD://h", "/nbd:unix:/x", ""])
def test_other_urls_are_not_for_nbd(url: str) -> None:
    assert not is_nbd(url)


def test_text_for_logs_has_no_export_name() -> None:
    assert str(parse("nbd:unix:/run/s:exportname=secret")) == "nbd:unix:/run/s"
    assert str(parse("nbds://h/secret")) == "nbds:h:10809"
    assert str(parse("nbd+unix:///?socket=%00name")) == "nbd:unix:@name"
