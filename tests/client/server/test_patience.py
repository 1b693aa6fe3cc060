# SPDX-License-Identifier: Apache-2.0
"""How long failed requests are sent again, and the pauses between them."""

import errno
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from imageio_daemon.client import Refused, Settings, Temporary, info, upload
from imageio_daemon.client.errors import NothingListens, ServerFailed, Stopped
from imageio_daemon.client.server.address import Endpoint, ImageUrl
from imageio_daemon.client.server.client_connection import ClientConnection
from imageio_daemon.client.server.patience import MAX_ASKED, MAX_DELAY, RETRY_FOR, UNREACHED_FOR, Patience
from imageio_daemon.client.server.retries import Retries
from imageio_daemon.client.stopping import Stop
from tests.examples.programs import ScriptedServer, answer, features

SIZE = answer("206 Partial Content", "x", "Content-Range: bytes 0-0/7")


class Clock(Stop):
    """Time that passes in sleep() only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 0.0
        self.slept: list[float] = []
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def wait_for_ever(patience: Patience, error: Temporary) -> None:
    while True:
        patience.wait(error)


def test_pauses_grow_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = Patience(clock, 10_000, Retries())
    for _ in range(100):
        patience.wait(Temporary("away"))
    assert 0.1 <= clock.slept[0] <= 0.125
    assert all(MAX_DELAY <= delay <= 1.25 * MAX_DELAY for delay in clock.slept[10:])


def test_pauses_of_two_connections_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for _ in range(2):
        Patience(clock, 1000, Retries()).wait(Temporary("away"))
    assert clock.slept[0] != clock.slept[1]


def test_time_is_used_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = Patience(clock, 30, Retries())
    while clock.now < 30:
        patience.wait(Temporary("away"))
    assert clock.now == 30
    with pytest.raises(Temporary, match=r"^away; given up after 30 s, --retry-for waits longer$"):
        patience.wait(Temporary("away"))


def test_success_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = Patience(clock, 1, Retries())
    for _ in range(1000):
        patience.wait(Temporary("away"))
        patience.succeeded()
    assert max(clock.slept) <= 0.125


def test_no_time_is_no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(Temporary, match=r"^away$"):
        Patience(clock, 0, Retries()).wait(Temporary("away"))
    assert clock.slept == []


def test_address_at_which_nothing_has_ever_listened_is_soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = Patience(clock, None, Retries())
    with pytest.raises(NothingListens, match="refused; given up after 5 s"):
        wait_for_ever(patience, NothingListens("refused"))
    assert clock.now == UNREACHED_FOR


@pytest.mark.parametrize("earlier", ["an answer", "another failure"])
def test_server_that_was_reached_may_restart(monkeypatch: pytest.MonkeyPatch, earlier: str) -> None:
    clock, retries = Clock(monkeypatch), Retries()
    if earlier == "an answer":
        Patience(clock, None, retries).succeeded()  # of another connection
    else:
        Patience(clock, None, retries).wait(Temporary("cut off"))
    began, patience = clock.now, Patience(clock, None, retries)
    with pytest.raises(NothingListens):
        wait_for_ever(patience, NothingListens("refused"))
    assert clock.now == pytest.approx(began + RETRY_FOR)


def test_time_that_the_user_has_asked_for_counts_at_any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    patience = Patience(clock, 30, Retries())
    with pytest.raises(NothingListens, match="given up after 30 s"):
        wait_for_ever(patience, NothingListens("refused"))


@pytest.mark.parametrize(("asked", "least"), [(7.0, 7.0), (1e9, MAX_ASKED)])
def test_server_may_ask_for_a_longer_pause(monkeypatch: pytest.MonkeyPatch, asked: float, least: float) -> None:
    clock = Clock(monkeypatch)
    Patience(clock, 1000, Retries()).wait(Temporary("busy", 503, asked))
    assert least <= clock.slept[0] <= 1.25 * least


def test_pause_ends_when_the_transfer_is_stopped() -> None:
    stop = Stop()
    stop.stop()
    with pytest.raises(Stopped):
        Patience(stop, 1000, Retries()).wait(Temporary("away"))


# Answers that ask for another try


@pytest.mark.parametrize(
    "status", ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout", "429 Too Many Requests"]
)
def test_busy_servers_and_proxies_are_asked_again(status: str) -> None:
    busy = answer(status, "<html>\n", "Connection: close")
    with ScriptedServer(busy, features(), busy, SIZE) as server:
        assert info(server.url).size == 7


@pytest.mark.parametrize(("told", "seconds"), [("3", 3.0), ("Fri, 31 Dec 1999 23:59:59 GMT", None), ("-1", None)])
def test_retry_after_is_read(told: str, seconds: float | None) -> None:
    with (
        ScriptedServer(answer("503 Busy", "", f"Retry-After: {told}")) as server,
        pytest.raises(Temporary, match="busy") as raised,
    ):
        info(server.url, settings=Settings(retry_for=0))
    assert raised.value.retry_after == seconds


def test_name_that_was_known_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is away, and with it who knows names."""
    look_up = socket.getaddrinfo
    lookups: list[str] = []

    def getaddrinfo(host: str, *arguments: object, **more: object) -> object:
        lookups.append(host)
        if len(lookups) == 2:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        call: Callable[..., object] = look_up
        return call(host, *arguments, **more)

    with ScriptedServer(features(), b"", SIZE) as server:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        assert info(server.url).size == 7
    assert len(lookups) == 3


# Servers that restart


def test_socket_that_this_user_may_not_use_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(ServerFailed, match="can't connect to local: Permission denied") as raised:
        ClientConnection(Endpoint("local", unix="/socket"), Stop()).connect()
    assert not isinstance(raised.value, Temporary)


def test_ticket_that_is_gone_after_a_restart_is_final() -> None:
    refused = answer("403 Forbidden", "no")
    with (
        ScriptedServer(features(), b"", refused) as server,
        pytest.raises(Refused, match=r"403 .* valid before the connection was lost: .* keeps no tickets"),
    ):
        info(server.url)


def test_lost_unix_socket_is_not_used_again(tmp_path: Path) -> None:
    """A daemon that restarts may have another one, and another program may have the name of the old one."""
    with ScriptedServer(features()) as server:
        url = ImageUrl.parse(server.url)
        local = Endpoint("local", unix=str(tmp_path / "none"), url=Endpoint("remote", url.host, url.port))
        connection = ClientConnection(local, Stop())
        with pytest.raises(Temporary, match="can't connect to local: No such file"):
            connection.connect()
        assert connection.request("OPTIONS", url.path).status == 200
        connection.close()


@pytest.mark.parametrize("status", ["502 Bad Gateway", "503 Service Unavailable"])
def test_upload_goes_on_behind_a_proxy_that_has_lost_the_server(tmp_path: Path, status: str) -> None:
    """The server comes back as another process: what was not flushed is sent again."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100_000)
    ok, gone = answer("200 OK"), answer(status, "<html>", "Retry-After: 0", "Connection: close")
    first, second = (answer("200 OK", {"features": ["flush", "zero"], "instance": name}) for name in "ab")
    with ScriptedServer(first, ok, ok, gone, gone, second, ok, second, ok, ok, second) as server:
        upload(source, server.url, settings=Settings(connections=1), state=False)
    methods = " ".join(request.partition(" ")[0] for request in server.requests)
    assert methods == "OPTIONS PUT PUT PATCH OPTIONS OPTIONS PATCH OPTIONS PUT PATCH OPTIONS"
