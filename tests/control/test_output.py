# SPDX-License-Identifier: Apache-2.0
"""Tables are aligned, and fit the terminal."""

import pytest

from imageio_daemon.control.output import shortened, table

HEAD = ("NAME", "OPS", "SIZE", "BY")
ROWS = [("job-17", "read", "1 B", "write"), ("a", "-", "12 B", "-")]


def test_numbers_end_and_texts_begin_in_one_column() -> None:
    assert table(HEAD, ROWS, left=("OPS", "BY")) == [
        "NAME    OPS   SIZE  BY",
        "job-17  read   1 B  write",
        "a       -     12 B  -",
    ]


@pytest.mark.parametrize("name", ["磁盘映像", "ﾃﾞｨｽｸ", "e\N{COMBINING ACUTE ACCENT}", "x" * 255], ids=repr)
def test_names_of_any_script_and_length_do_not_move_the_other_columns(name: str) -> None:
    wide = {"磁盘映像": 8, "e\N{COMBINING ACUTE ACCENT}": 1}
    lines = table(("NAME", "SIZE"), [(name, "1 B"), ("a", "12 B")])
    ends = [len(line) + wide.get(name, len(name)) - len(name) * (name in line) for line in lines]
    assert ends[1] == len(lines[0]) == len(lines[2])


def test_spare_columns_go_first_and_then_names_are_cut() -> None:
    rows = [("a-name-that-is-long-17", "read", "1 B", "write"), ("a", "-", "12 B", "-")]
    lines = table(HEAD, rows, left=("OPS", "BY"), width=36, spare=("BY", "OPS"))
    assert lines == [
        "NAME                    OPS   SIZE",
        "a-name-that-is-long-17  read   1 B",
        "a                       -     12 B",
    ]
    assert table(HEAD, rows, left=("OPS", "BY"), width=20, spare=("BY", "OPS")) == [
        "NAME            SIZE",
        "a-name-\N{HORIZONTAL ELLIPSIS}ong-17   1 B",
        "a               12 B",
    ]


def test_a_terminal_of_no_width_still_shows_something() -> None:
    assert table(("NAME", "SIZE"), [("a-long-name", "1 B")], width=1)[1] == "a-lo\N{HORIZONTAL ELLIPSIS}ame   1 B"


def test_names_differ_after_they_are_cut() -> None:
    assert {shortened(f"backup-of-host-{number}", 9) for number in (17, 18)} == {
        "back\N{HORIZONTAL ELLIPSIS}t-17",
        "back\N{HORIZONTAL ELLIPSIS}t-18",
    }
    assert shortened("磁盘映像磁盘映像", 8) == "磁盘\N{HORIZONTAL ELLIPSIS}像"


def test_what_could_change_the_terminal_is_escaped() -> None:
    assert table(("NAME",), [("a\x1b[2J",)]) == ["NAME", "a\\x1b[2J"]
