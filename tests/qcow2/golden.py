# SPDX-License-Identifier: Apache-2.0
"""Images that qemu's programs make: one for each feature of the format."""

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .disk import Layer, create, qemu_io, run

MIB = 1 << 20

FALLBACK, NATIVE, REFUSE = "fallback", "native", "refuse"


class Golden(NamedTuple):
    """make: builds the image in a directory, and returns its chain. reader, writer: the verdicts. checks: the status of
    qemu-img check."""

    make: Callable[[Path], list[Layer]]
    reader: str = NATIVE
    writer: str = NATIVE
    checks: int = 0


def raw_source(path: Path, size: int = 4 * MIB, seed: int = 1) -> Path:
    """Make a raw file of random, compressible and zero parts."""
    rng = random.Random(seed)
    with path.open("wb") as file:
        file.truncate(size)
        for at in range(0, size, 100_000):
            kind, length = rng.randrange(3), min(rng.randrange(1, 100_000), size - at)
            file.seek(at)
            if kind == 0:
                file.write(rng.randbytes(length))
            elif kind == 1:
                file.write((b"text %d " % at * (length // 8 + 1))[:length])
    return path


def poke(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def plain(*options: str, size: str = "8M", writes: tuple[str, ...] = ()) -> Callable[[Path], list[Layer]]:
    writes = writes or ("write -P 5 1M 3M", "write -P 6 5000000 777", "write -P 7 7M 4k", "write -z 2M 100k")

    def make(directory: Path) -> list[Layer]:
        path = create(directory / "image", size, *options)
        qemu_io(path, *writes)
        return [Layer(path)]

    return make


def converted(*options: str, compress: bool = False, after: tuple[str, ...] = ()) -> Callable[[Path], list[Layer]]:
    def make(directory: Path) -> list[Layer]:
        path, source = directory / "image", raw_source(directory / "source")
        words = [*(["-c"] if compress else []), *(["-o", ",".join(options)] if options else [])]
        run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", *words, source, path)
        if after:
            qemu_io(path, *after)
        return [Layer(path)]

    return make


def overlay(
    *options: str, base: int = 8 * MIB, size: int = 8 * MIB, raw: bool = False, middle: bool = False
) -> Callable[[Path], list[Layer]]:
    def make(directory: Path) -> list[Layer]:
        below = raw_source(directory / "raw", base)
        if not raw:
            run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", below, directory / "base")
            below = directory / "base"
        layers = [Layer(below, raw=raw)]
        if middle:
            path = create(directory / "middle", base, backing=below, backing_format="raw" if raw else "qcow2")
            qemu_io(path, "write -z 1M 1M", "write -P 9 300k 70k")
            layers.insert(0, Layer(path, str(below)))
        below, form = layers[0].path, "raw" if layers[0].raw else "qcow2"
        top = create(directory / "image", size, *options, backing=below, backing_format=form)
        qemu_io(top, "write -P 3 100k 10k", "write -z 3M 70k", "write -P 4 2M 128k")
        return [Layer(top, str(below)), *layers]

    return make


def snapshot(*options: str, then: tuple[tuple[object, ...], ...] = ()) -> Callable[[Path], list[Layer]]:
    def make(directory: Path) -> list[Layer]:
        layers = plain(*options)(directory)
        path = layers[0].path
        run("qemu-img", "snapshot", "-c", "first", path)
        qemu_io(path, "write -P 8 1M 70k", "write -P 8 6M 10k")
        for words in then:
            run(*words, path)
        return layers

    return make


def poked(offset: int, value: int, make: Callable[[Path], list[Layer]] | None = None) -> Callable[[Path], list[Layer]]:
    def change(directory: Path) -> list[Layer]:
        layers = (make or plain())(directory)
        poke(layers[0].path, offset, bytes([value]))
        return layers

    return change


def bitmaps(*words: object) -> Callable[[Path], list[Layer]]:
    def make(directory: Path) -> list[Layer]:
        layers = plain()(directory)
        run("qemu-img", "bitmap", "--add", "-g", "64k", layers[0].path, "b")
        if words:
            run("qemu-img", "bitmap", *words, layers[0].path, "b")
        return layers

    return make


def killed(*options: str) -> Callable[[Path], list[Layer]]:
    def make(directory: Path) -> list[Layer]:
        path = create(directory / "image", "8M", *options)
        qemu_io(path, "write -P 5 1M 3M", "abort", check=False)
        return [Layer(path)]

    return make


def data_file(directory: Path) -> list[Layer]:
    path = create(directory / "image", "8M", f"data_file={directory}/data")
    qemu_io(path, "write -P 5 1M 3M")
    return [Layer(path)]


def luks(directory: Path) -> list[Layer]:
    path = directory / "image"
    secret = ["--object", "secret,id=s,data=x"]
    options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10"
    run("qemu-img", "create", "-q", *secret, "-f", "qcow2", "-o", options, path, "1M")
    return [Layer(path)]


def longer(directory: Path) -> list[Layer]:
    layers = plain()(directory)
    with layers[0].path.open("ab") as file:
        file.write(b"\xaa" * 300_000)
    return layers


def double_use(directory: Path) -> list[Layer]:
    """Let two entries of the L2 table name one cluster, which is counted once."""
    layers = plain()(directory)
    with layers[0].path.open("r+b") as file:
        l1 = struct.unpack_from(">Q", file.read(64), 40)[0]
        file.seek(l1)
        table = struct.unpack(">Q", file.read(8))[0] & 0x00FFFFFFFFFFFE00
        file.seek(table + 8 * 16)
        entry = file.read(8)
        file.seek(table + 8 * 100)
        file.write(entry)
    return layers


IMAGES = {
    "default": Golden(plain()),
    "v2": Golden(plain("compat=0.10")),
    "v2-discard": Golden(plain("compat=0.10", writes=("write -P 5 1M 3M", "discard 1M 1M"))),
    **{f"cluster-{n}": Golden(plain(f"cluster_size={n}")) for n in ("512", "1k", "4k", "16k", "2M")},
    **{f"refcount-{n}": Golden(plain(f"refcount_bits={n}")) for n in (1, 2, 4, 8, 32, 64)},
    "small-and-narrow": Golden(plain("cluster_size=512", "refcount_bits=1")),
    "small-and-wide": Golden(plain("cluster_size=512", "refcount_bits=64")),
    "subclusters": Golden(plain("extended_l2=on", "cluster_size=128k"), writer=FALLBACK),
    "subclusters-16k": Golden(plain("extended_l2=on", "cluster_size=16k"), writer=FALLBACK),
    "subclusters-2M": Golden(plain("extended_l2=on", "cluster_size=2M"), writer=FALLBACK),
    **{f"preallocated-{n}": Golden(plain(f"preallocation={n}")) for n in ("metadata", "falloc", "full")},
    "zero-flags": Golden(plain(writes=("write -P 5 1M 3M", "write -z 1M 1M", "write -z -u 2M 1M", "write -z 6M 1M"))),
    "discard": Golden(plain(writes=("write -P 5 1M 3M", "discard 2M 1M"))),
    "overlay": Golden(overlay()),
    "overlay-raw": Golden(overlay(raw=True)),
    "overlay-shorter": Golden(overlay(base=6 * MIB + 512, raw=True)),
    "overlay-longer": Golden(overlay(base=9 * MIB)),
    "overlay-odd": Golden(overlay(base=5 * MIB + 100, raw=True)),
    "overlay-three": Golden(overlay(middle=True)),
    "overlay-512": Golden(overlay("cluster_size=512")),
    "overlay-2M": Golden(overlay("cluster_size=2M", middle=True)),
    "overlay-subclusters": Golden(overlay("extended_l2=on", "cluster_size=128k"), writer=FALLBACK),
    "overlay-v2": Golden(overlay("compat=0.10"), writer=FALLBACK),
    "compressed": Golden(converted(compress=True)),
    "compressed-zstd": Golden(converted("compression_type=zstd", compress=True)),
    "compressed-512": Golden(converted("cluster_size=512", compress=True)),
    "compressed-4k-zstd": Golden(converted("cluster_size=4k", "compression_type=zstd", compress=True)),
    "compressed-2M": Golden(converted("cluster_size=2M", compress=True)),
    "compressed-subclusters": Golden(converted("extended_l2=on", "cluster_size=64k", compress=True), writer=FALLBACK),
    "compressed-changed": Golden(
        converted(compress=True, after=("write -P 5 1M 100k", "write -z 2M 100k", "discard 3M 300k"))
    ),
    "compressed-narrow": Golden(converted("refcount_bits=1", "compression_type=zstd", compress=True)),
    "snapshot": Golden(snapshot()),
    "snapshot-deleted": Golden(snapshot(then=(("qemu-img", "snapshot", "-d", "first"),))),
    "snapshot-512": Golden(snapshot("cluster_size=512")),
    "bitmap": Golden(bitmaps(), writer=FALLBACK),
    "bitmap-disabled": Golden(bitmaps("--disable"), writer=FALLBACK),
    "lazy": Golden(plain("lazy_refcounts=on")),
    "dirty": Golden(killed("lazy_refcounts=on"), writer=FALLBACK, checks=2),
    "leaks": Golden(killed(), checks=0),
    "corrupt": Golden(poked(79, 2), writer=REFUSE),
    "unknown-incompatible": Golden(poked(78, 1), reader=REFUSE, writer=REFUSE),
    "unknown-compatible": Golden(poked(86, 1)),
    "unknown-autoclear": Golden(poked(94, 1), writer=FALLBACK),
    "data-file": Golden(data_file, reader=FALLBACK, writer=FALLBACK),
    "luks": Golden(luks, reader=REFUSE, writer=REFUSE),
    "odd-size": Golden(plain(size="1049088", writes=("write -P 5 0 100k", "write -P 6 1048576 512"))),
    "odder-size": Golden(plain(size="1000001", writes=("write -P 5 999000 936",))),
    "nothing": Golden(plain(size="0", writes=("flush",))),
    "large": Golden(plain("cluster_size=2M", size="1P", writes=("write -P 5 1M 1M", "write -P 6 500T 1M"))),
    "longer": Golden(longer),
    "double-use": Golden(double_use, writer=REFUSE, checks=2),
}
