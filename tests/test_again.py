"""What is run again, and what is red the first time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
from pathlib import Path

def once(error):
    been = Path(__file__).with_name(str(error))
    if not been.exists():
        been.touch()
        raise error

def test_surroundings():
    once(RuntimeError("Python worker failed to connect back"))

def test_promise():
    once(AssertionError("no Python worker failed to connect back"))

def test_model():
    once(ValueError("the model"))

def test_product():
    try:
        once(RuntimeError("the database system is starting up"))
    except RuntimeError as error:
        raise TimeoutError("of the product") from error
"""


def test_what_its_surroundings_fail_runs_again_once_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "tests.again", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT), "PATH": ""}, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert "3 failed, 1 passed, 1 rerun" in done.stdout, done.stdout
    assert "the first time: test_it.py::test_surroundings" in done.stdout
    assert "RuntimeError: Python worker failed to connect back" in done.stdout
    assert "load of the machine: " in done.stdout
    assert "1 tests failed by their surroundings and were run again" in done.stdout
