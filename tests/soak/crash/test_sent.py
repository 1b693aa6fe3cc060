# SPDX-License-Identifier: Apache-2.0
"""What may be told of an image: the campaign's own model."""

import pytest

from tests.soak.crash.sent import Content, Sent

SIZE = 8


@pytest.fixture
def sent() -> Sent:
    return Sent(bytes(SIZE))


def answered(sent: Sent, start: int, end: int, content: bytes | Content) -> None:
    sent.answer(sent.send(start, end, content))


def test_what_was_answered_may_be_told(sent: Sent) -> None:
    answered(sent, 2, 4, b"ab")
    assert not sent.excess([(2, 4)], b"..ab....")


def test_zeros_are_content(sent: Sent) -> None:
    answered(sent, 0, 4, b"abcd")
    answered(sent, 1, 3, Content.ZEROS)
    assert not sent.excess([(0, 4)], b"a\0\0d....")
    assert sent.excess([(0, 4)], b"ab\0d....")


def test_what_nobody_sent_may_not_be_told(sent: Sent) -> None:
    answered(sent, 2, 4, b"ab")
    (excess,) = sent.excess([(1, 4)], b"..ab....")
    assert (excess.start, excess.end) == (1, 2)


def test_other_content_may_not_be_told(sent: Sent) -> None:
    answered(sent, 2, 4, b"ab")
    assert sent.excess([(2, 4)], b"..aX....")


def test_content_before_the_last_answered_change_may_not_be_told(sent: Sent) -> None:
    answered(sent, 0, 2, b"ab")
    answered(sent, 0, 2, b"cd")
    assert sent.excess([(0, 2)], b"ab......")


def test_change_under_way_may_be_there_or_not(sent: Sent) -> None:
    answered(sent, 0, 2, b"ab")
    sent.send(0, 2, b"cd")
    assert not sent.excess([(0, 2)], b"ab......")
    assert not sent.excess([(0, 2)], b"cd......")


def test_half_of_a_change_may_not_be_told(sent: Sent) -> None:
    answered(sent, 0, 2, b"ab")
    sent.send(0, 2, b"cd")
    assert sent.excess([(0, 2)], b"cb......")


def test_trimmed_range_may_not_be_told(sent: Sent) -> None:
    answered(sent, 0, 4, b"abcd")
    answered(sent, 1, 2, Content.UNKNOWN)
    (excess,) = sent.excess([(0, 4)], b"abcd....")
    assert (excess.start, excess.end) == (1, 2)


def test_what_was_told_before_may_be_told_again_while_nothing_is_sent_to_it() -> None:
    sent = Sent(b"abcdefgh", [(2, 6)])
    assert not sent.excess([(2, 6)], b"abcdefgh")
    assert sent.excess([(1, 6)], b"abcdefgh")
    answered(sent, 3, 4, b"X")
    assert sent.excess([(2, 6)], b"abcdefgh")
