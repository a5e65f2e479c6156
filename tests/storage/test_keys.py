"""Keys sort as what they stand for, and no topic's key begins another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.storage.keys import (
    AFTER_ANY,
    FIRST_ROW_ID,
    ROW_ID_SIZE,
    SEQ_BYTES,
    generation_key,
    generation_of,
    pointer_key,
    prefix_end,
    row_id,
    split_row_id,
    split_topic_key,
    timestamp_prefix,
    topic_key,
)

namespaces = st.from_regex(r"[A-Za-z0-9_]{1,12}", fullmatch=True)
topics = st.from_regex(r"[A-Za-z0-9_.\-]{1,12}", fullmatch=True)
timestamps, seq_ids = st.integers(0, 2**62), st.integers(0, 65_535)
ids = st.tuples(timestamps, seq_ids)
generations = st.integers(1, 2**31 - 1)


@given(namespaces, topics, generations, st.binary())
def test_a_topic_key_reads_back(namespace: str, topic: str, generation: int, rest: bytes) -> None:
    assert split_topic_key(topic_key(namespace, topic)) == (namespace, topic)
    prefix = generation_key(topic_key(namespace, topic), generation)
    assert generation_of(prefix) == generation_of(prefix + rest) == prefix


@given(st.tuples(namespaces, topics, generations), st.tuples(namespaces, topics, generations))
def test_no_topics_generation_begins_anothers_keys(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    first, second = (generation_key(topic_key(*each[:2]), each[2]) for each in (one, other))
    assert first.startswith(second) == (one == other)


@given(ids, ids)
def test_row_ids_sort_by_time_then_by_counter_and_read_back_also_from_a_message_id(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert len(row_id(*one)) == ROW_ID_SIZE
    assert split_row_id(row_id(*one)) == split_row_id(row_id(*one) + bytes(10)) == one
    assert (row_id(*one) < row_id(*other)) == (one < other)
    assert FIRST_ROW_ID <= row_id(*one) < AFTER_ANY
    assert row_id(*one).startswith(timestamp_prefix(one[0]))
    assert row_id(*one) < timestamp_prefix(one[0] + 1)


@given(st.tuples(st.integers(0, 2**63 - 1), timestamps, seq_ids), st.tuples(st.integers(0, 2**63 - 1), timestamps, seq_ids))
def test_payload_keys_sort_by_write_pointer_first_and_stay_within_it(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    prefix = generation_key(topic_key("default", "orders"), 1)
    keys = [pointer_key(prefix, each[0]) + row_id(*each[1:]) for each in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)
    assert pointer_key(prefix, one[0]) <= keys[0] < pointer_key(prefix, one[0]) + AFTER_ANY
    assert keys[0].startswith(pointer_key(prefix, other[0])) == (one[0] == other[0])


@given(st.binary(min_size=1, max_size=6).filter(lambda each: any(byte != 0xFF for byte in each)), st.binary(max_size=8))
def test_the_end_of_a_prefix_lies_right_behind_its_keys(prefix: bytes, key: bytes) -> None:
    assert prefix <= prefix + key < prefix_end(prefix)
    assert (prefix <= key < prefix_end(prefix)) == key.startswith(prefix)


def test_every_counter_has_its_two_bytes() -> None:
    assert [int.from_bytes(each, "big") for each in SEQ_BYTES] == list(range(65_536))
    assert {len(each) for each in SEQ_BYTES} == {2}


@pytest.mark.parametrize(
    ("key", "golden"),
    [
        (topic_key("default", "orders"), "64656661756c743a6f72646572733a"),
        (generation_key(topic_key("a", "b"), 1), "613a623a00000001"),
        (row_id(1_790_000_000_000, 258), "000001a0c4506c000102"),
        (row_id(0, 65_535), "0000000000000000ffff"),
        (pointer_key(generation_key(topic_key("a", "b"), 1), 258), "613a623a000000010000000000000102"),
    ],
)
def test_the_layout_of_keys_never_changes(key: bytes, golden: str) -> None:
    assert key.hex() == golden
