# SPDX-License-Identifier: Apache-2.0
"""The state directory: who may have it, and what is found wrong with it."""

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from imageio_daemon.errors import ConfigError
from imageio_daemon.runtime.state import (
    UNFINISHED,
    StateDirectory,
    make_directory,
    open_state,
    read_file,
    remove_file,
    replace_file,
    why_unusable,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and changing owners needs root")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A state directory that no daemon has used yet."""
    made = tmp_path / "state"
    assert make_directory(str(made))
    return made


def opened(path: Path) -> StateDirectory:
    return open_state(str(path))


def refused(path: Path, *, seen: bool = True) -> str:
    """Return why a directory cannot be used. seen: what looks without a change finds the same."""
    with pytest.raises(OSError) as found:  # noqa: PT011 - the callers match the text
        open_state(str(path))
    reason = found.value.strerror or str(found.value)
    assert why_unusable(str(path)) == (reason if seen else "")
    return reason


def test_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert make_directory(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_directory_that_exists_is_not_made(path: Path) -> None:
    assert not make_directory(str(path))


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "state"
    assert not make_directory(str(path))
    assert "Not a directory" in refused(path)


def test_directory_is_opened_again(path: Path) -> None:
    for _ in range(2):
        opened(path).close()
    assert (path / "version").read_text() == "1\n"
    assert os.listdir(path) == ["version"]


def test_second_daemon_is_an_error_of_configuration(path: Path) -> None:
    with closing(opened(path)), pytest.raises(ConfigError, match="another daemon"):
        open_state(str(path))


def test_directory_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert "its owner is" in refused(path)


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_directory_that_others_may_use_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert f"it is {mode:04o}" in refused(path)


@pytest.mark.parametrize("content", [b"", b"1", b"2\n", b"0\n", b"11\n", b"\xff\n", b"1\n" * 100])
def test_other_or_torn_version_is_refused(path: Path, content: bytes) -> None:
    (path / "version").write_bytes(content)
    assert "version" in refused(path)


def test_version_that_is_no_file_is_refused(path: Path) -> None:
    os.mkfifo(path / "version")
    assert "regular file" in refused(path)


def test_directory_that_was_refused_is_not_locked(path: Path) -> None:
    (path / "version").touch()
    refused(path)
    (path / "version").unlink()
    opened(path).close()


@contextmanager
def tmpfs(path: Path, options: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "none", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.root
@needs_root
def test_read_only_directory_is_refused(path: Path) -> None:
    with tmpfs(path, "size=64k"):
        opened(path).close()
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        assert "read-only" in refused(path)


@pytest.mark.root
@needs_root
def test_new_directory_that_is_full_is_refused(path: Path) -> None:
    with tmpfs(path, "size=64k,nr_inodes=1"):
        assert "No space left" in refused(path, seen=False)


@pytest.mark.root
@needs_root
def test_full_directory_that_was_used_before_can_be_read_and_emptied(path: Path) -> None:
    with tmpfs(path, "size=64k"):
        with closing(opened(path)) as state:
            replace_file(state.directory("parts"), "kept", b"kept")
        with pytest.raises(OSError, match="No space left"):
            (path / "filler").write_bytes(bytes(128 * 1024))
        with closing(opened(path)) as state:
            parts = state.directory("parts")
            with pytest.raises(OSError, match="No space left"):
                replace_file(parts, "more", bytes(8192))
            assert os.listdir(parts) == ["kept"]
            assert read_file(parts, "kept", 10) == b"kept"
            remove_file(parts, "kept")
            assert os.listdir(parts) == []


# Directories and files in it


@pytest.fixture
def parts(path: Path) -> Iterator[int]:
    """The descriptor of a directory of one part of the daemon."""
    with closing(opened(path)) as state:
        yield state.directory("parts")


def test_directory_of_a_part_is_for_its_owner_alone(path: Path, parts: int) -> None:
    assert stat.S_IMODE((path / "parts").stat().st_mode) == 0o700
    assert os.fstat(parts).st_ino == (path / "parts").stat().st_ino


def test_directory_of_a_part_is_opened_once(path: Path) -> None:
    with closing(opened(path)) as state:
        assert state.directory("parts") == state.directory("parts")


def test_directory_of_a_part_that_others_may_use_is_refused(path: Path) -> None:
    (path / "parts").mkdir(mode=0o755)
    with closing(opened(path)) as state, pytest.raises(PermissionError, match="0700"):
        state.directory("parts")


def test_link_in_place_of_a_part_is_refused(path: Path, tmp_path: Path) -> None:
    (path / "parts").symlink_to(tmp_path)
    with closing(opened(path)) as state, pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        state.directory("parts")


@pytest.mark.parametrize("name", ["a", f"{UNFINISHED}a"])
def test_directory_in_place_of_a_file_of_a_part_is_refused_by_its_name(path: Path, name: str) -> None:
    (path / "parts" / name).mkdir(parents=True)
    (path / "parts").chmod(0o700)
    with closing(opened(path)) as state, pytest.raises(OSError, match=f"^parts/{name}: expected a file, it is a dir"):
        state.directory("parts")


def test_unfinished_files_are_removed(path: Path) -> None:
    (path / "parts").mkdir(mode=0o700)
    (path / "parts" / f"{UNFINISHED}a").touch()
    (path / f"{UNFINISHED}version").touch()
    with closing(opened(path)) as state:
        assert os.listdir(state.directory("parts")) == []
    assert sorted(os.listdir(path)) == ["parts", "version"]


def test_file_is_replaced_and_private(path: Path, parts: int) -> None:
    for data in (b"long content", b"short"):
        replace_file(parts, "a", data)
        assert read_file(parts, "a", 100) == data
    assert stat.S_IMODE((path / "parts" / "a").stat().st_mode) == 0o600
    assert os.listdir(parts) == ["a"]


def test_removed_file_is_gone(parts: int) -> None:
    replace_file(parts, "a", b"")
    remove_file(parts, "a")
    assert os.listdir(parts) == []


def test_removing_a_missing_file_is_no_error(parts: int) -> None:
    remove_file(parts, "a")


def test_file_that_is_too_large_is_not_read(parts: int) -> None:
    replace_file(parts, "a", b"12345")
    assert read_file(parts, "a", 5) == b"12345"
    with pytest.raises(OSError, match="at most 4 bytes"):
        read_file(parts, "a", 4)


def test_link_is_not_read(path: Path, parts: int) -> None:
    replace_file(parts, "a", b"")
    (path / "parts" / "b").symlink_to("a")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        read_file(parts, "b", 4)
