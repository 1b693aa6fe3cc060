# SPDX-License-Identifier: Apache-2.0
"""Images that the engine makes: qemu opens them, and finds nothing wrong."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from ioutil_ext import ffi, lib

from .disk import Disk, Layer, checked, content, create, run


class NotMade(Exception):
    pass


def made(path: Path, size: int, bits: int = 16, **options: Any) -> Path:
    path.touch()
    texts = {name: ffi.new("char[]", value.encode()) for name, value in options.items() if isinstance(value, str)}
    status = lib.iou_create_qcow2(
        str(path).encode(), ffi.new("iou_qcow2_options *", {"size": size, "cluster_bits": bits, **options, **texts})
    )
    if status:
        raise NotMade(errno.errorcode[-status])
    return path


@pytest.mark.parametrize(
    ("size", "bits", "extended"),
    [
        *((size, bits, 0) for size in (0, 1, 1 << 20, (1 << 30) + 512) for bits in (9, 12, 16, 21)),
        (127 << 30, 9, 0),
        (1 << 50, 21, 0),
        (1 << 40, 16, 0),
        (1 << 30, 14, 1),
        (1 << 30, 17, 1),
    ],
)
def test_qemu_opens_it(size: int, bits: int, extended: int, tmp_path: Path) -> None:
    path = made(tmp_path / "image", size, bits, extended=extended)
    info = json.loads(run("qemu-img", "info", "--output=json", path).stdout)
    assert (info["virtual-size"], info["cluster-size"]) == (-(-size // 512) * 512, 1 << bits)
    assert checked(path) == 0
    if not extended and size <= 1 << 30:
        with Disk(path) as disk:
            if size > 4096:
                disk.write(size // 2, b"x" * 1000)
        assert checked(path) == 0
        assert size < 4096 or content(path)[size // 2 :][:1000] == b"x" * 1000


def test_over_a_file_below(tmp_path: Path) -> None:
    base = create(tmp_path / "base", "1M")
    with Disk(base) as disk:
        disk.write(0, b"b" * 5000)
    path = made(tmp_path / "image", 2 << 20, backing=str(base), backing_format="qcow2")
    with Disk([Layer(path, str(base)), Layer(base)]) as disk:
        disk.write(100, b"t")
    assert content(path)[:5001] == b"b" * 100 + b"t" + b"b" * 4899 + b"\0"
    assert checked(path) == 0


@pytest.mark.parametrize(
    ("code", "size", "options"),
    [
        (errno.EINVAL, 1, {"bits": 8}),
        (errno.EINVAL, 1, {"bits": 22}),
        (errno.EINVAL, 1, {"bits": 13, "extended": 1}),
        (errno.EINVAL, (1 << 63) - 1, {}),
        (errno.EINVAL, 1, {"backing": "x"}),
        (errno.EINVAL, 1, {"backing": "x", "backing_format": "x" * 16}),
        (errno.ENAMETOOLONG, 1, {"backing": "x" * 400, "backing_format": "raw", "bits": 9}),
        (errno.EFBIG, 1 << 40, {"bits": 9}),
    ],
)
def test_what_cannot_be_made(code: int, size: int, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotMade, match=errno.errorcode[code]):
        made(tmp_path / "image", size, **options)
    assert (tmp_path / "image").stat().st_size == 0


def test_a_file_that_has_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"something")
    with pytest.raises(NotMade, match="EEXIST"):
        made(tmp_path / "image", 1 << 20)
    assert (tmp_path / "image").read_bytes() == b"something"
