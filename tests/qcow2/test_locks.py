# SPDX-License-Identifier: Apache-2.0
"""Who else may have an image open: the engine has the locks that qemu has."""

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..ioutil.engine_driver import Failed, Image
from .disk import Disk, Layer, create, run


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return create(tmp_path / "image", "1M")


def opens(*words: object) -> bool:
    return run(*words, check=False).returncode == 0


@contextmanager
def opened_by_qemu(path: Path, *options: str) -> Iterator[None]:
    command = ["qemu-io", "-f", "qcow2", *options, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("length\n")
        program.stdin.flush()
        while "1 MiB" not in (line := program.stdout.readline()):
            assert line
        yield
        program.stdin.close()


def refused(path: Path, *, writable: bool) -> bool:
    try:
        Disk(path, writable=writable).close()
    except Failed as e:
        return e.errno == errno.EBUSY
    return False


def test_a_writer_keeps_others_out(image: Path) -> None:
    with Disk(image):
        assert not opens("qemu-img", "check", image)
        assert not opens("qemu-io", "-r", "-f", "qcow2", "-c", "read 0 1", image)
        assert opens("qemu-img", "info", "-U", image)
        assert refused(image, writable=True)
        assert refused(image, writable=False)
    assert opens("qemu-img", "check", image)


def test_a_reader_keeps_writers_out(image: Path) -> None:
    with Disk(image, writable=False):
        assert opens("qemu-img", "check", image)
        assert not opens("qemu-io", "-f", "qcow2", "-c", "write 0 1", image)
        assert refused(image, writable=True)
        assert not refused(image, writable=False)
    assert opens("qemu-io", "-f", "qcow2", "-c", "write 0 1", image)


def test_qemu_keeps_us_out(image: Path) -> None:
    with opened_by_qemu(image):
        assert refused(image, writable=True)
        assert refused(image, writable=False)
    with opened_by_qemu(image, "-r"):
        assert refused(image, writable=True)
        assert not refused(image, writable=False)


def test_files_below_are_locked_for_reading(image: Path, tmp_path: Path) -> None:
    top = create(tmp_path / "top", "1M", backing=image)
    with Disk([Layer(top, str(image)), Layer(image)]):
        assert opens("qemu-img", "check", image)
        assert not opens("qemu-io", "-f", "qcow2", "-c", "write 0 1", image)


def test_another_name_of_the_file(image: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(image)
    with Disk(image):
        assert refused(tmp_path / "link", writable=True)


def test_a_raw_writer_of_the_same_process(image: Path) -> None:
    with Image(image):
        assert refused(image, writable=True)
    with Disk(image), pytest.raises(Failed):
        Image(image)


def bytes_held(path: Path) -> set[int]:
    """Return the bytes of a file that are locked, by whomever (proc(5), /proc/locks)."""
    found: set[int] = set()
    for line in Path("/proc/locks").read_text().splitlines():
        words = [word for word in line.split() if word != "->"]
        if words[1] == "OFDLCK" and int(words[5].split(":")[2]) == path.stat().st_ino:
            found.update(range(int(words[6]), int(words[7]) + 1))
    return found


def test_bytes_that_are_held_are_those_of_qemu(image: Path, tmp_path: Path) -> None:
    top = create(tmp_path / "top", "1M", backing=image)
    with opened_by_qemu(top):
        writer, below = bytes_held(top), bytes_held(image)
    with opened_by_qemu(top, "-r"):
        reader = bytes_held(top)
    assert writer
    assert reader
    layers = [Layer(top, str(image)), Layer(image)]
    with Disk(layers):
        assert (bytes_held(top), bytes_held(image)) == (writer, below)
    with Disk(layers, writable=False):
        assert (bytes_held(top), bytes_held(image)) == (reader, below)
    assert not bytes_held(top) | bytes_held(image)


def test_locks_stay_when_another_descriptor_is_closed(image: Path) -> None:
    with Disk(image):
        image.open("r+b").close()
        assert not opens("qemu-img", "check", image)
    with Disk(image, writable=False), Disk(image, writable=False) as second:
        second.read(0, 1)
    with Disk(image, writable=False):
        Disk(image, writable=False).close()
        assert not opens("qemu-io", "-f", "qcow2", "-c", "write 0 1", image)


def test_without_locks(image: Path) -> None:
    with Disk(image, shared=True):
        assert opens("qemu-img", "check", image)
        with pytest.raises(Failed) as caught:  # two of them would destroy it
            Disk(image, shared=True)
        assert caught.value.errno == errno.EBUSY
