"""Bytes on the network: TMS's to the byte, ours for ever, and each record back as it was.

What is no record is in test_hostile_bytes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import InvalidMessageId, InvalidRequest, UnsupportedMediaType
from oncelog.wire import codec
from oncelog.wire.avro_parts import (
    encode_bytes,
    encode_long,
    encode_long_run,
    encode_longs,
    encode_string,
)
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.requests import CommitRequest, ConsumeRequest, Part, PublishRequest, PublishResponse, ReceiptRun, Rollback

RECORDS = ("PublishRequest", "ConsumeRequest", "CommitRequest", "PublishResponse", "ConsumeResponse")
ID = bytes(range(1, 21))
ID_HEX = ID.hex()


def decoded(name: str, media: str, body: bytes | str) -> Any:
    return codec.decode(name, media, body.encode() if isinstance(body, str) else body)


# --- TMS, byte for byte -------------------------------------------------------------------------------------------------
# Worked out by hand from the Avro specification: a long is zigzag and 7 bits a byte (1 → 02, -1 → 01, 300 → d8 04), a union its
# branch number as a long before the value, bytes their length before them, an array its blocks and a 0.

TMS_ANSWER = ("transactionWritePointer", "startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId")
TMS_POLL = ("startFrom", "inclusive", "limit", "transaction")
TMS = [
    # transactionWritePointer: branch 1 = null; messages: 2 (04): "a" (02 61), "bc" (04 6263); end
    ("PublishRequest", "02 04 0261 046263 00", {"transactionWritePointer": None, "messages": [b"a", b"bc"]}),
    # branch 0 = long, 300; no messages
    ("PublishRequest", "00 d804 00", {"transactionWritePointer": 300, "messages": []}),
    # 7; 10000 = 0x2710 → 20000 = 0b1_0011100_0100000; 0; 10000; 1
    ("PublishResponse", "00 0e a09c01 00 a09c01 02", dict(zip(TMS_ANSWER, (7, 10000, 0, 10000, 1), strict=True))),
    ("PublishResponse", "02 00 00 00 00", dict(zip(TMS_ANSWER, (None, 0, 0, 0, 0), strict=True))),
    # startFrom: branch 2 = null (04); inclusive: true (01); limit: branch 1 = null (02); transaction: branch 1 = null (02)
    ("ConsumeRequest", "04 01 02 02", dict(zip(TMS_POLL, (None, True, None, None), strict=True))),
    # branch 0 = bytes, 20 of them (28); false; branch 0 = int, 100 (c801); branch 0 = bytes, 3 of them
    (
        "ConsumeRequest",
        "00 28 0102030405060708090a0b0c0d0e0f1011121314 00 00 c801 00 06 0a0001",
        dict(zip(TMS_POLL, (ID, False, 100, b"\x0a\x00\x01"), strict=True)),
    ),
    # branch 1 = long, -1
    ("ConsumeRequest", "02 01 01 02 02", dict(zip(TMS_POLL, (-1, True, None, None), strict=True))),
    ("ConsumeResponse", "00", []),
    (
        "ConsumeResponse",
        "04 28 0102030405060708090a0b0c0d0e0f1011121314 0261 04 ffff 00 00",
        [{"id": ID, "payload": b"a"}, {"id": b"\xff\xff", "payload": b""}],
    ),
]
OTHER_BLOCKS = [
    # the same two messages in blocks that say their size: count -2 (03), 5 bytes (0a)
    ("PublishRequest", "02 03 0a 0261 046263 00", {"transactionWritePointer": None, "messages": [b"a", b"bc"]}),
    # 1 (02) and 1 (02) message in two blocks
    ("PublishRequest", "02 02 0261 02 046263 00", {"transactionWritePointer": None, "messages": [b"a", b"bc"]}),
]


@pytest.mark.parametrize(("name", "hexed", "record"), TMS + OTHER_BLOCKS)
def test_a_body_of_tms_means_what_the_standard_says(name: str, hexed: str, record: Any) -> None:
    assert decoded(name, AVRO, bytes.fromhex(hexed)) == record
    if (name, hexed, record) in TMS:
        assert codec.encode(name, AVRO, record) == bytes.fromhex(hexed)


# --- our own media type -------------------------------------------------------------------------------------------------

FULL_PUBLISH = PublishRequest(
    [b"a", b""],
    producer="p",
    epoch=1,
    sequence_ids=[0, 2**63 - 1],
    keys=[b"k", None],
    properties=[None, {"a": "ü", "": ""}],
    ttls=[None, 60],
    write_pointer=5,
    expected_offset=0,
    expected_last_message_id=ID,
    expected_key_offsets={"k": None, "l": 3},
)
FULL_POLL = ConsumeRequest(ID, 9, False, 7, 1000, b"tx", 3, True)
FULL_COMMIT = CommitRequest(
    group="g",
    parts=[Part("default", "t", FULL_PUBLISH), Part("other", "u", PublishRequest([b"c"]))],
    branches=("a", "b"),
    producer="p",
    sequence_id=0,
    incarnation="i",
    checksum="ü",
)
PUBLISHED = PublishResponse([ReceiptRun("stored", 3, None, ID, 7)], 5, 1000, 3, 1000, 5)


def test_our_own_requests_have_these_bytes_for_ever() -> None:
    assert codec.encode_publish_request(PublishRequest([b"a"], producer="p", epoch=1, sequence_ids=[0])) == bytes.fromhex(
        "00"  # no write pointer
        "02 02 70"  # producer "p"
        "02 02"  # epoch 1
        "04 00"  # sequence ids rising by one from 0
        "00 00 00 00 00 00"  # no keys, properties, ttls, expectations
        "02 02 61 00"  # one message
    )
    commit = CommitRequest("g", [Part("n", "t", PublishRequest([b"a"]))], ["b"], "p", 0)
    assert codec.encode_commit_request(commit) == bytes.fromhex(
        "02 02 67"  # group "g"
        "02 02 70"  # producer "p"
        "02 00"  # sequence id 0
        "00 00"  # no incarnation, no checksum
        "02 02 62 00"  # one branch, "b"
        "02 02 6e 02 74"  # one part: namespace "n", topic "t",
        "00 00 00 00 00 00 00 00 00 00 02 02 61 00"  # and a publish request of one message
        "00"
    )


def test_answers_come_back_whole() -> None:
    runs = [ReceiptRun("stored", 2, 0, ID, 5), ReceiptRun("duplicate", 1, 7, None, None)]
    assert codec.decode_published(codec.encode_publish_response(ONCELOG_AVRO, PublishResponse(runs))).receipts == runs
    for response in (PUBLISHED, PublishResponse([]), replace(PUBLISHED, write_pointer=None)):
        assert codec.decode_published(codec.encode_publish_response(ONCELOG_AVRO, response)) == response
    behind = {"position": ID, "generation": 3, "upcoming": 0, "now": 2**62, "ttl": 1}
    changes: list[dict[str, Any]] = [{}, *({name: None} for name in behind)]
    for changed in (*changes, {"messages": [{"id": ID, "offset": 5, "payload": b"x"}]}):
        record: dict[str, Any] = {"messages": [], **behind, **changed}
        messages, *said = codec.decode_polled(codec.encode("ConsumeResponse", ONCELOG_AVRO, record), 1)
        assert (len(messages), said[: len(behind)]) == (len(record["messages"]), [record[name] for name in behind])
    for name in (*behind,)[1:]:
        with pytest.raises(InvalidRequest, match="out of range"):
            codec.decode_polled(codec.encode("ConsumeResponse", ONCELOG_AVRO, {"messages": [], **behind, name: -1}))


COLUMNS: list[dict[str, Any]] = [{"sequence_ids": [1]}, {"keys": [None] * 3}, {"properties": []}, {"ttls": [1]}]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: next(iter(column)))
def test_a_column_of_another_length_than_the_messages_is_refused(column: dict[str, Any]) -> None:
    request = PublishRequest([b"a", b"b"], **column)
    with pytest.raises(InvalidRequest, match="for 2 messages"):
        codec.decode_publish_request(ONCELOG_AVRO, codec.encode_publish_request(request))
    commit = CommitRequest(parts=[Part("n", "t", PublishRequest([b"a"])), Part("n", "u", request)])
    with pytest.raises(InvalidRequest, match=r"parts\[1\]: .* for 2 messages"):
        codec.decode_commit_request(ONCELOG_AVRO, codec.encode_commit_request(commit))


def test_a_payload_that_is_no_bytes_is_no_message() -> None:
    for count in (1, codec._MANY):
        with pytest.raises((TypeError, ValueError)):
            codec.encode_publish_request(PublishRequest(["text"] * count))  # type: ignore[list-item]


def test_which_media_types_a_record_has() -> None:
    for media in ("text/plain", "", "avro/binaryx", "application/avro", "application/problem+json"):
        with pytest.raises(UnsupportedMediaType, match="avro/binary"):
            codec.decode("PublishRequest", media, b"\x02\x00")
    with pytest.raises(UnsupportedMediaType, match=r"use application/vnd[.]oncelog[+]avro, application/json"):
        codec.decode_commit_request(AVRO, codec.encode_commit_request(FULL_COMMIT))
    assert codec.media_types_of("CommitRequest") == (ONCELOG_AVRO, JSON)
    assert codec.media_types_of("PublishRequest") == (AVRO, ONCELOG_AVRO, JSON)
    assert decoded("PublishRequest", "Application/JSON; charset=utf-8", '{"messages":[]}')["messages"] == []


def test_a_published_schema_can_be_read_alone() -> None:
    for name in RECORDS:
        for media in codec.media_types_of(name):
            source = json.loads(json.dumps(codec.avro_source(media, name)))
            fastavro.parse_schema(source, named_schemas={})
    request = codec.avro_source(ONCELOG_AVRO, "CommitRequest")["fields"][-1]["type"]["items"]["fields"][-1]["type"]
    assert request == codec.avro_source(ONCELOG_AVRO, "PublishRequest")


# --- JSON ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("PublishRequest", '{"messages":["a","\\u0000\u00ff"]}', {"messages": [b"a", b"\x00\xff"], "sequenceIds": None}),
        ("PublishRequest", '{"messages":[],"sequenceIds":[0,9223372036854775807]}', {"sequenceIds": [0, 2**63 - 1]}),
        ("PublishRequest", '{"messages":[],"sequenceIds":{"array":[0]}}', {"sequenceIds": [0]}),
        ("PublishRequest", '{"messages":[],"transactionWritePointer":{"long":5}}', {"transactionWritePointer": 5}),
        ("PublishRequest", '{"messages":[],"keys":[null,"k",{"bytes":"l"}]}', {"keys": [None, b"k", b"l"]}),
        ("PublishRequest", '{"messages":[],"properties":[{"map":{"a":"b"}}]}', {"properties": [{"a": "b"}]}),
        ("PublishRequest", '{"messages":[],"properties":[{"a":"b"},{},null]}', {"properties": [{"a": "b"}, {}, None]}),
        ("PublishRequest", '{"messages":[],"properties":[{"map":"b"}]}', {"properties": [{"map": "b"}]}),
        ("PublishRequest", '{"messages":[],"expectedKeyOffsets":{"l":{"long":1}}}', {"expectedKeyOffsets": {"l": 1}}),
        ("PublishRequest", '{"messages":[],"producer":"\\ud83d\\ude00"}', {"producer": "\U0001f600"}),
        ("CommitRequest", "{}", {"group": None, "sequenceId": None, "branches": [], "parts": []}),
        ("CommitRequest", '{"group":{"string":"g"},"sequenceId":{"long":0}}', {"group": "g", "sequenceId": 0}),
        ("ConsumeRequest", "{}", {"startFrom": None, "inclusive": True, "limit": None, "transaction": None}),
        ("ConsumeRequest", '{"startFrom":{"long":5},"limit":{"int":3}}', {"startFrom": 5, "limit": 3}),
    ],
)
def test_a_json_body_may_leave_out_tags_and_fields(name: str, text: str, found: dict[str, Any]) -> None:
    record = decoded(name, JSON, text)
    assert {field: record[field] for field in found} == found


@pytest.mark.parametrize(
    ("value", "media", "is_one"),
    [
        *[(ID, media, True) for media in (AVRO, ONCELOG_AVRO, JSON)],
        *[(text.encode(), media, media == JSON) for text in (ID_HEX, ID_HEX.upper()) for media in (AVRO, ONCELOG_AVRO, JSON)],
        *[(raw, media, False) for raw in (b"", b"a" * 19, b"a" * 21) for media in (AVRO, ONCELOG_AVRO, JSON)],
        *[(raw, JSON, False) for raw in (b"g" * 40, b"\xe9" * 40, b"ab " * 13 + b"a")],
    ],
)
def test_a_message_id_is_20_bytes_and_in_json_its_40_hex_digits_too(value: bytes, media: str, is_one: bool) -> None:
    body = codec.encode("ConsumeRequest", media, {"startFrom": value, "inclusive": True, "refuseExpired": False})
    if is_one:
        assert codec.decode_consume_request(media, body).start_from == ID
    else:
        with pytest.raises(InvalidMessageId, match=r"^startFrom"):
            codec.decode_consume_request(media, body)


def test_so_is_the_one_that_a_publish_or_a_part_of_a_commit_expects() -> None:
    publish, commit = ('{"messages":[],"expectedLastMessageId":"%s"}', '{"parts":[{"namespace":"n","topic":"t","request":%s}]}')
    good, bad = publish % ID_HEX, publish % ID_HEX[1:]
    assert codec.decode_publish_request(JSON, good.encode()).expected_last_message_id == ID
    assert codec.decode_commit_request(JSON, (commit % good).encode()).parts[0].request.expected_last_message_id == ID
    with pytest.raises(InvalidMessageId, match=r"^expectedLastMessageId"):
        codec.decode_publish_request(JSON, bad.encode())
    with pytest.raises(InvalidMessageId, match=r"^parts\[0\]: expectedLastMessageId"):
        codec.decode_commit_request(JSON, (commit % bad).encode())


def test_what_a_body_leaves_out_is_not_shared_with_the_next_one() -> None:
    decoded("CommitRequest", JSON, "{}")["branches"].append("b")
    assert codec.decode_commit_request(JSON, b"{}") == CommitRequest(parts=[])


def test_answers_in_json_are_tagged_and_a_poll_answers_a_bare_array() -> None:
    response = PublishResponse([ReceiptRun("stored", 1, 0, ID, 0)], None, 1, 0, 1, 0)
    answer = json.loads(codec.encode_publish_response(JSON, response))
    raw_id = ID.decode("latin-1")
    tagged = {"sequenceId": {"long": 0}, "messageId": {"bytes": raw_id}, "offset": {"long": 0}}
    assert answer["receipts"] == [{"status": "stored", "count": 1, **tagged}]
    assert answer["transactionWritePointer"] is None
    one = encode_bytes(ID) + encode_long(5) + b"\x02" + encode_string("p") + b"\x02\x00" + b"\x00\x00\x00" + encode_bytes(b"\xff")
    said: dict[str, Any] = {"id": raw_id, "offset": 5, "producer": {"string": "p"}, "sequenceId": {"long": 0}}
    said |= {"key": None, "properties": None, "ttl": None, "payload": "\xff"}
    assert json.loads(codec.encode_consume_response(JSON, [one], ID)) == [said]


# --- each record comes back ---------------------------------------------------------------------------------------------


def records_of(schema: Any) -> st.SearchStrategy[Any]:
    """Whatever a schema has a place for."""
    if isinstance(schema, list):
        return st.one_of(*map(records_of, schema))
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return st.fixed_dictionaries({field["name"]: records_of(field["type"]) for field in schema["fields"]})
    if kind == "array":
        return st.lists(records_of(schema["items"]), max_size=3)
    if kind == "map":
        return st.dictionaries(st.text(max_size=3), records_of(schema["values"]), max_size=3)
    return st.sampled_from(schema["symbols"]) if kind == "enum" else SIMPLE[kind]


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=90),
    "long": whole(64) | whole(14),
    "int": whole(32),
}


@given(st.sampled_from([(name, media) for name in RECORDS for media in codec.media_types_of(name)]), st.data())
def test_every_record_comes_back_in_each_encoding(of: tuple[str, str], data: st.DataObject) -> None:
    record = data.draw(records_of(codec.avro_source(of[1], of[0])))
    assert codec.decode(*of, codec.encode(*of, record)) == record


def test_every_field_of_a_request_travels() -> None:
    for request, encode, decode in (
        (FULL_PUBLISH, codec.encode_publish_request, codec.decode_publish_request),
        (FULL_POLL, codec.encode_consume_request, codec.decode_consume_request),
        (FULL_COMMIT, codec.encode_commit_request, codec.decode_commit_request),
    ):
        body = encode(request)  # type: ignore[operator]
        name = type(request).__name__
        assert request == decode(ONCELOG_AVRO, body) == decode(JSON, codec.encode(name, JSON, decoded(name, ONCELOG_AVRO, body)))
    rising = codec.encode_publish_request(PublishRequest([b""] * 3, sequence_ids=[4, 5, 6]))
    assert codec.decode_publish_request(ONCELOG_AVRO, rising).sequence_ids == range(4, 7)


@given(st.lists(st.none() | st.binary(max_size=200), min_size=codec._MANY, max_size=codec._MANY + 40), st.booleans())
def test_many_messages_are_joined_to_the_bytes_that_avro_writes(keys: list[bytes | None], with_keys: bool) -> None:
    many: dict[str, Any] = {"sequence_ids": range(3, 3 + 2 * len(keys), 2), "properties": [{"a": "b"}] * len(keys)}
    request = replace(FULL_PUBLISH, payloads=[key or b"" for key in keys], keys=keys if with_keys else None, ttls=None, **many)
    assert codec.encode_publish_request(request) == codec.encode("PublishRequest", ONCELOG_AVRO, codec._publish_record(request))


@given(
    st.sampled_from([0, 1, 62, 63, 64, 127, 128, 8191, 8192, 2**35, 2**63 - 400]) | st.integers(0, 2**63 - 400),
    st.integers(0, 300),
)
def test_rising_longs_are_each_of_them(start: int, count: int) -> None:
    assert encode_long_run(start, count) == [encode_long(value) for value in range(start, start + count)]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=50))
def test_longs_are_each_of_them(values: list[int]) -> None:
    assert encode_longs(values) == [encode_long(value) for value in values]


# --- rollback -----------------------------------------------------------------------------------------------------------


def test_a_publish_answer_is_its_rollback_in_every_media_type() -> None:
    expected = Rollback(5, (1000, 3), (1000, 5))
    assert codec.decode_rollback(ONCELOG_AVRO, codec.encode_publish_response(ONCELOG_AVRO, PUBLISHED)) == expected
    for media in (AVRO, ONCELOG_AVRO, JSON):
        assert codec.decode_rollback(media, codec.encode_publish_response(media, PUBLISHED)) == expected
    # branch 0 = long, 5; 1000 (d00f); 3; 1000; 5
    assert codec.encode_publish_response(AVRO, PUBLISHED) == bytes.fromhex("00 0a d00f 06 d00f 0a")
    for receipts in ("", ', "receipts": []'):
        body = (
            '{"transactionWritePointer": 5, "startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 1, "endSequenceId": 0%s}'
        )
        assert codec.decode_rollback(JSON, (body % receipts).encode()) == (5, (1, 0), (1, 0))


@pytest.mark.parametrize(
    "change",
    [
        *[{"write_pointer": None}, {"write_pointer": 0}, {"write_pointer": -5}, {"write_pointer": -(2**63)}],
        *[{"start_timestamp": -1}, {"end_timestamp": -1}, {"start_sequence_id": -1}, {"end_sequence_id": 65_536}],
        *[{"start_timestamp": 1001}, {"start_sequence_id": 6}],
    ],
    ids=str,
)
def test_a_rollback_that_nobody_can_have_been_answered_is_refused(change: dict[str, Any]) -> None:
    for media in (AVRO, ONCELOG_AVRO, JSON):
        with pytest.raises(InvalidRequest) as caught:
            codec.decode_rollback(media, codec.encode_publish_response(media, replace(PUBLISHED, **change)))
        assert len(caught.value.detail) < 1000
