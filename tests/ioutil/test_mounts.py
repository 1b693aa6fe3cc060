# SPDX-License-Identifier: Apache-2.0
"""The device of a path, as the engine finds it in /proc/self/mountinfo without access to the device."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.realstorage import missing, mounted

TREE = Path(__file__).resolve().parents[2]

Find = Callable[[Path], int]


class Mounted(ctypes.Structure):
    _fields_ = (("path", ctypes.c_char_p), ("device", ctypes.c_uint64), ("length", ctypes.c_size_t))


@pytest.fixture(scope="module")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """Return mount_find() for one path, built by itself."""
    library = tmp_path_factory.mktemp("mounts") / "mounts.so"
    source = TREE / "ioutil_ext/engine/mounts.c"
    subprocess.check_call(
        ["cc", "-O2", "-std=gnu11", "-shared", "-fPIC", f"-I{TREE}/ioutil_ext", source, "-o", library]
    )
    function = ctypes.CDLL(str(library)).mount_find

    def find(path: Path) -> int:
        # the root is beside it: what is found of one path says nothing of another
        paths = (Mounted * 2)(Mounted(b"/"), Mounted(os.fsencode(path)))
        function(paths, 2)
        assert paths[0].device == os.stat("/").st_dev
        return int(paths[1].device)

    return find


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount new file systems below directories of these names."""
    if reason := missing("tmpfs"):
        pytest.skip(reason)
    with ExitStack() as cleanup:
        yield lambda name: cleanup.enter_context(mounted("tmpfs", tmp_path / name))


@pytest.mark.root
@pytest.mark.parametrize("name", ["plain", "a blank", "a\ttab", "a\nnewline", "a\\backslash", "\\040", "ünïcode"])
def test_path_below_a_mount_is_on_its_device(find: Find, mounts: Callable[[str], Path], name: str) -> None:
    directory = mounts(name)
    assert find(directory / "image") == find(directory) == directory.stat().st_dev


@pytest.mark.root
def test_path_beside_a_mount_whose_name_it_begins_with_is_not_on_its_device(
    find: Find, mounts: Callable[[str], Path]
) -> None:
    directory = mounts("one")
    assert find(Path(f"{directory}more/image")) == directory.parent.stat().st_dev


@pytest.mark.root
def test_last_of_several_mounts_on_a_directory_counts(find: Find, mounts: Callable[[str], Path]) -> None:
    directory = mounts("several")
    subprocess.check_call(["mount", "-t", "tmpfs", "tmpfs", directory])
    try:
        assert find(directory / "image") == directory.stat().st_dev
    finally:
        subprocess.check_call(["umount", directory])


def test_other_paths_are_on_the_device_of_the_root(find: Find) -> None:
    assert find(Path("/no such directory/image")) == Path("/").stat().st_dev
