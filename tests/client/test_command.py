# SPDX-License-Identifier: Apache-2.0
"""The command imageio-client."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from imageio_daemon.client.arguments import parser
from tests.client.conftest import SIZE
from tests.client.programs import TIMEOUT, command, run, run_on_terminal
from tests.client.proxy import Proxy
from tests.examples.programs import ScriptedServer, answer, features
from tests.support.commands import commands, man_page
from tests.support.daemon import PROJECT, Daemon
from tests.support.images import Image, MakeImage, MiB
from tests.support.ports import unused_port

MAN_PAGE = PROJECT / "docs" / "imageio-client.1"


@pytest.fixture
def target(new_image: MakeImage) -> Image:
    """An image that is as large as the source and full of other data."""
    return new_image(b"\xff" * (SIZE + 1), sparse=True)


def test_upload_and_download(daemon: Daemon, source: Path, target: Image, tmp_path: Path) -> None:
    url = daemon.url(target.ticket)
    up = run("upload", "--cafile", daemon.cafile, source, url)
    assert (up.status, up.out) == (0, ""), up
    assert re.fullmatch(r"uploaded 24.0 MiB in .* s: 5\.\d MiB of data at .*/s, 1\d.\d MiB of zeros\n", up.err)
    down = run("download", "--cafile", daemon.cafile, url, tmp_path / "copy")
    assert (down.status, down.out) == (0, ""), down
    assert (tmp_path / "copy").read_bytes() == target.content() == source.read_bytes()


def test_standard_input_and_output(daemon: Daemon, source: Path, target: Image) -> None:
    url = daemon.url(target.ticket)
    up = run("upload", "-q", "--cafile", daemon.cafile, "--size", str(SIZE + 1), "-", url, stdin=source)
    assert (up.status, up.out, up.err) == (0, "", "")
    down = subprocess.run(
        command("download", "-q", "--cafile", daemon.cafile, url, "-"), capture_output=True, check=True, timeout=TIMEOUT
    )
    assert down.stdout == source.read_bytes()


def test_json_is_one_object_per_line(daemon: Daemon, source: Path, target: Image) -> None:
    result = run("upload", "--json", "--verify", "--cafile", daemon.cafile, source, daemon.url(target.ticket))
    assert (result.status, result.err) == (0, "")
    last = [json.loads(line) for line in result.out.splitlines()][-1]
    assert last["event"] == "result"
    assert last["total"] == last["data"] + last["zero"] + last["skipped"] == SIZE + 1
    assert len(last["checksum"]) == 64


def test_json_tells_errors_too(daemon: Daemon, source: Path) -> None:
    result = run("upload", "--json", "--cafile", daemon.cafile, source, daemon.url("no-such-ticket"))
    told = json.loads(result.out)
    assert (result.status, told["event"], told["status"]) == (3, "error", 3)
    assert "403" in told["message"]


def test_terminal_shows_a_bar(daemon: Daemon, source: Path, target: Image) -> None:
    result = run_on_terminal("upload", "--cafile", daemon.cafile, source, daemon.url(target.ticket))
    assert result.status == 0, result
    assert re.search(r"\r\[#+ *\] +\d+% .*/s", result.err), result
    assert "uploaded 24.0 MiB" in result.err


def test_warning_on_a_terminal_takes_the_place_of_the_bar(daemon: Daemon, source: Path, target: Image) -> None:
    budgets = iter([3 * MiB])
    options = ("-v", "--no-local", "--connections=1", "--cafile", daemon.cafile)
    with Proxy(daemon.port, lambda: next(budgets, 1000 * MiB)) as proxy:
        result = run_on_terminal("upload", *options, source, f"https://localhost:{proxy.port}/images/{target.ticket}")
    assert result.status == 0, result
    assert re.search(r"\r\033\[Kimageio-client: the connection to .*; again in .* s\r\n", result.err), result


def test_reason_of_a_retry_is_told_off_a_terminal(daemon: Daemon, source: Path, target: Image) -> None:
    with Proxy(daemon.port, iter([3 * MiB, 1000 * MiB]).__next__) as proxy:
        url = f"https://localhost:{proxy.port}/images/{target.ticket}"
        result = run("upload", "--no-local", "--connections=1", "--cafile", daemon.cafile, source, url)
    assert re.match(r"imageio-client: the connection to .*; again in .* s\nuploaded 24.0 MiB", result.err), result


def test_verbose_tells_the_way(daemon: Daemon, source: Path, target: Image) -> None:
    result = run("upload", "-v", "--cafile", daemon.cafile, source, daemon.url(target.ticket))
    assert "is this host: using its unix socket" in result.err


def test_info_extents_and_checksum(daemon: Daemon, source: Path, new_image: MakeImage) -> None:
    url = daemon.url(new_image(path=source, ops=["read"]).ticket)
    there = run("info", "--cafile", daemon.cafile, url).out
    assert f"size: {SIZE + 1}\n" in there
    assert json.loads(run("info", "--json", source).out)["size"] == SIZE + 1
    extents = run("extents", "--cafile", daemon.cafile, url).out.splitlines()
    assert extents[0].split() == ["0", str(MiB), "zero"]
    assert json.loads(run("extents", "--json", "--cafile", daemon.cafile, url).out.splitlines()[0])["zero"] is True
    digest = run("checksum", "--cafile", daemon.cafile, url).out
    assert digest == run("checksum", source).out


@pytest.mark.parametrize(
    ("former", "present"), [(["add", "x"], "add"), (["cancel", "x"], "remove"), (["list", "--json"], "list"), ([], "")]
)
def test_tickets_have_a_program_of_their_own(former: list[str], present: str) -> None:
    run("ticket", *former).failed_with(f"`{f'imageioctl ticket {present}'.strip()}` does this now", 2)


# What can go wrong, and the one line that tells


def test_connection_that_never_can_be_is_tried_once() -> None:
    arguments = ("info", "--unix-socket", "/long" * 30, "https://host/images/x")
    run(*arguments).failed_with("can't connect to (/long)+: AF_UNIX path too long", 4)


def test_unknown_ticket_is_refused(daemon: Daemon, source: Path) -> None:
    run("upload", "--cafile", daemon.cafile, source, daemon.url("no-such-ticket")).failed_with(
        "does not allow this .*403", 3
    )


def test_server_that_is_not_there_is_told(source: Path) -> None:
    with ScriptedServer(answer("500 Oops")) as server:
        url = server.url
        run("upload", "--retry-for", "0", source, url).failed_with("the server failed", 4)
    quiet = run("upload", "--quiet", "--retry-for", "1", source, url)
    quiet.failed_with("127.0.0.1:[0-9]+: Connection refused: nothing listens there; given up after 1 s", 4)


def test_port_that_was_never_open_is_soon_told(source: Path) -> None:
    url = f"https://127.0.0.1:{unused_port()}/images/ticket"
    run("upload", "--quiet", source, url).failed_with("refused: nothing listens there; given up after 5 s", 4)


def test_socket_that_is_not_there_is_soon_told(tmp_path: Path) -> None:
    arguments = ("info", "--quiet", "--unix-socket", tmp_path / "none", "https://host/images/x")
    run(*arguments).failed_with("none: No such file or directory: nothing listens there; given up after 5 s", 4)


@pytest.mark.parametrize("address", ["ftp://host/disk.raw", "file:///disk.qcow2"])
def test_address_of_another_kind_is_told(daemon: Daemon, address: str) -> None:
    run("upload", address, daemon.url("ticket")).failed_with(f"can't open {address}: .* begin with https://, nbd://", 5)


@pytest.mark.parametrize("name", ["/no/such/image", "/no/such/image.qcow2", "/no/such/image.raw.gz"])
def test_missing_image_is_told(daemon: Daemon, name: str) -> None:
    run("upload", name, daemon.url("ticket")).failed_with(f"can't open {name}: No such file", 5)


@pytest.mark.parametrize("url", ["host/images/x", "ftp://host/images/x", "https:///images/x", "https://h/images/x?y"])
def test_url_of_something_else_is_refused(source: Path, url: str) -> None:
    run("upload", source, url).failed_with("the URL must look like https://HOST:PORT/images/TICKET", 2)


UPLOAD = ["upload", "image", "https://host/images/x"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["upload"],
        [*UPLOAD, "--connections", "0"],
        [*UPLOAD, "--size", "8388608T"],
        ["download", "--update", "--restart", "https://host/images/x", "image"],
        ["download", "--dirty", "--restart", "https://host/images/x", "image"],
    ],
)
def test_wrong_arguments_have_status_2(arguments: list[str]) -> None:
    assert run(*arguments).status == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["upload", "https://host/images/secret", "image"], "the image comes first, then the URL"),
        (["download", "image", "https://host/images/secret"], "the URL comes first, then the image"),
        (["download", "https://host/images/x", "https://host/images/secret"], "the image: the command copy is for"),
        (["download", "--dirty", "--verify", "https://host/images/secret", "image"], "is that of the whole image"),
        (["upload", "--source-cafile", "ca.pem", "image", "https://host/images/secret"], "an image on a web server"),
        (["checksum", "--block-size", "0", "image"], "a block has"),
        (["checksum", "--block-size", "1T", "image"], "a block has"),
        (["info", "https://host/images/secret\udc80"], "the URL must look like"),
        (["info", "https://host/images/secret\u00e9"], "the URL must look like"),
        (["info", f"https://{'h' * 64}/images/secret"], "the URL must look like"),
        (["info", "https://host..example/images/secret"], "the URL must look like"),
    ],
)
def test_arguments_that_dont_go_together_are_refused(arguments: list[str], reason: str) -> None:
    result = run(*arguments)
    result.failed_with(reason, 2)
    assert "secret" not in result.err


def test_name_that_no_file_can_have_is_told(daemon: Daemon) -> None:
    name = "x" * 300
    run("upload", name, daemon.url("ticket")).failed_with("can't open x*: File name too long", 5)
    run("download", daemon.url("ticket"), name).failed_with("can't write x*: File name too long", 5)


@pytest.mark.parametrize(
    "said",
    [answer("400 No", "who is some-ticket\a\x1b[2J?"), b"some-ticket\r\n"],
)
def test_ticket_that_a_server_repeats_is_no_part_of_messages(said: bytes) -> None:
    with ScriptedServer(said) as server:
        result = run("info", "--retry-for", "0", server.url)
    assert result.status in (3, 4)
    assert "…" in result.err
    assert "some-ticket" not in result.err
    assert result.err.rstrip("\n").isprintable()


def test_algorithm_is_quoted(tmp_path: Path) -> None:
    with ScriptedServer(features("checksum"), answer("400 No", "no")) as server:
        run("checksum", "--algorithm", "a b&c", server.url).failed_with("400 no", 3)
    assert server.requests[1].startswith("GET /images/some-ticket/checksum?algorithm=a+b%26c&block_size=")


def test_standard_output_is_for_one(daemon: Daemon) -> None:
    run("download", "--json", daemon.url("ticket"), "-").failed_with("can't take the image and JSON", 2)


def test_ticket_is_no_part_of_messages(daemon: Daemon, source: Path) -> None:
    result = run("upload", "-v", "--cafile", daemon.cafile, source, daemon.url("secret-secret"))
    assert "secret-secret" not in result.err


# The man page


@pytest.mark.parametrize("name", dict(commands(parser())))
def test_man_page_and_help_agree(name: str) -> None:
    page, options = man_page(MAN_PAGE), dict(commands(parser()))[name]
    told = page.get(name, set()) | page["Output"] | page["Server"]
    there = {option for action in options._actions for option in action.option_strings if option.startswith("--")}
    assert told == there - {"--help"}


def test_man_page_has_all_statuses() -> None:
    text = MAN_PAGE.read_text().partition(".SH EXIT STATUS")[2].partition("\n.SH")[0]
    assert " ".join(re.findall(r"^\.B (\d+)$", text, re.MULTILINE)) == "0 1 2 3 4 5 6 7 129 130 143"
