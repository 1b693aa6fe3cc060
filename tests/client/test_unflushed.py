# SPDX-License-Identifier: Apache-2.0
"""What a flush has to confirm, against a model that knows each byte."""

from hypothesis import given
from hypothesis import strategies as st

from imageio_daemon.client.unflushed import Unflushed

SIZE = 12

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, SIZE - 1), st.integers(1, SIZE)),
        st.tuples(st.just("restart")),
        st.tuples(st.just("flush"), st.booleans()),
    ),
    max_size=20,
)


@given(_STEPS)
def test_bytes_are_lost_from_a_restart_until_they_are_written_again(steps: list[tuple[object, ...]]) -> None:
    unflushed, restarts = Unflushed(), 0
    written: dict[int, int] = {}  # the process that has each byte that was not flushed
    lost: set[int] = set()
    for step in steps:
        if step[0] == "write":
            start, end = int(str(step[1])), min(int(str(step[1])) + int(str(step[2])), SIZE)
            unflushed.wrote(start, end, restarts)
            written |= dict.fromkeys(range(start, end), restarts)
            lost -= set(range(start, end))
        elif step[0] == "restart":
            restarts += 1
        else:
            taken = unflushed.take()
            if not step[1]:
                unflushed.give_back(taken)
                continue
            unflushed.flushed(taken, restarts)
            lost |= {byte for byte, process in written.items() if process != restarts}
            written = {}
        told = {byte for offset, length in unflushed.lost() for byte in range(offset, offset + length)}
        assert told == lost


def test_what_was_written_while_the_flush_ran_is_not_lost() -> None:
    unflushed = Unflushed()
    unflushed.wrote(0, 10, 0)
    taken = unflushed.take()
    unflushed.wrote(2, 4, 1)
    unflushed.flushed(taken, 1)
    assert unflushed.lost() == [(0, 2), (4, 6)]
