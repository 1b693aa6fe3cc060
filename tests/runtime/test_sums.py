# SPDX-License-Identifier: Apache-2.0
"""Sums over sources never decrease, whatever comes and goes."""

from imageio_daemon.runtime.sums import Count, Sums


class Source:
    """A source that counts requests."""

    def __init__(self, requests: int = 0) -> None:
        self.requests = requests

    def counts(self) -> Count:
        return Count(self.requests)


def new_sums() -> Sums[str, Source, Count]:
    return Sums(Count(), Source.counts)


def test_sums_have_what_lives_and_what_has_ended() -> None:
    sums, first, second = new_sums(), Source(1), Source(2)
    sums.begin("a", first)
    sums.begin("a", second)
    sums.end(first)
    assert sums.sums() == {"a": Count(3)}
    second.requests = 5
    assert sums.sums() == {"a": Count(6)}


def test_sources_are_counted_by_key() -> None:
    sums, first, second = new_sums(), Source(), Source()
    for key, source in (("a", first), ("b", second), ("a", Source())):
        sums.begin(key, source)
    sums.end(first)
    assert sums.begun() == {"a": 2, "b": 1}
    assert sorted(sums.sources().values()) == ["a", "b"]


def test_end_of_what_has_not_begun_or_has_ended_changes_nothing() -> None:
    sums, source = new_sums(), Source(4)
    sums.end(source)
    assert sums.sums() == {}
    sums.begin("a", source)
    sums.end(source)
    sums.end(source)
    assert sums.sums() == {"a": Count(4)}
