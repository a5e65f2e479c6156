"""What CI does with tests that fail: each runs once more, alone, and both tracebacks are shown; passes it then, that is no red.

As a plugin (``pytest -p tests.again --failed-to FILE``) it appends a line to a file when a run is over: how that ended, and what
failed. As a program (``python -m tests.again FILE STATUS...``, of each run that of its process) it reads those lines, runs what
failed in one process without others beside it, and says what it has forgiven. It forgives a test that fails once and no more: not
a run that was cut off, or ended badly behind its last test, a module that cannot be collected, a worker that died, nor so many
failures that something is broken.

A test that needed it is wrong, or found a fault that comes seldom: the last lines name it, so that somebody looks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

MOST = 10
"""More tests that fail are no accident."""
MOST_SECONDS = 900
"""For all of them together: a run of CI has an end, too."""
_CRASHED = "???"
"""When, as xdist says, a test has failed whose worker died (xdist/dsession.py, handle_crashitem)."""


class Run(NamedTuple):
    """How one run of pytest ended."""

    status: int
    failed: dict[str, str]
    """Name of a test → its tracebacks."""
    broken: str
    """What else went wrong, if anything did."""


class _Note:
    """Notes what fails in the process that sees all of it, and writes it down at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, str] = {}
        self._broken = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = self._failed.get(report.nodeid, "") + report.longreprtext + "\n"
            if str(report.when) == _CRASHED:
                self._broken = f"a worker died in {report.nodeid}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:  # with xdist the others run all the same, and the run ends as if a test had failed
            self._broken = f"{report.nodeid} cannot be read"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(Run(int(exitstatus), self._failed, self._broken)) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Takes the option that names the file."""
    parser.addoption("--failed-to", type=Path, help="append to this file how the run ended, and what failed")


def pytest_configure(config: pytest.Config) -> None:
    """Begins to note, unless this is a worker."""
    if config.option.failed_to is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Note(config.option.failed_to))


def unforgivable(runs: Sequence[Run], statuses: Sequence[int]) -> str | None:
    """Why nothing is to be run again; None: all that is wrong are tests that failed. ``statuses``: with what each run's process
    ended; where it raises, or dies, behind its last test, that alone says so."""
    if len(runs) != len(statuses):
        return f"{len(runs)} of {len(statuses)} runs came to an end"
    for run, status in zip(runs, statuses, strict=True):
        if status and not run.status:
            return f"all tests of a run passed, and its process ended with status {status}"
        if run.status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or (run.status and not run.failed):
            return f"a run ended with status {run.status}: it was cut off, or has found no tests, or could not read some"
        if run.broken:
            return run.broken
    if (count := sum(len(run.failed) for run in runs)) > MOST:
        return f"{count} tests failed, more than {MOST}"
    return None


def main(path: Path, statuses: Sequence[int]) -> int:
    """Runs again what failed in the runs that ended so, and returns the status of all of it."""
    runs = [Run(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    why = unforgivable(runs, statuses)
    if why is not None:
        print(f"\nRED: {why}; nothing was run again")
        return 1
    failed = {name: traceback for run in runs for name, traceback in run.failed.items()}
    if not failed:
        return 0
    for name, traceback in failed.items():
        print(f"\n{f' the first time: {name} ':=^120}\n{traceback}")
    print(f"\n{' once more, alone ':=^120}", flush=True)
    command = [sys.executable, "-m", "pytest", "-m", "wide or not wide", "-p", "no:cacheprovider", *failed]
    try:
        status = subprocess.run(command, timeout=MOST_SECONDS).returncode
    except subprocess.TimeoutExpired:
        status = 1
        print(f"not within {MOST_SECONDS} s")
    print(f"\n{'RED: these failed' if status else 'GREEN, but these failed once, and passed once more, alone; mend them'}:")
    print("\n".join(failed))
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]))
