# SPDX-License-Identifier: Apache-2.0
"""examples/upload against the daemon, and against servers that misbehave."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.programs import (
    TIMEOUT,
    ScriptedServer,
    answer,
    command,
    environment,
    features,
    run,
    run_on_terminal,
)
from tests.support.daemon import Daemon, MakeDaemon
from tests.support.images import Image, KiB, MakeImage, MiB, pattern
from tests.support.realstorage import STORAGE_TYPES, Storage, StorageType

SIZE = 8 * MiB
OK = answer("200 OK")
WRITABLE = features("flush", "zero")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A sparse image: a hole, data at an odd offset, a hole."""
    path = tmp_path / "source.raw"
    with path.open("wb") as f:
        f.truncate(SIZE)
        f.seek(MiB + 1)
        f.write(pattern(MiB))
    return path


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    """An image that is as large as the source and full of other data."""
    return new_image(b"\xff" * SIZE, sparse=True)


def test_target_reads_as_the_source(daemon: Daemon, source: Path, target: Image) -> None:
    result = run("upload", "--cafile", daemon.cafile, source, daemon.url(target.ticket))
    assert result.status == 0, result
    assert target.content() == source.read_bytes()


def test_only_data_goes_over_the_wire(daemon: Daemon, source: Path, target: Image) -> None:
    result = run("upload", "--cafile", daemon.cafile, source, daemon.url(target.ticket))
    assert result.status == 0, result
    assert result.text.startswith("uploaded 8.0 MiB in ")
    assert "1.0 MiB of data" in result.text
    assert result.text.endswith("7.0 MiB of zeros\n")


def test_unix_socket_serves_as_well(daemon: Daemon, source: Path, target: Image) -> None:
    result = run("upload", "--unix-socket", daemon.local_socket, source, daemon.url(target.ticket))
    assert result.status == 0, result
    assert target.content() == source.read_bytes()


def test_abstract_socket_is_named_by_an_at_sign(make_daemon: MakeDaemon, source: Path, tmp_path: Path) -> None:
    name = f"@imageio-test-{os.getpid()}"
    daemon = make_daemon(local={"socket": name})
    target = tmp_path / "target.raw"
    target.touch()
    ticket = daemon.add_ticket(target, SIZE)
    result = run("upload", "--unix-socket", name, source, daemon.url(ticket))
    assert result.status == 0, result
    assert target.read_bytes() == source.read_bytes()


def test_insecure_accepts_any_certificate(daemon: Daemon, source: Path, target: Image) -> None:
    assert run("upload", "--insecure", source, daemon.url(target.ticket)).status == 0


def test_empty_image_is_refused_and_leaves_the_target_alone(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    before = image.content()
    source = tmp_path / "empty"
    source.touch()
    run("upload", "--cafile", daemon.cafile, source, daemon.url(image.ticket)).failed_with("empty is empty: it has 0")
    assert image.content() == before


def test_rest_of_a_larger_target_stays(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    before = image.content()
    source = tmp_path / "short"
    source.write_bytes(b"x" * 1001)
    assert run("upload", "--cafile", daemon.cafile, source, daemon.url(image.ticket)).status == 0
    assert image.content() == b"x" * 1001 + before[1001:]


def test_block_device_is_a_source(
    daemon: Daemon, make_storage: Callable[[StorageType], Storage], new_image: MakeImage
) -> None:
    loop = next(t for t in STORAGE_TYPES if t.is_block)
    device = make_storage(loop).make(SIZE)
    with device.open("r+b") as f:
        f.write(pattern(MiB))
    target = new_image(b"\xff" * SIZE)
    assert run("upload", "--cafile", daemon.cafile, device, daemon.url(target.ticket)).status == 0
    assert target.content() == pattern(MiB) + bytes(SIZE - MiB)


def test_terminal_shows_a_bar(daemon: Daemon, source: Path, target: Image) -> None:
    result = run_on_terminal("upload", "--cafile", daemon.cafile, source, daemon.url(target.ticket))
    assert result.status == 0, result
    assert "\r[#" in result.text
    assert "uploaded 8.0 MiB" in result.text


def test_flush_is_the_last_request(source: Path) -> None:
    with ScriptedServer(WRITABLE, OK, OK, OK, OK, OK, OK) as server:
        assert run("upload", source, server.url).status == 0
    path = "/images/some-ticket"
    methods = [f"OPTIONS {path}", *[f"PATCH {path}"] * 2, *[f"PUT {path}?flush=n"] * 2, *[f"PATCH {path}"] * 2]
    # Short pieces of data go together, so zeros that are behind one may go before it.
    assert sorted(server.requests) == sorted(methods)
    assert json.loads(server.bodies[-1]) == {"op": "flush"}


# What can go wrong, and the one line that tells


def test_image_that_does_not_fit_is_refused_before_data_is_sent(
    daemon: Daemon, source: Path, new_image: MakeImage
) -> None:
    small = new_image(b"\xff" * MiB)
    run("upload", "--cafile", daemon.cafile, source, daemon.url(small.ticket)).failed_with("does not fit .*416")
    assert small.content() == b"\xff" * MiB


def test_unknown_ticket_is_not_allowed(daemon: Daemon, source: Path) -> None:
    run("upload", "--cafile", daemon.cafile, source, daemon.url("no-such-ticket")).failed_with(
        "the ticket does not allow this .*403"
    )


def test_ticket_for_reading_does_not_allow_writing(daemon: Daemon, source: Path, new_image: MakeImage) -> None:
    target = new_image(size=SIZE, ops=["read"])
    run("upload", "--cafile", daemon.cafile, source, daemon.url(target.ticket)).failed_with("does not allow writing")


def test_full_storage_is_told(daemon: Daemon, full_filesystem: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.raw"
    source.write_bytes(pattern(MiB))
    ticket = daemon.add_ticket(full_filesystem, MiB)
    run("upload", "--cafile", daemon.cafile, source, daemon.url(ticket)).failed_with("has room for 0 B: make room")


def test_refusal_in_the_middle_of_a_body_is_told(tmp_path: Path) -> None:
    source = tmp_path / "source.raw"
    source.write_bytes(pattern(32 * MiB))
    refusal = answer("403 Forbidden", "cancelled\n", "Connection: close")
    with ScriptedServer(WRITABLE, OK, refusal, early=True) as server:
        run("upload", source, server.url).failed_with("the ticket does not allow this .*403 cancelled")


def test_server_that_vanishes_is_told(source: Path) -> None:
    with ScriptedServer(WRITABLE, OK, b"") as server:
        run("upload", source, server.url).failed_with("the connection to 127.0.0.1:[0-9]+ broke")


def test_server_that_closes_its_port_is_told(source: Path) -> None:
    with ScriptedServer() as server:
        url = server.url
        run("upload", source, url).failed_with("the connection to .* broke")
    run("upload", source, url).failed_with("can't connect to 127.0.0.1:[0-9]+: Connection refused")


def test_unknown_authority_is_told(daemon: Daemon, source: Path) -> None:
    run("upload", source, daemon.url("ticket")).failed_with("certificate of localhost:[0-9]+ can't be verified")


def test_missing_authorities_are_told(daemon: Daemon, source: Path) -> None:
    run("upload", "--cafile", "/no/such/file", source, daemon.url("ticket")).failed_with(
        "can't load the certificates in /no/such/file: No such file"
    )


@pytest.mark.parametrize("url", ["host/images/x", "ftp://host/images/x", "https:///images/x", "https://host/tickets/x"])
def test_url_of_something_else_is_refused(source: Path, url: str) -> None:
    run("upload", source, url).failed_with("the URL must look like https://HOST:PORT/images/TICKET")


@pytest.mark.parametrize("port", ["x", "65536", "-1"])
def test_impossible_port_is_refused(source: Path, port: str) -> None:
    run("upload", source, f"https://localhost:{port}/images/x").failed_with("the URL must look like")


def test_missing_image_is_told(daemon: Daemon) -> None:
    run("upload", "/no/such/image", daemon.url("ticket")).failed_with("can't open /no/such/image: No such file")


def test_directory_is_no_image(daemon: Daemon, tmp_path: Path, target: Image) -> None:
    run("upload", "--cafile", daemon.cafile, tmp_path, daemon.url(target.ticket)).failed_with(
        "is not a regular file or block device"
    )


def test_image_shorter_than_its_size_is_told(daemon: Daemon, new_image: MakeImage) -> None:
    source = "/sys/kernel/uevent_seqnum"  # claims 4096 bytes, has a few
    target = new_image(size=4 * KiB)
    run("upload", "--cafile", daemon.cafile, source, daemon.url(target.ticket)).failed_with("became shorter")


def test_unreadable_image_is_told(daemon: Daemon, unreadable_device: Path, new_image: MakeImage) -> None:
    target = new_image(size=8 * MiB)
    run("upload", "--cafile", daemon.cafile, unreadable_device, daemon.url(target.ticket)).failed_with(
        "can't read /dev/[a-z0-9]+ at byte [0-9]+: Input/output error"
    )


def test_server_of_something_else_is_told(source: Path) -> None:
    with ScriptedServer(answer("200 OK", [1, 2])) as server:
        run("upload", source, server.url).failed_with("does not speak the images API")


def test_answer_that_is_not_json_is_told(source: Path) -> None:
    with ScriptedServer(answer("200 OK", "<html>")) as server:
        run("upload", source, server.url).failed_with("something that is not JSON")


def test_answer_that_is_not_http_is_told(source: Path) -> None:
    with ScriptedServer(b"SSH-2.0-OpenSSH_9.2\r\n") as server:
        run("upload", source, server.url).failed_with("the connection to .* broke: SSH")


def test_interrupt_ends_with_one_line(source: Path) -> None:
    with ScriptedServer(WRITABLE, OK, hang=True) as server:
        # However the tests were started: in the background of a shell the signal is ignored.
        interruptible = ["env", "--default-signal=INT", *command("upload", source, server.url)]
        process = subprocess.Popen(interruptible, stderr=subprocess.PIPE, text=True, env=environment())
        assert server.done.wait(TIMEOUT)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, text) == (1, "upload: interrupted\n")
