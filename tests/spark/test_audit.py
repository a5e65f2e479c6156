"""The audit finds what is wrong with messages, says nothing of what is right, and shows it."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from oncelog import Client, MessageId, Producer
from oncelog.spark.jobs.audit import audit, audit_archive, audit_messages
from oncelog.spark.jobs.audit_findings import Audit, judge, put_together, stretch
from oncelog.spark.jobs.audit_pass import pieces
from tests.support import RunningService

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


# --- by hand: each case is a topic of its own, all in one pass, over short stretches and over one long one

CASES = {
    "right": good(100),
    "again": good(60) + [Row(60 + number, "p1", 5 + number) for number in range(4)],
    "gaps": [Row(number, "p", 10 * number if number > 4 else number) for number in range(8)],
    "swapped": [replace(row, sequence_id={8: 9, 9: 8}.get(row.offset, row.offset)) for row in good(20, 1)],
    "holes": [row for row in good(40, 2) if row.offset not in (12, 13, 30)],
    "twice": [*good(10, 1), Row(4, "other", 0, at=5)],
    "ids": [replace(row, at=3) if row.offset == 8 else row for row in good(20, 1)],
    "unnamed": [Row(offset, None, None) for offset in range(50)],
}


@pytest.fixture(scope="module", params=[4, 1_000_000])
def summed(spark: SparkSession, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    rows = [replace(row, topic=topic) for topic, rows in CASES.items() for row in rows]
    return [row.asDict() for row in pieces(frame(spark, rows), request.param).collect()]


def audited(summed: list[dict[str, Any]], topic: str, *, no_gaps: bool = False, allow_holes: bool = False) -> Audit:
    found = put_together(topic, [piece for piece in summed if piece["topic"] == topic])
    judge(found, no_gaps=no_gaps, allow_holes=allow_holes)
    return found


def test_nothing_is_said_of_what_is_right(summed: list[dict[str, Any]]) -> None:
    found = audited(summed, "right")
    assert found.ok
    assert found.notes == []
    assert (found.messages, len(found.producers), found.topics[0].last_offset) == (100, 3, 99)
    first = BEGAN_MS // 60_000 * 60_000
    assert found.topics[0].per_minute == {first: 40, first + 60_000: 60}


def test_a_sequence_id_that_is_there_again_is_a_violation_and_puts_nothing_else_out_of_order(
    summed: list[dict[str, Any]],
) -> None:
    assert audited(summed, "again").violations == ["again: 4 messages whose sequence id had been there before"]


def test_passed_over_sequence_ids_are_notes_unless_gaps_are_ruled_out(summed: list[dict[str, Any]]) -> None:
    found = audited(summed, "gaps")
    assert found.ok
    assert found.notes == ["gaps: p passed over 63 sequence ids at 3 places"]
    assert audited(summed, "gaps", no_gaps=True).violations == found.notes


def test_messages_out_of_their_producers_order_are_a_violation(summed: list[dict[str, Any]]) -> None:
    assert audited(summed, "swapped").violations == ["swapped: 1 messages out of their producer's order"]


def test_offsets_that_are_not_there_are_a_violation_unless_holes_are_allowed(summed: list[dict[str, Any]]) -> None:
    found, allowed = audited(summed, "holes"), audited(summed, "holes", allow_holes=True)
    assert found.violations == ["holes: 3 offsets are not there, at 2 places"]
    assert allowed.ok
    assert found.violations[0] in allowed.notes


def test_an_offset_that_is_there_twice_is_a_violation(summed: list[dict[str, Any]]) -> None:
    assert "twice: 1 messages at an offset that another one has" in audited(summed, "twice").violations


def test_message_ids_that_do_not_rise_are_a_violation(summed: list[dict[str, Any]]) -> None:
    assert audited(summed, "ids").violations == ["ids: 1 messages whose id is not above the one before"]


def test_of_messages_without_a_producer_repetition_is_not_known_and_that_is_said(summed: list[dict[str, Any]]) -> None:
    found = audited(summed, "unnamed")
    assert found.ok
    assert found.notes == ["unnamed: 50 messages have no producer: whether one was sent twice is not known"]


# --- at random, held against counting in Python


@pytest.mark.parametrize("span", [1, 23])
def test_random_faults_are_counted_as_python_counts_them(spark: SparkSession, span: int) -> None:
    cases = {f"seed {seed}": spoilt(random.Random(seed), f"seed {seed}") for seed in range(20)}
    found = audit_messages(frame(spark, [row for rows in cases.values() for row in rows]), span=span)
    told = {each.topic: (each.duplicates, each.missing, each.disorder, each.missing_offsets) for each in found.topics}
    assert told == {topic: counted(rows) for topic, rows in cases.items()}
    assert len(found.examples) == 20


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


def counted(rows: list[Row]) -> tuple[int, int, int, int]:
    duplicates = missing = disorder = 0
    for producer in {row.producer for row in rows}:
        firsts: dict[int, int] = {}
        own = sorted((row for row in rows if row.producer == producer), key=lambda row: row.offset)
        for row in own:
            assert row.sequence_id is not None
            duplicates += row.sequence_id in firsts
            firsts.setdefault(row.sequence_id, row.offset)
        missing += max(firsts) - min(firsts) + 1 - len(firsts)
        disorder += sum(second < first for first, second in pairwise(firsts[sequence_id] for sequence_id in sorted(firsts)))
    offsets = [row.offset for row in rows]
    return duplicates, missing, disorder, max(offsets) - min(offsets) + 1 - len(set(offsets))


# --- the service's own word


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.url) as made:
        yield made


def published(client: Client, topic: str, rows: int, **how: str) -> str:
    client.create_topic(topic)
    with Producer(topic, name="p", url=client.url, **how) as producer:  # type: ignore[arg-type]
        for number in range(rows):
            producer.send_async(b"%d" % number)
    return topic


def archive_without(spark: SparkSession, client: Client, topic: str, lost: int, path: Path) -> None:
    messages = spark.read.format("oncelog").option("url", client.url).option("topic", topic).load()
    messages.where(f"offset != {lost}").coalesce(1).write.parquet(str(path))


def test_a_topic_is_as_the_service_says_it_is(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    topic = published(client, "audited", 3_000)
    found = audit(spark, topic, url=client.url, span=100, report=tmp_path / "report.html")
    assert found.ok
    assert found.maps_compared
    assert (found.messages, found.producers[0].last_sequence_id) == (3_000, 2_999)
    assert "everything is there once" in (tmp_path / "report.html").read_text()


def test_an_archive_that_lacks_the_newest_message_is_not_what_the_service_has(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    topic = published(client, "half-archived", 50)
    with Producer(topic, name="q", url=client.url) as producer:
        producer.send(b"behind it")
    archive_without(spark, client, topic, 49, tmp_path / "archive")
    found = audit_archive(spark, str(tmp_path / "archive"), url=client.url)
    assert [violation for violation in found.violations if "49 of p at offset 49" in violation]
    alone = audit_archive(spark, str(tmp_path / "archive"), topic, offline=True)
    assert not alone.maps_compared
    assert alone.violations == ["half-archived: 1 offsets are not there, at 1 places"]


def test_what_is_missing_at_an_end_of_an_archive_is_told_and_a_missing_topic_is_a_violation(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    topic, other = published(client, "cut-off", 50), published(client, "not-archived", 3)
    client.create_topic("nothing-yet")
    messages = spark.read.format("oncelog").option("url", client.url).option("topic", topic).load()
    path = str(tmp_path / "archive")
    messages.where("offset BETWEEN 10 AND 29").coalesce(1).write.parquet(path)
    found = audit_archive(spark, path, url=client.url)
    assert found.violations == []
    assert [note.partition(": ")[2] for note in found.notes] == [
        "the service has 10 offsets before the first one that was audited",
        "the service has 20 offsets behind the last one that was audited",
    ]
    assert audit_archive(spark, path, [topic, "nothing-yet"], url=client.url).ok
    assert audit_archive(spark, path, [topic, other], url=client.url).violations == [
        "not-archived: nothing of it is there, and the service has offsets 0 to 2"
    ]
    assert audit_archive(spark, path, "misspelt", offline=True).violations == [
        "misspelt: nothing of it is there",
        "there is no message: nothing was audited",
    ]


@pytest.mark.parametrize(("earliest", "settled", "missing", "holes"), [(0, 10, 0, 0), (0, 12, 2, 1)])
def test_of_a_topic_that_was_read_whole_an_end_that_is_not_there_is_missing(
    summed: list[dict[str, Any]], earliest: int, settled: int, missing: int, holes: int
) -> None:
    pieces_of_it = [piece for piece in summed if piece["topic"] == "twice"]
    found = stretch(put_together("it", pieces_of_it), "twice", earliest, settled, exact=True)
    assert (found.missing_offsets, found.holes, found.first_offset, found.last_offset) == (missing, holes, earliest, settled - 1)
    nothing = stretch(put_together("it", []), "twice", 3, 3 + missing, exact=True)
    assert (nothing.messages, nothing.missing_offsets, nothing.holes) == (0, missing, holes)


def test_a_topic_without_messages_is_audited_too(spark: SparkSession, client: Client) -> None:
    client.create_topic("empty")
    found = audit(spark, "empty", url=client.url)
    assert (found.ok, found.messages, [topic.topic for topic in found.topics]) == (True, 0, ["empty"])


def test_what_the_service_would_store_again_is_a_violation(spark: SparkSession, client: Client) -> None:
    topic = published(client, "forgotten", 10)
    client.forget_producer(topic, "p")
    found = audit(spark, topic, url=client.url)
    assert len(found.violations) == 1
    assert "p has sequence id 9 in the log, and the service knows none" in found.violations[0]


def test_gaps_that_the_service_was_told_to_refuse_are_a_violation(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    topic = published(client, "refusing", 10, gaps="refuse")
    archive_without(spark, client, topic, 4, tmp_path / "archive")
    found = audit_archive(spark, str(tmp_path / "archive"), url=client.url, allow_holes=True)
    assert found.violations == ["refusing: p passed over 1 sequence ids at 1 places, although its gaps are refused"]


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
