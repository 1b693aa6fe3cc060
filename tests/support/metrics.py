# SPDX-License-Identifier: Apache-2.0
"""The metrics of a daemon for Prometheus."""

from prometheus_client.parser import text_string_to_metric_families

from tests.support.daemon import Daemon


class Metrics:
    """The present metrics of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        answer = daemon.control("GET", "/metrics")
        assert answer.status == 200, answer
        self.text = answer.text
        families = text_string_to_metric_families(self.text)
        self.samples = [sample for family in families for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the series that have these labels."""
        found = [s.value for s in self.samples if s.name == f"imageio_{name}" and labels.items() <= s.labels.items()]
        assert found, f"no {name} with {labels}"
        return sum(found)
