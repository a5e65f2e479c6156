"""A message is what was published, and where."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from oncelog import Message, MessageId
from oncelog.codecs import codec_for
from oncelog.errors import CodecError

ID = MessageId(1_790_000_000_000, 3)


def record(**changes: Any) -> dict[str, Any]:
    """As Avro decodes it."""
    plain = {"producer": None, "sequenceId": None, "key": None, "properties": None, "ttl": None}
    return {"id": bytes(ID), "offset": 0, "payload": b"{}", **plain, **changes}


def test_everything_that_was_published_can_be_read() -> None:
    message = Message(record(offset=7, producer="p", sequenceId=0, key=b"k", properties={"a": "b"}, ttl=60, payload=b"x"))
    assert message.payload == message.value == b"x"
    assert message.message_id == ID
    assert message.publish_timestamp == 1_790_000_000_000
    assert (message.offset, message.producer, message.sequence_id) == (7, "p", 0)
    assert (message.key, message.properties, message.ttl) == (b"k", {"a": "b"}, 60)


def test_what_was_not_published_is_none_and_never_zero() -> None:
    message = Message(record())
    assert (message.producer, message.sequence_id, message.key, message.ttl) == (None, None, None, None)
    assert message.properties == {}


def test_an_empty_key_is_a_key() -> None:
    assert Message(record(key=b"")).key == b""


def test_the_value_is_what_the_codec_makes_of_the_payload() -> None:
    assert Message(record(payload=b'{"a":1}'), codec_for("json")).value == {"a": 1}


def test_a_payload_the_codec_cannot_read_is_still_there_as_bytes() -> None:
    message = Message(record(payload=b"\xff"), codec_for("str"))
    with pytest.raises(CodecError):
        _ = message.value
    assert message.payload == b"\xff"


@pytest.mark.parametrize("name", ["payload", "value", "message_id", "offset", "properties", "key", "sequence_id", "anything"])
def test_a_message_cannot_be_changed(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Message(record()), name, None)


def test_changing_the_properties_one_got_changes_no_message() -> None:
    message = Message(record(properties={"a": "b"}))
    message.properties["a"] = "c"
    assert message.properties == {"a": "b"}


def test_messages_are_equal_by_content_and_place() -> None:
    assert Message(record()) == Message(record(), codec_for("json"))
    assert hash(Message(record())) == hash(Message(record()))
    assert Message(record()) != Message(record(offset=1))
    assert Message(record()) != Message(record(payload=b""))
    assert Message(record()) != record()


def test_a_message_can_be_pickled_with_its_codec() -> None:
    message = pickle.loads(pickle.dumps(Message(record(payload=b'"x"'), codec_for("json"))))
    assert message == Message(record(payload=b'"x"'))
    assert message.value == "x"


def test_a_long_payload_is_cut_when_shown() -> None:
    assert "b'{}'" in repr(Message(record()))
    assert len(repr(Message(record(payload=bytes(10_000))))) < 300
