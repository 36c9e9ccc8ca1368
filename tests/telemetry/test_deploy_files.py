"""The dashboard, the alerts and the page on monitoring name metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from stepfast import Settings, Stepfast
from stepfast.telemetry import Metrics
from stepfast.telemetry.gauges import gauges_of
from stepfast.telemetry.health import lag_family
from stepfast.telemetry.metrics import HISTOGRAM, Family

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/grafana/stepfast.json"
RULES = ROOT / "deploy/prometheus/stepfast.rules.yml"
TRIALS = ROOT / "deploy/prometheus/stepfast.rules.test.yml"
PAGE = ROOT / "docs/how-to/monitoring.md"
OF_PROMETHEUS = {"job", "instance", "le"}


@pytest.fixture
async def families() -> dict[str, Family]:
    async with Stepfast("sqlite://") as app:
        found = [*await gauges_of(app), *Metrics(Settings()).families(), lag_family(0)]
    return {family.name: family for family in found}


def samples(families: dict[str, Family]) -> dict[str, set[str]]:
    """The names of all samples, and the labels that each may have."""
    known: dict[str, set[str]] = {}
    for name, family in families.items():
        parts = [f"{name}_bucket", f"{name}_sum", f"{name}_count"] if family.kind == HISTOGRAM else [name]
        known |= {part: {*family.labels, *OF_PROMETHEUS} for part in parts}
    return known


def check(expression: str, known: dict[str, set[str]]) -> None:
    """Each metric of an expression exists, and has every label that it is chosen or grouped by."""
    used = re.findall(r"\b(stepfast_\w+)(?:\{([^}]*)\})?", expression)
    assert used, expression
    grouped = {
        word.strip() for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for word in group.split(",")
    }
    for name, chosen in used:
        assert name in known, f"{name} in {expression}"
        labels = {*re.findall(r"(\w+)\s*(?:=|!=|=~|!~)", chosen), *grouped}
        assert labels <= known[name], f"{labels - known[name]} of {name} in {expression}"
    assert expression.count("(") == expression.count(")")


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from board["panels"]


def test_the_dashboard_asks_for_what_there_is(families: dict[str, Family]) -> None:
    board, known = json.loads(DASHBOARD.read_text()), samples(families)
    asked = [target["expr"] for panel in panels(board) for target in panel.get("targets", ())]
    assert len(asked) > 20
    for expression in asked:
        check(expression, known)
    variables = " ".join(variable["query"]["query"] for variable in board["templating"]["list"][1:])
    assert re.findall(r"stepfast_\w+", variables) == ["stepfast_info"]
    ids = [panel["id"] for panel in panels(board)]
    assert len(set(ids)) == len(ids)


def test_the_alerts_ask_for_what_there_is_and_are_documented(families: dict[str, Family]) -> None:
    rules, known = yaml.safe_load(RULES.read_text())["groups"][0]["rules"], samples(families)
    for rule in rules:
        check(rule["expr"], known)
        assert {"summary", "description"} == rule["annotations"].keys()
        assert rule["labels"]["severity"] in ("page", "ticket")
    documented = re.findall(r"^\| `(Stepfast\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert documented == [rule["alert"] for rule in rules]


def test_each_alert_has_something_that_makes_it_fire(families: dict[str, Family]) -> None:
    """The file is for promtool, which is not asked here; but what it names is there."""
    written, known = TRIALS.read_text(), samples(families)
    trials = yaml.safe_load(written)
    assert trials["rule_files"] == [RULES.name]
    assert set(re.findall(r"Stepfast\w+", written)) == set(re.findall(r"alert: (\w+)", RULES.read_text()))
    for trial in trials["tests"]:
        for row in trial["input_series"]:
            check(row["series"], known)


def test_every_metric_is_documented_with_its_labels_and_none_beside(families: dict[str, Family]) -> None:
    told: dict[str, list[str]] = {}
    for names, labels in re.findall(r"^\| (`stepfast_[^|]+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            told[name] = re.findall(r"`(\w+)`", labels)
    assert told == {name: list(family.labels) for name, family in families.items()}


def test_every_metric_is_looked_at_somewhere(families: dict[str, Family]) -> None:
    """On the dashboard or by an alert; except those that are about the scrape itself."""
    text = DASHBOARD.read_text() + RULES.read_text()
    unseen = {name for name in families if name not in text}
    assert unseen == {"stepfast_scrape_seconds", "stepfast_signals_sent_total"}


def test_names_follow_the_customs_of_prometheus(families: dict[str, Family]) -> None:
    for name, family in families.items():
        assert re.fullmatch(r"stepfast_[a-z_]+", name)
        assert name.endswith("_total") == (family.kind == "counter"), name
        assert family.help.endswith(".") and "\n" not in family.help
