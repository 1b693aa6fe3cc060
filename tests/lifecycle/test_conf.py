# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the alerts ask only for what the daemon exports, and promtool finds no fault."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from imageio_daemon.runtime.degraded import Feature
from tests.support.daemon import Certificates, Daemon

CONF = Path(__file__).resolve().parents[2] / "conf"
DASHBOARD = CONF / "grafana.json"
ALERTS = CONF / "alerts.yml"

#: What Prometheus adds to each series.
ADDED = {"instance", "job"}

#: Label values by label, by the name of the series.
Series = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def exposition(watched: Daemon) -> str:
    answer = watched.control("GET", "/metrics")
    assert answer.status == 200
    return answer.text


@pytest.fixture(scope="module")
def watched(certificates: Certificates) -> Iterator[Daemon]:
    """A daemon with all services."""
    nbd = {"enable": True, "port": 0, "host": "127.0.0.1"}
    with Daemon(certificates, {"nbd": nbd, "metrics": {"enable": True, "port": 0}}) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def exported(exposition: str) -> Series:
    found: Series = {"up": {}}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression with the legend of its panel."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def alert_expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression with the texts of its alert."""
    for rule in ALERTS.read_text().split("- alert:")[1:]:
        found = re.search(r"^ +expr: (.+)$", rule, re.MULTILINE)
        assert found is not None
        yield found[1], rule


EXPRESSIONS = [*dashboard_expressions(), *alert_expressions()]


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS, ids=[expression for expression, _ in EXPRESSIONS])
def test_expression_names_only_what_is_exported(exported: Series, expression: str, text: str) -> None:
    used = re.findall(r"\b((?:imageio|process)_\w+|up)\b(?:\{([^}]*)\})?", expression)
    assert used
    labels = set(ADDED)
    for name, matchers in used:
        assert name in exported
        labels |= exported[name].keys()
        for label, operator, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
            assert label in exported[name].keys() | ADDED
            values = value.split("|") if operator.endswith("~") else [value]
            assert label in ADDED or set(values) <= exported[name][label]
    for group in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression):
        assert set(group.split(", ")) <= labels
    assert set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)) <= labels


def test_each_metric_of_the_daemon_is_documented(exported: Series) -> None:
    guide = (CONF.parent / "docs" / "monitoring.md").read_text()
    names = {name for name in exported if name.startswith("imageio_")}
    assert set(re.findall(r"`(imageio_\w+)`", guide)) == names


def test_each_feature_that_may_lack_is_documented() -> None:
    guide = (CONF.parent / "docs" / "monitoring.md").read_text()
    section = guide.partition("### Degraded\n")[2].partition("\nThese stop the start")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {*Feature}


def promtool(*arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool, of Debian's package prometheus, is not installed")
    return subprocess.run([path, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_promtool_finds_no_fault_in_the_metrics(exposition: str) -> None:
    done = promtool("check", "metrics", stdin=exposition)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_finds_no_fault_in_the_alerts() -> None:
    done = promtool("check", "rules", str(ALERTS))
    assert done.returncode == 0, done.stderr
