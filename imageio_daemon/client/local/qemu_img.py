# SPDX-License-Identifier: Apache-2.0
"""Questions to qemu-img, and the names of images for it and for qemu-nbd."""

import json
import logging
import subprocess
from pathlib import Path

from ..errors import LocalError
from .archive import Member
from .layers import image_opts, node_of

log = logging.getLogger(__name__)


def run_qemu_img(*arguments: str) -> str:
    """Run qemu-img and return its standard output. Raises LocalError."""
    try:
        done = subprocess.run(  # noqa: S603 - no shell
            ["qemu-img", *arguments],  # noqa: S607
            check=False,
            capture_output=True,
            text=True,
            errors="surrogateescape",
        )
    except OSError as e:
        raise LocalError(f"can't run qemu-img, which other formats than raw need: {e.strerror}") from e
    if done.returncode != 0:
        raise LocalError(f"qemu-img {arguments[0]} failed: {' '.join(done.stderr.split())}")
    return done.stdout


def arguments_for(
    path: Path, format_name: str, member: Member | None = None, *, compress: bool = False, shared: bool = False
) -> list[str]:
    # An absolute path: qemu may take a relative one for a URL.
    name = str(path.absolute())
    if member is None and not compress and not shared:
        return [f"--format={format_name}", "--", name]
    image: dict[str, object] = {"driver": format_name, "file": node_of(path, name, member)}
    if shared:
        image |= {"read-only": True, "force-share": True}
    return ["--image-opts", "--", image_opts({"driver": "compress", "file": image} if compress else image)]


def tells_changes(path: Path, format_name: str, member: Member | None, bitmap: str) -> bool:
    """Return whether a bitmap of an image has all its changes, and log why not. Raises LocalError.

    qemu-nbd would also take a bitmap of a file below the image, which lacks what was written above it. By the format,
    only a bitmap with the flag "auto" has the changes of all programs (qemu, docs/interop/qcow2.rst).
    """
    told = json.loads(run_qemu_img("info", "--output=json", *arguments_for(path, format_name, member, shared=True)))
    bitmaps = told.get("format-specific", {}).get("data", {}).get("bitmaps", [])
    flags = next((found["flags"] for found in bitmaps if found["name"] == bitmap), None)
    if flags is None:
        log.warning("%s has no bitmap %s: nobody knows what has changed", path, bitmap)
    elif "in-use" in flags or "auto" not in flags:
        why = "is in use, or was left so by a crash" if "in-use" in flags else "is disabled"
        log.warning("the bitmap %s of %s %s: it does not tell what has changed", bitmap, path, why)
    else:
        return True
    return False
