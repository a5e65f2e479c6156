"""Where a stream stands and how far its next batch goes: any history, any limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
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
    fitting,
    from_json,
    loss_at,
    offset_of,
    pinned,
    ranges,
    share,
    split,
    to_json,
    unresolved,
)
from oncelog.wire.models import TopicOffsets

TOPICS = ("a", "b", "c")


def known(stable: int, earliest: int = 0, generation: int = 1, at_timestamp: int | None = None) -> TopicOffsets:
    return TopicOffsets(generation=generation, earliest=earliest, stable=stable, at_timestamp=at_timestamp)


# --- the text in Spark's log


@given(st.dictionaries(st.text(max_size=3), st.builds(Position, *[st.integers(0, 2**62)] * 3)))
def test_positions_come_back_from_sparks_log_as_they_were(positions: dict[str, Position]) -> None:
    assert from_json(json.loads(json.dumps(to_json(positions)))) == positions


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (to_json({"t": Position(5, 9, 1)}), '{"v": 1, "topics": {"t": {"base": 5, "pos": 9, "generation": 1}}}'),
        (unresolved("latest"), '{"v": 1, "start": "latest"}'),
        (unresolved("earliest"), '{"v": 1, "start": "earliest"}'),
        (unresolved(AtTime(7)), '{"v": 1, "start": {"timestamp": 7}}'),
        (unresolved(AtTimes({"t": 7})), '{"v": 1, "start": {"timestamps": {"t": 7}}}'),
        (unresolved(AtOffsets({"t": -1})), '{"v": 1, "start": {"offsets": {"t": -1}}}'),
    ],
)
def test_the_text_is_the_one_that_checkpoints_hold(offset: dict[str, object], text: str) -> None:
    assert json.dumps(offset) == text
    assert (from_json(offset) is None) == ("start" in offset), "what is not resolved has no positions"


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


@pytest.mark.parametrize(("at_timestamp", "found"), [(2, 3), (7, 7), (12, 10), (None, 10)])
def test_a_time_means_an_offset_that_is_there_and_stable(at_timestamp: int | None, found: int) -> None:
    assert offset_of(AtTime(1), known(10, 3, at_timestamp=at_timestamp)) == found


def test_a_beginning_beyond_the_messages_is_refused_and_not_waited_for() -> None:
    with pytest.raises(ValueError, match="startingOffsets: 11 of topic t, whose messages go up to 10"):
        pinned(AtOffsets({"t": 11}), {"t": known(10)})


# --- advancing


@given(data=st.data())
def test_batches_under_any_limits_cover_every_offset_exactly_once(data: st.DataObject) -> None:
    limit = data.draw(st.none() | st.integers(1, 15), "limit")
    logs = {topic: data.draw(st.integers(0, 12), f"messages of {topic} at first") for topic in TOPICS}
    positions = pinned("earliest", {topic: known(0) for topic in TOPICS})
    read: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    more = [data.draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12)), "more") for _ in range(3)]
    while True:
        bytes_say = {topic: data.draw(st.none() | st.integers(positions[topic].pos + 1, 100), "within") for topic in TOPICS}
        answers = {topic: known(min(upto, bytes_say[topic] or upto)) for topic, upto in logs.items()}
        at, losses = begins(positions, answers)
        assert losses == []
        end = advanced(positions, at, answers, limit)
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


A, B = Position(3, 5, 1), Position(0, 4, 1)


@pytest.mark.parametrize(
    ("positions", "answers", "end"),
    [
        ({"a": A}, {"a": known(5)}, None),
        ({"a": A}, {"a": known(4)}, None),  # what is not stable any more is waited for
        ({"a": A}, {"a": known(5), "b": known(9, 2, 3)}, {"a": Position(5, 5, 1), "b": Position(2, 9, 3, oldest=True)}),
        ({"a": A}, {"a": known(5), "b": known(0)}, {"a": Position(5, 5, 1), "b": Position(0, 0, 1, oldest=True)}),
        ({"b": Position(0, 0, 1, True)}, {"b": known(0)}, None),  # an empty one is noted once
        ({"b": Position(0, 0, 1, True)}, {"b": known(9, 4)}, {"b": Position(4, 9, 1, oldest=True)}),
        ({"b": Position(4, 9, 1, True)}, {"b": known(20, 4)}, {"b": Position(9, 20, 1)}),
        ({"a": A, "b": B}, {"a": known(8)}, {"a": Position(5, 8, 1), "b": Position(4, 4, 1)}),  # b keeps its place
        ({"a": A, "b": B}, {"b": known(4)}, None),
        ({"a": A}, {"a": known(20, 0, 2)}, {"a": Position(0, 20, 2)}),
    ],
)
def test_a_batch_goes_from_where_each_topic_stands_to_what_is_stable(
    positions: dict[str, Position], answers: dict[str, TopicOffsets], end: dict[str, Position] | None
) -> None:
    assert advanced(positions, begins(positions, answers)[0], answers) == end


@given(st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 50)), st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 50)))
def test_available_now_ends_at_the_target_whatever_comes_meanwhile(before: dict[str, int], growth: dict[str, int]) -> None:
    target = {topic: known(upto) for topic, upto in before.items()}
    now = {topic: known(upto + growth.get(topic, 0)) for topic, upto in before.items()}
    assert capped(now, target) == target


def test_a_topic_made_anew_behind_the_target_has_nothing_for_this_run() -> None:
    assert capped({"t": known(9, 2, generation=2)}, {"t": known(100)})["t"].stable == 2


def test_what_fits_into_the_bytes_is_read_and_nothing_of_a_topic_made_anew_between_two_answers() -> None:
    at, first = dict.fromkeys(TOPICS, 5), dict.fromkeys(TOPICS, known(10))
    asked = {"a": known(12).model_copy(update={"within": 7}), "b": known(9, generation=2).model_copy(update={"within": 9})}
    assert {topic: one.stable for topic, one in fitting(at, first, asked).items()} == {"a": 7, "b": 5, "c": 10}


# --- what is lost


@pytest.mark.parametrize(
    ("position", "answer", "at", "says"),
    [
        (Position(0, 5, 1), known(20, 5), 5, None),
        (Position(0, 5, 1), known(20, 8), 8, "topic t: the messages from offset 5 to 7 are not there any more"),
        (Position(0, 5, 1), known(20, 0, 2), 0, "topic t was deleted and created anew"),
        (Position(0, 0, 1), known(9, 4), 4, "topic t: the messages from offset 0 to 3"),
        (Position(0, 0, 1, oldest=True), known(9, 4), 4, None),  # nothing was read, and the oldest was asked for
        (Position(0, 0, 1, oldest=True), known(9, 0, 2), 0, "topic t was deleted and created anew"),
        (Position(4, 9, 1, oldest=True), known(20, 12), 12, "topic t: the messages from offset 9 to 11"),
        (None, known(20, 8), 8, None),
    ],
)
def test_what_is_lost_is_what_would_have_been_read(
    position: Position | None, answer: TopicOffsets, at: int, says: str | None
) -> None:
    found, losses = begins({} if position is None else {"t": position}, {"t": answer})
    assert found == {"t": at}
    assert [str(loss)[: len(says or "")] for loss in losses] == ([] if says is None else [says])


def test_a_range_without_a_generation_is_not_of_another_one() -> None:
    assert loss_at("t", 8, None, known(20, 8, generation=9)) is None


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
    whole = [Range(str(index), first, first + size, 1, oldest=True) for index, (first, size) in enumerate(sizes)]
    pieces = split(whole, parts)
    assert [(p.topic, offset) for p in pieces for offset in range(p.first, p.upto)] == [
        (one.topic, offset) for one in whole for offset in range(one.first, one.upto)
    ]
    assert all(piece.first < piece.upto for piece in pieces)
    begins_whole = {(one.topic, one.first) for one in whole}
    assert all(piece.oldest == ((piece.topic, piece.first) in begins_whole) for piece in pieces), "behind it something was read"
    messages = sum(size for _, size in sizes)
    assert len(pieces) == max(len(whole), min(parts or 0, messages))
