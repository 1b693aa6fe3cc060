# SPDX-License-Identifier: Apache-2.0
"""The rate of a transfer, and the pauses that its average leaves out."""

from imageio_daemon.transfers.traffic import SAMPLES, Pauses, Rate


def test_rate_is_the_growth_since_the_oldest_sample() -> None:
    rate = Rate(0)
    for number in range(1, 10):
        rate.sample(2 * number, 1000 * number)
    assert rate.per_second(18, 9000) == 500
    assert rate.per_second(19, 10500) == round((10500 - 5000) / 9)


def test_asking_changes_nothing() -> None:
    rate = Rate(0)
    rate.sample(2, 200)
    assert {rate.per_second(4, 400) for _ in range(10)} == {100}


def test_rate_of_a_count_that_stands_still_is_zero_after_a_while() -> None:
    rate = Rate(0)
    for number in range(1, SAMPLES + 2):
        rate.sample(2 * number, 1000)
    assert rate.per_second(2 * SAMPLES + 3, 1000) == 0


def test_rate_without_time_is_zero() -> None:
    assert Rate(7).per_second(7, 1000) == 0


def test_pauses_before_the_last_request_count_until_the_last_look() -> None:
    pauses = Pauses()
    pauses.look(10, 11)
    pauses.look(10, 40)  # it lasts
    assert pauses.until(10) == 0  # the last request has ended before
    assert pauses.until(41) == 30
    pauses.look(50, 51.5)
    assert pauses.until(50) == 30
    assert pauses.until(60) == 31.5
