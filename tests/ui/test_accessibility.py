# SPDX-License-Identifier: Apache-2.0
"""axe-core finds nothing in any state of the page, in light and in dark; the keyboard is enough."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imageio_daemon.units import MiB
from tests.support.daemon import PROJECT, Daemon
from tests.ui.conftest import MakeDisk, MakeLink

if TYPE_CHECKING:
    from tests.ui.browser import Browser

AXE = PROJECT / ".cache" / "axe.min.js"
RUN = "const done = arguments[0]; axe.run().then((found) => done(found.violations), (error) => done([String(error)]));"


@pytest.fixture
def axe() -> str:
    if not AXE.exists():
        pytest.skip("needs axe-core: scripts/setup-ui fetches it")
    return AXE.read_text()


def check(browser: "Browser", axe: str) -> None:
    """Fail if axe-core finds anything in the state that is shown."""
    for scheme in ("light", "dark"):
        browser.colours(scheme)
        browser.driver.execute_script(axe)
        found = [(each["id"], [node["html"] for node in each["nodes"]]) for each in browser.run(RUN)]
        assert not found, f"{browser.title}, {scheme}"
    browser.colours("")


def test_upload_has_no_faults(
    browser: "Browser", axe: str, page_daemon: Daemon, make_disk: MakeDisk, make_link: MakeLink, tmp_path: Path
) -> None:
    disk = make_disk("disk.raw", 64 * MiB, 20)
    link = make_link(64 * MiB, rate=8 * MiB)
    browser.open(link.url)
    check(browser, axe)
    (tmp_path / "empty").touch()
    browser.choose(tmp_path / "empty")
    browser.expect_notice("0 bytes")
    check(browser, axe)
    browser.choose(disk)
    browser.wait("Ready to upload")
    check(browser, axe)
    browser.press("Upload")
    browser.until(5)
    check(browser, axe)
    browser.press("Pause")
    browser.wait("Paused")
    check(browser, axe)
    page_daemon.extend(link.ticket, 0)
    browser.press("Continue")
    browser.wait("The link does not work any more")
    check(browser, axe)
    page_daemon.extend(link.ticket, 300)
    assert page_daemon.control("PATCH", f"/tickets/{link.ticket}", b'{"rate": 0}').status == 200
    browser.press("Try again")
    browser.wait("The disk is safe", timeout=60)
    check(browser, axe)


def test_download_has_no_faults(browser: "Browser", axe: str, make_disk: MakeDisk, make_link: MakeLink) -> None:
    disk = make_disk("disk.raw", 8 * MiB, 2)
    browser.open(make_link(8 * MiB, disk, ops=["read"]).url)
    check(browser, axe)
    browser.press("Compare a saved file")
    check(browser, axe)
    browser.choose(disk)
    browser.wait("The file is the disk")
    check(browser, axe)


def test_page_without_a_link_has_no_faults(browser: "Browser", axe: str, page_daemon: Daemon) -> None:
    browser.open(f"https://localhost:{page_daemon.port}/ui/")
    check(browser, axe)


def test_keyboard_is_enough(browser: "Browser", make_disk: MakeDisk, make_link: MakeLink) -> None:
    browser.open(make_link(8 * MiB).url)
    assert browser.focused() == "title"
    browser.type("\ue004")  # tab
    assert browser.focused() == "file"
    browser.choose(make_disk("disk.raw", 8 * MiB, 2))
    browser.wait("Ready to upload")
    assert browser.focused() == "title"
    browser.type("\ue004\ue007")  # tab, enter: the first button is what a person wants
    browser.wait("The disk is safe")
    assert browser.focused() == "title"


def test_progress_is_said_to_screen_readers(browser: "Browser", make_disk: MakeDisk, make_link: MakeLink) -> None:
    browser.open(make_link(64 * MiB, rate=16 * MiB).url)
    browser.upload(make_disk("disk.raw", 64 * MiB, 20))
    browser.until(30)
    assert "percent done" in browser.text("said") or "percent compared" in browser.text("said")
    label = browser.driver.execute_script("return document.getElementById('map').getAttribute('aria-label')")
    assert label.startswith("Map of the disk. Data: ")
