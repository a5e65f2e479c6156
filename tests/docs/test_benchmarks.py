"""The tables and pictures of docs/benchmarks.md, from rows that nobody has measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
from benchmarks.brokers.rates import broker_rates
from benchmarks.measure import Beside, Processor, Row
from benchmarks.page import BROKERS, BROKERS_BEGIN, BROKERS_END, PAGE, cells, page, pictures
from benchmarks.turns import Calls, in_turns

WORK = "one message at a time, one sender"


def beside(rival: str, what: str = WORK) -> Row:
    return Row(what, 1_000, "messages/s", processor=Processor(2, 1), beside=Beside(rival, 500, 2, Processor(3, 1)))


def result(rows: Sequence[Row]) -> dict[str, Any]:
    return {"at": "2026-01-02T03:04:05", "machine": {"cores": "2"}, "rows": [asdict(row) for row in rows]}


def test_brokers_have_a_table_of_their_own() -> None:
    before = PAGE.read_text()
    written = page(before, result([beside(rival) for rival in BROKERS]))
    [*_, table] = written.partition(BROKERS_END)[0].partition(BROKERS_BEGIN)
    assert [line.split(" | ")[3] for line in table.splitlines() if line.startswith(f"| {WORK}")] == list(BROKERS)
    assert "Measured on 2026-01-02: cores 2." in table
    assert "pictures/beside-brokers.svg" in table
    for mark, side in ((BROKERS_BEGIN, 0), (BROKERS_END, 2)):
        assert written.partition(mark)[side] == before.partition(mark)[side]


def test_a_picture_shows_each_ratio() -> None:
    svg = pictures([beside(rival) for rival in BROKERS])["beside-brokers.svg"]
    places = re.findall(r'<circle cx="([\d.]+)"', svg)
    assert len(places) == len(BROKERS)
    assert len(set(places)) == 1  # the same ratio
    assert "beside-brokers.svg" not in pictures([beside("COPY")])


def test_where_there_is_no_java_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "mvn" else name)
    [row] = broker_rates(1)
    assert cells(row) == ["Kafka and Pulsar are left out: there is no mvn on the PATH.", *[""] * 8]
    assert page(PAGE.read_text(), result([row])) == PAGE.read_text()


def test_turns_ask_each_its_own_processor_time() -> None:
    servers, clients = iter([0.0, 0.3]), iter([1.0, 1.2])
    turns = in_turns(
        {"theirs": lambda seconds: Calls([0.1, 0.1], 0.2)},
        {"theirs": lambda: next(servers)},
        0,
        client_seconds={"theirs": lambda: next(clients)},
    )
    assert (turns.rate("theirs"), turns.p50_ms("theirs")) == (10, 100)
    assert turns.processor_ms("theirs") == pytest.approx(150)
    assert turns.client_ms("theirs") == pytest.approx(100)
