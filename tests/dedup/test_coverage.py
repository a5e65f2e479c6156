"""Every branch of the core is taken by its own tests, those that name a promise: the random histories are not counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RANDOM = ("test_machine.py", "test_fold_at_random.py")
"""Under coverage they would take a minute, and their luck is not to be relied on."""


def test_the_core_is_covered_to_its_last_branch(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_", "PYTEST_"))}
    environment["COVERAGE_FILE"] = str(tmp_path / "coverage")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/dedup",
        f"--ignore={Path(__file__)}",
        "-p",
        "no:cacheprovider",
        "-k",
        "not 100_000",
    ]
    command += [f"--ignore={Path(__file__).with_name(name)}" for name in RANDOM]
    command += ["--cov=oncelog_dedup", "--cov-branch", "--cov-report=term-missing", "--cov-fail-under=100"]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
