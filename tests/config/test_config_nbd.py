# SPDX-License-Identifier: Apache-2.0
import pytest

from imageio_daemon.config.config import NBD_MEMORY, Config, conflicts
from imageio_daemon.config.sections import Daemon
from imageio_daemon.config.services import Nbd, Tls

TLS = Tls(cert_file="cert.pem", key_file="key.pem")


@pytest.mark.parametrize(
    ("name", "nbd", "tls"),
    [
        ("socket", Nbd(enable=True, port=-1), TLS),
        ("tls", Nbd(enable=True), Tls(enable=False)),
        ("tls", Nbd(enable=True, tls="off"), TLS),
        ("tls", Nbd(enable=True, tls="off", host="0.0.0.0"), TLS),
        ("tls", Nbd(enable=True, tls="off", host="127.0.0.1.example.org"), TLS),
        ("tls", Nbd(enable=True, tls="optional", host="disk.example.org"), TLS),
        ("list", Nbd(enable=True, list=True), TLS),
        ("mode", Nbd(enable=True, list=True, socket="/run/nbd", mode=0o666), TLS),
    ],
)
def test_options_of_nbd_that_do_not_go_together_are_refused(name: str, nbd: Nbd, tls: Tls) -> None:
    assert [(conflict.section, conflict.name) for conflict in conflicts(Config(tls=tls, nbd=nbd))] == [("nbd", name)]


def test_nbd_needs_memory_for_its_connections() -> None:
    little = Daemon(buffer_memory=NBD_MEMORY - 1)
    (conflict,) = conflicts(Config(daemon=little, tls=TLS, nbd=Nbd(enable=True)))
    assert (conflict.section, conflict.name) == ("daemon", "buffer_memory")
    assert list(conflicts(Config(daemon=little, tls=TLS))) == []
    assert list(conflicts(Config(daemon=Daemon(buffer_memory=NBD_MEMORY), tls=TLS, nbd=Nbd(enable=True)))) == []


@pytest.mark.parametrize(
    ("nbd", "tls"),
    [
        (Nbd(enable=True), TLS),
        (Nbd(enable=True, tls="off", host="localhost"), Tls(enable=False)),
        (Nbd(enable=True, tls="optional", host="::1"), TLS),
        (Nbd(enable=True, port=-1, socket="/run/nbd", list=True), Tls(enable=False)),
        (Nbd(enable=False, tls="off", list=True), TLS),
    ],
)
def test_options_of_nbd_that_go_together_are_no_conflict(nbd: Nbd, tls: Tls) -> None:
    assert list(conflicts(Config(tls=tls, nbd=nbd))) == []
