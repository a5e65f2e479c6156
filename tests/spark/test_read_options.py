"""Options of the source as Spark hands them over."""

from __future__ import annotations

import pickle

import pytest

from oncelog.spark.columns import read_schema
from oncelog.spark.data_source import OncelogDataSource
from oncelog.spark.offsets import AtOffsets, AtTime
from oncelog.spark.read_options import ReadOptions

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


def test_no_topic_is_refused() -> None:
    with pytest.raises(ValueError, match="subscribe"):
        ReadOptions.parse({})


def test_an_unknown_option_warns_and_shows_no_value() -> None:
    with pytest.warns(UserWarning, match=r"unknown option startingofset; known: .*startingOffsets") as warned:
        parsed(startingOfset="s3cret")
    assert "s3cret" not in str(warned[0].message)


def test_an_unknown_option_is_logged_once_however_many_micro_batches_there_are(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with pytest.warns(UserWarning, match="maxoffsetpertriger"):
            parsed(maxOffsetPerTriger="5")
    assert len([record for record in caplog.records if "maxoffsetpertriger" in record.message]) == 1


@pytest.mark.filterwarnings("error")
def test_options_of_sparks_own_do_not_warn() -> None:
    parsed(path="p", checkpointLocation="c", queryName="q")


def test_the_token_is_in_no_text_and_arrives_on_the_executor() -> None:
    options = parsed(token="s3cret")
    assert "s3cret" not in repr(options)
    assert "s3cret" not in str(options)
    there = pickle.loads(pickle.dumps(options))
    assert there == options
    assert there.connection.token == "s3cret"
