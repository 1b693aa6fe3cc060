# SPDX-License-Identifier: Apache-2.0
"""Metrics tell exactly what was done, and nothing of who did it; health checks."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from imageio_daemon.client.local.compressed import zstd
from imageio_daemon.runtime.degraded import Feature
from tests.frontends.nbd.client import Client
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import encode_request
from tests.support.images import Image, MiB, make_image, pattern
from tests.support.metrics import Metrics
from tests.support.polling import eventually


@pytest.fixture
def own(make_daemon: MakeDaemon, tmp_path: Path) -> Daemon:
    nbd = {"enable": True, "port": -1, "socket": tmp_path / "nbd"}
    return make_daemon(
        daemon={"state_dir": tmp_path / "state"},
        remote={"port": 0},
        metrics={"enable": True, "port": 0},
        nbd=nbd,
    )


@pytest.fixture
def image(own: Daemon, tmp_path: Path) -> Image:
    return make_image(own, tmp_path)(pattern(8 * MiB))


@pytest.fixture
def port(own: Daemon) -> int:
    match = own.log.find(r"service=metrics .*port=(\d+)")
    assert match is not None
    return int(match[1])


def zero(offset: int, length: int) -> bytes:
    return json.dumps({"op": "zero", "offset": offset, "size": length, "flush": True}).encode()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_compressed_uploads_are_counted_as_they_came_and_as_they_are_written(own: Daemon, image: Image) -> None:
    content = pattern(4096) * 256
    frame = zstd.compress(content)
    for body in (frame, frame[:-4]):
        with own.connect("tls") as connection:
            headers = {"Content-Encoding": "zstd", "Content-Range": f"bytes 0-{MiB - 1}/*"}
            assert connection.put(image.url, body, headers).status == (200 if body is frame else 400)
    metrics = Metrics(own)
    assert len(frame) < metrics.sum("encoded_bytes_total") <= 2 * len(frame) - 4  # without the heads of the frames
    assert metrics.sum("decoder_memory_bytes") == 0
    # Of the frame that is cut, nothing or a part.
    assert MiB <= metrics.sum("written_bytes_total", storage="file") <= metrics.sum("decoded_bytes_total") < 2 * MiB


async def test_what_was_moved_is_counted_exactly(own: Daemon, image: Image, tmp_path: Path) -> None:
    for service in ("unix", "tls"):
        with own.connect(service) as connection:
            assert connection.put(image.url, pattern(3 * MiB)).status == 200
            assert connection.get(image.url).status == 200
            assert connection.request("PATCH", image.url, None, zero(MiB, 2 * MiB)).status == 200
    client = await Client.connect(str(tmp_path / "nbd"))
    await client.go(image.ticket)
    assert (await client.request(0, 0, 65536)).error == 0
    assert (await client.request(1, 4096, data=pattern(8192))).error == 0
    await client.close()
    metrics = Metrics(own)
    assert metrics.sum("written_bytes_total", storage="file") == 2 * 3 * MiB + 8192
    assert metrics.sum("read_bytes_total", storage="file") == 2 * 8 * MiB + 65536
    assert metrics.sum("zeroed_bytes_total", storage="file") == 2 * 2 * MiB
    assert metrics.sum("requests_total", service="local") == metrics.sum("requests_total", service="remote") == 3
    assert metrics.sum("requests_total", service="nbd-local") == 2
    assert metrics.sum("request_errors_total") == 0
    assert metrics.sum("storage_errors_total") == 0


def test_counters_stay_when_tickets_are_removed(own: Daemon, image: Image) -> None:
    with own.connect("unix") as connection:
        assert connection.put(image.url, pattern(MiB)).status == 200
    own.remove(image.ticket)
    metrics = Metrics(own)
    assert metrics.sum("written_bytes_total") == MiB
    assert metrics.sum("tickets") == 0
    assert metrics.sum("tickets_added_total") == 1


def test_refusals_and_failures_are_counted(own: Daemon, image: Image, tmp_path: Path) -> None:
    missing = own.add_ticket(tmp_path / "missing", MiB)
    with own.connect("unix") as connection:
        assert connection.get("/images/none").status == 403
    with own.connect("unix") as connection:
        assert connection.get(f"/images/{missing}").status == 500
    metrics = Metrics(own)
    assert metrics.sum("request_errors_total", service="local", fault="client") == 1
    assert metrics.sum("request_errors_total", service="local", fault="server") == 1
    assert metrics.sum("storage_errors_total", storage="file") >= 1


def test_write_that_storage_fails_is_counted(own: Daemon, full_filesystem: Path) -> None:
    image = make_image(own, full_filesystem.parent)(path=full_filesystem)
    with own.connect("unix") as connection:
        assert connection.put(image.url, pattern(MiB)).status == 507
    metrics = Metrics(own)
    assert metrics.sum("storage_errors_total", storage="file", operation="write") == 1
    assert metrics.sum("request_errors_total", service="local", fault="server") == 1


def test_waits_for_limits_are_counted_and_stay(own: Daemon, image: Image) -> None:
    assert Metrics(own).sum("limited_seconds_total", storage="file") == 0
    assert own.control("PATCH", f"/tickets/{image.ticket}", b'{"rate": 65536}').status == 200
    with own.connect("unix") as connection:
        for last in (65535, 9):
            assert connection.get(image.url, {"Range": f"bytes=0-{last}"}).status == 206
    limited = Metrics(own).sum("limited_seconds_total", storage="file")
    assert limited > 0.5
    own.remove(image.ticket)
    assert Metrics(own).sum("limited_seconds_total", storage="file") == limited


def test_connections_and_tickets_are_told_by_state(own: Daemon, image: Image, tmp_path: Path) -> None:
    expired = own.add_ticket(tmp_path / "other", MiB)
    own.extend(expired, 0)
    with own.connect("unix") as connection:
        assert connection.get(image.url, {"Range": "bytes=0-9"}).status == 206
        metrics = Metrics(own)
        assert metrics.sum("connections", service="local") == 1
        assert metrics.sum("connection_places", limit="http", stage="known") == 1
    assert metrics.sum("tickets", state="expired") == 1
    assert metrics.sum("tickets", state="idle") == 1
    eventually(lambda: Metrics(own).sum("connections", service="local") == 0, "the connection is gone")


def test_durable_bytes_are_told(own: Daemon, image: Image) -> None:
    with own.connect("unix") as connection:
        assert connection.put(f"{image.url}?flush=y", pattern(MiB)).status == 200
    metrics = Metrics(own)
    assert metrics.sum("durable_bytes") == MiB
    assert metrics.sum("durable_records", state="kept") == 1


def test_certificate_expiry_is_that_of_the_certificate(own: Daemon) -> None:
    context = ssl.create_default_context(cafile=str(own.cafile))
    plain = socket.create_connection(("localhost", own.port))
    with context.wrap_socket(plain, server_hostname="localhost") as secure:
        certificate = secure.getpeercert()
    assert certificate is not None
    expires = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    assert Metrics(own).sum("certificate_expiry_timestamp_seconds") == expires


def test_metrics_tell_no_ticket_path_or_client(own: Daemon, image: Image) -> None:
    with own.connect("tls") as connection:
        assert connection.put(image.url, pattern(MiB)).status == 200
        text = Metrics(own).text
    for secret in (image.ticket, str(image.path), image.path.name, "127.0.0.1", "::1"):
        assert secret not in text


def test_number_of_series_does_not_grow_with_what_is_served(own: Daemon, image: Image, tmp_path: Path) -> None:
    before = len(Metrics(own).samples)
    for number in range(20):
        own.add_ticket(tmp_path / f"image-{number}", MiB)
        with own.connect("unix") as connection:
            assert connection.put(image.url, pattern(4096)).status == 200
    assert len(Metrics(own).samples) == before


# The listener


def test_listener_has_metrics_and_health_alone(own: Daemon, image: Image, port: int) -> None:
    status, text = get(port, "/metrics")
    assert status == 200
    assert "\nimageio_tickets{" in text
    assert get(port, "/livez") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ok\n")
    for path in ("/tickets/", f"/tickets/{image.ticket}", image.url, "/status", "/info/", "/"):
        assert get(port, path)[0] == 404


def test_listener_is_on_loopback(own: Daemon) -> None:
    assert own.log.find(r"service=metrics address=127\.0\.0\.1 ") is not None


def test_there_is_no_listener_by_default(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    assert daemon.log.find("service=metrics") is None
    assert daemon.control("GET", "/metrics").status == 200


@pytest.fixture
def silent(port: int) -> Iterator[list[socket.socket]]:
    """More connections than the listener may have, without a request."""
    connections = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(100)]
    yield connections
    for connection in connections:
        connection.close()


def test_silent_connections_do_not_keep_prometheus_out(own: Daemon, port: int, silent: list[socket.socket]) -> None:
    assert get(port, "/metrics")[0] == 200
    assert Metrics(own).sum("connections", service="metrics") <= 32


def test_metrics_cannot_be_changed(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for method in ("PUT", "POST", "DELETE", "PATCH"):
        connection.request(method, "/metrics")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405
    connection.close()


def test_each_check_of_health_is_told(own: Daemon) -> None:
    answer = own.control("GET", "/readyz?verbose")
    checks = ("service", "listeners", "lanes", *Feature)
    assert (answer.status, answer.text) == (200, "".join(f"{check}: ok\n" for check in checks))
    assert own.control("GET", "/livez").text == "ok\n"


def test_daemon_that_drains_is_not_ready(own: Daemon, image: Image, port: int) -> None:
    with own.connect("unix") as connection:
        assert connection.get(image.url).status == 200
        connection.send(encode_request("PUT", image.url, {"Content-Length": "4096"}, None))
        eventually(lambda: own.status(image.ticket)["active"], "the transfer is in use")
        assert own.control("PUT", "/drain").status == 200
        assert get(port, "/readyz") == (503, "service: draining\n")
        assert own.control("GET", "/readyz").code == "not_ready"
        assert get(port, "/livez") == (200, "ok\n")
