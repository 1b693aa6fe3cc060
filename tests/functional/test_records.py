# SPDX-License-Identifier: Apache-2.0
"""Requests that C serves are told in the log as those that Python serves, where it is at DEBUG."""

import re
from pathlib import Path

import pytest

from imageio_daemon.nbdproto.constants import Command, CommandFlag
from tests.frontends.nbd.client import Client
from tests.support.daemon import EAGER_PROGRAM, Daemon, MakeDaemon
from tests.support.http_client import encode_request
from tests.support.images import Image, MiB, make_image, pattern
from tests.support.polling import eventually

#: Requests of HTTP that C serves: method, what follows the path, fields, body, and what their line says.
REQUESTS: tuple[tuple[str, str, dict[str, str], bytes | None, str], ...] = (
    ("GET", "", {"Range": "bytes=5-104"}, None, "GET offset=5 length=100 status=206"),
    ("GET", "", {"Range": f"bytes=0-{3 * MiB - 1}"}, None, f"GET offset=0 length={3 * MiB} status=206"),
    ("GET", "", {}, None, f"GET offset=0 length={4 * MiB} status=200"),
    ("PUT", "", {"Content-Range": "bytes 7-*/*"}, b"hello", "PUT offset=7 length=5 flush=y status=200"),
    ("PUT", "?flush=n", {}, bytes(2 * MiB), f"PUT offset=0 length={2 * MiB} status=200"),
    ("PATCH", "", {}, b'{"op": "zero", "offset": 9, "size": 8}', "PATCH offset=9 length=8 status=200"),
    (
        "PATCH",
        "",
        {},
        b'{"op": "zero", "size": 8, "flush": true}',
        "PATCH offset=0 length=8 flush=y status=200",
    ),
    ("PATCH", "", {}, b'{"op": "flush"}', "PATCH offset=0 length=0 status=200"),
)


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(program=EAGER_PROGRAM, log={"level": "debug"})


def open_image(daemon: Daemon, directory: Path, **fields: object) -> Image:
    image = make_image(daemon, directory)(pattern(4 * MiB), **fields)
    with daemon.connect("unix") as connection:
        assert connection.request("OPTIONS", image.url).status == 200
    return image


def lines(daemon: Daemon, start: int) -> list[str]:
    """Return what was told since start of requests but OPTIONS, without who asked and how long it took."""
    pattern = re.compile(r"DEBUG +runtime\.request_log: request client=\S+ transfer=\S+ method=(\w+) (.*)")
    found = [match for line in daemon.log.lines()[start:] if (match := pattern.search(line))]
    rest = [re.fullmatch(r"resource=/images/\{\} (.*) seconds=[\d.e-]+", match[2]) for match in found]
    return [f"{match[1]} {more[1]}" for match, more in zip(found, rest, strict=True) if more and match[1] != "OPTIONS"]


def test_each_request_that_c_serves_has_a_line(own: Daemon, tmp_path: Path, service_name: str) -> None:
    image, service = open_image(own, tmp_path), {"tls": "remote", "unix": "local"}[service_name]
    start, before = own.log.end(), own.served(service, "lane")["requests"]
    with own.connect(service_name) as connection:
        for method, target, fields, body, _ in REQUESTS:
            assert connection.request(method, f"{image.url}{target}", fields, body).status in (200, 206)
        assert own.served(service, "lane")["requests"] == before + len(REQUESTS)
    eventually(lambda: len(lines(own, start)) >= len(REQUESTS), "each request is told")
    assert lines(own, start) == [line for *_, line in REQUESTS]


def test_request_that_fails_in_c_is_told_with_its_error(own: Daemon, full_filesystem: Path, tmp_path: Path) -> None:
    image = make_image(own, tmp_path)(path=full_filesystem)
    with own.connect("unix") as connection:
        connection.request("OPTIONS", image.url)
        start = own.log.end()
        assert connection.put(image.url, pattern(MiB)).status == 507
        own.log.wait_for(
            r"request client=unix .*method=PUT .*length=1048576 flush=y error=ENOSPC seconds=", start=start
        )


def test_body_that_ends_early_is_told(own: Daemon, tmp_path: Path) -> None:
    image, start = open_image(own, tmp_path), own.log.end()
    request = encode_request("PUT", image.url, None, bytes(MiB))
    with own.connect("unix") as connection:
        connection.send(request[:-1])
        connection.end_sending()
        assert connection.receive().status == 400
    own.log.wait_for(r"request client=unix .*method=PUT .*length=1048576 flush=y error=truncated seconds=", start=start)


async def test_each_request_of_nbd_has_a_line(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    nbd = {"enable": True, "port": 0, "host": "127.0.0.1", "tls": "off"}
    daemon = make_daemon(log={"level": "debug"}, nbd=nbd)
    path = tmp_path / "image"
    path.write_bytes(pattern(MiB))
    ticket = daemon.add_ticket(path, MiB, transfer_id="job-7")
    match = daemon.log.find(r"service=nbd address=.*port=(\d+)")
    assert match is not None
    client = await (await Client.connect(("localhost", int(match[1])))).go(ticket)
    assert not (await client.request(Command.READ, 3, 4096)).error
    assert not (await client.request(Command.WRITE, 8192, flags=CommandFlag.FUA, data=b"hello")).error
    assert not (await client.request(Command.FLUSH)).error
    assert (await client.request(Command.READ, MiB, 1)).error == 22
    assert (await client.request(99, 0, 1)).error == 22
    await client.close()
    wanted = [
        "READ offset=3 length=4096 flags=0x0 error=0",
        "WRITE offset=8192 length=5 flags=0x1 error=0",
        "FLUSH offset=0 length=0 flags=0x0 error=0",
        "READ offset=1048576 length=1 flags=0x0 error=22",
        "99 offset=0 length=1 flags=0x0 error=22",
    ]
    for request in wanted:  # a line comes after the reply, so that of the next request may come before it
        daemon.log.wait_for(f"command={request}")
    line = re.compile(
        r"runtime\.request_log: request client=127\.0\.0\.1:\d+ transfer=job-7 command=(.*) seconds=[\d.e-]+$"
    )
    told = [match[1] for text in daemon.log.lines() if (match := line.search(text))]
    assert sorted(told) == sorted(wanted)
