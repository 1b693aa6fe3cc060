# SPDX-License-Identifier: Apache-2.0
"""The model of order finds what must not happen, and nothing else: histories made by hand, on an image of 8 units."""

from math import inf

import pytest

from tests.soak.order import Call, History, Incarnation, Observation, Operation, Removal
from tests.support.stamps import UNIT, ZERO, stamped, writers

IMAGE = "a"


class Told(History):
    """A history that is told step by step. Each step takes a second."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tickets: dict[str, Incarnation] = {}
        self.install("t")

    def tick(self) -> float:
        self.now += 1
        return self.now

    def install(self, ticket: str, image: str = IMAGE) -> None:
        """Install a ticket, or replace it."""
        self.tick()
        if ticket in self.tickets:
            self.tickets[ticket].ended = self.now
        self.tickets[ticket] = Incarnation(ticket, image, begun=self.now)
        self.incarnations.append(self.tickets[ticket])

    def remove(self, ticket: str) -> None:
        """Remove a ticket; the answer is 204."""
        sent, answered = self.tick(), self.tick()
        ended = self.tickets.pop(ticket, None)
        if ended is not None:
            ended.ended = answered
        self.removals.append(Removal(ticket, ended.image if ended else None, sent, answered))

    def send(self, start: int = 0, end: int = 8, *, zero: bool = False, ticket: str = "t") -> Operation:
        op = Operation(len(self.operations) + 1, ticket, start, end, zero=zero, sent=self.tick())
        self.operations[op.number] = op
        return op

    def write(self, start: int = 0, end: int = 8, *, zero: bool = False, ticket: str = "t") -> Operation:
        """Send a write and have it answered."""
        op = self.send(start, end, zero=zero, ticket=ticket)
        op.answer(self.tick(), good=True)
        return op

    def call(self, op: Operation, start: int = 0, end: int = 8) -> None:
        """Have storage end a write of an operation."""
        self.calls.append(Call(op.number, IMAGE, start, end, self.tick()))

    def read(self, *seen: int | set[int], start: int = 0, image: str = IMAGE) -> None:
        values = [frozenset(value if isinstance(value, set) else {value}) for value in seen]
        self.observations.append(Observation(image, start, values, self.tick(), self.tick()))


@pytest.fixture
def told() -> Told:
    return Told()


def test_stamps_tell_the_writer_of_each_unit() -> None:
    data = stamped(7, 3, 5) + bytes(UNIT) + stamped(9, 6, 7)
    assert writers(data, 3) == [{7}, {7}, {ZERO}, {9}]


def test_unit_that_was_read_while_it_was_written_has_two_writers() -> None:
    assert writers(stamped(1, 0, 1)[:256] + stamped(2, 0, 1)[256:], 0) == [{1, 2}]


def test_bytes_of_another_place_are_nobodys(told: Told) -> None:
    told.write()
    told.observations.append(Observation(IMAGE, 0, writers(stamped(1, 1, 2), 0), told.tick(), told.tick()))
    assert told.check()


def test_image_holds_zeros_at_first(told: Told) -> None:
    told.read(ZERO, ZERO)
    assert not told.check()


def test_answered_write_is_seen(told: Told) -> None:
    op = told.write()
    told.read(*[op.number] * 8)
    assert not told.check()


def test_answered_write_that_is_not_there_is_found(told: Told) -> None:
    told.write(2, 4)
    told.read(*[ZERO] * 8)
    (violation,) = told.check()
    assert (violation.image, violation.start, violation.end) == (IMAGE, 2, 4)


def test_answered_zero_that_is_not_there_is_found(told: Told) -> None:
    old = told.write()
    told.write(zero=True)
    told.read(old.number)
    assert told.check()


@pytest.mark.parametrize("winner", [1, 2])
def test_of_two_under_way_either_may_win(told: Told, winner: int) -> None:
    first, second = told.send(), told.send()
    first.answer(told.tick(), good=True)
    second.answer(told.tick(), good=True)
    told.read(winner)
    assert not told.check()


def test_write_under_way_may_be_seen_or_not(told: Told) -> None:
    told.send()
    told.read(1, ZERO, {1, ZERO})
    assert not told.check()


def test_write_that_was_not_sent_yet_is_not_seen(told: Told) -> None:
    told.read(1)
    told.write()
    assert told.check()


def test_lost_write_may_land_late(told: Told) -> None:
    op = told.send()
    op.lose(told.tick(), begun=True)
    told.read(ZERO)
    told.read(op.number)
    assert not told.check()


def test_lost_write_that_lands_upon_a_later_one_that_was_answered_is_found(told: Told) -> None:
    lost = told.send()
    lost.lose(told.tick(), begun=True)
    later = told.write()
    told.read(later.number)
    told.read(lost.number)
    assert told.check()


def test_lost_zero_that_lands_upon_a_later_write_is_found(told: Told) -> None:
    lost = told.send(zero=True)
    lost.lose(told.tick(), begun=True)
    told.write(2, 4)
    told.read(ZERO, ZERO, ZERO)
    assert [(found.start, found.end) for found in told.check()] == [(2, 3)]


def test_lost_write_may_land_until_the_later_one_is_answered(told: Told) -> None:
    lost = told.send()
    lost.lose(told.tick(), begun=True)
    later = told.send()
    told.read(lost.number)
    later.answer(told.tick(), good=True)
    told.read(later.number)
    assert not told.check()


def test_of_a_lost_write_that_nobody_saw_begin_nothing_is_known(told: Told) -> None:
    lost = told.send()
    lost.lose(told.tick(), begun=False)
    later = told.write()
    told.read(later.number)
    told.read(lost.number)
    assert not told.check()


def test_failed_write_that_lands_upon_a_later_one_is_found(told: Told) -> None:
    failed = told.send()
    failed.answer(told.tick(), good=False)
    told.write()
    told.read(failed.number)
    assert told.check()


def test_failed_write_excludes_nothing(told: Told) -> None:
    old = told.write()
    told.send().answer(told.tick(), good=False)
    told.read(old.number)
    assert not told.check()


@pytest.mark.parametrize("begun", [True, False])
def test_write_that_lands_after_the_204_of_its_ticket_is_found(told: Told, begun: bool) -> None:
    told.send().lose(told.tick(), begun=begun)
    told.remove("t")
    told.read(ZERO)
    told.read(1)
    assert told.check()


def test_write_that_landed_before_the_204_stays(told: Told) -> None:
    told.send().lose(told.tick(), begun=True)
    told.remove("t")
    told.read(1, ZERO)
    told.read(1, ZERO)
    assert not told.check()


def test_write_of_a_replaced_ticket_that_lands_after_the_204_is_found(told: Told) -> None:
    told.send().lose(told.tick(), begun=True)
    told.install("t", "b")
    told.install("t", "c")
    told.remove("t")
    told.read(ZERO)
    told.read(1)
    assert told.check()


def test_write_by_an_ended_ticket_that_lands_after_the_204_of_another_one_of_the_image_is_found(told: Told) -> None:
    told.install("other")
    told.send().lose(told.tick(), begun=True)
    told.install("t", "b")
    told.remove("other")
    told.read(ZERO)
    told.read(1)
    assert told.check()


def test_204_says_nothing_of_other_tickets_that_live(told: Told) -> None:
    told.install("other")
    told.send().lose(told.tick(), begun=True)
    told.remove("other")
    told.read(ZERO)
    told.read(1)
    assert not told.check()


def test_write_by_a_removed_ticket_that_is_seen_is_found(told: Told) -> None:
    told.remove("t")
    told.send().answer(told.tick(), good=False)
    told.read(1)
    assert told.check()


def test_write_sent_while_its_ticket_is_replaced_may_be_in_either_image(told: Told) -> None:
    op = told.send()
    told.install("t", "b")
    op.answer(told.tick(), good=True)
    told.read(1, image="a")
    told.read(1, image="b")
    assert not told.check()


def test_write_by_another_image_s_ticket_is_found(told: Told) -> None:
    told.write()
    told.read(1, image="b")
    assert told.check()


def test_write_under_way_at_a_204_may_be_one_of_the_next_ticket_of_this_id(told: Told) -> None:
    told.send()
    told.remove("t")
    told.install("t")
    told.read(ZERO)
    told.read(1)
    assert not told.check()


def test_call_before_the_answer_is_good(told: Told) -> None:
    op = told.send()
    told.call(op)
    op.answer(told.tick(), good=True)
    assert not told.check()


def test_call_after_the_answer_is_found(told: Told) -> None:
    told.call(told.write())
    assert told.check()


def test_call_of_a_lost_write_is_good_while_the_later_one_waits(told: Told) -> None:
    lost = told.send()
    lost.lose(told.tick(), begun=True)
    later = told.send()
    told.call(lost)
    later.answer(told.tick(), good=True)
    assert not told.check()


def test_call_of_a_lost_write_after_a_later_one_was_answered_is_found(told: Told) -> None:
    lost = told.send()
    lost.lose(told.tick(), begun=True)
    told.write(2, 4)
    told.call(lost, 0, 2)
    told.call(lost, 2, 8)
    assert [(found.start, found.end) for found in told.check()] == [(2, 4)]


def test_call_after_the_204_is_found(told: Told) -> None:
    lost = told.send()
    lost.lose(told.tick(), begun=True)
    told.remove("t")
    told.call(lost)
    assert told.check()


def test_times_that_never_come_are_infinite() -> None:
    assert Operation(1, "t", 0, 1, zero=False, sent=0).done == inf
