"""What runs again in CI, and what is red for all that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import MOST, Run, unforgivable

ROOT = Path(__file__).resolve().parents[1]
ONCE = """
from pathlib import Path

def test_fails_once():
    been = Path(__file__).with_name("been")
    first, _ = not been.exists(), been.touch()
    assert not first, "the first time"

def test_passes():
    pass
"""
ALWAYS = "def test_fails(): assert False, 'each time'"
DIES = "import os\n\ndef test_dies(): os._exit(3)"
UNREADABLE = "import nothing_of_that_name"
ENDS_BADLY = "import atexit, os\n\ndef test_passes(): atexit.register(os._exit, 5)"


def gated(place: Path, workers: int = 1, **files: str) -> tuple[int, str]:
    """The status of a run of these test files and of what is done with its failures; and what that says."""
    (place / "pytest.ini").write_text("[pytest]\nmarkers = wide\n")
    for name, text in files.items():
        (place / f"test_{name}.py").write_text(text)
    python, environment = [sys.executable, "-m"], {"PYTHONPATH": str(ROOT), "PATH": ""}
    first = subprocess.run(
        [*python, "pytest", "-n", str(workers), "-p", "tests.again", "--failed-to=build/failed"],
        cwd=place, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if first.returncode == 0:
        return 0, ""
    done = subprocess.run(
        [*python, "tests.again", "build/failed", str(first.returncode)],
        cwd=place, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_what_failed_once_passes_alone_and_is_named_with_its_traceback(tmp_path: Path) -> None:
    status, said = gated(tmp_path, once=ONCE)
    assert status == 0
    assert "AssertionError: the first time" in said
    assert "GREEN, but these failed once" in said
    assert said.rstrip().endswith("test_once.py::test_fails_once")
    assert "1 passed" in said


def test_what_fails_each_time_is_red_and_both_tracebacks_are_shown(tmp_path: Path) -> None:
    status, said = gated(tmp_path, once=ONCE, always=ALWAYS)
    assert status == 1
    assert said.count("AssertionError: each time") >= 2
    assert "RED: these failed" in said


@pytest.mark.parametrize("broken", [DIES, UNREADABLE])
def test_a_worker_that_dies_and_a_module_that_cannot_be_read_are_red(tmp_path: Path, broken: str) -> None:
    status, said = gated(tmp_path, once=ONCE, broken=broken)
    assert (status, "nothing was run again" in said) == (1, True), said


def test_a_run_that_ends_badly_behind_its_last_test_is_red(tmp_path: Path) -> None:
    status, said = gated(tmp_path, workers=0, ends_badly=ENDS_BADLY)
    assert (status, "ended with status 5; nothing was run again" in said) == (1, True), said


def test_only_tests_that_failed_are_forgiven_and_only_a_few() -> None:
    few = {f"test_{at}": "" for at in range(MOST)}
    good, failed = Run(0, {}, ""), Run(1, few, "")
    assert unforgivable([good, failed], [0, 2]) is None
    for runs in ([failed], [], [good, good], [failed, Run(1, {"one more": ""}, "")]):
        assert unforgivable(runs, [2, 2]) is not None, runs
    broken = Run(1, {}, ""), Run(1, {"test_1": ""}, "a worker died"), *(Run(status, {}, "") for status in (2, 3, 4, 5))
    for run in broken:
        assert unforgivable([run, good], [2, 0]) is not None, run
