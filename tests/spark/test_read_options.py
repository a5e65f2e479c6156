"""Options of the source as Spark hands them over."""

from __future__ import annotations

import pickle

import pytest

from oncelog.spark.data_source import OncelogDataSource
from oncelog.spark.reading.columns import read_schema
from oncelog.spark.reading.offsets import AtOffsets, AtTime, AtTimes
from oncelog.spark.reading.read_options import ReadOptions

BASE = {"url": "http://127.0.0.1:1", "subscribe": "t"}


def parsed(**given: str) -> ReadOptions:
    return ReadOptions.parse({**BASE, **given})


def test_what_is_not_given_has_the_documented_default() -> None:
    options = parsed()
    assert options.topics == ("t",)
    assert (options.start, options.end) == (None, "latest")
    assert (options.max_offsets, options.max_bytes, options.min_partitions) == (None, None, None)
    assert (options.fail_on_data_loss, options.include_headers, options.pushdown) == (True, False, False)
    assert options.poll_wait == 1.0
    assert options.connection.retry_seconds == 120.0


def test_names_may_be_typed_in_any_case() -> None:
    options = parsed(
        maxOffsetsPerTrigger="7", MAXBYTESPERTRIGGER="8", pollwaitms="250", failOnDataLoss="False", retryTimeoutMs="5000"
    )
    assert (options.max_offsets, options.max_bytes, options.poll_wait) == (7, 8, 0.25)
    assert not options.fail_on_data_loss
    assert options.connection.retry_seconds == 5.0


def test_several_topics_have_commas_between_them() -> None:
    assert parsed(subscribe=" b, a,b ,").topics == ("a", "b")
    assert ReadOptions.parse({"topic": "a"}).topics == ("a",)


@pytest.mark.parametrize("text", ["earliest", "EARLIEST"])
def test_a_stream_may_begin_at_the_oldest_message(text: str) -> None:
    assert parsed(startingOffsets=text).start == "earliest"


def test_offsets_are_given_as_json_plainly_or_as_kafka_has_them() -> None:
    options = parsed(subscribe="a,b,c", startingOffsets='{"c": -1, "a": {"0": 5}, "b": -2}', endingOffsets='{"a":7,"b":-1,"c":9}')
    assert options.start == AtOffsets({"a": 5, "b": -2, "c": -1})
    assert options.end == AtOffsets({"a": 7, "b": -1, "c": 9})


def test_a_timestamp_goes_before_offsets_as_in_kafkas_source() -> None:
    options = parsed(startingOffsets="earliest", startingTimestamp="1700000000000", endingTimestamp="1700000000001")
    assert (options.start, options.end) == (AtTime(1_700_000_000_000), AtTime(1_700_000_000_001))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topic": "u"}, "subscribe and topic"),
        ({"subscribe": " , "}, "subscribe"),
        ({"startingOffsets": "newest"}, "startingOffsets"),
        ({"startingOffsets": "[1]"}, "startingOffsets"),
        ({"startingOffsets": '{"u": 1}'}, "startingOffsets"),
        ({"subscribe": "t,u", "startingOffsets": '{"t": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"1": 1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": true}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": -3}'}, "startingOffsets"),
        ({"endingOffsets": '{"t": {"0": {"0": 1}}}'}, "endingOffsets"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "1 MB"}, "maxBytesPerTrigger"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"pollWaitMs": "-1"}, "pollWaitMs"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss"),
        ({"subscribePattern": "t.*"}, "subscribe and subscribePattern"),
        ({"startingOffsetsByTimestamp": '{"t": -1}'}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestamp": '{"u": 1}'}, "startingOffsetsByTimestamp"),
        ({"endingOffsetsByTimestamp": "yesterday"}, "endingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "startingOffsetsByTimestampStrategy is error or latest"),
        ({"subscription": "a b"}, "subscription"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_the_name_of_its_option(given: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        parsed(**given)


@pytest.mark.parametrize("end", [{"endingTimestamp": "1"}, {"endingOffsets": '{"t": 5}'}, {"endingOffsets": "earliest"}])
def test_a_stream_is_refused_an_end(end: dict[str, str]) -> None:
    parsed(endingOffsets="latest").check_stream()
    with pytest.raises(ValueError, match="a stream has no end"):
        OncelogDataSource({**BASE, **end}).streamReader(read_schema(False))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"assign": '{"t": [1]}'}, "assign"),
        ({"assign": "t"}, "assign"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"subscribePattern": "t.*", "startingOffsets": '{"t": 1}'}, "startingOffsets .*a pattern has none"),
    ],
)
def test_topics_that_cannot_be_meant_are_refused(given: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ReadOptions.parse(given)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "subscription"])
def test_a_batch_is_refused_what_is_for_streams(name: str) -> None:
    parsed(**{name: "5"}).check_stream()
    with pytest.raises(ValueError, match=name):
        OncelogDataSource({**BASE, name: "5"}).reader(read_schema(False))


def test_no_topic_is_refused() -> None:
    with pytest.raises(ValueError, match="subscribe"):
        ReadOptions.parse({})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("startingOfset", r"startingofset \(did you mean startingOffsets\?\). Known are .*subscribePattern"),
        ("kafka.bootstrap.servers", "no Kafka here; option url"),
        ("minOffsetsPerTrigger", "minoffsetspertrigger .not supported: give the query a longer trigger"),
        ("zzz", "there is none like it"),
    ],
)
def test_an_unknown_option_is_refused_with_what_was_meant_and_without_its_value(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refusal:
        parsed(**{name: "s3cret"})
    assert "s3cret" not in str(refusal.value)


def test_topics_are_assigned_as_with_kafka_or_named_by_a_pattern() -> None:
    assert ReadOptions.parse({"assign": '{"b": [0], "a": [0]}'}).topics == ("a", "b")
    options = ReadOptions.parse({"subscribePattern": "orders-.*"})
    assert (options.topics, options.pattern) == ((), "orders-.*")
    assert options.start is None


def test_times_are_given_for_each_topic_as_kafka_has_them() -> None:
    options = parsed(subscribe="a,b", startingOffsetsByTimestamp='{"a": {"0": 5}, "b": 6}', startingOffsets="latest")
    assert options.start == AtTimes({"a": 5, "b": 6})
    assert parsed(endingOffsetsByTimestamp='{"t": 7}').end == AtTimes({"t": 7})
    assert parsed(startingOffsetsByTimestamp='{"t": 7}', startingTimestamp="8").start == AtTime(8)
    assert parsed().time_strategy is None
    assert parsed(startingOffsetsByTimestampStrategy="Latest").time_strategy == "latest"


def test_options_of_sparks_own_are_no_unknown_ones() -> None:
    parsed(path="p", checkpointLocation="c", queryName="q")


def test_the_token_is_in_no_text_and_arrives_on_the_executor() -> None:
    options = parsed(token="s3cret")
    assert "s3cret" not in repr(options)
    assert "s3cret" not in str(options)
    there = pickle.loads(pickle.dumps(options))
    assert there == options
    assert there.connection.token == "s3cret"
