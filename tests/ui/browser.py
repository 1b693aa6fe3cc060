# SPDX-License-Identifier: Apache-2.0
"""A real browser on the page, and what it shows."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.support.polling import eventually

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

#: It never asks another host than the daemon, and needs neither a screen nor a sandbox of its own.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--ignore-certificate-errors",
    "--window-size=900,900",
)

#: Seconds for what the browser does at once, on a machine that does other things, too.
SOON = 20.0
#: Seconds for a whole transfer.
LONG = 90.0

#: Stands for the dialog in which a person chooses a file: headless browsers show none. The file is in the browser's own
#: file system, which has the same interface.
PICKER = """
window.showSaveFilePicker = async ({ suggestedName }) =>
    (await navigator.storage.getDirectory()).getFileHandle(suggestedName, { create: true });
"""
#: Calls back with the SHA-256 of each block of a file that was saved so, and its size.
SAVED = """
const [name, block, done] = arguments;
(async () => {
    const handle = await (await navigator.storage.getDirectory()).getFileHandle(name);
    const file = await handle.getFile();
    const sums = [];
    for (let at = 0; at < file.size; at += block) {
        const sum = await crypto.subtle.digest("SHA-256", await file.slice(at, at + block).arrayBuffer());
        sums.push(Array.from(new Uint8Array(sum), (byte) => byte.toString(16).padStart(2, "0")).join(""));
    }
    return [file.size, sums];
})().then(done, (error) => done(String(error)));
"""


class Browser:
    """One tab. Words of its page are found by what they say, as a person finds them."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self._before: list[str] = []

    def new_tab(self) -> None:
        """Go to a new tab."""
        self._before.append(self.driver.current_window_handle)
        self.driver.switch_to.new_window("tab")

    def close_tab(self) -> None:
        """Close the tab, and go back to the one before."""
        self.driver.close()
        self.driver.switch_to.window(self._before.pop())

    def open(self, url: str) -> None:
        """Open a page, and wait until it has read its link."""
        self.driver.get(url)
        eventually(lambda: self.title != "Disk transfer", "the page has read the link", timeout=SOON)

    def reload(self) -> None:
        """Reload the tab, as a person does who is warned and goes on."""
        self.driver.refresh()
        eventually(lambda: self.title not in ("Disk transfer", "Uploading"), "the page is new", timeout=SOON)

    @property
    def title(self) -> str:
        """The heading of the page."""
        return self.text("title")

    def text(self, name: str) -> str:
        """Return what a part of the page says."""
        return str(self.driver.execute_script("return document.getElementById(arguments[0])?.innerText ?? ''", name))

    @property
    def percent(self) -> int:
        """How far a transfer is."""
        return int(self.text("percent").split()[0])

    def wait(self, title: str, *, timeout: float = SOON) -> None:
        """Wait for a heading."""
        try:
            eventually(lambda: self.title == title, f"the page says {title!r}", timeout=timeout)
        except AssertionError as error:
            error.add_note(f"it says {self.title!r}: {self.text('lead')} {self.text('notice')} {self.text('waiting')}")
            raise

    def expect_notice(self, pattern: str) -> None:
        """Wait for a sentence that must not be missed."""
        eventually(lambda: re.search(pattern, self.text("notice")), f"a notice {pattern!r}", timeout=SOON)

    def choose(self, path: Path) -> None:
        """Choose a file."""
        self.driver.find_element(By.ID, "file").send_keys(str(path))

    def drop(self, path: Path, name: str) -> None:
        """Drag a file from elsewhere over a part of the page, and drop it there."""
        place = self.driver.find_element(By.ID, name).rect
        x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.driver.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})

    def press(self, label: str) -> None:
        """Press a button, or follow a link."""
        self.driver.find_element(By.XPATH, f"//div[@id='actions']/*[text()='{label}']").click()

    @property
    def labels(self) -> list[str]:
        """What the buttons and links offer."""
        return [str(each.text) for each in self.driver.find_elements(By.XPATH, "//div[@id='actions']/*")]

    def press_copy(self) -> None:
        """Press the button beside a command."""
        self.driver.find_element(By.ID, "copy").click()

    def clipboard(self) -> str:
        """Return what was copied."""
        self.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
        return str(self.run("navigator.clipboard.readText().then(arguments[0], arguments[0])"))

    def forget(self) -> None:
        """Let the tab forget its session and leave the page, as a new tab has none."""
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get("about:blank")

    def upload(self, path: Path) -> None:
        """Choose a file and begin."""
        self.choose(path)
        self.wait("Ready to upload")
        self.press("Upload")

    def until(self, percent: int) -> None:
        """Wait until a transfer is so far."""
        eventually(lambda: self.percent >= percent, f"{percent} % are done", timeout=LONG)

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page that calls back."""
        return self.driver.execute_async_script(script, *arguments)

    def colours(self, scheme: str) -> None:
        """Prefer light or dark colours."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def focused(self) -> str:
        """Return the id of what has the focus."""
        return str(self.driver.execute_script("return document.activeElement.id"))

    def type(self, keys: str) -> None:
        """Type on the keyboard, wherever the focus is."""
        webdriver.ActionChains(self.driver).send_keys(keys).perform()

    def block_images(self, blocked: bool = True) -> None:
        """Let requests for images fail, and no others."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/images/*"] if blocked else []})

    # Downloads

    def offer_picker(self) -> None:
        """Let a file be saved without a dialog."""
        self.driver.execute_script(PICKER)

    def take_picker(self) -> None:
        """Be a browser without the File System Access API."""
        script = {"source": "delete window.showSaveFilePicker;"}
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
        self.driver.refresh()
        self.wait("Download a disk")

    def save_to(self, directory: Path) -> None:
        """Let the browser's own downloads go to a directory."""
        behaviour = {"behavior": "allow", "downloadPath": str(directory)}
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)

    def saved(self, name: str, block: int) -> Any:
        """Return size and digests of a file that offer_picker() has let the page save."""
        return self.run(SAVED, name, block)

    # What the browser says

    def expect_complaint(self, pattern: str) -> None:
        """Wait until the browser complains."""
        found: list[str] = []

        def complains() -> bool:
            found.extend(self.complaints())
            return any(pattern in line for line in found)

        eventually(complains, f"a complaint of {pattern}", timeout=SOON)

    def complaints(self) -> list[str]:
        """Return what the browser has complained of since the last call, but for requests that failed."""
        lines = [str(entry["message"]) for entry in self.driver.execute("getLog", {"type": "browser"})["value"]]
        return [line for line in lines if "Failed to load resource" not in line]


@contextmanager
def started(profile: Path) -> Iterator[webdriver.Chrome]:
    """Run a browser with an empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        driver.set_script_timeout(LONG)
        yield driver
    finally:
        driver.quit()
