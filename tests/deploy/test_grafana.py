"""The dashboard and the alerts name metrics that there are, in expressions that Prometheus understands, and lead to pages."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.prometheus import MISSING, PROMTOOL, ROOT, RULES
from tests.docs.test_tables import DOCS

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/oncelog.json").read_text("utf-8"))
_PROMETHEUS_OWN = {"up"}


def panels() -> list[dict[str, Any]]:
    """All but the rows, which hold none."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def shown() -> list[tuple[str, str]]:
    """(panel, expression), as Grafana sends it when nothing is chosen."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    variables = [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    asked = [(each["name"], re.sub(r"label_values\((.*), \w+\)", r"\1", each["definition"])) for each in variables]
    return [(title, filled(expression)) for title, expression in (*found, *asked)]


def filled(expression: str) -> str:
    for name in ("job", "instance", "namespace", "topic"):
        expression = expression.replace(f"${name}", ".*")
    expression = expression.replace("$__rate_interval", "1m")
    assert "$" not in expression, f"a variable that is none: {expression}"
    return expression


def alerted() -> list[tuple[str, str]]:
    return re.findall(r"- alert: (\w+)\n +expr: (.*)\n", RULES.read_text("utf-8"))


def documented() -> set[str]:
    """The names of series of all metrics in docs/operating.md."""
    text = (DOCS / "operating.md").read_text("utf-8")
    table = re.findall(r"^\| `(oncelog_\w+)` \| (\w+) \|", text, re.MULTILINE)
    ends = {"histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "counter": ("",)}
    return {name + end for name, kind in table for end in ends[kind]} | set(re.findall(r"`(process_\w+)`", text))


def named(expression: str) -> set[str]:
    """The metrics in it: words that are no function, no label and none of the language."""
    without_labels = re.sub(r"\{[^}]*\}|\b(?:by|on|without) \([^)]*\)|\[\w+\]", " ", expression)
    words = set(re.findall(r"\b[a-z_]+\b(?! *\()", without_labels))
    return words - {"and", "or", "unless", "bool", "sum", "max", "min"}


def test_what_is_named_in_an_expression_is_found() -> None:
    expression = 'topk(10, sum by (a, b) (rate(one_total{c="d_e"}[5m]))) / two > 0 and histogram_quantile(0.9, three_bucket)'
    assert named(expression) == {"one_total", "two", "three_bucket"}


@pytest.mark.parametrize(("title", "expression"), [*shown(), *alerted()])
def test_only_metrics_that_there_are_stand_in_an_expression(title: str, expression: str) -> None:
    assert named(expression)
    assert named(expression) <= documented() | _PROMETHEUS_OWN


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for rule in RULES.read_text("utf-8").split("- alert: ")[1:]:
        for part in ("severity: (warning|critical)", 'summary: ".+"', 'description: ".{40,}"'):
            assert re.search(part, rule), (rule.partition("\n")[0], part)
        page, _, anchor = re.findall(r"runbook_url: docs/(\S+)", rule)[0].partition("#")
        heads = re.findall(r"^#+ (.*)$", (DOCS / page).read_text("utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, anchor


def test_nothing_that_matters_is_left_out_of_the_dashboard() -> None:
    expressions = " ".join(expression for _, expression in shown())
    for metric in (
        *("messages_total", "publish_seconds_bucket", "sync_seconds_bucket", "disk_free_bytes", "store_bytes", "held_seconds"),
        *("subscription_lag", "problems_total", "refused_total", "topic_fenced_total", "http_request_seconds_count"),
    ):
        assert f"oncelog_{metric}{{" in expressions, metric


def cells(panel: dict[str, Any]) -> Iterator[tuple[int, int]]:
    at = panel["gridPos"]
    assert at["x"] + at["w"] <= 24
    return product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))


def test_the_dashboard_can_be_imported() -> None:
    """What Grafana asks for: it gives a data source, and panels lie side by side under numbers of their own."""
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken = [cell for panel in every for cell in cells(panel)]
    assert len(set(taken)) == len(taken)
    assert DASHBOARD["id"] is None
    assert DASHBOARD["schemaVersion"] >= 36
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert {each["name"]: each["type"] for each in DASHBOARD["templating"]["list"]}["datasource"] == "datasource"
    for panel in panels():
        assert panel["type"] in {"timeseries", "stat", "heatmap"}
        assert panel["datasource"] == chosen
        assert [target["datasource"] for target in panel["targets"]] == [chosen] * len(panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.real
@pytest.mark.skipif(PROMTOOL is None, reason=MISSING)
def test_prometheus_understands_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    rules = [{"record": f"panel:{number}", "expr": expression} for number, (_, expression) in enumerate(shown())]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    found = subprocess.run([PROMTOOL, "check", "rules", str(file)], check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
