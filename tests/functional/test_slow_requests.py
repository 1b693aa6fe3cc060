# SPDX-License-Identifier: Apache-2.0
"""What a request does, in the status, and the line in the log that tells where the time of a slow one went."""

import re
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import encode_request
from tests.support.images import KiB, MiB, make_image, pattern
from tests.support.polling import eventually

PROGRAM = "tests.support.slowrequests"


@pytest.fixture
def own(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon(program=PROGRAM)


def slow_lines(daemon: Daemon) -> list[dict[str, str]]:
    """Return the fields of the lines of slow requests."""
    lines = [line for line in daemon.log.text().splitlines() if "slow request" in line]
    return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]


def test_slow_client_is_seen_and_told(own: Daemon, tmp_path: Path, service_name: str) -> None:
    image = make_image(own, tmp_path)(transfer_id="slow-one")
    whole = encode_request("PUT", image.url, None, pattern(MiB, seed=1))
    with own.connect(service_name) as connection:
        assert connection.get(image.url).status == 200  # the image is open
        connection.send(whole[:-1000])

        def doing() -> dict[str, object]:
            (client,) = own.status(image.ticket)["clients"]
            request: dict[str, object] = client.get("request", {})
            return request

        eventually(lambda: doing().get("waits_for") == "client", "the request waits for its client")
        told = doing()
        assert (told["operation"], told["offset"], told["length"]) == ("write", 0, MiB)
        eventually(lambda: float(str(doing()["seconds"])) > 0.4, "the request is slow")
        connection.send(whole[-1000:])
        assert connection.receive().status == 200
        assert connection.get(image.url).status == 200  # a fast one
        eventually(lambda: len(slow_lines(own)) == 1, "the line is there")
        assert doing() == {}
    own.stop()
    (line,) = slow_lines(own)
    assert line["method"] == "PUT"
    assert float(line["seconds"]) >= 0.4
    assert float(line["wait_client"]) >= 0.3
    assert "wait_storage" not in line
    assert "wait_limit" not in line


def test_wait_for_the_limit_is_told(own: Daemon, tmp_path: Path) -> None:
    image = make_image(own, tmp_path)(rate=256 * KiB)
    with own.connect("unix") as connection:
        assert connection.get(image.url, headers={"Range": "bytes=0-0"}).status == 206
        assert connection.put_at(image.url, 0, pattern(256 * KiB, seed=1)).status == 200
    eventually(lambda: len(slow_lines(own)) == 1, "the line is there")
    (line,) = slow_lines(own)
    assert float(line["wait_limit"]) >= 0.3
