"""A real Prometheus that reads services of these tests, and judges the alerts of deploy/ by them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from tests.patience import PATIENCE, until
from tests.world.service import free_port

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yml"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
MISSING = "no prometheus on the PATH; .ci/run installs it"

_CONFIGURATION = """
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 250ms}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: oncelog
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
    tls_config: {insecure_skip_verify: true}
"""


def hastened(rules: str) -> str:
    """The rules with short times: what they look back at, and how long something has to be so."""
    return re.sub(r"^( +for: ).*$", r"\g<1>1s", re.sub(r"\[\d+m\]", "[8s]", rules), flags=re.MULTILINE)


class Prometheus:
    """What it knows of a service, by the service's URL."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._targets = directory / "targets.json"

    def reads(self, url: str) -> None:
        """Have it read this service alone, and return when it has done so for a while."""
        beside = self._targets.with_suffix(".new")
        target = {"targets": [urlsplit(url).netloc], "labels": {"__scheme__": urlsplit(url).scheme}}
        beside.write_text(json.dumps([target]))
        os.replace(beside, self._targets)
        until(lambda: self.value(url, "count_over_time(up{}[20s])") >= 6, "it reads the service", every=0.1)

    def value(self, url: str, expression: str) -> float:
        """What the expression comes to, ``{}`` in it being the service; 0 where there is nothing."""
        query = expression.replace("{}", f'{{instance="{urlsplit(url).netloc}"}}')
        found = self._get("query", query=query)["result"]
        return max((float(each["value"][1]) for each in found), default=0.0)

    def firing(self, url: str) -> dict[str, dict[str, Any]]:
        """Alert → it, of those of the service that are firing."""
        return {
            each["labels"]["alertname"]: each
            for each in self._get("alerts")["alerts"]
            if each["state"] == "firing" and each["labels"].get("instance") == urlsplit(url).netloc
        }

    def _get(self, what: str, **asked: str) -> dict[str, Any]:
        answer = requests.get(f"{self._url}/api/v1/{what}", params=asked, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["data"]
        return found


@contextmanager
def running_prometheus(directory: Path) -> Iterator[Prometheus]:
    """It reads nothing at first."""
    assert PROMETHEUS is not None
    (directory / "alerts.yml").write_text(hastened(RULES.read_text("utf-8")), "utf-8")
    (directory / "prometheus.yml").write_text(_CONFIGURATION)
    (directory / "targets.json").write_text("[]")
    address = f"127.0.0.1:{free_port()}"
    told = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [PROMETHEUS, *told, f"--web.listen-address={address}"], cwd=directory, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        ready = f"http://{address}/-/ready"
        despite = (requests.RequestException,)
        until(lambda: requests.get(ready, timeout=PATIENCE).status_code == 200, "Prometheus is ready", despite=despite)
        yield Prometheus(f"http://{address}", directory)
    finally:
        process.terminate()
        process.wait(PATIENCE)
