# SPDX-License-Identifier: Apache-2.0
"""Programs that replace those of qemu and Ceph. They use files in the place of images on Ceph.

tests/lab/ceph tests the real programs with a real cluster.
"""

import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

#: The replacement of qemu-nbd and qemu-img. It replaces the node of a raw image on Ceph by that of a file.
_QEMU = """\
#!{python} -S
import json, os, sys
*words, name = sys.argv[1:]
node = json.loads(name.removeprefix("json:")) if name.startswith("json:") else {{}}
if node.get("file", {{}}).get("driver") == "rbd":
    there = node["file"]
    with open("{root}/asked", "a") as asked:
        print(json.dumps(there), file=asked)
    snapshot = "@" + there["snapshot"] if "snapshot" in there else ""
    path = os.path.join("{root}", there["pool"], there.get("namespace", ""), there["image"] + snapshot)
    said = None
    if os.path.exists("{root}/said"):
        said = open("{root}/said").read()
    elif not os.path.exists(path):
        said = f"error reading header from {{there['image']}}: No such file or directory"
    if said is not None:
        sys.exit(f"{program}: Failed to open {{name!r}}: {{said}}")
    node["file"] = {{"driver": "file", "filename": path}}
    name = "json:" + json.dumps(node)
os.execv("{real}", ["{program}", *words, name])
"""

_RBD = """\
#!{python} -S
import json, os, sys
with open("{root}/asked", "a") as asked:
    print(json.dumps(sys.argv[1:]), file=asked)
answer = json.load(open("{root}/answer"))
sys.stderr.write(answer["said"])
sys.stdout.write(answer["diff"])
sys.exit(answer["status"])
"""


class FakeCeph:
    """A directory with programs, `bin`, and pools of images."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)
        for program in ("qemu-nbd", "qemu-img"):
            real = shutil.which(program)
            assert real, f"{program} is not installed"
            self._write(program, _QEMU.format(python=sys.executable, root=root, program=program, real=real))
        self._write("rbd", _RBD.format(python=sys.executable, root=root))

    @property
    def path(self) -> str:
        """PATH with its programs first."""
        return f"{self.bin}:{os.environ['PATH']}"

    def create(self, name: str, size: int, content: bytes = b"") -> Path:
        """Make an image, named POOL/IMAGE or as urls name it, and return its file."""
        path = self.file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.truncate(path, size)
        return path

    def file(self, name: str) -> Path:
        """Return the file of an image."""
        return self._root / name

    def asked(self) -> list[Any]:
        """Return the requests to the programs: nodes of qemu, arguments of rbd."""
        return [json.loads(line) for line in (self._root / "asked").read_text().splitlines()]

    def fail(self, said: str) -> None:
        """Let qemu's programs end with a message."""
        (self._root / "said").write_text(said)

    def answer(self, diff: str, said: str = "", status: int = 0) -> None:
        """Let rbd print `diff`, write `said` to standard error and end with a status."""
        (self._root / "answer").write_text(json.dumps({"diff": diff, "said": said, "status": status}))

    def _write(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def diff(*extents: tuple[int, int, bool]) -> str:
    """Return the output of `rbd diff` for extents of start, length and whether there is data."""
    told = [
        {"offset": start, "length": length, "exists": "true" if exists else "false"}
        for start, length, exists in extents
    ]
    return json.dumps(told, separators=(",", ":")) + "\n"
