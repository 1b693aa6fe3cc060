# SPDX-License-Identifier: Apache-2.0
"""The text of metrics is made again when it is old, and for clients that are trusted."""

import asyncio

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from imageio_daemon.lifecycle import metrics
from imageio_daemon.lifecycle.metrics import AGE_FACTOR, MIN_AGE, Exposition


class Scrapes:
    """Metrics that tell how often they were collected. seconds: that it takes, of the clock."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def collect(self) -> list[Metric]:
        self.count += 1
        self.now += self.seconds
        return [GaugeMetricFamily("scrapes", "So far.", value=self.count)]


@pytest.fixture
def scrapes(monkeypatch: pytest.MonkeyPatch) -> Scrapes:
    found = Scrapes()
    monkeypatch.setattr(metrics, "time", found)
    return found


async def test_text_has_the_metrics(scrapes: Scrapes) -> None:
    assert await Exposition(scrapes.collect).text(fresh=False) == (
        b"# HELP scrapes So far.\n# TYPE scrapes gauge\nscrapes 1.0\n"
    )


async def test_young_text_is_given_again(scrapes: Scrapes) -> None:
    exposed = Exposition(scrapes.collect)
    await exposed.text(fresh=False)
    scrapes.now += MIN_AGE - 0.01
    await exposed.text(fresh=False)
    assert scrapes.count == 1
    scrapes.now += 0.02
    await exposed.text(fresh=False)
    assert scrapes.count == 2


async def test_trusted_clients_get_what_is_true_now(scrapes: Scrapes) -> None:
    exposed = Exposition(scrapes.collect)
    await exposed.text(fresh=False)
    assert b"scrapes 2.0" in await exposed.text(fresh=True)
    assert b"scrapes 2.0" in await exposed.text(fresh=False)


async def test_text_that_takes_long_is_given_for_longer(scrapes: Scrapes) -> None:
    exposed = Exposition(scrapes.collect)
    scrapes.seconds = 1.0
    await exposed.text(fresh=False)
    scrapes.now += AGE_FACTOR - 0.1
    await exposed.text(fresh=False)
    assert scrapes.count == 1


async def test_those_who_ask_at_once_get_one_text(scrapes: Scrapes) -> None:
    exposed = Exposition(scrapes.collect)
    texts = await asyncio.gather(*(exposed.text(fresh=False) for _ in range(10)))
    assert len(set(texts)) == scrapes.count == 1
