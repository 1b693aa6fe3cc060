# SPDX-License-Identifier: Apache-2.0
"""The end of the daemon: after SIGTERM running requests end and none hangs, after SIGKILL what was flushed is there."""

import signal
from pathlib import Path

import pytest

from tests.support.daemon import DECIDED_PROGRAM, Daemon, MakeDaemon
from tests.support.http_client import DisconnectedError, ProtocolError, encode_request
from tests.support.images import MakeImage, MiB, make_image, pattern
from tests.support.polling import eventually


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(daemon={"shutdown_timeout": 3})


@pytest.fixture
def patient(make_daemon: MakeDaemon) -> Daemon:
    """A daemon that gives requests more time to end than a busy machine needs."""
    return make_daemon(daemon={"shutdown_timeout": 20})


@pytest.fixture
def images(own: Daemon, tmp_path: Path) -> MakeImage:
    return make_image(own, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_stops_an_idle_daemon(own: Daemon, number: signal.Signals) -> None:
    own.send_signal(number)
    assert own.wait() == 0


def test_idle_connections_do_not_delay_the_end(patient: Daemon, tmp_path: Path, service_name: str) -> None:
    image = make_image(patient, tmp_path)()
    with patient.connect(service_name) as used, patient.connect(service_name) as unused:
        assert used.get(image.url).status == 200
        patient.stop(timeout=15)
        assert used.is_closed()
        assert unused.is_closed()


def test_a_running_request_may_end(patient: Daemon, tmp_path: Path, service_name: str) -> None:
    image, content = make_image(patient, tmp_path)(), pattern(MiB, seed=1)
    request = encode_request("PUT", image.url, None, content)
    with patient.connect(service_name) as connection:
        connection.send(request[:-1000])
        eventually(lambda: patient.status(image.ticket)["active"], "the request runs")
        start = patient.log.end()
        patient.send_signal(signal.SIGTERM)
        patient.log.wait_for("stopping", start=start)
        connection.send(request[-1000:])
        assert connection.receive().status == 200
    assert patient.wait() == 0
    assert image.content() == content


def test_no_new_connection_is_served_while_a_request_ends(patient: Daemon, tmp_path: Path) -> None:
    image = make_image(patient, tmp_path)()
    request = encode_request("PUT", image.url, None, bytes(MiB))
    with patient.connect("unix") as connection:
        connection.send(request[:-1000])
        eventually(lambda: patient.status(image.ticket)["active"], "the request runs")
        start = patient.log.end()
        patient.send_signal(signal.SIGTERM)
        patient.log.wait_for("stopping", start=start)
        eventually(lambda: refused(patient), "connections are refused")
        connection.send(request[-1000:])
        assert connection.receive().status == 200
    assert patient.wait() == 0


def refused(daemon: Daemon) -> bool:
    try:
        with daemon.connect("tls", timeout=1) as connection:
            return connection.is_closed(timeout=1)
    except ProtocolError:  # one that was accepted at the last moment is answered 503
        return True
    except OSError:
        return True


def test_a_request_that_does_not_end_is_answered_that_it_may_be_sent_again(
    own: Daemon, images: MakeImage, service_name: str
) -> None:
    image = images()
    with own.connect(service_name) as connection:
        connection.send(encode_request("PUT", image.url, None, bytes(MiB))[:-1000])
        eventually(lambda: own.status(image.ticket)["active"], "the request runs")
        own.send_signal(signal.SIGTERM)
        answer = connection.receive()
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert connection.is_closed()
    assert own.wait() == 0
    assert image.content()[-1000:] == pattern(MiB)[-1000:]


def test_a_request_that_python_has_decided_is_answered_the_same(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(daemon={"shutdown_timeout": 1}, program=DECIDED_PROGRAM)
    image = make_image(daemon, tmp_path)()
    with daemon.connect("unix") as connection:
        connection.send(encode_request("PUT", image.url, None, bytes(MiB))[:-1000])
        eventually(lambda: daemon.status(image.ticket)["active"], "the request runs")
        daemon.send_signal(signal.SIGTERM)
        answer = connection.receive()
        assert (answer.status, answer.body) == (503, b"The server is shutting down\n")
    assert daemon.wait() == 0


def test_a_download_that_nobody_reads_does_not_hang_the_end(own: Daemon, images: MakeImage, service_name: str) -> None:
    image = images(size=256 * MiB, ops=["read"])
    with own.connect(service_name) as connection:
        connection.send(encode_request("GET", image.url))
        assert not connection.is_silent(timeout=10)
        own.send_signal(signal.SIGTERM)
        assert own.wait() == 0
        with pytest.raises(DisconnectedError):
            connection.receive()


def test_what_was_written_is_on_the_record_though_nobody_flushed(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(daemon={"state_dir": tmp_path / "state"})
    image = make_image(daemon, tmp_path)()
    with daemon.connect("unix") as connection:
        assert connection.request("PUT", f"{image.url}?flush=n", None, bytes(MiB)).status == 200
    daemon.stop()
    daemon.restart()
    with daemon.connect("unix") as connection:
        extents = connection.get(f"{image.url}/extents?context=durable").json()
    assert extents == [{"start": 0, "length": MiB, "durable": True}]


def test_sockets_are_removed(own: Daemon) -> None:
    sockets = [Path(own.local_socket), Path(own.control_socket)]
    assert all(path.is_socket() for path in sockets)
    own.stop()
    assert not any(path.exists() for path in sockets)


def test_a_daemon_that_ends_leaves_the_sockets_of_the_next_one_alone(
    own: Daemon, images: MakeImage, make_daemon: MakeDaemon
) -> None:
    image = images()
    with own.connect("unix") as connection:
        connection.send(encode_request("PUT", image.url, None, bytes(MiB))[:-1000])
        eventually(lambda: own.status(image.ticket)["active"], "the request runs")
        own.send_signal(signal.SIGTERM)
        eventually(lambda: refused(own), "connections are refused")
        following = make_daemon(local={"socket": own.local_socket})
        own.wait()
        assert Path(own.local_socket).is_socket()
        following.stop()


def test_a_second_daemon_does_not_take_the_sockets_of_the_first(own: Daemon) -> None:
    with (
        pytest.raises(AssertionError, match="ended with status 2"),
        Daemon(own.certificates, {"local": {"socket": own.local_socket}}),
    ):
        pass
    assert own.control("GET", "/tickets/").status == 200


def test_sockets_that_a_killed_daemon_left_are_replaced(make_daemon: MakeDaemon) -> None:
    killed = make_daemon()
    killed.kill()
    assert Path(killed.control_socket).is_socket()
    killed.restart()
    assert killed.control("GET", "/tickets/").json() == []


# After a crash


def test_what_was_flushed_survives_the_daemon(own: Daemon, images: MakeImage, service_name: str) -> None:
    image, content = images(size=8 * MiB), pattern(8 * MiB, seed=1)
    with own.connect(service_name) as connection:
        for number in range(8):
            piece = content[number * MiB : (number + 1) * MiB]
            assert connection.put_at(f"{image.url}?flush=n", number * MiB, piece).status == 200
        assert connection.patch(image.url, {"op": "flush"}).status == 200
    own.kill()
    assert image.content() == content


def test_a_killed_daemon_leaves_the_rest_of_the_image_alone(own: Daemon, images: MakeImage) -> None:
    image = images()
    before, content = image.content(), pattern(MiB, seed=1)
    request = encode_request("PUT", image.url, {"Content-Range": "bytes 0-*/*"}, content)
    with own.connect("unix") as connection:
        connection.send(request[: -MiB // 2])
        eventually(lambda: own.status(image.ticket)["active"], "the request runs")
        own.kill()
    assert image.content()[MiB // 2 :] == before[MiB // 2 :]
