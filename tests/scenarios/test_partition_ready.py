"""`examples/partition_ready.py`: each partition that is announced triggers one job, whatever is killed or said twice."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from examples.partition_ready import TOPIC, Trigger, load, totals

from oncelog import Client
from tests.patience import PATIENCE, until
from tests.world.service import RunningService

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
IDLE = 0.2
"""Seconds without a notification: all that were published are there at once."""


def runs(results: Path) -> list[tuple[str, int]]:
    """Partition and version of every job that has taken effect."""
    with closing(sqlite3.connect(results)) as database:
        return list(database.execute("SELECT partition, version FROM runs ORDER BY offset"))


def test_each_version_of_a_partition_that_is_announced_triggers_one_job(running: RunningService, tmp_path: Path) -> None:
    results = tmp_path / "results.db"
    load(tmp_path, "monday", [1, 2, 3], url=running.url)
    load(tmp_path, "monday", [1, 2, 3], url=running.url)  # as by a loader that was killed behind its notification
    load(tmp_path, "tuesday", [4], url=running.url)
    with Trigger(tmp_path, results, url=running.url) as trigger:
        assert trigger.run(idle=IDLE) == 2
        load(tmp_path, "monday", [1, 2, 4], version=2, url=running.url)
        assert trigger.run(idle=IDLE) == 1
    assert totals(results) == {"monday": (2, 3, 7), "tuesday": (1, 1, 4)}
    with Trigger(tmp_path, results, url=running.url) as again:
        assert again.run(idle=IDLE) == 0, "what is acknowledged does not come again"


def test_a_job_that_took_effect_and_was_not_acknowledged_is_not_done_again(
    running: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.db"
    load(tmp_path, "monday", [1, 2, 3], url=running.url)
    with Trigger(tmp_path, results, url=running.url) as killed, monkeypatch.context() as patched:
        patched.setattr(killed._consumer, "ack", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            killed.run(idle=IDLE)
    assert runs(results) == [("monday", 1)]
    with Trigger(tmp_path, results, url=running.url) as trigger:
        assert trigger.run(idle=IDLE) == 0
        with Client(running.url) as client:
            assert client.subscription(TOPIC, "totals").lag == 0, "it came again, and is acknowledged now"


def test_a_job_that_fails_leaves_nothing_and_runs_when_it_can(running: RunningService, tmp_path: Path) -> None:
    results = tmp_path / "results.db"
    load(tmp_path, "monday", [1], url=running.url)
    (tmp_path / "monday.1.txt").rename(tmp_path / "away")
    with Trigger(tmp_path, results, url=running.url) as trigger, pytest.raises(FileNotFoundError):
        trigger.run(idle=IDLE)
    assert runs(results) == []
    (tmp_path / "away").rename(tmp_path / "monday.1.txt")
    with Trigger(tmp_path, results, url=running.url) as trigger:
        assert trigger.run(idle=IDLE) == 1


def test_a_trigger_that_is_killed_again_and_again_runs_every_job_once(running: RunningService, tmp_path: Path) -> None:
    results, days = tmp_path / "results.db", [f"day-{number:02}" for number in range(40)]
    for number, day in enumerate(days):
        load(tmp_path, day, range(number), url=running.url)
    command = [sys.executable, "-m", "examples.partition_ready", "--url", running.url, "run", "--idle", "5"]
    command += ["--folder", str(tmp_path), "--results", str(results)]
    for goal in (1, 12, 25):
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            until(lambda goal=goal: results.exists() and _count(results) >= goal)  # type: ignore[misc]
        finally:
            process.kill()
            process.wait()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[3] == "day-03 version 1: 3 in 3 lines"
    assert runs(results) == [(day, 1) for day in days], "in the order of the notifications"
    assert totals(results) == {day: (1, number, sum(range(number))) for number, day in enumerate(days)}


def _count(results: Path) -> int:
    try:
        return len(runs(results))
    except sqlite3.OperationalError:  # the table is not made yet
        return 0
