# SPDX-License-Identifier: Apache-2.0
"""The order of the C extension: scripts/c_layers.py."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "c_layers.py"


def check(*arguments: Path) -> tuple[int, str]:
    """Run the script; return its status and what it says."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def write(extension: Path, name: str, *included: str) -> None:
    path = extension / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'#include "{header}"\n' for header in included))


def test_this_extension_is_in_order() -> None:
    assert check() == (0, "")


def test_own_room_and_those_below_may_be_included(tmp_path: Path) -> None:
    write(tmp_path, "base/link.h")
    write(tmp_path, "image/image.h", "base/link.h")
    write(tmp_path, "image/open.c", "image/image.h", "base/link.h")
    assert check(tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("room", "above"), [("base", "engine"), ("image", "nbd_client"), ("durable", "tls"), ("http", "nbd")]
)
def test_room_that_is_not_below_is_refused(tmp_path: Path, room: str, above: str) -> None:
    write(tmp_path, f"{above}/some.h")
    write(tmp_path, f"{room}/some.c", f"{above}/some.h")
    assert check(tmp_path) == (
        1,
        f"{tmp_path}/{room}/some.c:1: {room} includes {above}/some.h, and {above} is not below it\n",
    )


def test_include_without_a_room_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "image/image.h")
    write(tmp_path, "image/open.c", "image.h")
    status, said = check(tmp_path)
    assert (status, "image.h" in said) == (1, True)


def test_file_outside_of_the_rooms_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "stray.c")
    assert check(tmp_path) == (1, f"{tmp_path}/stray.c: stands in no room\n")


def test_calls_downward_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/open.c").write_text("int open_it(void) {\n    return close_it();\n}\n")
    (tmp_path / "image/close.c").write_text("/* as open_it() */\nint close_it(void) {\n    return 0;\n}\n")
    assert check(tmp_path) == (0, "")


def test_circle_of_calls_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/open.c").write_text("int open_it(void) {\n    return close_it();\n}\n")
    (tmp_path / "image/close.c").write_text("int close_it(void) {\n    return open_it();\n}\n")
    status, said = check(tmp_path)
    assert (status, "image/open.c -> image/close.c" in said) == (1, True)


def test_function_of_one_name_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    for name in ("open", "close"):
        (tmp_path / f"image/{name}.c").write_text("static int begin(void) {\n    return 0;\n}\n")
    assert check(tmp_path) == (1, "begin() is in image/close.c and image/open.c\n")
