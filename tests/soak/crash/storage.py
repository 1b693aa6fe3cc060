# SPDX-License-Identifier: Apache-2.0
"""What images of the campaign are on: files, a device, and such as NBD servers have, one of them the daemon's own."""

import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.qcow2.disk import LEAKS, SOUND, checked
from tests.support.nbdservers import NbdServer, make_qcow2, nbdkit, qemu_nbd
from tests.support.polling import eventually
from tests.support.processes import open_files
from tests.support.realstorage import Mounts, loop_device, missing


@dataclass
class Image:
    """An image: what tickets say of it, and how the test sees it. traced: the daemon writes it itself."""

    path: Path
    where: Mapping[str, str]
    traced: bool
    read: Callable[[], bytes]
    is_settled: Callable[[], object] = field(default=lambda: True)

    def content(self) -> bytes:
        """Return what it holds when nobody uses it any more."""
        eventually(self.is_settled, f"nobody uses {self.path}")
        return self.read()


Make = Callable[[Mounts, Path, int, ExitStack], Image]


def _own(path: Path) -> Image:
    return Image(path, {"url": f"file://{path}"}, traced=True, read=path.read_bytes)


def _sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def _on(filesystem: str) -> Make:
    def make(mounts: Mounts, directory: Path, size: int, cleanup: ExitStack) -> Image:
        path = _sparse(mounts.get(filesystem) / f"{directory.name}-{filesystem}", size)
        cleanup.callback(path.unlink)
        return _own(path)

    return make


def _file(mounts: Mounts, directory: Path, size: int, cleanup: ExitStack) -> Image:
    return _own(_sparse(directory / "file", size))


def _device(mounts: Mounts, directory: Path, size: int, cleanup: ExitStack) -> Image:
    return _own(cleanup.enter_context(loop_device(_sparse(directory / "device", size))))


def _served(server: NbdServer, path: Path) -> Image:
    def read() -> bytes:
        return _output_of("nbdcopy", server.uri, "-")

    return Image(path, {"url": server.url}, traced=False, read=read, is_settled=lambda: server.connections() == 0)


def _qemu_nbd(mounts: Mounts, directory: Path, size: int, cleanup: ExitStack) -> Image:
    path = make_qcow2(directory / "served.qcow2", size)
    return _served(cleanup.enter_context(qemu_nbd(path, "qcow2")), path)


def _nbdkit(mounts: Mounts, directory: Path, size: int, cleanup: ExitStack) -> Image:
    path = _sparse(directory / "nbdkit", size)
    return _served(cleanup.enter_context(nbdkit("file", str(path))), path)


def _managed(mounts: Mounts, directory: Path, size: int, cleanup: ExitStack) -> Image:
    path = make_qcow2(directory / "managed.qcow2", size)
    raw = directory / "managed.raw"

    def read() -> bytes:
        assert checked(path) in (SOUND, LEAKS), f"{path} is corrupt"
        _output_of("qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(path), str(raw))
        return raw.read_bytes()

    where = {"url": f"file://{path}", "format": "qcow2"}
    return Image(path, where, traced=False, read=read, is_settled=lambda: not _is_open(path))


#: By name.
KINDS: Mapping[str, Make] = {
    "managed": _managed,
    "qemu-nbd": _qemu_nbd,
    "nbdkit": _nbdkit,
    "file": _file,
    "tmpfs": _on("tmpfs"),
    "xfs": _on("xfs"),
    "device": _device,
}
OF_ROOT = ("tmpfs", "xfs", "device")


def kinds() -> list[str]:
    """Return the kinds that can be made here."""
    return [kind for kind in KINDS if kind not in OF_ROOT or not missing("xfs")]


def _is_open(path: Path) -> bool:
    programs = (entry for entry in Path("/proc").glob("[0-9]*") if _runs(entry, "qemu-nbd"))
    return any(str(path) in open_files(int(entry.name)).values() for entry in programs)


def _runs(entry: Path, program: str) -> bool:
    try:
        return (entry / "comm").read_text().strip() == program
    except OSError:  # it has ended
        return False


def _output_of(*command: str) -> bytes:
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stderr.decode()}"
    return result.stdout
