"""The index of keys says of each key what a naive look through the log would, at every moment."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_dedup import Fold, LastEntry, Run, Snapshot
from oncelog_service.log.key_index import KeyIndex, group_key_entries, key_entries, key_name
from oncelog_service.storage.keys import row_id
from oncelog_service.storage.rows import message_id_of


def at(offset: int) -> bytes:
    return row_id(1_000 + offset, 0)


def run(first: int, keys: list[bytes | None], pointer: int | None = None) -> Run:
    """One request whose messages have these keys."""
    row_ids = [at(first + each) for each in range(len(keys))]
    last_entries = key_entries(keys, row_ids, first)
    return Run(first, len(keys), message_id_of(row_ids[0]), message_id_of(row_ids[-1]), last_entries, pointer)


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
    assert Snapshot.from_bytes(built.snapshot().to_bytes()).last_entries == built.copy()


def test_of_a_request_or_a_group_the_newest_message_of_each_key_counts() -> None:
    assert key_entries(None, [at(0)], 0) == ()
    assert dict(key_entries([b"a", None, b"b", b"a"], [at(each) for each in range(5, 9)], 5)) == {
        "a": LastEntry(8, message_id_of(at(8)), 8),
        "b": LastEntry(7, message_id_of(at(7)), 7),
    }
    payload_id = row_id(900, 3)
    assert group_key_entries({"a": (payload_id, 2)}, at(5), 5) == (("a", LastEntry(7, at(5) + payload_id, 7)),)


def test_nothing_was_ever_published_on_an_empty_topic_nor_by_an_empty_group() -> None:
    built = KeyIndex(Fold())
    assert built.state()[:2] == (0, None)
    built.persist(built.push(Run(0, 0, message_id_of(at(0)), message_id_of(at(0)), (), 7)))
    assert built.state()[:2] == (0, None)
    built.persist(built.push(run(0, [None])))
    assert built.state()[:2] == (1, message_id_of(at(0)))


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


@pytest.mark.parametrize("seed", range(50))
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
        assert built.state().upcoming_offset == len(log), seed
        assert built.state().last_message_id == (message_id_of(at(len(log) - 1)) if log else None), seed
        for key in (b"a", b"b", b"c"):
            offsets = [offset for offset, each in enumerate(log) if each["key"] == key and each["counts"]]
            newest = offsets[-1] if offsets else None
            assert built.newest(key.decode()) == newest, seed
            holder = None if newest is None else log[newest]["pointer"]
            for own in (None, 1, 2, 3):
                assert built.held_by(key.decode(), own) == (None if holder == own else holder), seed
