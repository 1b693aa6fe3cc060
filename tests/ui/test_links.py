# SPDX-License-Identifier: Apache-2.0
"""Links that are wrong, and what a page of others may do with this one."""

import http.server
import threading
from typing import TYPE_CHECKING

import pytest

from imageio_daemon.units import MiB
from tests.support.daemon import Daemon
from tests.ui.conftest import MakeLink
from tests.ui.wire import Wire

if TYPE_CHECKING:
    from tests.ui.browser import Browser


def test_ticket_leaves_the_address_at_once_and_survives_a_reload(browser: "Browser", make_link: MakeLink) -> None:
    link = make_link(MiB)
    browser.open(link.url)
    assert link.ticket not in browser.driver.current_url
    assert browser.driver.current_url.endswith("/ui/")
    assert browser.title == "Upload a disk"
    browser.reload()
    assert browser.title == "Upload a disk"


@pytest.mark.parametrize("fragment", ["", "%", "..", "%E0%A4%A", "x" * 256])
def test_fragment_that_is_no_ticket_is_told(browser: "Browser", wire: Wire, fragment: str) -> None:
    browser.open(f"https://localhost:{wire.port}/ui/#{fragment}")
    assert browser.title == "This page needs a link"


@pytest.mark.parametrize("fragment", ["unknown", "a/b?c", "<script>alert(1)</script>"])
def test_unknown_ticket_is_told(browser: "Browser", wire: Wire, fragment: str) -> None:
    browser.open(f"https://localhost:{wire.port}/ui/#{fragment}")
    assert browser.title == "The link does not work any more"


def test_second_link_in_the_same_tab_counts(browser: "Browser", make_link: MakeLink, page_daemon: Daemon) -> None:
    link = make_link(MiB)
    browser.open(link.url)
    read = page_daemon.add_ticket(link.path, MiB, ops=["read"])
    browser.driver.execute_script("location.hash = arguments[0]", read)
    browser.wait("Download a disk")


def test_server_that_does_not_answer_is_told_and_tried_again(browser: "Browser", make_link: MakeLink) -> None:
    browser.open(make_link(MiB).url)
    browser.block_images()  # the page is there, and then the server is gone
    browser.driver.refresh()
    browser.wait("The server does not answer")
    browser.block_images(False)
    browser.press("Try now")
    browser.wait("Upload a disk")


def test_page_in_a_frame_of_others_is_refused(browser: "Browser", make_link: MakeLink) -> None:
    link = make_link(MiB)

    class Framing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f'<title>frame</title><iframe src="{link.url}"></iframe>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Framing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        browser.driver.get(f"http://127.0.0.1:{server.server_port}/")
        browser.expect_complaint("frame-ancestors")
        server.shutdown()
        thread.join()
