"""Where a stream stands and how far its next batch goes: any history, any limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.spark.reading.offsets import (
    AtOffsets,
    AtTime,
    AtTimes,
    Position,
    Range,
    advanced,
    begins,
    capped,
    from_json,
    loss_at,
    pinned,
    place,
    ranges,
    share,
    split,
    to_json,
    unresolved,
)
from oncelog.wire.models import TopicOffsets

TOPICS = ("a", "b", "c")


def known(
    settled: int, earliest: int = 0, generation: int = 1, at_timestamp: int | None = None, within: int | None = None
) -> TopicOffsets:
    return TopicOffsets(generation=generation, earliest=earliest, settled=settled, at_timestamp=at_timestamp, within=within)


# --- the text in Spark's log


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=3), st.builds(Position, *[st.integers(0, 2**62)] * 3)))
def test_positions_come_back_from_sparks_log_as_they_were(positions: dict[str, Position]) -> None:
    assert from_json(json.loads(json.dumps(to_json(positions)))) == positions


def test_the_text_is_the_one_that_checkpoints_hold() -> None:
    text = '{"v": 1, "topics": {"t": {"base": 5, "pos": 9, "generation": 1}}}'
    assert json.dumps(to_json({"t": Position(5, 9, 1)})) == text


@pytest.mark.parametrize(
    ("edge", "start"),
    [
        ("latest", "latest"),
        ("earliest", "earliest"),
        (AtTime(7), {"timestamp": 7}),
        (AtTimes({"t": 7}), {"timestamps": {"t": 7}}),
        (AtOffsets({"t": -1}), {"offsets": {"t": -1}}),
    ],
)
def test_a_beginning_that_is_not_resolved_has_no_positions(edge: object, start: object) -> None:
    offset = unresolved(edge)  # type: ignore[arg-type]
    assert offset == {"v": 1, "start": start}
    assert from_json(json.loads(json.dumps(offset))) is None


@pytest.mark.parametrize("offset", [{"v": 2, "topics": {}}, {"topics": {}}])
def test_an_offset_of_another_version_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="version"):
        from_json(offset)


# --- where to begin


@pytest.mark.parametrize(
    ("edge", "offset"),
    [
        ("earliest", 3),
        ("latest", 10),
        (AtTime(1), 7),
        (AtOffsets({"t": 5}), 5),
        (AtOffsets({"t": -2}), 3),
        (AtOffsets({"t": -1}), 10),
    ],
)
def test_a_stream_is_pinned_by_an_empty_batch_at_its_beginning(edge: object, offset: int) -> None:
    positions = pinned(edge, {"t": known(10, 3, generation=4, at_timestamp=7)})  # type: ignore[arg-type]
    assert positions == {"t": Position(offset, offset, 4, oldest=offset == 3)}
    assert ranges(positions) == []


def test_a_time_that_no_settled_message_has_reached_is_the_settled_end() -> None:
    assert place(AtTime(1), "t", known(10, at_timestamp=12)) == 10
    assert place(AtTime(1), "t", known(10)) == 10


def test_a_beginning_beyond_the_messages_is_refused_and_not_waited_for() -> None:
    with pytest.raises(ValueError, match="startingOffsets: 11 of topic t, whose messages go up to 10"):
        pinned(AtOffsets({"t": 11}), {"t": known(10)})


# --- advancing


@settings(max_examples=50)
@given(data=st.data())
def test_batches_under_any_limits_cover_every_offset_exactly_once(data: st.DataObject) -> None:
    limit = data.draw(st.none() | st.integers(1, 15), "limit")
    logs = {topic: data.draw(st.integers(0, 12), f"messages of {topic} at first") for topic in TOPICS}
    positions = pinned("earliest", {topic: known(0) for topic in TOPICS})
    read: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    more = [data.draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12)), "more") for _ in range(3)]
    while True:
        bytes_say = {topic: data.draw(st.none() | st.integers(positions[topic].pos + 1, 100), "within") for topic in TOPICS}
        answers = {topic: known(upto, within=bytes_say[topic]) for topic, upto in logs.items()}
        at, losses = begins(positions, answers)
        assert losses == []
        end = advanced(positions, at, answers, max_offsets=limit, within=True)
        if end is None:
            assert {topic: one.pos for topic, one in positions.items()} == logs
            if not more:
                break
            for topic, count in more.pop().items():
                logs[topic] += count
            continue
        batch = ranges(end)
        taken = sum(one.upto - one.first for one in batch)
        assert 0 < taken <= (limit or 1_000)
        for topic, first, upto, *_ in batch:
            read[topic] += range(first, upto)
            assert upto <= min(logs[topic], bytes_say[topic] or 1_000)
        positions = end
    assert read == {topic: list(range(upto)) for topic, upto in logs.items()}


def test_without_news_the_batch_is_none() -> None:
    positions = {"t": Position(0, 5, 1)}
    assert advanced(positions, {"t": 5}, {"t": known(5)}) is None
    assert advanced(positions, {"t": 5}, {"t": known(3)}) is None, "what is not settled any more is waited for"


def test_a_topic_subscribed_to_later_begins_at_its_oldest_message() -> None:
    positions, answers = {"a": Position(3, 5, 1)}, {"a": known(5), "b": known(9, 2, generation=3)}
    at, losses = begins(positions, answers)
    assert (at, losses) == ({"a": 5, "b": 2}, [])
    assert advanced(positions, at, answers) == {"a": Position(5, 5, 1), "b": Position(2, 9, 3, oldest=True)}


def test_an_empty_topic_subscribed_to_later_is_noted_once() -> None:
    positions, answers = {"a": Position(3, 5, 1)}, {"a": known(5), "b": known(0)}
    end = advanced(positions, begins(positions, answers)[0], answers)
    assert end == {"a": Position(5, 5, 1), "b": Position(0, 0, 1, oldest=True)}
    assert advanced(end, begins(end, answers)[0], answers) is None


def test_a_topic_not_subscribed_to_any_more_keeps_its_place() -> None:
    positions = {"a": Position(3, 5, 1), "b": Position(0, 4, 1)}
    end = advanced(positions, {"a": 5}, {"a": known(8)})
    assert end == {"a": Position(5, 8, 1), "b": Position(4, 4, 1)}
    assert begins(end, {"b": known(9)})[0] == {"b": 4}


@given(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 50)), st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 50)))
def test_available_now_ends_at_the_target_whatever_comes_meanwhile(before: dict[str, int], growth: dict[str, int]) -> None:
    target = {topic: known(upto) for topic, upto in before.items()}
    now = {topic: known(upto + growth.get(topic, 0)) for topic, upto in before.items()}
    assert capped(now, target) == target


def test_a_topic_made_anew_behind_the_target_has_nothing_for_this_run() -> None:
    assert capped({"t": known(9, 2, generation=2)}, {"t": known(100)})["t"].settled == 2


# --- what is lost


def test_messages_that_are_gone_are_noticed_with_what_is_lost() -> None:
    at, [loss] = begins({"t": Position(0, 5, 1)}, {"t": known(20, 8)})
    assert at == {"t": 8}
    assert str(loss).startswith("topic t: the messages from offset 5 to 7 are not there any more")


def test_a_topic_deleted_and_created_anew_is_a_loss_and_begins_at_its_oldest_message() -> None:
    at, [loss] = begins({"t": Position(0, 5, 1)}, {"t": known(20, 0, generation=2)})
    assert at == {"t": 0}
    assert "deleted and created anew" in str(loss)
    assert advanced({"t": Position(0, 5, 1)}, at, {"t": known(20, generation=2)}) == {"t": Position(0, 20, 2)}


def test_nothing_is_lost_where_reading_goes_on_at_the_oldest_message() -> None:
    assert loss_at("t", 8, 1, known(20, 8)) is None
    assert loss_at("t", 8, None, known(20, 8, generation=9)) is None


def test_what_a_stream_from_the_oldest_message_never_read_is_not_missed() -> None:
    pin = pinned("earliest", {"t": known(5)})
    assert begins(pin, {"t": known(9, 4)}) == ({"t": 4}, [])
    assert begins({"t": Position(0, 0, 1)}, {"t": known(9, 4)})[1] != [], "unlike one that was told where to begin"
    read = advanced(pin, {"t": 4}, {"t": known(9, 4)})
    assert read == {"t": Position(4, 9, 1, oldest=True)}
    assert begins(read, {"t": known(20, 12)})[1] != []
    assert advanced(read, {"t": 9}, {"t": known(20, 4)}) == {"t": Position(9, 20, 1)}


# --- sharing and splitting


@given(st.integers(0, 100), st.dictionaries(st.text(max_size=2), st.integers(0, 60), max_size=6))
def test_what_is_shared_is_all_there_is_and_nobody_gets_more_than_wished(total: int, wishes: dict[str, int]) -> None:
    shares = share(total, wishes)
    assert shares.keys() == wishes.keys()
    assert sum(shares.values()) == min(total, sum(wishes.values()))
    assert all(0 <= shares[name] <= wishes[name] for name in wishes)
    waiting = [name for name in wishes if wishes[name]]
    if total >= len(waiting):
        assert all(shares[name] for name in waiting)


def test_a_limit_is_shared_in_proportion_to_what_waits() -> None:
    assert share(100, {"a": 9_000, "b": 1_000, "c": 0}) == {"a": 90, "b": 10, "c": 0}


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(1, 50)), max_size=5),
    st.none() | st.integers(1, 40),
)
def test_splits_are_dense_in_order_and_as_many_as_asked_for(sizes: list[tuple[int, int]], parts: int | None) -> None:
    whole = [Range(str(index), first, first + size, 1) for index, (first, size) in enumerate(sizes)]
    pieces = split(whole, parts)
    assert [(p.topic, offset) for p in pieces for offset in range(p.first, p.upto)] == [
        (one.topic, offset) for one in whole for offset in range(one.first, one.upto)
    ]
    assert all(piece.first < piece.upto for piece in pieces)
    messages = sum(size for _, size in sizes)
    assert len(pieces) == max(len(whole), min(parts or 0, messages))
