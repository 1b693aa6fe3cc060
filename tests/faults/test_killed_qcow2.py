# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while several clients write to a qcow2 image that it has opened itself."""

import os
import random
import subprocess
import threading
from pathlib import Path

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection, DisconnectedError
from tests.support.images import MiB
from tests.support.polling import eventually

ROUNDS = 200 if os.environ.get("IMAGEIO_TEST_LONG") else 2
SIZE = 32 * MiB
CLIENTS = 3
PART = SIZE // CLIENTS // MiB * MiB


class Client(threading.Thread):
    """Write to a part of the disk, one version after the other, until the daemon is gone."""

    def __init__(self, daemon: Daemon, url: str, number: int) -> None:
        super().__init__()
        self._daemon = daemon
        self._url = url
        self._rng = random.Random(number)
        self.number = number
        self.answered = 0
        #: By block of 4 KiB: the version that a flush has covered, and the last one that was sent.
        self.flushed: dict[int, int] = {}
        self.sent: dict[int, int] = {}

    def run(self) -> None:
        try:
            with self._daemon.connect("unix") as connection:
                for version in range(1, 256):
                    self._write(connection, version)
                    self.answered += 1
        except (OSError, DisconnectedError):
            pass  # it was killed

    def _write(self, connection: Connection, version: int) -> None:
        block = self._rng.randrange(PART // 4096)
        flush = version % 5 == 0
        self.sent[block] = version
        url = f"{self._url}?flush={'y' if flush else 'n'}"
        answer = connection.put_at(url, self.number * PART + block * 4096, bytes([version]) * 4096)
        if answer.status == 200 and flush:
            self.flushed = dict(self.sent)


def test_what_was_flushed_is_there(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    image, raw = tmp_path / "image", tmp_path / "raw"
    for number in range(ROUNDS):
        image.unlink(missing_ok=True)
        subprocess.check_call(["qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", image, str(SIZE)])
        daemon = make_daemon()
        url = f"/images/{daemon.add_ticket(image, SIZE, format='qcow2')}"
        clients = [Client(daemon, url, each) for each in range(CLIENTS)]
        for client in clients:
            client.start()
        enough = random.Random(number).randrange(50, 400)
        eventually(lambda: sum(client.answered for client in clients) >= enough, f"{enough} writes")  # noqa: B023
        daemon.kill()
        for client in clients:
            client.join()
        checked = subprocess.run(["qemu-img", "check", "-q", image], check=False, capture_output=True)
        assert checked.returncode in (0, 3), checked.stderr
        subprocess.check_call(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, raw])
        content = raw.read_bytes()
        for client in clients:
            for block, version in client.flushed.items():
                at = client.number * PART + block * 4096
                assert {*content[at : at + 4096]} <= {version, client.sent[block]}
