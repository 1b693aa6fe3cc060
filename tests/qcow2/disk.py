# SPDX-License-Identifier: Apache-2.0
"""Images in the format qcow2: opened by the engine, and made and checked by qemu's programs."""

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from ioutil_ext import ffi, lib

from ..ioutil.engine_driver import Failed, Image, Result, _copied

JUDGMENTS = {0: "", lib.IOU_QCOW2_NATIVE: "native", lib.IOU_QCOW2_FALLBACK: "fallback", lib.IOU_QCOW2_REFUSE: "refuse"}
BITMAPS = {
    0: "",
    lib.IOU_QCOW2_BITMAP_TOLD: "told",
    lib.IOU_QCOW2_BITMAP_MISSING: "missing",
    lib.IOU_QCOW2_BITMAP_IN_USE: "in use",
}


class Layer(NamedTuple):
    """A file of a chain. backing: the name in its header."""

    path: Path
    backing: str | None = None
    raw: bool = False


class Verdict(NamedTuple):
    judgment: str
    reason: str
    layer: int = 0


class Judged(Exception):
    """An image that the engine does not open."""

    def __init__(self, verdict: Verdict, result: Result) -> None:
        super().__init__(f"{verdict.judgment}: {verdict.reason}")
        self.verdict = verdict
        self.result = result


class Chain:
    """iou_qcow2_chain."""

    def __init__(self, layers: Sequence[Layer], bitmap: str | None = None) -> None:
        self._texts: list[Any] = []
        self._files = ffi.new("iou_qcow2_layer[]", len(layers))
        for file, layer in zip(self._files, layers, strict=True):
            file.path = self._text(layer.path)
            file.backing = self._text(layer.backing)
            file.raw = layer.raw
        self.verdict = ffi.new("iou_qcow2_verdict *")
        members = {"layers": self._files, "count": len(layers), "verdict": self.verdict, "bitmap": self._text(bitmap)}
        self.memory = ffi.new("iou_qcow2_chain *", members)

    def _text(self, value: str | Path | None) -> Any:
        if value is None:
            return ffi.NULL
        self._texts.append(ffi.new("char[]", os.fsencode(value)))
        return self._texts[-1]


class Disk(Image):
    """An open image, each operation run in the calling thread. Raises Judged, and Failed as Image does."""

    def __init__(
        self,
        image: Path | str | Sequence[Layer],
        *,
        writable: bool = True,
        buffered: bool = False,
        shared: bool = False,
        bitmap: str | None = None,
        control: Any = ffi.NULL,
    ) -> None:
        layers = [Layer(Path(image))] if isinstance(image, Path | str) else list(image)
        flags = (
            (lib.IOU_WRITABLE if writable else 0)
            | (lib.IOU_BUFFERED if buffered else 0)
            | (lib.IOU_SHARED if shared else 0)
        )
        chain = Chain(layers, bitmap)
        verdict = chain.verdict
        completion = ffi.new("iou_completion *")
        status = lib.iou_open_qcow2(chain.memory, flags, control, completion)
        if status == 0:
            assert verdict.judgment == lib.IOU_QCOW2_NATIVE
            self.handle = completion.handle
            self.bitmap = BITMAPS[verdict.bitmap]
            return
        result = _copied(completion[0])
        if not verdict.judgment:
            raise Failed(result)
        reason = ffi.string(verdict.reason).decode()
        raise Judged(Verdict(JUDGMENTS[verdict.judgment], reason, verdict.layer), result)

    def __enter__(self) -> Self:
        return self

    @property
    def counts(self) -> Any:
        counts = ffi.new("iou_qcow2_counts *")
        assert lib.iou_qcow2_get_counts(self.handle, counts) == 0
        return counts

    def content(self) -> bytes:
        size = self.info.size
        return b"".join(self.read(at, min(4 << 20, size - at)) for at in range(0, size, 4 << 20))

    def all_extents(self, flags: int = 0, at: int = 0) -> list[tuple[int, int, int]]:
        """Return starts, lengths and kinds: 0 data, 1 zeros, 3 zeros that no file has; 4 more if IOU_DIRTY tells it."""
        found: list[tuple[int, int, int]] = []
        size = self.info.size
        records = ffi.new("iou_extent[]", 1000)
        while at < size:
            result = self.run(lib.IOU_EXTENTS, at, size - at, flags, buffer=records, buffer_size=ffi.sizeof(records))
            for record in records[0 : result.count]:
                found.append((at, record.end - at, record.flags))
                at = record.end
        return joined(found)


def run(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program of qemu."""
    ended = subprocess.run([str(word) for word in words], check=False, capture_output=True, text=True)
    assert not check or ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
    return ended


def create(
    path: Path, size: int | str, *options: str, backing: Path | None = None, backing_format: str = "qcow2"
) -> Path:
    """Make an image with these options of qemu-img's -o."""
    words: list[object] = ["-o", ",".join(options)] if options else []
    if backing is not None:
        words += ["-b", backing, "-F", backing_format]
    run("qemu-img", "create", "-q", "-f", "qcow2", *words, path, size)
    return path


def qemu_io(path: Path, *commands: str, image_format: str = "qcow2", check: bool = True) -> None:
    words = [word for command in commands for word in ("-c", command)]
    run("qemu-io", "-f", image_format, *words, path, check=check)


#: Two states of qemu-img check.
SOUND, LEAKS = 0, 3


def checked(path: Path) -> int:
    """Return the status of qemu-img check: 0 sound, 2 corrupt, 3 leaks only."""
    return run("qemu-img", "check", "-q", "-f", "qcow2", path, check=False).returncode


def content(path: Path) -> bytes:
    """Return what a guest reads, by qemu."""
    raw = path.with_name(path.name + ".content")
    run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", path, raw)
    data = raw.read_bytes()
    raw.unlink()
    return data


def joined(extents: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the extents, those of one kind that follow each other as one."""
    found: list[tuple[int, int, int]] = []
    for start, length, kind in extents:
        if found and found[-1][2] == kind:
            found[-1] = (found[-1][0], found[-1][1] + length, kind)
        elif length:
            found.append((start, length, kind))
    return found


def qemu_extents(path: Path, below: int = 0) -> list[tuple[int, int, int]]:
    """Return the extents by qemu, as Disk.all_extents() does. So many files are below the image.

    Zeros behind the end of a shorter file are not `present`, and of the file above it. To clients of qemu-nbd they are
    no hole.
    """
    parts = json.loads(run("qemu-img", "map", "--output=json", "-f", "qcow2", path).stdout)
    holes = [not part["present"] and part["depth"] == below for part in parts]
    kinds = [(3 if hole else 1) if part["zero"] else 0 for part, hole in zip(parts, holes, strict=True)]
    return joined((part["start"], part["length"], kind) for part, kind in zip(parts, kinds, strict=True))
