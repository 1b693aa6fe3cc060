# SPDX-License-Identifier: Apache-2.0
"""The command of [control] notify is told what happens to transfers."""

import json
import signal
import socket
from functools import partial
from pathlib import Path

from tests.support.daemon import MakeDaemon
from tests.support.images import MiB, pattern


def test_manager_is_told_of_expiry_and_end(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(MiB))
    with socket.create_server(str(tmp_path / "events"), family=socket.AF_UNIX) as server:
        daemon = make_daemon(control={"notify": f"unix:{tmp_path}/events"})
        ticket = daemon.add_ticket(image, MiB, transfer_id="job")
        with daemon.connect("unix") as client:
            assert client.put_at(f"/images/{ticket}", 0, pattern(MiB)).status == 200
        told = []
        for change in (partial(daemon.extend, ticket, 0), partial(daemon.remove, ticket)):
            change()
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as stream:
                told.append(json.loads(stream.read()))
    assert [(line["event"], line["transfer"], line["written"]) for line in told] == [
        ("ticket expired", "job", MiB),
        ("transfer ended", "job", MiB),
    ]
    metrics = daemon.control("GET", "/metrics").body.decode()
    assert 'imageio_notifications_total{result="sent"} 2.0' in metrics


def test_command_that_hangs_does_not_break_the_end(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    """The requests that C has served are told meanwhile, as often as the log includes them."""
    (tmp_path / "image").write_bytes(bytes(MiB))
    daemon = make_daemon(control={"notify": "/bin/sleep 20"}, log={"level": "debug"})
    daemon.remove(daemon.add_ticket(tmp_path / "image", MiB))
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0
