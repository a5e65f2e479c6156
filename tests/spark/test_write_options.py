"""The options of the sink: read as documented, refused by name, and telling nobody the token."""

from __future__ import annotations

import pickle
import warnings

import pytest

from oncelog.spark.connection import RETRY_SECONDS
from oncelog.spark.writing.write_options import GROUP, NAMES, STAGING_SECONDS, WriteOptions
from oncelog.transactions.chunks import MAX_MESSAGES


def test_without_options_there_are_defaults() -> None:
    options = WriteOptions.parse({})
    assert (options.topic, options.producer, options.sequence_id, options.take_over) == (None, None, None, None)
    assert (options.group, options.keep_producers, options.chunk_messages) == (GROUP, False, MAX_MESSAGES)
    assert (options.staging_timeout, options.connection.retry_seconds) == (STAGING_SECONDS, RETRY_SECONDS)


@pytest.mark.parametrize("cased", [str, str.lower], ids=["as documented", "as Spark hands them over"])
def test_every_option_is_read_in_any_case(cased: type[str]) -> None:
    given = {
        "url": "http://there:1", "namespace": "n", "token": "s3cret", "topic": "t", "producer": "p", "sequenceId": "7",
        "takeOver": "old", "group": "g", "stagingTimeoutMs": "1500", "keepProducers": "True", "chunkMessages": "9",
        "retryTimeoutMs": "2500", "onDifferentRows": "Warn",
        "ca": "/ca.pem", "cert": "/cert.pem", "key": "/key.pem", "proxy": "http://proxy:1",
    }  # fmt: skip
    assert sorted(given) == sorted(NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = WriteOptions.parse({cased(name): value for name, value in given.items()})
    there = options.connection
    assert (there.url, there.namespace, there.token, there.retry_seconds) == ("http://there:1", "n", "s3cret", 2.5)
    assert (there.ca, there.cert, there.key, there.proxy) == ("/ca.pem", "/cert.pem", "/key.pem", "http://proxy:1")
    assert (options.topic, options.producer, options.sequence_id, options.take_over) == ("t", "p", 7, "old")
    assert (options.group, options.staging_timeout, options.keep_producers, options.chunk_messages) == ("g", 1.5, True, 9)
    assert options.warns_of_other_rows
    assert not WriteOptions.parse({"onDifferentRows": "fail"}).warns_of_other_rows


def test_an_unknown_option_is_refused_and_sparks_own_are_not() -> None:
    sparks = {"path": "x", "checkpointlocation": "y", "queryname": "z"}
    WriteOptions.parse(sparks)
    with pytest.raises(ValueError, match=r"unknown option tpoic .did you mean topic.*keepProducers"):
        WriteOptions.parse({"tpoic": "t", **sparks})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"sequenceId": "-1"}, "option sequenceId is at least 0"),
        ({"sequenceId": "first"}, "option sequenceId is a whole number"),
        ({"stagingTimeoutMs": "0"}, "option stagingTimeoutMs is at least 1"),
        ({"chunkMessages": "0"}, "option chunkMessages is at least 1"),
        ({"keepProducers": "yes"}, "option keepProducers is true or false"),
        ({"producer": "a b"}, "option producer is 1 to 249 of the characters"),
        ({"producer": ""}, "option producer is 1 to 249"),
        ({"onDifferentRows": "ignore"}, "option onDifferentRows is fail or warn"),
        ({"group": ".."}, "option group is 1 to 249"),
        ({"takeOver": "old"}, "takeOver takes over the name in option producer"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        WriteOptions.parse(given)


def test_a_batch_is_numbered_by_both_or_neither_and_never_overwrites() -> None:
    WriteOptions.parse({"producer": "p", "sequenceId": "1"}).check_batch(False)
    WriteOptions.parse({}).check_batch(False)
    for half in ({"producer": "p"}, {"sequenceId": "1"}):
        with pytest.raises(ValueError, match="producer and sequenceId go together"):
            WriteOptions.parse(half).check_batch(False)
    with pytest.raises(ValueError, match="never overwritten"):
        WriteOptions.parse({}).check_batch(True)


def test_a_stream_is_numbered_by_spark() -> None:
    WriteOptions.parse({"producer": "p"}).check_stream()
    with pytest.raises(ValueError, match="sequenceId is for batches"):
        WriteOptions.parse({"producer": "p", "sequenceId": "1"}).check_stream()


def test_options_travel_and_their_text_holds_no_token() -> None:
    options = WriteOptions.parse({"token": "s3cret", "topic": "t"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert "s3cret" not in repr(options)
