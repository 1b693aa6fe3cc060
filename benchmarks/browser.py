# SPDX-License-Identifier: Apache-2.0
"""How fast a browser uploads by the page, beside the daemon on the same processors: data, and zeros.

    scripts/setup-ui && TMPDIR=/dev/shm .venv/bin/python -m benchmarks.browser

Prints two lines for each upload: until all is sent, and until the server has compared it. The driver ends before the
upload begins: while it watches, the browser takes twice the processor time. The daemon tells how far it is.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from imageio_daemon.units import GiB, MiB
from tests.support.daemon import STATE, Certificates, Daemon
from tests.ui.browser import CHROMIUM, DRIVER, FLAGS, Browser
from tests.ui.memory import below

#: Bytes of data, in the page cache, and of a file that is one hole.
DATA, ZEROS = 512 * MiB, 2 * GiB
INTERVAL = 0.05
#: Seconds for the driver to end, and for an upload.
DELAY, LONGEST = 2.5, 120.0


def main() -> int:
    """Upload both."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        data, zeros = directory / "data", directory / "zeros"
        with data.open("wb") as file:
            for _ in range(DATA // (32 * MiB)):
                file.write(os.urandom(32 * MiB))
        zeros.touch()
        os.truncate(zeros, ZEROS)
        config: dict[str, dict[str, object]] = {"ui": {"enable": True}, "daemon": {"state_dir": STATE}}
        with Daemon(Certificates.make(directory), config) as daemon:
            for source in (data, zeros):
                image = directory / f"{source.name}.image"
                image.touch()
                os.truncate(image, source.stat().st_size)
                ticket = daemon.add_ticket(image, source.stat().st_size, sparse=True)
                browser = begin(daemon, ticket, source, directory / f"{source.name}.profile")
                try:
                    watch(daemon, ticket, source)
                finally:
                    os.kill(browser, signal.SIGTERM)
                    time.sleep(1)  # it writes its profile, which is removed then
    return 0


def begin(daemon: Daemon, ticket: str, source: Path, profile: Path) -> int:
    """Begin an upload, and return the process of the browser, which nobody watches."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.add_experimental_option("detach", True)
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    process = next(below(driver.service.process.pid))
    browser = Browser(driver)
    browser.open(f"https://localhost:{daemon.port}/ui/#{ticket}")
    browser.choose(source)
    browser.wait("Ready to upload")
    start = "setTimeout(() => document.querySelector('.primary').click(), arguments[0])"
    driver.execute_script(start, DELAY * 1000)
    driver.service.process.kill()
    return process


def watch(daemon: Daemon, ticket: str, source: Path) -> None:
    """Print how long an upload takes from its first change on."""
    size = source.stat().st_size
    began = sent = compared = 0.0
    deadline = time.monotonic() + LONGEST
    while not compared and time.monotonic() < deadline:
        time.sleep(INTERVAL)
        now, state = time.monotonic(), daemon.status(ticket)
        moved = state["written"] + sum(state["zeroed"].values())
        began = began or (now if moved or state["active"] else 0.0)
        sent = sent or (now if moved >= size else 0.0)
        if sent:
            with daemon.connect("tls") as connection:
                told = connection.request("OPTIONS", f"/images/{ticket}").json()
            compared = now if told.get("finalized") else 0.0
    if not compared:
        raise TimeoutError(f"{source.name} is not uploaded after {LONGEST} s")
    for what, end in (("sent", sent), ("compared", compared)):
        print(f"{source.name}: {what} after {end - began:.1f} s, {size / (end - began) / 1e6:.0f} MB/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
