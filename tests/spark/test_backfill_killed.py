"""A backfill by the command line, killed with all its processes: what it was to publish is there once, in order."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oncelog import Client
from tests.model.log import read_log
from tests.patience import until
from tests.spark.processes import SECONDS, Command, command
from tests.world.service import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROWS, FILES, COMMIT, PRODUCERS = 200_000, 8, 10_000, 4


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


def kill_midway(client: Client, topic: str, backfill: Command, dice: random.Random) -> int:
    """When it has committed a few times: somewhere within the next one. How many messages the topic has then."""
    before = client.stats(topic).upcoming_offset
    wanted = before + COMMIT * dice.randint(1, 4)

    def reached() -> bool:
        assert not backfill.has_ended(), backfill.said()[-3_000:]
        return client.stats(topic).upcoming_offset >= wanted

    until(reached, f"{wanted:,} messages are there", SECONDS)
    time.sleep(dice.uniform(0, 0.4))
    assert not backfill.has_ended(), "it was not killed but had ended"
    backfill.kill()
    found = client.stats(topic).upcoming_offset
    assert before < found < ROWS, "the topic should be filled in part when the backfill is killed"
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "data") as process:
        yield process


@pytest.mark.parametrize(
    ("columns", "names"),
    [(("offset", "value", "key"), ["one"] * 4), (Row._fields, ["first", "second", "third"])],
    ids=["it goes on under its name", "under other names the service refuses what it has of each producer"],
)
def test_a_backfill_that_is_killed_publishes_every_row_once_in_order(
    service: ServiceProcess, tmp_path: Path, columns: tuple[str, ...], names: list[str]
) -> None:
    dice = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")  # pytest shows it beside a failure
    rows, keeps = all_rows(), "producer" in columns
    given = ("backfill", write(tmp_path / "rows", rows, columns), "--json", "--topic", "target")
    with Client(service.url) as client:
        client.create_topic("target")
        *killed, last = [("--name", name, "--rows", str(COMMIT * (1 + 2 * turn * keeps))) for turn, name in enumerate(names)]
        for options in killed:
            with command(service.url, tmp_path / "log", *given, *options) as backfill:
                reached = kill_midway(client, "target", backfill, dice)
        with command(service.url, tmp_path / "log", *given, *last) as backfill:
            done = json.loads(backfill.result())
    assert (done["resumed"], done["kept_producers"]) == (not keeps, keeps)
    assert done["rows"] == ROWS if keeps else done["rows"] <= ROWS - reached, (
        "what was committed is read again by another name only"
    )
    found = read_log(service.url, "target")
    assert len(found) == ROWS
    for producer in {row.producer if keeps else None for row in rows}:
        copies = [(each.payload, each.key) for each in found if each.producer == producer]
        assert copies == [(row.value, row.key) for row in rows if not keeps or row.producer == producer]
