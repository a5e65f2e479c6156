"""Messages, their ids, what may be sent and what may be expected: values that cannot be changed, and refuse what is none."""

from __future__ import annotations

import copy
import pickle
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Message, MessageId
from oncelog.codecs import codec_for
from oncelog.errors import CodecError, InvalidRequest, OffsetMismatch
from oncelog.message_id import SIZE
from oncelog.values.expectation import UNCHECKED, Expectation, expectation, is_past
from oncelog.values.message import Source
from oncelog.values.outgoing import outgoing, outgoing_columns

milliseconds = st.integers(0, 2**63 - 1)
counters = st.integers(0, 2**16 - 1)
fields = st.tuples(milliseconds, counters, milliseconds, counters)


def test_the_layout_is_the_one_of_the_tms_page() -> None:
    assert bytes(MessageId(0x0102030405060708, 0x090A, 0x0B0C0D0E0F101112, 0x1314)) == bytes(range(1, 21))
    assert bytes(MessageId(1, 2)) == bytes.fromhex("0000000000000001 0002 0000000000000000 0000")
    assert MessageId(1_790_000_000_123, 0).published_at == datetime(2026, 9, 21, 14, 13, 20, 123_000, tzinfo=UTC)
    buffer = bytearray(SIZE)
    each = MessageId.from_bytes(buffer)
    buffer[0] = 1
    assert each == MessageId(0, 0), "it does not follow the buffer that it was read from"


@given(fields)
def test_every_form_reads_back_as_the_same_id(values: tuple[int, int, int, int]) -> None:
    each = MessageId(*values)
    assert (each.publish_timestamp, each.seq_id, each.write_timestamp, each.payload_seq_id) == values
    assert MessageId.parse(str(each)) == MessageId.parse(str(each).upper()) == each
    assert len({each, MessageId.from_bytes(bytes(each))}) == 1
    assert eval(repr(each), {"MessageId": MessageId}) == each
    assert [pickle.loads(pickle.dumps(each, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)] == [each] * 6
    assert copy.deepcopy(each) == copy.copy(each) == each


@given(fields, fields)
def test_ids_their_bytes_and_their_text_compare_as_the_fields_do(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = MessageId(*left), MessageId(*right)
    for one, other in ((a, b), (bytes(a), bytes(b)), (str(a), str(b))):
        found = (one < other, one <= other, one == other, one != other, one >= other, one > other)  # type: ignore[operator]
        assert found == (left < right, left <= right, left == right, left != right, left >= right, left > right)


@pytest.mark.parametrize("name", ["publish_timestamp", "seq_id", "write_timestamp", "payload_seq_id", "_raw", "anything"])
def test_an_id_cannot_be_changed(name: str) -> None:
    each = MessageId(1, 2, 3, 4)
    with pytest.raises(AttributeError):
        setattr(each, name, 9)
    with pytest.raises(AttributeError):
        delattr(each, name)
    assert each == MessageId(1, 2, 3, 4)


@pytest.mark.parametrize("other", [bytes(SIZE), "00" * SIZE, 0, None])
def test_an_id_equals_and_precedes_nothing_that_is_no_id(other: object) -> None:
    assert MessageId(0, 0) != other
    with pytest.raises(TypeError):
        _ = MessageId(0, 0) < other  # type: ignore[operator]


@pytest.mark.parametrize(
    "values",
    [(2**63, 0), (-(2**63) - 1, 0), (0, -1), (0, 65536), (0, 0, 2**63), (0, 0, 0, 65536), (1.0, 0), ("1", 0), (None, 0)],
)
def test_a_field_that_does_not_fit_is_a_value_error(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not a message id"):
        MessageId(*values)


def test_what_is_no_id_is_a_value_error() -> None:
    for size in (0, 19, 21, 40):
        with pytest.raises(ValueError, match=f"20 bytes, not {size}"):
            MessageId.from_bytes(bytes(size))
    for text in ("", "0" * 39, "0" * 41, "g" * 40, "0x" + "0" * 38, " " * 40, "00 " * 13 + "0", "０" * 40, "٠" * 40):
        with pytest.raises(ValueError, match="40 hex digits"):
            MessageId.parse(text)


# --- messages -----------------------------------------------------------------------------------------------------------


ID = MessageId(1_790_000_000_000, 3)


def record(**changes: Any) -> dict[str, Any]:
    """As Avro decodes it."""
    plain = {"producer": None, "sequenceId": None, "key": None, "properties": None, "ttl": None}
    return {"id": bytes(ID), "offset": 0, "payload": b"{}", **plain, **changes}


def test_a_message_cannot_be_changed() -> None:
    message = Message(record(properties={"a": "b"}))
    for name in ("payload", "value", "message_id", "offset", "properties", "key", "sequence_id", "anything"):
        with pytest.raises(AttributeError):
            setattr(message, name, None)
    message.properties["a"] = "c"
    assert message.properties == {"a": "b"}


def test_messages_are_equal_by_content_and_place() -> None:
    assert Message(record()) == Message(record(), codec_for("json"))
    assert hash(Message(record())) == hash(Message(record()))
    assert Message(record()) != Message(record(offset=1))
    assert Message(record()) != Message(record(payload=b""))
    assert Message(record()) != record()


def test_a_message_tells_its_topic_and_one_of_another_is_another_message() -> None:
    source = Source(codec_for("json"), "default", "t", 2)
    message = Message(record(), source=source)
    behind_a_pickle = pickle.loads(pickle.dumps(message))
    for each in (message, behind_a_pickle):
        assert (each.namespace, each.topic, each.generation, each.value) == ("default", "t", 2, {})
    assert message == behind_a_pickle == Message(record(), source=source._replace(codec=None))
    for other in (source._replace(namespace="n"), source._replace(topic="u"), source._replace(generation=3)):
        assert message != Message(record(), source=other)
    by_hand = Message(record())
    assert (by_hand.namespace, by_hand.topic, by_hand.generation) == (None, None, None)


OF_BEFORE = bytes.fromhex(
    "800495d2000000000000008c166f6e63656c6f672e76616c7565732e6d657373616765948c074d6573736167659493942981944e7d94288c065f636f646563948c"
    "0e6f6e63656c6f672e636f64656373948c055f4a736f6e9493942981948c075f7265636f7264947d94288c026964944314000102030405060708090a0b0c0d0e0f"
    "10111213948c066f6666736574944b008c077061796c6f61649443027b7d948c0870726f6475636572944e8c0a73657175656e63654964944e8c036b6579944e8c"
    "0a70726f70657274696573944e8c0374746c944e75758694622e"
)
"""A message with a codec, pickled when it did not know its topic."""


def test_a_message_that_was_pickled_by_a_version_of_before_is_one_of_no_topic() -> None:
    message = pickle.loads(OF_BEFORE)
    assert message == Message(record(id=bytes(range(20))))
    assert (message.topic, message.value) == (None, {})


def test_the_value_is_what_the_codec_makes_of_the_payload_also_behind_a_pickle() -> None:
    message = pickle.loads(pickle.dumps(Message(record(payload=b'{"a":1}'), codec_for("json"))))
    assert (message, message.value) == (Message(record(payload=b'{"a":1}')), {"a": 1})
    message = Message(record(payload=b"\xff"), codec_for("str"))
    with pytest.raises(CodecError):
        _ = message.value
    assert message.payload == b"\xff", "it is still there as bytes"
    assert len(repr(Message(record(payload=bytes(10_000))))) < 300


# --- what may be sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "options", "error"),
    [
        ("text", {}, TypeError),
        (5, {}, TypeError),
        (None, {}, TypeError),
        (b"x", {"key": 5}, TypeError),
        (b"x", {"properties": {"a": 1}}, TypeError),
        (b"x", {"properties": {1: "a"}}, TypeError),
        (b"x", {"properties": {"a": "\ud800"}}, ValueError),
        (b"x", {"key": "\ud800"}, ValueError),
        *((b"x", {"ttl": bad}, InvalidRequest) for bad in (0, True, "60", 2**63)),
        *((b"x", {"sequence_id": bad}, InvalidRequest) for bad in (True, False, 1.0, "5", b"5", -1, 2**63, 2**64)),
        *((b"x", {"expected_offset": bad}, InvalidRequest) for bad in (-1, True, 2**63)),
        (b"x", {"expected_key_offset": None}, InvalidRequest),
        (b"x", {"expected_key_offset": -1, "key": "k"}, InvalidRequest),
        (b"x", {"expected_last_id": bytes(20)}, TypeError),
    ],
)
def test_what_cannot_be_sent_is_refused(value: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        outgoing(value, **options)


def test_what_is_the_callers_is_copied() -> None:
    buffer, properties = bytearray(b"before"), {"a": "1"}
    messages = [outgoing(buffer, properties=properties), outgoing(memoryview(buffer), properties=properties)]
    buffer[:] = b"after!"
    properties["a"] = "2"
    assert [(each.payload, each.properties) for each in messages] == [(b"before", {"a": "1"})] * 2


@pytest.mark.parametrize("given", [{}, {"a": "1"}])
def test_properties_are_those_of_the_call_whatever_becomes_of_the_callers(given: dict[str, str]) -> None:
    one, other = given.copy(), given.copy()
    message = outgoing(b"x", properties=one)
    *_, column = outgoing_columns([b"x", b"y"], properties=[other, None])
    one["b"] = other["b"] = "2"
    assert (message.properties, column) == (given, [given, None])


NO_COLUMNS = [
    "a",
    b"a",
    bytearray(b"a"),
    memoryview(b"a"),
    {"a": "1"},
    {"a"},
    iter("a"),
    pd.DataFrame({"a": [1]}),
    pa.table({"a": [1]}),
]


@pytest.mark.parametrize("given", NO_COLUMNS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("column", ["values", "sequence_ids", "keys", "properties"])
def test_what_has_no_entry_for_each_message_is_no_column(column: str, given: Any) -> None:
    columns: dict[str, Any] = {"values": [b"x"], column: given}
    with pytest.raises(TypeError, match=f"^{column} is a list"):
        outgoing_columns(codec=codec_for("json"), **columns)


@pytest.mark.parametrize("array", [list, tuple, deque, np.array, pd.Series, pa.array])
def test_arrays_are_lists_of_what_is_in_them(array: Callable[[list[Any]], Any]) -> None:
    numbers, keys, properties = array([4, 6]), array(["k", "l"]), array([{"a": "1"}, {"a": "2"}])
    expected = [b"1", b"2"], [4, 6], [b"k", b"l"], [{"a": "1"}, {"a": "2"}]
    assert outgoing_columns(array([1, 2]), codec_for("json"), numbers, keys, properties) == expected
    assert outgoing_columns(array([b"x", b"y"])) == ([b"x", b"y"], None, None, None)
    assert outgoing_columns(array([]), keys=array([])) == ([], None, None, None)


# --- what may be expected -----------------------------------------------------------------------------------------------


EARLY = MessageId(5, 1)


def test_none_is_an_offset_of_a_key_and_of_nothing_else() -> None:
    assert expectation(None, None, UNCHECKED, b"k") is None
    assert expectation(None, None, None, b"k\xff") == Expectation(None, None, "k\xff", None)
    assert expectation(0, EARLY, 7, b"") == Expectation(0, bytes(EARLY), "", 7)
    assert expectation(None, MessageId.NONE, UNCHECKED, None) == Expectation(None, bytes(20), None, None)


@pytest.mark.parametrize(
    ("expected", "actual", "past"),
    [
        (5, 6, True),
        (6, 5, False),
        (5, None, False),
        (None, 0, True),
        (str(EARLY), str(MessageId(5, 2)), True),
        (str(MessageId(5, 2)), str(EARLY), False),
        (str(EARLY), None, False),
        (None, str(EARLY), True),
        (5, str(EARLY), False),
    ],
)
def test_only_what_the_topic_has_gone_past_never_holds_again(
    expected: int | str | None, actual: int | str | None, past: bool
) -> None:
    assert is_past(OffsetMismatch(expected=expected, actual=actual)) is past
