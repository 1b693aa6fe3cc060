# SPDX-License-Identifier: Apache-2.0
"""The machine and the versions that figures belong to."""

import importlib.metadata
import os
import platform
import re
import ssl
import subprocess
import time
from pathlib import Path

from benchmarks.servers import OVIRT_IMAGEIO, PROJECT

#: Above this load, per processor, other work takes part in the figures.
BUSY = 0.3


def describe(directory: Path) -> dict[str, str]:
    """Return what a reader needs to judge figures that were measured on images in a directory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": f"{os.cpu_count()} x {_processor()}",
        "memory": f"{memory / 2**30:.0f} GiB",
        "images on": " ".join(_output("findmnt", "-n", "-o", "FSTYPE,SOURCE", "--target", str(directory)).split()),
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "OpenSSL": ssl.OPENSSL_VERSION,
        **{name: importlib.metadata.version(name) for name in ("uvloop", "aiohttp")},
        "imageio-daemon": commit(PROJECT),
        "ovirt-imageio": _version(OVIRT_IMAGEIO),
    }


def commit(checkout: Path) -> str:
    """Return which version of this project a work tree has."""
    return _output("git", "-C", str(checkout), "describe", "--always", "--dirty") or "not a checkout"


def busy() -> str | None:
    """Return a warning if other work runs on this machine."""
    load = os.getloadavg()[0]
    if load <= BUSY * (os.cpu_count() or 1):
        return None
    return f"the load of this machine is {load:.1f} before we begin: the figures will be wrong"


def _processor() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _version(program: Path) -> str:
    pip = program.parent / "pip"
    match = re.search(r"^Version: (.+)$", _output(str(pip), "show", program.name), re.MULTILINE)
    return match[1] if match else "unknown"


def _output(*command: str) -> str:
    """Return what a program prints, or nothing where it cannot tell."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
