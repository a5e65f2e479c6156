"""Every branch of the core is taken by its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_core_is_covered_to_its_last_branch(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_", "PYTEST_"))}
    environment["COVERAGE_FILE"] = str(tmp_path / "coverage")
    left_out = [f"--ignore={path}" for path in (Path(__file__), Path(__file__).with_name("test_fold_at_random.py"))]
    covering = ["-p", "no:cacheprovider", "--cov=oncelog_dedup", "--cov-branch", "--cov-report=term-missing"]
    command = [sys.executable, "-m", "pytest", "tests/dedup", *left_out, *covering, "--cov-fail-under=100"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
