"""The audit finds what is wrong with messages, says nothing of what is right, and shows it."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from oncelog import Client, MessageId, Producer
from oncelog.spark.jobs.audit import audit, audit_archive
from oncelog.spark.jobs.audit_findings import Audit, ProducerFindings, TopicFindings, compare, judge, put_together, stretch
from oncelog.spark.jobs.audit_pass import pieces
from oncelog.wire.models import Producer as Live

SCHEMA = "topic STRING, offset LONG, message_id BINARY, timestamp TIMESTAMP, producer STRING, sequence_id LONG"
BEGAN_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Row:
    offset: int
    producer: str | None
    sequence_id: int | None
    topic: str = "t"
    at: int | None = None
    """Where its message id says it is, if elsewhere than its offset does."""

    def fields(self) -> tuple[object, ...]:
        ms = BEGAN_MS + 1_000 * (self.offset if self.at is None else self.at)
        when = datetime.fromtimestamp(ms / 1000, UTC)
        return (self.topic, self.offset, bytearray(bytes(MessageId(ms, 0))), when, self.producer, self.sequence_id)


def good(rows: int, producers: int = 3) -> list[Row]:
    """Producers that take turns, each with 0, 1, 2, …"""
    return [Row(offset, f"p{offset % producers}", offset // producers) for offset in range(rows)]


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame([row.fields() for row in rows], SCHEMA)


def summed(messages: DataFrame, span: int) -> Audit:
    return put_together("it", (row.asDict() for row in pieces(messages, span).collect()))


# --- by hand: each case is a topic of its own, all in one pass

CASES: dict[str, tuple[list[Row], list[str], list[str]]] = {
    "right": (good(100), [], []),
    "twice": (
        [*good(10, 1), Row(4, "other", 0, at=5)],
        ["1 messages at an offset that another one has", "1 messages whose id is not above the one before"],
        [],
    ),
    "ids": (
        [replace(row, at=3) if row.offset == 8 else row for row in good(20, 1)],
        ["1 messages whose id is not above the one before"],
        [],
    ),
    "unnamed": (
        [Row(offset, None, None) for offset in range(50)],
        [],
        ["50 messages have no producer: whether one was sent twice is not known"],
    ),
}


def test_what_is_wrong_is_said_and_nothing_else(spark: SparkSession) -> None:
    rows = [replace(row, topic=topic) for topic, (rows, *_) in CASES.items() for row in rows]
    summed = [row.asDict() for row in pieces(frame(spark, rows), 4).collect()]
    for topic, (_, violations, notes) in CASES.items():
        found = put_together(topic, [piece for piece in summed if piece["topic"] == topic])
        judge(found, no_gaps=False, allow_holes=False)
        assert (found.violations, found.notes) == (
            [f"{topic}: {each}" for each in violations],
            [f"{topic}: {each}" for each in notes],
        )
    right = put_together("right", [piece for piece in summed if piece["topic"] == "right"])
    assert (right.messages, len(right.producers), right.topics[0].last_offset) == (100, 3, 99)
    first = BEGAN_MS // 60_000 * 60_000
    assert right.topics[0].per_minute == {first: 40, first + 60_000: 60}


# --- at random, held against counting in Python


def test_random_faults_are_counted_as_python_counts_them(spark: SparkSession) -> None:
    cases = {f"seed {seed}": spoilt(random.Random(seed), f"seed {seed}") for seed in range(20)}
    found = summed(frame(spark, [row for rows in cases.values() for row in rows]), 23)
    told = {
        each.topic: (each.duplicates, each.missing, each.gaps, each.disorder, each.missing_offsets, each.holes)
        for each in found.topics
    }
    assert told == {topic: counted(rows) for topic, rows in cases.items()}


def spoilt(dice: random.Random, topic: str) -> list[Row]:
    """Some are lost, some sequence ids swapped, some sent again at the end."""
    rows = [replace(row, topic=topic) for row in good(dice.randint(100, 200), dice.randint(1, 5))]
    kept = [row for row in rows if dice.random() > 0.05 or row.offset == 0]
    for _ in range(8):
        one, other = dice.sample(range(len(kept)), 2)
        if kept[one].producer == kept[other].producer:
            first, second = kept[one].sequence_id, kept[other].sequence_id
            kept[one], kept[other] = replace(kept[one], sequence_id=second), replace(kept[other], sequence_id=first)
    again = [replace(row, offset=kept[-1].offset + 1 + number) for number, row in enumerate(dice.sample(kept, 12))]
    shuffled = kept + again
    dice.shuffle(shuffled)
    return shuffled


def counted(rows: list[Row]) -> tuple[int, int, int, int, int, int]:
    duplicates = missing = gaps = disorder = 0
    for producer in {row.producer for row in rows}:
        firsts: dict[int, int] = {}
        for row in sorted((row for row in rows if row.producer == producer), key=lambda row: row.offset):
            assert row.sequence_id is not None
            duplicates += row.sequence_id in firsts
            firsts.setdefault(row.sequence_id, row.offset)
        missing, gaps = missing + sum(passed_over(firsts)), gaps + len(passed_over(firsts))
        disorder += sum(second < first for first, second in pairwise(firsts[sequence_id] for sequence_id in sorted(firsts)))
    offsets = passed_over({row.offset for row in rows})
    return duplicates, missing, gaps, disorder, sum(offsets), len(offsets)


def passed_over(numbers: Iterable[int]) -> list[int]:
    return [after - before - 1 for before, after in pairwise(sorted(numbers)) if after - before > 1]


# --- what the service says, and what follows: pure


def found_of(offsets: range = range(10), **more: Any) -> Audit:
    """One producer, p, with sequence ids as its offsets."""
    topic = TopicFindings("t", len(offsets), first_offset=offsets[0], last_offset=offsets[-1], **more)
    return Audit("it", [topic], [ProducerFindings("t", "p", len(offsets), offsets[0], offsets[-1])])


def live(last: int | None, at: int | None = None, name: str = "p", gaps: Any = "allow") -> Live:
    """In the service's map."""
    return Live(name=name, epoch=1, gaps=gaps, last_pushed=last, last_persisted=last, last_message_id=None, last_offset=at)


@pytest.mark.parametrize(
    ("maps", "says"),
    [
        ([live(9, 9)], None),
        ([], "p has sequence id 9 in the log, and the service knows none: it would store it again"),
        ([live(None)], "p has sequence id 9 in the log, and the service knows none: it would store it again"),
        ([live(8, 8)], "p has sequence id 9 in the log, and the service knows only up to 8: it would store it again"),
        ([live(12, 9)], "the service has sequence id 12 of p at offset 9; what was audited ends with 9"),
        ([live(12, 10)], None),  # behind what was looked at
        ([live(9, 9), live(3, 0, "q")], "the service has sequence id 3 of q at offset 0; what was audited has nothing of it"),
        ([live(9, 9), live(None, None, "q")], None),
    ],
)
def test_the_services_map_and_the_log_say_the_same(maps: list[Live], says: str | None) -> None:
    found = found_of()
    compare(found, found.topics[0], maps, allow_holes=False)
    assert found.violations == ([] if says is None else [f"t: {says}"])
    assert found.maps_compared
    holed = found_of(missing_offsets=1)
    compare(holed, holed.topics[0], maps, allow_holes=True)
    expired = says is not None and says.startswith("the service has")
    assert holed.notes == ([f"t: {says}"] if expired else []), "where offsets are missing, the newest one may have expired"


@pytest.mark.parametrize(("refuses", "no_gaps", "is_violation"), [(0, 0, False), (0, 1, True), (1, 0, True)])
def test_gaps_are_notes_unless_they_are_ruled_out_or_refused(refuses: int, no_gaps: int, is_violation: bool) -> None:
    found = found_of()
    found.producers[0].missing, found.producers[0].gaps = 63, 3
    compare(found, found.topics[0], [live(9, 9, gaps="refuse" if refuses else "allow")], allow_holes=False)
    judge(found, no_gaps=bool(no_gaps), allow_holes=False)
    said = "t: p passed over 63 sequence ids at 3 places" + ", although its gaps are refused" * refuses
    assert (found.violations, found.notes) == (([said], []) if is_violation else ([], [said]))


BEFORE, BEHIND = "t: the service has 10 offsets before the first one", "t: the service has 20 offsets behind the last one"


@pytest.mark.parametrize(
    ("offsets", "earliest", "stable", "exact", "missing", "holes", "says"),
    [
        (range(10), 0, 10, True, 0, 0, []),
        (range(10), 0, 12, True, 2, 1, []),
        (range(1, 10), 0, 11, True, 2, 2, []),
        (None, 3, 5, True, 2, 1, []),
        (None, 3, 3, True, 0, 0, []),
        (range(10, 30), 0, 50, False, 0, 0, [BEFORE, BEHIND]),
        (range(10, 30), 10, 30, False, 0, 0, []),
        (None, 0, 3, False, 0, 0, ["t: nothing of it is there, and the service has offsets 0 to 2"]),
        (None, 3, 3, False, 0, 0, []),
    ],
)
def test_what_the_service_has_beyond_what_was_audited(
    offsets: range | None, earliest: int, stable: int, exact: bool, missing: int, holes: int, says: list[str]
) -> None:
    found = Audit("it", [], []) if offsets is None else found_of(offsets)
    topic = stretch(found, "t", earliest, stable, exact=exact)
    assert (topic.missing_offsets, topic.holes) == (missing, holes)
    assert [said[: len(wanted)] for said, wanted in zip(found.violations + found.notes, says, strict=True)] == says
    assert bool(found.violations) == (offsets is None and says != [])


# --- topics and archives


def published(client: Client, topic: str, rows: int) -> str:
    client.create_topic(topic)
    with Producer(topic, name="p", url=client.url) as producer:
        for number in range(rows):
            producer.send_async(b"%d" % number)
    return topic


def test_a_topic_is_as_the_service_says_it_is_or_not(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    topic = published(client, "audited", 3_000)
    client.create_topic("empty")
    found = audit(spark, [topic, "empty"], url=client.url, span=100, report=tmp_path / "report.html")
    assert found.ok
    assert found.maps_compared
    assert (found.messages, found.producers[0].last_sequence_id) == (3_000, 2_999)
    assert [(each.topic, each.messages) for each in found.topics] == [(topic, 3_000), ("empty", 0)]
    assert "everything is there once" in (tmp_path / "report.html").read_text()


def test_an_archive_is_held_against_the_service_or_alone(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    topic, other = published(client, "half-archived", 50), published(client, "not-archived", 3)
    messages = spark.read.format("oncelog").option("url", client.url).option("topic", topic).load()
    path = str(tmp_path / "archive")
    messages.where("offset BETWEEN 10 AND 49 AND offset != 30").coalesce(1).write.parquet(path)
    hole = "half-archived: 1 offsets are not there, at 1 places"
    unknown, *others = audit_archive(spark, path, [topic, other, "misspelt"], url=client.url).violations
    assert unknown.endswith("has no such topic")
    assert others == ["not-archived: nothing of it is there, and the service has offsets 0 to 2", hole]
    alone = audit_archive(spark, path, topic, offline=True, no_gaps=True, allow_holes=True)
    assert not alone.maps_compared
    assert len(alone.violations) == 1
    assert audit_archive(spark, path, "misspelt", offline=True).violations == [
        "misspelt: nothing of it is there",
        "there is no message: nothing was audited",
    ]


# --- the report


def test_the_report_is_one_page_that_fetches_nothing_and_shows_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    rows = [*good(3_000, 2), Row(3_000, "p1", 7), Row(3_001, "<script>&", 0), Row(3_002, "<script>&", 5)]
    frame(spark, rows).write.parquet(str(tmp_path / "archive"))
    found = audit_archive(spark, str(tmp_path / "archive"), offline=True, report=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert not found.ok
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", page)
    drawings = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)]
    assert len(drawings) == 3  # messages per minute, duplicates, missing sequence ids
    assert len(drawings[0].findall("rect")) == 51
    assert "t · &lt;script&gt;&amp;" in page
    assert "1 messages whose sequence id had been there before" in page
    assert json.loads(json.dumps(found.as_json()))["ok"] is False
