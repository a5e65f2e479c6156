"""What became of a transaction: its bytes never change their meaning, and it is kept as long as its messages may live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncelog.errors import SequenceGap, TransactionNotInProgress
from oncelog.message_id import MessageId
from oncelog.wire.models import AtomicOutcome, AtomicTopic
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog_service.atomic.endings import again
from oncelog_service.atomic.outcomes import (
    Ended,
    decode_ended,
    fingerprint,
    forgettable,
    put_id,
    put_outcomes,
    read_ended,
)
from oncelog_service.log.names.assigned import new_name
from oncelog_service.storage.keys import topic_key
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table
from oncelog_service.storage.records import TopicRow, encode_record
from tests.service.house import BEGIN

GOLDEN = Path(__file__).parent.parent / "golden"
HOUR = 3_600_000
DAY_MS, TTL_MS = 24 * HOUR, 48 * HOUR


def outcome(
    name: str = "t", began: int = BEGIN, published: int | None = BEGIN, generation: int = 1, **values: Any
) -> AtomicOutcome:
    """A transaction with messages on the topic default/a."""
    message_id = None if published is None else MessageId(published, 3)
    topic = AtomicTopic(
        namespace="default", topic="a", generation=generation, messages=2, first_offset=7, first_message_id=message_id
    )
    return AtomicOutcome(id=name, group="g", **{"state": "committed", "began_ms": began, "topics": [topic], **values})


ENDED = {
    "atomic_outcome_v1": Ended(
        outcome(
            branches=["one", "two"],
            messages=2,
            producer="loader",
            sequence_id=4,
            incarnation="2026-09-21",
            checksum="c0ffee",
            owner="ada",
        ),
        asked="00112233445566778899aabbccddeeff",
    ),
    "atomic_outcome_refused_v1": Ended(
        outcome(state="aborted", published=None, of="parent", reason="sequence_gap", detail="a gap"),
        {"status": 409, "code": "sequence_gap", "detail": "a gap", "definite": True, "expected": 1, "received": 2},
    ),
}


def store_with(*ended: tuple[int, Ended], topic: TopicRow | None = None) -> MemoryStore:
    store, batch = MemoryStore(), Batch()
    for number, each in ended:
        put_id(batch, each.outcome.id, number)
    put_outcomes(batch, [(number, partial(Ended, *each)) for number, each in ended])
    if topic is not None:
        batch.put(Table.TOPIC, topic_key("default", "a"), encode_record(topic))
    store.write([batch])
    return store


@pytest.mark.parametrize("name", ENDED)
def test_the_layout_of_an_outcome_never_changes(name: str) -> None:
    golden = (GOLDEN / f"{name}.json").read_bytes().strip()
    (written,) = store_with((7, ENDED[name])).disk.tables[Table.ATOMIC_OUTCOME].values()
    assert written == golden
    assert decode_ended(golden) == ENDED[name]


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"{}", b'{"version":2,"outcome":{},"problem":null}', b"\xff"])
def test_what_is_no_outcome_of_this_version_is_refused(data: bytes) -> None:
    with pytest.raises(StoreDamaged):
        decode_ended(data)


def request(**changed: Any) -> CommitRequest:
    messages = PublishRequest(
        [b"12", b"3"], producer="p", keys=[b"k", None], properties=[{"a": "1", "b": "2"}, None], ttls=[5, None]
    )
    parts = [Part("default", "a", messages), Part("default", "b", PublishRequest([b"1"]))]
    fields = {"group": "g", "parts": parts, "branches": ["one", "two"], "producer": "loader", "sequence_id": 4}
    return CommitRequest(**{**fields, **changed})


def part(**changed: Any) -> CommitRequest:
    """The same with something changed in the first part."""
    first, second = request().parts
    return request(parts=[first._replace(request=replace(first.request, **changed)), second])


def test_the_fingerprint_of_a_commit_is_that_of_everything_it_carries_in_whatever_form() -> None:
    known = fingerprint(request())
    first, second = request().parts
    same = [
        request(group=None),
        request(parts=[second, first]),
        part(properties=[{"b": "2", "a": "1"}, {}]),
        part(epoch=3, sequence_ids=[7, 8], expected_offset=9),
        request(parts=[first, second._replace(request=PublishRequest([b"1"], keys=[None], ttls=[None]))]),
    ]
    assert [fingerprint(each) for each in same] == [known] * len(same)
    assert fingerprint(part(producer=new_name())) == fingerprint(part(producer=new_name()))
    others = [
        part(producer=new_name()),
        request(parts=[first]),
        request(parts=[first._replace(topic="c"), second]),
        request(parts=[first._replace(namespace="other"), second]),
        request(branches=["two", "one"]),
        request(branches=["one"]),
        request(producer="other"),
        request(sequence_id=5),
        request(incarnation="i"),
        request(checksum="c"),
        part(payloads=[b"1", b"23"]),
        part(payloads=[b"12", b"4"]),
        part(producer=None),
        part(keys=[None, b"k"]),
        part(properties=[None, {"a": "1", "b": "2"}]),
        part(ttls=[None, 5]),
    ]
    found = [fingerprint(each) for each in others]
    assert len({known, None, *found}) == len(found) + 2
    assert fingerprint(CommitRequest(group="g")) is None


def test_what_carries_something_else_than_what_was_committed_under_its_id_is_refused() -> None:
    committed = outcome(messages=3)
    ended = Ended(committed, asked=fingerprint(request()))
    assert again(ended, request()) is again(ended, CommitRequest(group="g")) is committed
    for known, other in ((ended, request(branches=["one"])), (Ended(committed), request())):
        with pytest.raises(TransactionNotInProgress):
            again(known, other)
    with pytest.raises(SequenceGap) as refused:
        again(ENDED["atomic_outcome_refused_v1"], request())
    assert (refused.value.expected, refused.value.received) == (1, 2)


def test_an_outcome_is_found_by_its_id() -> None:
    store = store_with((7, ENDED["atomic_outcome_v1"]))
    assert read_ended(store, "t") == ENDED["atomic_outcome_v1"]
    assert read_ended(store, "u") is None


LIVING = TopicRow(1, 0, {"ttl": str(TTL_MS // 1000)})


def forgotten(store: Store, now_ms: int, limit: int) -> Sequence[tuple[int, str]]:
    """What is found in the first step."""
    return forgettable(store, now_ms, limit)[0]


@pytest.mark.parametrize(
    ("ended", "topic", "forgotten_at"),
    [
        pytest.param(outcome(), LIVING, BEGIN + TTL_MS, id="as long as its messages live"),
        pytest.param(outcome(published=BEGIN + HOUR), LIVING, BEGIN + HOUR + TTL_MS, id="from their publication on"),
        pytest.param(outcome(published=None, state="aborted"), LIVING, BEGIN + TTL_MS, id="as long as they would have lived"),
        pytest.param(outcome(), None, BEGIN + DAY_MS, id="a day where the topic is unknown"),
        pytest.param(outcome(), replace(LIVING, deleted=True), BEGIN + DAY_MS, id="a day where the topic was deleted"),
        pytest.param(outcome(), replace(LIVING, generation=2), BEGIN + DAY_MS, id="a day where it was created again"),
        pytest.param(outcome(), TopicRow(1, 0, {"ttl": "1"}), BEGIN + DAY_MS, id="a day at the least"),
        pytest.param(outcome(topics=[]), LIVING, BEGIN + DAY_MS, id="a day without messages"),
    ],
)
def test_an_outcome_is_kept(ended: AtomicOutcome, topic: TopicRow | None, forgotten_at: int) -> None:
    store = store_with((7, Ended(ended)), topic=topic)
    assert forgotten(store, forgotten_at - 1, 10) == []
    assert forgotten(store, forgotten_at, 10) == [(7, "t")]


def test_the_outcome_of_a_branch_is_kept_as_long_as_what_it_became_a_part_of() -> None:
    """Its messages were published with the whole, long after it began. Forgotten before them, it could be committed again."""
    branch, whole = outcome("branch", published=None, of="t"), outcome(began=BEGIN + HOUR, published=BEGIN + HOUR)
    for numbers in ((7, 8), (8, 7)):
        store = store_with(*zip(numbers, map(Ended, (branch, whole)), strict=True), topic=LIVING)
        assert forgotten(store, BEGIN + HOUR + TTL_MS - 1, 10) == []
        assert {name for _, name in forgotten(store, BEGIN + HOUR + TTL_MS, 10)} == {"branch", "t"}
    alone = store_with((7, Ended(branch)), topic=LIVING)
    assert forgotten(alone, BEGIN + TTL_MS, 10) == [(7, "branch")]


def test_the_oldest_outcomes_are_forgotten_first_and_some_at_a_time() -> None:
    ended = [(number, Ended(outcome(f"t{number}", BEGIN + number))) for number in range(1, 8)]
    store = store_with(*ended, topic=LIVING)
    assert forgotten(store, BEGIN + 10 * TTL_MS, 3) == [(1, "t1"), (2, "t2"), (3, "t3")]


def test_an_outcome_that_is_kept_for_ever_holds_up_none_behind_it() -> None:
    """Commits to a topic without a time to live, and a query that commits many batches without messages."""
    kept = [(number, Ended(outcome(f"kept-{number}", BEGIN + number, BEGIN + 10 * TTL_MS))) for number in (0, 1, 4)]
    empty = [(number, Ended(outcome(f"t{number}", BEGIN + number, topics=[]))) for number in (2, 3, 5)]
    store = store_with(*kept, *empty, topic=LIVING)
    steps: list[list[int]] = []
    start = b""
    for _ in range(4):
        found, start = forgettable(store, BEGIN + 10 * TTL_MS, 2, start)
        steps.append([number for number, _ in found])
    assert steps == [[], [2, 3], [5], []], "and begins anew behind the last one"
