"""Every branch of the pure cores is taken by tests that need nothing but them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent
SDK = ["api/retry.py", "http/exchange.py", "producing/core.py", "producing/batching.py", "reading/position.py"]
SDK_TESTS = [f"tests/sdk/test_{name}.py" for name in ("errors", "exchange", "held", "producer_core", "position")]
TRANSACTIONS = ["decisions.py", "edits.py", "snapshot.py", "state.py"]
TRANSACTIONS_TESTS = ["tests/transactions/test_machine.py", "tests/transactions/test_snapshot.py"]


@pytest.mark.parametrize(
    ("folder", "modules", "tests"),
    [
        ("dedup/oncelog_dedup", ["*"], ["tests/dedup"]),
        ("sdk/oncelog", SDK, SDK_TESTS),
        ("service/oncelog_service/transactions", TRANSACTIONS, TRANSACTIONS_TESTS),
    ],
    ids=["dedup", "sdk", "transactions"],
)
def test_the_cores_are_covered_to_their_last_branch(folder: str, modules: list[str], tests: list[str], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_", "PYTEST_"))}
    environment["COVERAGE_FILE"] = str(tmp_path / "coverage")

    def run(*arguments: str) -> None:
        command = [sys.executable, "-m", *arguments]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    # Not with --cov, which imports a package to find it, and what that has imported a second time. The seed: a branch taken by
    # chance is not one that is tested.
    chosen = ["--branch", "--include=" + ",".join(f"{folder}/{module}" for module in modules)]
    options = ["-p", "no:cacheprovider", "--hypothesis-seed=0"]
    run("coverage", "run", *chosen, "-m", "pytest", *tests, *options)
    run("coverage", "report", "--show-missing", "--fail-under=100")
