"""Events on disk, of transactions and of atomic commits: every layout is golden, and whatever else is there is damage."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.wire.transaction import TransactionType
from oncelog_service.atomic.records import RECORDS, Abort, Begin, Commit, Enlist, Record, TopicRef
from oncelog_service.storage.events import EventDamaged, EventLog
from oncelog_service.storage.keys import edit_key, journal_key
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Batch, StoreDamaged, Table
from oncelog_service.transactions.edits import (
    EDITS,
    Aborted,
    Acknowledged,
    ChangesDropped,
    Checkpointed,
    Committed,
    Edit,
    Enlisted,
    HandedIn,
    Invalidated,
    Pruned,
    Started,
)

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent.parent / "golden" / "events_v1.json").read_text())
N = 1_790_000_000_000_000_000
MS = N // 1_000_000

EVENTS: dict[str, tuple[EventLog[Any], tuple[Any, ...]]] = {
    "started": (EDITS, Started(N, TransactionType.SHORT, 30_000, "ada")),
    "handed in": (EDITS, HandedIn(N, 90_000_000, "the database", frozenset({b"b", b"", b"a\x00"}))),
    "committed": (EDITS, Committed(N, frozenset({b"late"}))),
    "aborted": (EDITS, Aborted(N)),
    "invalidated": (EDITS, Invalidated(N)),
    "checkpointed": (EDITS, Checkpointed(N, N + 1)),
    "pruned": (EDITS, Pruned((N, N + 7))),
    "enlisted": (EDITS, Enlisted(N + 1, "here:default/orders/1")),
    "acknowledged": (EDITS, Acknowledged(N + 1, "here:default/bestellungen-ü/1")),
    "changes dropped": (EDITS, ChangesDropped(N + 1)),
    "begin": (RECORDS, Begin(N, "order=41", "orders", MS, MS + 60_000, None)),
    "begin of a branch": (RECORDS, Begin(N + 1, "order=41:1", "orders", MS + 1, MS + 60_001, "order=41", "cert:lädt")),
    "enlist": (RECORDS, Enlist(N, TopicRef("default", "orders", 1))),
    "commit": (RECORDS, Commit(N, (N + 1, N + 2))),
    "abort": (RECORDS, Abort(N)),
}

numbers, texts = st.integers(-(2**63), 2**63 - 1), st.text(max_size=8)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: numbers,
    str: texts,
    str | None: st.none() | st.text(min_size=1, max_size=8),
    tuple[int, ...]: st.lists(numbers, max_size=4).map(tuple),
    frozenset[bytes]: st.frozensets(st.binary(max_size=10), max_size=4),
    TransactionType: st.sampled_from(TransactionType),
    TopicRef: st.builds(TopicRef, texts, texts, numbers),
}


def any_of(log: EventLog[Any]) -> st.SearchStrategy[tuple[EventLog[Any], Any]]:
    events = (st.builds(kind, *map(BY_TYPE.__getitem__, get_type_hints(kind).values())) for kind in log.kinds)
    return st.tuples(st.just(log), st.one_of(*events))


@given(any_of(EDITS) | any_of(RECORDS))
def test_an_event_reads_back_as_it_was_written_and_no_cut_of_it_does(each: tuple[EventLog[Any], Any]) -> None:
    log, event = each
    data = log.encode(event)
    back = log.decode(data)
    assert (type(back), back) == (type(event), event)
    for wrong in (data + b"\x00", *(data[:size] for size in range(len(data)))):
        with pytest.raises(EventDamaged):
            log.decode(wrong)


@pytest.mark.parametrize("name", EVENTS)
def test_the_bytes_of_an_event_never_change(name: str) -> None:
    log, event = EVENTS[name]
    assert log.encode(event).hex() == GOLDEN[name]
    assert log.decode(bytes.fromhex(GOLDEN[name])) == event


def test_every_kind_is_golden() -> None:
    assert GOLDEN.keys() == EVENTS.keys()
    assert {type(event) for _, event in EVENTS.values()} == {*EDITS.kinds, *RECORDS.kinds} == {*get_args(Edit), *get_args(Record)}


@pytest.mark.parametrize(
    "data",
    [
        "02" + GOLDEN["aborted"][2:],
        "010b" + GOLDEN["aborted"][4:],
        "0100",
        GOLDEN["started"][:20] + "03" + GOLDEN["started"][22:],
        GOLDEN["enlisted"][:-2] + "ff",
    ],
    ids=["version", "kind", "no kind", "no type of transaction", "no text"],
)
def test_what_is_not_known_here_is_damage(data: str) -> None:
    with pytest.raises(EventDamaged):
        EDITS.decode(bytes.fromhex(data))


# --- folded again


def store_with(*at: int, partition: int | None = None) -> MemoryStore:
    """A store with an event at each of these numbers, the same one."""
    store, batch = MemoryStore(), Batch()
    for number in at:
        if partition is None:
            EDITS.put(batch, edit_key(number), Aborted(number))
        else:
            RECORDS.put(batch, journal_key(partition, number), Abort(number))
    store.write([batch])
    return store


@pytest.mark.parametrize("first", [1, 3, 256])
def test_events_are_folded_in_their_order_from_the_first_that_is_asked_for(first: int) -> None:
    found: list[Any] = []
    EDITS.replay(store_with(*range(1, 300)), edit_key, first, found.append)
    assert found == [Aborted(number) for number in range(first, 300)]
    EDITS.replay(MemoryStore(), edit_key, first, found.append)
    assert len(found) == 300 - first


def test_the_events_of_one_partition_are_no_others() -> None:
    found: list[Any] = []
    store = store_with(0, 1, partition=3)
    for partition in (2, 3, 4):
        RECORDS.replay(store, partial(journal_key, partition), 0, found.append)
    assert found == [Abort(0), Abort(1)]


@pytest.mark.parametrize("at", [(2, 3), (1, 3)], ids=["the first", "one between"])
def test_an_event_that_is_missing_is_damage(at: tuple[int, ...]) -> None:
    with pytest.raises(StoreDamaged, match="is missing: the next one stored is"):
        EDITS.replay(store_with(*at), edit_key, 1, lambda _: None)


def test_an_event_that_cannot_be_read_or_cannot_follow_is_damage() -> None:
    store, batch = store_with(1, 2), Batch()
    batch.put(Table.TRANSACTION_EDIT, edit_key(3), b"\x01\x0b")
    store.write([batch])
    found: list[Any] = []
    with pytest.raises(StoreDamaged, match="edit 3 cannot be read: version 1 and kind 11"):
        EDITS.replay(store, edit_key, 1, found.append)
    assert len(found) == 2

    def refuse(edit: Edit) -> None:
        raise ValueError("it cannot follow")

    with pytest.raises(StoreDamaged, match="edit 2 cannot be read: it cannot follow"):
        EDITS.replay(store, edit_key, 2, refuse)
