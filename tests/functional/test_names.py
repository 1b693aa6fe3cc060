# SPDX-License-Identifier: Apache-2.0
"""Names of files that are not UTF-8: bytes in, bytes out."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Connection
from tests.support.images import MiB, pattern

#: As os.fsdecode() has it, and as JSON says it.
NAME, IN_JSON = "d\udcefsk \u00fc\u3000.img", r"d\udcefsk \u00fc\u3000.img"


def qemu_img(*arguments: object) -> None:
    subprocess.check_call(["qemu-img", *map(str, arguments)], stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("image_format", ["raw", "qcow2"])
def test_image_with_such_a_name_is_written_and_read(
    daemon: Daemon, client: Connection, tmp_path: Path, image_format: str
) -> None:
    image = tmp_path / NAME
    (tmp_path / "plain").write_bytes(pattern(MiB))
    qemu_img("convert", "-f", "raw", "-O", image_format, tmp_path / "plain", tmp_path / "made")
    (tmp_path / "made").rename(image)
    ticket = daemon.add_ticket(image, MiB, format=image_format)
    assert client.put_at(f"/images/{ticket}", 4096, b"x" * 4096).status == 200
    wanted = pattern(MiB)[:4096] + b"x" * 4096 + pattern(MiB)[8192:]
    assert client.get(f"/images/{ticket}").body == wanted
    daemon.remove(ticket)
    image.rename(tmp_path / "made")
    qemu_img("compare", "-f", image_format, "-F", "raw", tmp_path / "made", _written(tmp_path / "wanted", wanted))


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_backing_file_with_such_a_name_is_read(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(backend_nbd={"allowed_paths": tmp_path})
    base, top = tmp_path / NAME, tmp_path / "top"
    base.write_bytes(pattern(MiB))
    name = os.fsencode(NAME)
    qemu_img("create", "-f", "qcow2", "-u", "-b", "x" * len(name), "-F", "raw", top, MiB)
    top.write_bytes(top.read_bytes().replace(b"x" * len(name), name))
    ticket = daemon.add_ticket(top, MiB, format="qcow2", ops=["read"])
    with daemon.connect("unix") as client:
        assert client.get(f"/images/{ticket}").body == pattern(MiB)


def test_such_a_name_is_told_as_it_was_given(daemon: Daemon, tmp_path: Path) -> None:
    image = _written(tmp_path / NAME, pattern(MiB))
    ticket = daemon.add_ticket(image, MiB)
    answer = daemon.control("GET", f"/tickets/{ticket}")
    assert IN_JSON.encode() in answer.body
    assert os.fsencode(json.loads(answer.body)["url"]) == b"file://" + os.fsencode(image)


def test_such_a_name_is_escaped_in_the_log(daemon: Daemon, client: Connection, tmp_path: Path) -> None:
    for image_format in ("raw", "qcow2"):
        ticket = daemon.add_ticket(tmp_path / NAME, MiB, format=image_format)
        answer = client.get(f"/images/{ticket}")
        assert (answer.status, answer.code) == (500, "storage_gone")
        daemon.log.wait_for(r"storage failed: open .*/d\\xefsk ü\\u3000.img")
        daemon.remove(ticket)


@pytest.mark.parametrize("url", ["file:///a\ud800", "nbd:unix:/a\udcff", "rbd:p/\udcff"])
def test_other_surrogates_are_no_names(daemon: Daemon, url: str) -> None:
    document = {"uuid": "never", "url": url, "size": 1, "timeout": 1, "ops": ["read"]}
    answer = daemon.control("PUT", "/tickets/never", json.dumps(document).encode())
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_kept_ticket_has_such_a_name_after_a_restart(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(daemon={"state_dir": _private(tmp_path / "state")})
    ticket = daemon.add_ticket(_written(tmp_path / NAME, pattern(MiB)), MiB)
    daemon.stop()
    daemon.restart()
    with daemon.connect("unix") as client:
        assert client.get(f"/images/{ticket}").body == pattern(MiB)


def _private(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path
