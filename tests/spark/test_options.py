"""Options of source and sink as Spark hands them over: read as documented, refused by name, and showing nobody the token."""

from __future__ import annotations

import pickle
import pickletools
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from oncelog.errors import Unauthorized
from oncelog.http.trust import Trust
from oncelog.spark.connection import Connection
from oncelog.spark.data_source import OncelogDataSource
from oncelog.spark.reading.columns import read_schema
from oncelog.spark.reading.offsets import AtOffsets, AtTime, AtTimes
from oncelog.spark.reading.read_options import ReadOptions
from oncelog.spark.shipping import shipped
from oncelog.spark.writing.staging import abort_quietly
from oncelog.spark.writing.write_options import NAMES, WriteOptions
from tests.world.service import running_service

SERVICE = {
    "url": "http://there:1", "namespace": "n", "token": "s3cret", "retryTimeoutMs": "2500",
    "ca": "/ca.pem", "cert": "/cert.pem", "key": "/key.pem", "proxy": "http://proxy:1",
}  # fmt: skip
THERE = Connection("http://there:1", "n", "s3cret", 2.5, Trust("/ca.pem", "/cert.pem", "/key.pem", "http://proxy:1"))
LEAST = replace(Connection.chosen(None, None, None), url="http://127.0.0.1:7070", namespace="default", retry_seconds=120.0)


def test_without_options_there_are_the_documented_defaults() -> None:
    assert ReadOptions.parse({"subscribe": "t"}) == ReadOptions(
        LEAST, ("t",), start=None, end="latest", max_offsets=None, max_bytes=None, min_partitions=None, fail_on_data_loss=True,
        include_headers=False, poll_wait=1.0, pushdown=False, pattern=None, time_strategy=None, subscription=None,
    )  # fmt: skip
    assert WriteOptions.parse({}) == WriteOptions(
        LEAST, topic=None, producer=None, sequence_id=None, take_over=None, warns_of_other_rows=False, group="spark",
        staging_timeout=3600.0, keep_producers=False, chunk_messages=5000,
    )  # fmt: skip


@pytest.mark.parametrize("cased", [str, str.lower, str.upper])
def test_every_option_is_read_in_any_case(cased: Any) -> None:
    given = SERVICE | {
        "subscribe": " b, a,b ,", "startingOffsets": "EARLIEST", "maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "8",
        "minPartitions": "2", "failOnDataLoss": "False", "includeHeaders": "true", "pollWaitMs": "250", "pushdown": "true",
        "startingOffsetsByTimestampStrategy": "Latest", "subscription": "s", "path": "p", "queryName": "q",
    }  # fmt: skip
    assert ReadOptions.parse({cased(name): value for name, value in given.items()}) == ReadOptions(
        THERE, ("a", "b"), "earliest", "latest", 7, 8, 2, False, True, 0.25, True, None, "latest", "s"
    )
    given = SERVICE | {
        "topic": "t", "producer": "p", "sequenceId": "7", "takeOver": "old", "group": "g", "stagingTimeoutMs": "1500",
        "keepProducers": "True", "chunkMessages": "9", "onDifferentRows": "Warn",
    }  # fmt: skip
    assert sorted([*given, "tokenFile"]) == sorted(NAMES)
    assert WriteOptions.parse({cased(name): value for name, value in {**given, "checkpointLocation": "c"}.items()}) == (
        WriteOptions(THERE, "t", "p", 7, "old", True, "g", 1.5, True, 9)
    )


def test_the_least_that_may_be_given_may_be_given() -> None:
    least = {"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1", "minPartitions": "1", "pollWaitMs": "0"}
    read = ReadOptions.parse({"topic": "t", "startingTimestamp": "0", **least})
    assert (read.start, read.max_offsets, read.max_bytes, read.min_partitions, read.poll_wait) == (AtTime(0), 1, 1, 1, 0.0)
    wrote = WriteOptions.parse({"producer": "p", "sequenceId": "0", "stagingTimeoutMs": "1", "chunkMessages": "1"})
    assert (wrote.sequence_id, wrote.staging_timeout, wrote.chunk_messages) == (0, 0.001, 1)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"topic": "a"}, {"topics": ("a",)}),
        ({"assign": '{"b": [0], "a": [0]}'}, {"topics": ("a", "b")}),
        ({"subscribePattern": "orders-.*"}, {"topics": (), "pattern": "orders-.*"}),
        ({"topic": "t", "startingOffsets": "latest", "endingOffsets": "latest"}, {"start": "latest"}),
        (
            {"subscribe": "a,b", "startingOffsets": '{"b": -1, "a": {"0": 5}}', "endingOffsets": '{"a": 7, "b": -1}'},
            {"start": AtOffsets({"a": 5, "b": -1}), "end": AtOffsets({"a": 7, "b": -1}), "topics": ("a", "b")},
        ),
        ({"topic": "t", "startingOffsets": "earliest", "startingTimestamp": "8"}, {"start": AtTime(8)}),
        ({"topic": "t", "startingOffsetsByTimestamp": '{"t": 7}', "startingTimestamp": "8"}, {"start": AtTime(8)}),
        ({"topic": "t", "endingTimestamp": "9"}, {"end": AtTime(9)}),
        (
            {"subscribe": "a,b", "startingOffsetsByTimestamp": '{"a": {"0": 5}, "b": 6}', "startingOffsets": "latest"},
            {"start": AtTimes({"a": 5, "b": 6}), "topics": ("a", "b")},
        ),
        ({"topic": "t", "endingOffsetsByTimestamp": '{"t": 7}'}, {"end": AtTimes({"t": 7})}),
    ],
)  # fmt: skip
def test_where_reading_begins_and_ends_is_said_as_in_kafkas_source(given: dict[str, str], read: dict[str, Any]) -> None:
    assert ReadOptions.parse(given) == replace(ReadOptions(LEAST, ("t",)), **read)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "which topic. Option subscribe"),
        ({"subscribe": "t", "topic": "u"}, "subscribe and topic"),
        ({"subscribe": " , "}, "option subscribe names no topic"),
        ({"subscribe": "t", "subscribePattern": "t.*"}, "subscribe and subscribePattern"),
        ({"subscribePattern": "("}, "subscribePattern"),
        ({"subscribePattern": "t.*", "startingOffsets": '{"t": 1}'}, "startingOffsets .*a pattern has none"),
        ({"assign": '{"t": [1]}'}, "assign"),
        ({"assign": "t"}, "assign"),
        ({"subscribe": "t,u", "startingOffsets": '{"t": 1}'}, "startingOffsets"),
        ({"topic": "t", "kafka.bootstrap.servers": "s3cret"}, "no Kafka here; option url"),
        ({"topic": "t", "minOffsetsPerTrigger": "s3cret"}, "minoffsetspertrigger .not supported: give the query a longer"),
        ({"topic": "t", "zzz": "s3cret"}, "there is none like it"),
        ({"topic": "t", "startingOfset": "s3cret"}, r"startingofset \(did you mean startingOffsets\?\). Known are .*Pattern"),
        *(
            ({"topic": "t", option: text}, option)
            for option, texts in {
                "startingOffsets": (
                    "newest", "[1]", '{"u": 1}', '{"t": 1, "u": 1}', '{"t": {"1": 1}}', '{"t": true}', '{"t": -3}',
                ),
                "endingOffsets": ('{"t": {"0": {"0": 1}}}',),
                "startingTimestamp": ("yesterday", "-1"),
                "startingOffsetsByTimestamp": ('{"t": -1}', '{"u": 1}'),
                "endingOffsetsByTimestamp": ("yesterday",),
                "startingOffsetsByTimestampStrategy": ("earliest",),
                "maxOffsetsPerTrigger": ("0",),
                "maxBytesPerTrigger": ("1 MB", "0"),
                "minPartitions": ("0",),
                "pollWaitMs": ("-1",),
                "failOnDataLoss": ("no",),
                "subscription": ("a b", ".."),
            }.items()
            for text in texts
        ),
    ],
)  # fmt: skip
def test_what_a_source_cannot_mean_is_refused_by_name_and_without_a_value_of_an_unknown(
    given: dict[str, str], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        ReadOptions.parse(given)
    assert "s3cret" not in str(refusal.value)


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
        ({"producer": "."}, "option producer is 1 to 249"),
        ({"producer": ".."}, "but not . or .., not '..'"),
        ({"onDifferentRows": "ignore"}, "option onDifferentRows is fail or warn"),
        ({"group": ".."}, "option group is 1 to 249"),
        ({"takeOver": "old"}, "takeOver takes over the name in option producer"),
        ({"tpoic": "s3cret", "path": "x"}, r"unknown option tpoic .did you mean topic.*keepProducers"),
    ],
)
def test_what_a_sink_cannot_mean_is_refused_by_name(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        WriteOptions.parse(given)
    assert "s3cret" not in str(refusal.value)


STREAMS_ONLY = [{name: "5"} for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "subscription")]
BATCHES_ONLY = [{"endingTimestamp": "1"}, {"endingOffsets": '{"t": 5}'}]
NEITHER_END = [{"startingOffsets": "latest"}, {"startingOffsets": '{"t": -1}'}, {"endingOffsets": '{"t": -2}'}]


@pytest.mark.parametrize(
    ("given", "stream", "batch"),
    [
        *((each, None, next(iter(each))) for each in (*STREAMS_ONLY, *NEITHER_END[:2])),
        *((each, "a stream has no end", None) for each in BATCHES_ONLY),
        *((each, "a stream has no end", "endingOffsets") for each in (NEITHER_END[2], {"endingOffsets": "earliest"})),
    ],
)
def test_a_source_is_refused_what_is_only_for_streams_or_only_for_batches(
    given: dict[str, str], stream: str | None, batch: str | None
) -> None:
    source = OncelogDataSource({"url": "http://127.0.0.1:1", "topic": "t", **given})
    for make, problem in ((source.streamReader, stream), (source.reader, batch)):
        if problem is None:
            make(read_schema(False))
        else:
            with pytest.raises(ValueError, match=problem):
                make(read_schema(False))


def test_a_batch_is_numbered_by_both_or_neither_and_a_stream_by_spark() -> None:
    both, one, number = {"producer": "p", "sequenceId": "1"}, {"producer": "p"}, {"sequenceId": "1"}
    for given in (both, {}):
        WriteOptions.parse(given).check_batch(False)
    WriteOptions.parse(one).check_stream()
    for given in (one, number):
        with pytest.raises(ValueError, match="producer and sequenceId go together"):
            WriteOptions.parse(given).check_batch(False)
    with pytest.raises(ValueError, match=r'never overwritten: write with \.mode\("append"\)'):
        WriteOptions.parse({}).check_batch(True)
    with pytest.raises(ValueError, match="sequenceId is for batches"):
        WriteOptions.parse(both).check_stream()


@pytest.mark.parametrize("options", [ReadOptions.parse({"topic": "t", **SERVICE}), WriteOptions.parse(SERVICE)])
def test_options_travel_with_their_token_and_their_text_holds_none(options: ReadOptions | WriteOptions) -> None:
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.connection.token == "s3cret"
    assert "s3cret" not in f"{options!r}{options}"


# --- secrets


def asked(options: CaseInsensitiveDict, ask: Any) -> str:
    """What Spark's worker shows under SPARK_TRACEBACK_WITH_LOCALS=1; it keeps the options in a variable of its own, too."""
    try:
        ask(OncelogDataSource(options=options))
    except Exception as error:
        shown = traceback.TracebackException(type(error), error, error.__traceback__, compact=True, capture_locals=True)
        return "".join(shown.format())
    raise AssertionError("it was not refused")


@pytest.mark.parametrize(
    "ask",
    [
        lambda source: source.schema(),
        lambda source: source.reader(read_schema(False)),
        lambda source: source.streamReader(read_schema(False)),
        lambda source: source.writer(StructType().add("value", "binary"), False),
        lambda source: source.streamWriter(StructType().add("value", "binary"), False),
    ],
    ids=["schema", "reader", "streamReader", "writer", "streamWriter"],
)
@pytest.mark.parametrize(
    "given",
    [
        {"tpoic": "x", "token": "s3cret"},
        {"Token": "s3cret", "retryTimeoutMs": "never"},
        {"tokne": "s3cret"},
        {"proxy": "htp://user:s3cret@proxy:1"},
        {"url": "http://user:s3cret@there:1", "retryTimeoutMs": "never"},
        {"kafka.sasl.jaas.config": 'password="s3cret"'},
        {"token": "s3cret\nmore"},
        {"token": "s3cret", "tokenFile": "/run/token"},
    ],
)
def test_a_refused_option_shows_no_secret_beside_it_not_even_in_the_variables_of_its_frames(
    given: dict[str, str], ask: Any
) -> None:
    shown = asked(CaseInsensitiveDict({"topic": "t", **given}), ask)
    assert "s3cret" not in shown
    assert "ValueError" in shown


def test_a_token_in_a_file_is_read_where_it_is_used_and_again_when_it_has_changed(tmp_path: Path) -> None:
    """So it is in no plan, and nothing of it travels."""
    with running_service(token="s3cret") as service:
        for parse in (ReadOptions.parse, WriteOptions.parse):
            file = tmp_path / parse.__qualname__
            options: Any = parse({"url": service.url, "topic": "t", "tokenFile": str(file), "retryTimeoutMs": "0"})
            arrived = pickle.loads(pickle.dumps(options)).connection
            with pytest.raises(ValueError, match=f"option tokenFile: {file} cannot be read"):
                arrived.client()
            file.write_text("an older one\n")
            with pytest.raises(Unauthorized):
                arrived.client().topics()
            file.write_text("s3cret\n")
            assert arrived.client().topics() == []
            assert arrived.client() is arrived.client()
            assert b"s3cret" not in pickle.dumps(options)


def test_a_token_file_that_is_of_no_use_for_a_moment_ends_nothing_that_has_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As while it is written anew: behind a commit, or in the midst of dropping what an attempt has staged."""
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    with running_service(token="s3cret") as service:
        options = WriteOptions.parse({"url": service.url, "topic": "t", "tokenFile": str(file), "retryTimeoutMs": "0"})
        known = options.connection.client()
        file.write_text("")
        assert options.connection.client() is known
        abort_quietly(options, (), "batch-")  # with a client of its own
        file.unlink()
        assert options.connection.client().topics() == []
    assert "the token of before is used on: option tokenFile" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_token_in_a_file_comes_before_that_of_the_drivers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_TOKEN", "of the environment")
    assert WriteOptions.parse({"tokenFile": "/run/token"}).connection.token is None
    with pytest.raises(ValueError, match="options token and tokenFile exclude each other"):
        WriteOptions.parse({"token": "s3cret", "tokenFile": "/run/token"})


def test_a_data_source_that_was_asked_travels_to_where_the_package_is_not() -> None:
    """Its secrets are of a class of the package while it is asked, and plain text on their way."""
    source = shipped()(CaseInsensitiveDict({"topic": "t", "token": "s3cret", "includeHeaders": "true"}))
    source.schema()
    assert "s3cret" not in repr(source.options)
    data = cloudpickle.dumps(source)
    assert "oncelog.http.credentials" not in [arg for _, arg, _ in pickletools.genops(data) if isinstance(arg, str)]
    assert dict(pickle.loads(data).options) == {"topic": "t", "token": "s3cret", "includeheaders": "true"}
