# SPDX-License-Identifier: Apache-2.0
"""The ratios of two builds that benchmarks.beside tells."""

import math

import pytest

from benchmarks.beside import Estimate


def test_ratio_is_the_geometric_mean_of_the_pairs() -> None:
    assert Estimate.of([(4.0, 1.0), (1.0, 1.0)]).ratio == pytest.approx(2.0)


def test_equal_pairs_leave_nothing_open() -> None:
    assert Estimate.of([(3.0, 2.0)] * 5).factor == pytest.approx(1.0)


def test_interval_is_that_of_student() -> None:
    # ln 2 and -ln 2: mean 0, standard error ln 2, and 12.71 of those either way.
    assert Estimate.of([(2.0, 1.0), (1.0, 2.0)]).factor == pytest.approx(math.exp(12.71 * math.log(2)))


def test_one_pair_tells_no_interval() -> None:
    assert str(Estimate.of([(3.0, 2.0)])) == "1.50"


def test_what_is_below_the_resolution_of_the_clock_is_left_out() -> None:
    assert Estimate.of([(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)]).ratio == pytest.approx(2.0)
