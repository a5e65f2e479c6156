"""The index of keys says of each key what a naive look through the log would, at every moment."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import Fold, Mark, Run, Snapshot
from oncelog_service.log.key_index import KeyIndex, group_key_marks, key_marks, key_name
from oncelog_service.storage.keys import row_id
from oncelog_service.storage.rows import message_id_of


def at(offset: int) -> bytes:
    return row_id(1_000 + offset, 0)


def run(first: int, keys: list[bytes | None], pointer: int | None = None) -> Run:
    """One request whose messages have these keys."""
    row_ids = [at(first + each) for each in range(len(keys))]
    marks = key_marks(keys, row_ids, first)
    return Run(first, len(keys), message_id_of(row_ids[0]), message_id_of(row_ids[-1]), marks, pointer)


def index(*runs: Run) -> KeyIndex:
    built = KeyIndex(Fold())
    for each in runs:
        built.persist(built.push(each))
    return built


# --- names and marks


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_two_keys_have_two_names_whatever_they_are(first: bytes, second: bytes) -> None:
    assert (key_name(first) == key_name(second)) == (first == second)


def test_a_long_key_is_found_and_kept_under_a_short_name_that_no_other_key_has() -> None:
    long = b"k" * 1_000_000
    built = index(run(0, [long, b"\xff"]))
    assert built.state().newest(long.decode("latin-1")) == 0
    assert built.state().newest((long + b"k").decode("latin-1")) is None
    assert built.state().newest("\xff") == 1
    assert len(built.snapshot().to_bytes()) < 500
    assert Snapshot.from_bytes(built.snapshot().to_bytes()).marks == built.copy()


def test_of_a_request_the_newest_message_of_each_key_counts() -> None:
    assert key_marks(None, [at(0)], 0) == ()
    assert dict(key_marks([b"a", None, b"b", b"a"], [at(each) for each in range(5, 9)], 5)) == {
        "a": Mark(8, message_id_of(at(8)), 8),
        "b": Mark(7, message_id_of(at(7)), 7),
    }


def test_the_messages_of_a_group_lie_behind_its_row() -> None:
    payload_id = row_id(900, 3)
    assert group_key_marks({"a": (payload_id, 2)}, at(5), 5) == (("a", Mark(7, at(5) + payload_id, 7)),)


# --- pushed and persisted


def test_what_is_in_flight_counts_at_once() -> None:
    built = index(run(0, [b"a"]))
    pushed = built.push(run(1, [b"b", b"a"]))
    state = built.state()
    assert (state.upcoming_offset, state.last_message_id) == (3, message_id_of(at(2)))
    assert (state.newest("a"), state.newest("b"), state.newest("c")) == (2, 1, None)
    built.persist(pushed)
    assert built.state()[:2] == state[:2]
    assert (built.newest("a"), built.newest("b")) == (2, 1)


def test_nothing_was_ever_published_on_an_empty_topic_nor_by_an_empty_group() -> None:
    built = KeyIndex(Fold())
    assert built.state()[:2] == (0, None)
    built.persist(built.push(Run(0, 0, message_id_of(at(0)), message_id_of(at(0)), (), 7)))
    assert built.state()[:2] == (0, None)
    built.persist(built.push(run(0, [None])))
    assert built.state()[:2] == (1, message_id_of(at(0)))


# --- transactions


def test_a_key_is_held_by_the_undecided_transaction_of_its_newest_message_and_not_by_its_own() -> None:
    built = index(run(0, [b"a", b"b"]), run(2, [b"a"], 7))
    assert (built.held_by("a"), built.held_by("a", 8), built.held_by("a", 7), built.held_by("b")) == (7, 7, None, None)
    flying = built.push(run(3, [b"b"], 8))
    assert (built.held_by("b"), built.held_by("b", 8)) == (8, None), "in flight too"
    built.persist(flying)
    assert built.held_by("b") == 8
    built.persist(built.push(run(4, [b"b"])))
    assert built.held_by("b") is None, "a newer message belongs to nobody"
    built.commit(7)
    assert (built.held_by("a"), built.newest("a")) == (None, 2)


def test_a_plain_message_in_flight_behind_an_undecided_one_is_held_by_nobody() -> None:
    built = KeyIndex(Fold())
    first, second = built.push(run(0, [b"a"], 7)), built.push(run(1, [b"a"]))
    assert built.held_by("a") is None
    built.persist(first)
    assert built.held_by("a") is None
    built.persist(second)
    assert built.held_by("a") is None
    assert built.newest("a") == 1


def test_a_roll_back_takes_each_key_back_to_its_newest_message_without_it() -> None:
    built = index(run(0, [b"a"]), run(1, [b"a", b"b"], 7), run(3, [b"a"], 8))
    watcher: set[str] = set()
    built.watchers.append(watcher)
    built.roll_back(7)
    assert (built.newest("a"), built.newest("b")) == (3, None)
    built.roll_back(8)
    assert (built.newest("a"), built.held_by("a")) == (0, None)
    assert built.state()[:2] == (4, message_id_of(at(3))), "offsets and ids do not step back"
    assert watcher == {"a", "b"}


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_it_says_what_a_look_through_the_log_says(seed: int) -> None:
    rng = random.Random(seed)
    built = KeyIndex(Fold())
    log: list[dict[str, Any]] = []
    flying: list[Run] = []
    for _ in range(rng.randint(1, 60)):
        step = rng.choice(["push", "push", "persist", "commit", "roll back"])
        pointer = rng.choice([None, 1, 2, 3])
        if step == "push":
            keys = [rng.choice([None, b"a", b"b", b"c"]) for _ in range(rng.randint(1, 3))]
            flying.append(built.push(run(len(log), keys, pointer)))
            log += [{"key": key, "pointer": pointer, "counts": True} for key in keys]
        elif step == "persist" and flying:
            built.persist(flying.pop(0))
        elif step != "persist" and pointer is not None and not flying:  # whoever ends a transaction waits for its writes
            (built.commit if step == "commit" else built.roll_back)(pointer)
            for each in log:
                if each["pointer"] == pointer:
                    each["counts"], each["pointer"] = each["counts"] and step == "commit", None
        for key in (b"a", b"b", b"c"):
            offsets = [offset for offset, each in enumerate(log) if each["key"] == key and each["counts"]]
            newest = offsets[-1] if offsets else None
            assert built.newest(key.decode()) == newest, seed
            holder = None if newest is None else log[newest]["pointer"]
            for own in (None, 1, 2, 3):
                assert built.held_by(key.decode(), own) == (None if holder == own else holder), seed
