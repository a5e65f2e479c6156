"""A backfill by the command line, killed with all its processes: what it was to publish is there once, in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Client
from oncelog.spark.session import SMALL
from tests.patience import until
from tests.scenarios.judge import read_log
from tests.spark.processes import living
from tests.support import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROWS, FILES, COMMIT, PRODUCERS = 200_000, 8, 10_000, 4
SECONDS = 600
"""Within which a backfill comes some way further; its Spark starts in half a minute, on a machine that is busy."""


class Row(NamedTuple):
    offset: int
    value: bytes
    key: bytes
    producer: str
    sequence_id: int


def all_rows() -> list[Row]:
    """Producers that take turns of 1,000 rows."""
    rows, upcoming = [], [0] * PRODUCERS
    for offset in range(ROWS):
        turn = offset // 1_000 % PRODUCERS
        rows.append(Row(offset, b"%0100d" % offset, b"k%d" % (offset % 7), f"p{turn}", upcoming[turn]))
        upcoming[turn] += 1
    return rows


def write(folder: Path, rows: list[Row], columns: tuple[str, ...]) -> Path:
    """As Parquet files, none of which holds a range of the positions."""
    folder.mkdir()
    for number in range(FILES):
        part = rows[number::FILES]
        pq.write_table(pa.table({name: [getattr(row, name) for row in part] for name in columns}), folder / f"{number}.parquet")
    return folder


class Backfill:
    """`oncelog pipeline backfill` in a session of its own, so that whoever kills it finds all of it: driver, JVM, workers."""

    def __init__(self, url: str, topic: str, folder: Path, log: Path, **options: str | int) -> None:
        given = {"topic": topic, "url": url, **options}
        arguments = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        arguments += [text for name, value in SMALL.items() for text in ("--conf", f"{name}={value}")]
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "oncelog_service", "pipeline", "backfill", str(folder), "--json", *arguments],
                stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
            )  # fmt: skip

    def ended(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> dict[str, Any]:
        """What it prints when it ends by itself and well."""
        stdout, _ = self._process.communicate(timeout=SECONDS)
        assert self._process.returncode == 0, self.log()
        result: dict[str, Any] = json.loads(stdout)
        return result

    def kill(self) -> None:
        """SIGKILL, until nothing of it is left."""
        while pids := living(self._process.pid):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)
        self._process.wait(SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def log(self) -> str:
        return self._log.read_text()[-3_000:]


@contextmanager
def begun(url: str, topic: str, folder: Path, log: Path, **options: Any) -> Iterator[Backfill]:
    backfill = Backfill(url, topic, folder, log, **options)
    try:
        yield backfill
    finally:
        backfill.kill()


def kill_midway(client: Client, topic: str, backfill: Backfill, dice: random.Random) -> int:
    """When it has committed a few times: somewhere within the next one. How many messages the topic has then."""
    before = client.stats(topic).upcoming_offset
    wanted = before + COMMIT * dice.randint(1, 4)

    def reached() -> bool:
        assert not backfill.ended(), backfill.log()
        return client.stats(topic).upcoming_offset >= wanted

    until(reached, f"{wanted:,} messages are there", SECONDS)
    time.sleep(dice.uniform(0, 0.4))
    assert not backfill.ended(), "it was not killed but had ended"
    backfill.kill()
    found = client.stats(topic).upcoming_offset
    assert before < found < ROWS, "the topic should be filled in part when the backfill is killed"
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "data") as process:
        yield process


def test_a_backfill_that_is_killed_three_times_publishes_every_row_once_in_order(service: ServiceProcess, tmp_path: Path) -> None:
    dice = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")  # pytest shows it beside a failure
    rows = all_rows()
    folder = write(tmp_path / "rows", rows, ("offset", "value", "key"))
    with Client(service.url) as client:
        client.create_topic("target")
        given = (service.url, "target", folder, tmp_path / "log")
        for _ in range(3):
            with begun(*given, rows=COMMIT) as backfill:
                reached = kill_midway(client, "target", backfill, dice)
        with begun(*given, rows=COMMIT) as backfill:
            done = backfill.result()
    assert done["resumed"]
    assert done["rows"] <= ROWS - reached, "what was committed was read again"
    found = read_log(service.url, "target")
    assert [message.payload for message in found] == [row.value for row in rows]
    assert [message.key for message in found] == [row.key for row in rows]


def test_rows_that_keep_their_producers_are_refused_where_a_killed_backfill_had_published_them(
    service: ServiceProcess, tmp_path: Path
) -> None:
    dice = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    rows = all_rows()
    folder = write(tmp_path / "rows", rows, Row._fields)
    with Client(service.url) as client:
        client.create_topic("target")
        given = (service.url, "target", folder, tmp_path / "log")
        with begun(*given, name="first", rows=COMMIT) as backfill:
            reached = kill_midway(client, "target", backfill, dice)
        with begun(*given, name="second", rows=3 * COMMIT) as backfill:
            kill_midway(client, "target", backfill, dice)
        with begun(*given, name="third", rows=7 * COMMIT) as backfill:
            done = backfill.result()
    assert done["kept_producers"]
    assert not done["resumed"]
    assert done["rows"] == ROWS > reached, "all rows should have been sent again"
    found = read_log(service.url, "target")
    assert len(found) == ROWS
    for producer in {row.producer for row in rows}:
        copies = [(each.sequence_id, each.payload) for each in found if each.producer == producer]
        assert copies == [(row.sequence_id, row.value) for row in rows if row.producer == producer]
