# SPDX-License-Identifier: Apache-2.0
import pytest

from imageio_daemon.config.config import Config, conflicts
from imageio_daemon.config.services import NbdSection, TlsSection

TLS = TlsSection(cert_file="cert.pem", key_file="key.pem")


@pytest.mark.parametrize(
    ("name", "nbd", "tls"),
    [
        ("socket", NbdSection(enable=True, port=-1), TLS),
        ("tls", NbdSection(enable=True), TlsSection(enable=False)),
        ("tls", NbdSection(enable=True, tls="off"), TLS),
        ("tls", NbdSection(enable=True, tls="off", host="0.0.0.0"), TLS),
        ("tls", NbdSection(enable=True, tls="off", host="127.0.0.1.example.org"), TLS),
        ("tls", NbdSection(enable=True, tls="optional", host="disk.example.org"), TLS),
        ("list", NbdSection(enable=True, list=True), TLS),
        ("mode", NbdSection(enable=True, list=True, socket="/run/nbd", mode=0o666), TLS),
    ],
)
def test_options_of_nbd_that_do_not_go_together_are_refused(name: str, nbd: NbdSection, tls: TlsSection) -> None:
    assert [(conflict.section, conflict.name) for conflict in conflicts(Config(tls=tls, nbd=nbd))] == [("nbd", name)]


@pytest.mark.parametrize(
    ("nbd", "tls"),
    [
        (NbdSection(enable=True), TLS),
        (NbdSection(enable=True, tls="off", host="localhost"), TlsSection(enable=False)),
        (NbdSection(enable=True, tls="optional", host="::1"), TLS),
        (NbdSection(enable=True, port=-1, socket="/run/nbd", list=True), TlsSection(enable=False)),
        (NbdSection(enable=False, tls="off", list=True), TLS),
    ],
)
def test_options_of_nbd_that_go_together_are_no_conflict(nbd: NbdSection, tls: TlsSection) -> None:
    assert list(conflicts(Config(tls=tls, nbd=nbd))) == []
