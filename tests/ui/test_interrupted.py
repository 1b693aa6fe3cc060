# SPDX-License-Identifier: Apache-2.0
"""What happens to an upload that is interrupted: by a reload, the network, the server, its ticket, or its file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imageio_daemon.units import MiB
from tests.support.daemon import Certificates, Daemon
from tests.support.polling import eventually
from tests.ui.conftest import Link, MakeDisk, MakeLink, same
from tests.ui.wire import Wire

if TYPE_CHECKING:
    from tests.ui.browser import Browser

SIZE = 160 * MiB
#: Pieces of data, of 2 MiB each.
PIECES = 50
#: Bytes per second, so slow that something can happen meanwhile.
SLOW = 8 * MiB
LONG = 90.0


@pytest.fixture
def disk(make_disk: MakeDisk) -> Path:
    return make_disk("disk.raw", SIZE, PIECES)


@pytest.fixture
def link(make_link: MakeLink) -> Link:
    """A link for an upload that is slow until hurry()."""
    return make_link(SIZE, rate=SLOW)


def hurry(daemon: Daemon, link: Link) -> None:
    """Let an upload go on without a limit."""
    assert daemon.control("PATCH", f"/tickets/{link.ticket}", b'{"rate": 0}').status == 200


def begin(browser: "Browser", link: Link, disk: Path) -> None:
    """Upload a part of the disk."""
    browser.open(link.url)
    browser.upload(disk)
    browser.until(20)


def test_reload_continues_with_what_is_not_durable(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link
) -> None:
    begin(browser, link, disk)
    eventually(lambda: page_daemon.status(link.ticket)["durable"] > 0, "a flush has ended", timeout=20)
    browser.reload()
    browser.wait("Continue the upload")
    hurry(page_daemon, link)
    eventually(lambda: not page_daemon.status(link.ticket)["active"], "what the page has left has ended")
    durable = page_daemon.status(link.ticket)["durable"]
    written = page_daemon.status(link.ticket)["written"]
    browser.choose(disk)
    browser.wait("Ready to continue")
    browser.press("Continue")
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)
    again = page_daemon.status(link.ticket)["written"] - written
    assert 0 < again <= SIZE - durable


def test_other_file_after_a_reload_is_sent_from_the_start(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link, make_disk: MakeDisk
) -> None:
    begin(browser, link, disk)
    browser.reload()
    hurry(page_daemon, link)
    other = make_disk("other.raw", SIZE, 5)
    browser.choose(other)
    browser.wait("Another file")
    assert "not the file that was begun" in browser.text("notice")
    browser.press("Send all anew")
    browser.wait("The disk is safe", timeout=LONG)
    assert same(other, link.path)


def test_link_in_a_new_tab_continues_or_asks(browser: "Browser", page_daemon: Daemon, disk: Path, link: Link) -> None:
    """The tab does not know the file: what was sent is not thrown away without a question."""
    begin(browser, link, disk)
    eventually(lambda: page_daemon.status(link.ticket)["durable"] > 0, "a flush has ended", timeout=20)
    browser.forget()
    browser.open(link.url)
    browser.wait("Continue the upload")
    hurry(page_daemon, link)
    durable, written = (page_daemon.status(link.ticket)[key] for key in ("durable", "written"))
    browser.choose(disk)
    browser.wait("Continue or start anew?")
    assert "are safe on the server" in browser.text("notice")
    assert browser.labels == ["Continue", "Send all anew", "Choose another file"]
    browser.press("Continue")
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)
    assert 0 < page_daemon.status(link.ticket)["written"] - written <= SIZE - durable


def test_upload_that_continues_with_another_file_becomes_that_file(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link, make_disk: MakeDisk
) -> None:
    begin(browser, link, disk)
    eventually(lambda: page_daemon.status(link.ticket)["durable"] > 0, "a flush has ended", timeout=20)
    browser.forget()
    browser.open(link.url)
    hurry(page_daemon, link)
    other = make_disk("other.raw", SIZE, 5)
    browser.choose(other)
    browser.wait("Continue or start anew?")
    browser.press("Continue")
    browser.wait("The disk is safe", timeout=LONG)
    assert same(other, link.path)


def test_file_is_sent_again_where_the_server_has_no_record(
    browser: "Browser", stateless: Daemon, disk: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.touch()
    ticket = stateless.add_ticket(target, SIZE, rate=2 * MiB)
    browser.open(f"https://localhost:{stateless.port}/ui/#{ticket}")
    browser.upload(disk)
    browser.until(5)
    browser.reload()
    browser.wait("Upload a disk")
    browser.choose(disk)
    browser.wait("Ready to upload")
    assert "all is sent again" in browser.text("notice")


@pytest.fixture
def stateless(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon with the page that keeps no records."""
    with Daemon(certificates, {"ui": {"enable": True}}) as daemon:
        yield daemon


def test_what_was_said_is_not_said_for_ever(browser: "Browser", disk: Path, link: Link, wire: Wire) -> None:
    """A screen reader finds nothing in the live regions that is no longer so."""
    begin(browser, link, disk)
    wire.cut()
    eventually(lambda: browser.text("said") == "The connection is lost.", "it is said", timeout=20)
    wire.mend()
    eventually(lambda: browser.text("said") != "The connection is lost.", "it is no longer said", timeout=30)
    browser.press("Pause")
    browser.wait("Paused")
    assert (browser.text("said"), browser.text("waiting")) == ("", "")


def test_pause_sends_nothing_until_it_is_continued(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link
) -> None:
    begin(browser, link, disk)
    browser.press("Pause")
    browser.wait("Paused")
    eventually(lambda: not page_daemon.status(link.ticket)["active"], "nothing runs", timeout=20)
    written = page_daemon.status(link.ticket)["written"]
    assert browser.percent < 90
    assert page_daemon.status(link.ticket)["written"] == written
    browser.press("Continue")  # not in a hurry: the flush after the pause, which may take 10 s, must not end it
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)


def test_network_that_is_cut_is_waited_for(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link, wire: Wire
) -> None:
    begin(browser, link, disk)
    wire.cut()
    eventually(lambda: "The connection is lost. Trying again" in browser.text("waiting"), "it says so", timeout=20)
    wire.mend()
    hurry(page_daemon, link)
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)


def test_network_that_drops_all_packets_is_told_and_waited_for(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link, wire: Wire
) -> None:
    begin(browser, link, disk)
    wire.silence()
    # After the 60 s without progress that request.js allows.
    eventually(lambda: "The connection is lost. Trying again" in browser.text("waiting"), "it says so", timeout=LONG)
    wire.mend()
    hurry(page_daemon, link)
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)


def test_server_that_restarts_is_waited_for(browser: "Browser", page_daemon: Daemon, disk: Path, link: Link) -> None:
    begin(browser, link, disk)
    page_daemon.stop()
    eventually(lambda: browser.text("waiting"), "it waits", timeout=20)
    page_daemon.restart()
    hurry(page_daemon, link)
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)


def test_ticket_that_expires_goes_on_when_it_is_extended(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link
) -> None:
    begin(browser, link, disk)
    page_daemon.extend(link.ticket, 0)
    browser.wait("The link does not work any more")
    assert "Ask the person who sent it for more time" in browser.text("lead")
    page_daemon.extend(link.ticket, 300)
    hurry(page_daemon, link)
    browser.press("Try again")
    browser.wait("The disk is safe", timeout=LONG)
    assert same(disk, link.path)


def test_ticket_that_is_removed_ends_it_with_what_to_do(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link
) -> None:
    begin(browser, link, disk)
    page_daemon.remove(link.ticket)
    browser.wait("The link does not work any more")


def test_ticket_that_becomes_read_only_ends_it(browser: "Browser", page_daemon: Daemon, disk: Path, link: Link) -> None:
    begin(browser, link, disk)
    page_daemon.add_ticket(link.path, SIZE, uuid=link.ticket, ops=["read"])
    browser.wait("The link does not work any more")


def test_file_that_changes_is_told(browser: "Browser", disk: Path, link: Link) -> None:
    begin(browser, link, disk)
    os.truncate(disk, SIZE // 2)
    browser.wait("The file cannot be read any more")
    browser.press("Choose the file again")
    browser.wait("Continue the upload")


def test_file_that_vanishes_is_told(browser: "Browser", disk: Path, link: Link) -> None:
    begin(browser, link, disk)
    disk.unlink()
    browser.wait("The file cannot be read any more")


@pytest.mark.root
def test_full_storage_is_told(browser: "Browser", disk: Path, make_link: MakeLink, small_filesystem: Path) -> None:
    image = small_filesystem / "image"
    image.touch()
    os.truncate(image, SIZE)
    browser.open(make_link(SIZE, image).url)
    browser.upload(disk)
    browser.wait("The storage is full")
    assert "Afterwards start anew with a new link" in browser.text("lead")


def test_cancel_says_that_the_disk_is_incomplete(
    browser: "Browser", page_daemon: Daemon, disk: Path, link: Link
) -> None:
    begin(browser, link, disk)
    browser.press("Cancel")
    browser.wait("Canceled")
    assert "must not be used" in browser.text("lead")
    eventually(lambda: not page_daemon.status(link.ticket)["active"], "nothing runs", timeout=20)


def test_upload_is_canceled_after_a_pause(browser: "Browser", disk: Path, link: Link) -> None:
    begin(browser, link, disk)
    browser.press("Pause")
    browser.wait("Paused")
    browser.press("Cancel")
    browser.wait("Canceled")


def test_two_tabs_do_not_use_one_link(browser: "Browser", disk: Path, link: Link) -> None:
    begin(browser, link, disk)
    browser.new_tab()
    browser.open(link.url)
    assert browser.title == "The link is open in another tab"
    browser.close_tab()
