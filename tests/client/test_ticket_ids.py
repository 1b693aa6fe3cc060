# SPDX-License-Identifier: Apache-2.0
"""Where the id of a ticket may come from, and where it never goes."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from imageio_daemon.client import LocalError, Settings, Usage, info
from imageio_daemon.client.server.address import ImageUrl
from imageio_daemon.client.server.session import require_tls
from imageio_daemon.client.ticket_ids import MAX_FILE, complete, without_tickets
from tests.client.programs import PROGRAM, TIMEOUT, run
from tests.support.daemon import Daemon
from tests.support.images import Image, MakeImage, MiB

SERVER = "https://host:54322"


@pytest.fixture(autouse=True)
def _no_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGEIO_TICKET", raising=False)


# URLs


@pytest.mark.parametrize("path", ["", "/", "/images", "/images/", "/ui/"])
def test_url_without_a_ticket_gets_the_one_of_the_environment(path: str) -> None:
    (url,) = complete([SERVER + path], None, {"IMAGEIO_TICKET": "a/b %\n"})
    assert url == f"{SERVER}/images/a%2Fb%20%25"
    assert ImageUrl.parse(url).path == "/images/a%2Fb%20%25"


def test_url_with_a_ticket_keeps_it() -> None:
    given = [f"{SERVER}/images/x", f"{SERVER}/ui/#x"]
    assert complete(given, None, {"IMAGEIO_TICKET": "y"}) == given


def test_tickets_of_a_file_are_for_the_urls_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "tickets"
    file.write_text("one\n\n two \n")
    given = [SERVER, f"{SERVER}/images/x", "https://other/"]
    assert complete(given, str(file), {"IMAGEIO_TICKET": "y"}) == [
        f"{SERVER}/images/one",
        f"{SERVER}/images/x",
        "https://other/images/two",
    ]


@pytest.mark.parametrize(
    ("urls", "content", "reason"),
    [
        ([SERVER], b"", "0 tickets for 1 URLs"),
        ([SERVER], b"a\nb\n", "2 tickets for 1 URLs"),
        ([f"{SERVER}/images/x"], b"a\n", "1 tickets for 0 URLs without one"),
        ([SERVER], b"\xff\n", "is no list of tickets"),
        ([SERVER], b"x" * (MAX_FILE + 1), f"at most {MAX_FILE} bytes"),
    ],
)
def test_file_that_does_not_fit_is_refused(tmp_path: Path, urls: list[str], content: bytes, reason: str) -> None:
    file = tmp_path / "tickets"
    file.write_bytes(content)
    with pytest.raises(Usage, match=reason):
        complete(urls, str(file), {})


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"can't read the ticket from .*none: No such file"):
        complete([SERVER], str(tmp_path / "none"), {})


def test_variable_that_is_no_text_is_refused() -> None:
    with pytest.raises(Usage, match="IMAGEIO_TICKET has no ticket: it is not UTF-8"):
        complete([SERVER], None, {"IMAGEIO_TICKET": "\udcff"})


def test_url_that_gets_no_ticket_is_refused() -> None:
    with pytest.raises(Usage, match=r"the URL has no ticket: .*--ticket-file FILE, or IMAGEIO_TICKET"):
        complete([SERVER], None, {})


@pytest.mark.parametrize("url", [f"{SERVER}/ui/#a%2Fb", f"{SERVER}/images/a%2Fb", "HTTPS://HOST:54322/ui/#a%2Fb"])
def test_link_to_the_page_names_the_image(url: str) -> None:
    assert ImageUrl.parse(url) == ImageUrl("https", "host", 54322, "/images/a%2Fb")


@pytest.mark.parametrize(
    "url", [f"{SERVER}/ui/", f"{SERVER}/ui/?x#secret", f"{SERVER}/ui/x#secret", f"{SERVER}/#secret"]
)
def test_other_fragments_are_no_tickets(url: str) -> None:
    with pytest.raises(Usage, match="the URL must look like") as raised:
        ImageUrl.parse(url)
    assert "secret" not in str(raised.value)


# The command


def test_link_of_an_administrator_is_a_url(daemon: Daemon, image: Image) -> None:
    link = f"https://localhost:{daemon.port}/ui/#{image.ticket}"
    assert f"size: {MiB}\n" in run("info", "--cafile", daemon.cafile, link).out


@pytest.mark.parametrize("way", ["file", "standard input", "environment"])
def test_ticket_need_not_be_an_argument(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, image: Image, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "ticket"
    file.write_text(f"{image.ticket}\n")
    url = f"https://localhost:{daemon.port}"
    if way == "environment":
        monkeypatch.setenv("IMAGEIO_TICKET", image.ticket)
        done = run("info", "--cafile", daemon.cafile, url)
    elif way == "file":
        done = run("info", "--cafile", daemon.cafile, "--ticket-file", file, url)
    else:
        done = run("info", "--cafile", daemon.cafile, "--ticket-file", "-", url, stdin=file)
    assert f"size: {MiB}\n" in done.out


def test_image_and_ticket_do_not_share_standard_input() -> None:
    run("upload", "--ticket-file", "-", "-", SERVER).failed_with("standard input can't have the ticket and the", 2)


def test_local_image_has_no_ticket(tmp_path: Path) -> None:
    run("info", "--ticket-file", tmp_path / "x", tmp_path / "image").failed_with("a ticket is for a URL", 2)


def test_ticket_is_in_nothing_that_is_told(daemon: Daemon, new_image: MakeImage, tmp_path: Path) -> None:
    """The progress, the result, the errors, and what -v says."""
    image = new_image(size=4 * MiB, ops=["read"])
    source = tmp_path / "source"
    source.write_bytes(b"x" * 4 * MiB)
    url = daemon.url(image.ticket)
    for arguments in (["info"], ["extents"], ["checksum"]):
        done = run(*arguments, "--json", "-v", "--cafile", daemon.cafile, url)
        assert image.ticket not in done.out + done.err
    done = run("download", "--json", "-v", "--cafile", daemon.cafile, url, tmp_path / "copy")
    assert image.ticket not in done.out + done.err
    done = run("upload", "--json", "-v", "--cafile", daemon.cafile, source, url)
    assert json.loads(done.out.splitlines()[-1])["event"] == "error"
    assert image.ticket not in done.out + done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "https://host/images/x", "https://host:1/images/secret"],
        ["https://host/images/secret"],
        ["download", "https://host/ui/#secret"],
        ["info", "--retry-for", "https://host/images/secret", "x"],
        ["info", "--no-such=HTTPS://host/images/secret", "x"],
        ["info", "HTTPS://host..x/images/secret"],
    ],
    ids=str,
)
def test_ticket_among_wrong_arguments_is_not_repeated(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.status == 2
    assert "secret" not in done.out + done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "https://host:1/images/secret", "copy.manifest"],
        ["info", "host:54322/images/secret"],
        ["checksum", "host:54322/ui/#secret"],
        ["download", "--manifest", "https://host:1/images/secret", "https://host:1/images/x", "copy.raw"],
        ["info", "--cafile", "https://host:1/images/secret", "https://host:1/images/x"],
        ["info", "--ticket-file", "secret", SERVER],
        ["info", "--ticket-file", "https://host:1/images/secret", SERVER],
    ],
    ids=str,
)
def test_ticket_in_the_place_of_a_file_is_not_repeated(arguments: list[str]) -> None:
    done = run(*arguments, "--json")
    assert done.status in (2, 5)
    assert "secret" not in done.out + done.err


def test_name_of_a_file_on_a_web_server_is_told() -> None:
    url = "https://host:1/images/disk.raw"
    assert without_tickets(f"{url}: 404", [[url], None]) == f"{url}: 404"
    assert without_tickets("/images/disk: no", ["/images/disk"]) == "/images/disk: no"


# Without TLS


def test_ticket_is_not_sent_without_tls(tmp_path: Path) -> None:
    """The command ends at once, and nobody is connected to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/images/secret"
        done = subprocess.run([*PROGRAM, "info", url], check=False, capture_output=True, text=True, timeout=TIMEOUT)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert done.returncode == 2
    assert "the URL must begin with https://. Nothing was sent; --insecure sends it all the same" in done.stderr
    assert "secret" not in done.stderr


def test_library_wants_tls_unless_any_server_is_to_be_trusted() -> None:
    with pytest.raises(Usage, match="must begin with https://"):
        require_tls(Settings())
    require_tls(Settings(insecure=True))


def test_unix_socket_needs_no_tls(daemon: Daemon, image: Image) -> None:
    settings = Settings(unix_socket=daemon.local_socket)
    assert info(f"http://localhost/images/{image.ticket}", settings=settings).size == MiB
