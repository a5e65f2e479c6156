"""Bytes on the network: TMS's to the byte, and whatever is not exactly a request is an InvalidRequest, at bounded cost."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.errors import InvalidMessageId, InvalidRequest, UnsupportedMediaType
from oncelog.wire import codec
from oncelog.wire.avro_parts import (
    decode_long,
    encode_array,
    encode_bytes,
    encode_long,
    encode_long_run,
    encode_longs,
    encode_map,
    encode_string,
)
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.requests import (
    CommitRequest,
    ConsumeRequest,
    Part,
    PublishRequest,
    PublishResponse,
    ReceiptRun,
    Rollback,
)

REQUESTS = ("PublishRequest", "ConsumeRequest", "CommitRequest")
RECORDS = (*REQUESTS, "PublishResponse", "ConsumeResponse")
READERS: dict[str, Callable[[str, bytes], Any]] = {
    "PublishRequest": codec.decode_publish_request,
    "ConsumeRequest": codec.decode_consume_request,
    "CommitRequest": codec.decode_commit_request,
}
WRITERS: dict[type, Callable[[Any], bytes]] = {
    PublishRequest: codec.encode_publish_request,
    ConsumeRequest: codec.encode_consume_request,
    CommitRequest: codec.encode_commit_request,
}
EXPANSION = {"PublishRequest": 64, "ConsumeRequest": 64, "CommitRequest": 96}
"""No request may take more memory than this many times its size (a part of a commit is a whole record, in 13 bytes) …"""
CONSTANT = 2**17
"""… beyond what any error costs."""
ID = bytes(range(1, 21))
ID_HEX = ID.hex()


def decoded(name: str, media: str, body: bytes | str) -> Any:
    return codec.decode(name, media, body.encode() if isinstance(body, str) else body)


def refused(name: str, media: str, body: bytes | str) -> str:
    """The detail of the InvalidRequest that this body is."""
    with pytest.raises(InvalidRequest) as caught:
        decoded(name, media, body)
    assert caught.value.definite
    assert len(caught.value.detail) < 1000
    return caught.value.detail


def cheaply(name: str, media: str, body: bytes) -> Any:
    """The record, or the InvalidRequest, if it comes within the promised memory and without a long think."""
    tracemalloc.start()
    began = time.process_time()
    try:
        outcome: Any = READERS[name](media, body)
    except InvalidRequest as error:
        outcome = error.with_traceback(None)
    finally:
        took, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert took < 10
    assert peak <= EXPANSION[name] * len(body) + CONSTANT, f"{peak} bytes for a body of {len(body)}"
    return outcome


def cheaply_refused(name: str, media: str, body: bytes) -> None:
    assert isinstance(cheaply(name, media, body), InvalidRequest)


# --- TMS, byte for byte -------------------------------------------------------------------------------------------------
# Worked out by hand from the Avro specification: a long is zigzag and 7 bits a byte (1 → 02, -1 → 01, 300 → d8 04), a union its
# branch number as a long before the value, bytes their length before them, an array its blocks and a 0.

TMS = [
    # transactionWritePointer: branch 1 = null; messages: 2 (04): "a" (02 61), "bc" (04 6263); end
    ("PublishRequest", "02 04 0261 046263 00", {"transactionWritePointer": None, "messages": [b"a", b"bc"]}),
    # branch 0 = long, 300; no messages
    ("PublishRequest", "00 d804 00", {"transactionWritePointer": 300, "messages": []}),
    # the same two messages in blocks that say their size: count -2 (03), 5 bytes (0a)
    ("PublishRequest", "02 03 0a 0261 046263 00", {"transactionWritePointer": None, "messages": [b"a", b"bc"]}),
    # 1 (02) and 1 (02) message in two blocks
    ("PublishRequest", "02 02 0261 02 046263 00", {"transactionWritePointer": None, "messages": [b"a", b"bc"]}),
    (
        "PublishResponse",
        "00 0e a09c01 00 a09c01 02",  # 7; 10000 = 0x2710 → 20000 = 0b1_0011100_0100000; 0; 10000; 1
        {
            "transactionWritePointer": 7,
            "startTimestamp": 10000,
            "startSequenceId": 0,
            "endTimestamp": 10000,
            "endSequenceId": 1,
        },
    ),
    (
        "PublishResponse",
        "02 00 00 00 00",
        {
            "transactionWritePointer": None,
            "startTimestamp": 0,
            "startSequenceId": 0,
            "endTimestamp": 0,
            "endSequenceId": 0,
        },
    ),
    # startFrom: branch 2 = null (04); inclusive: true (01); limit: branch 1 = null (02); transaction: branch 1 = null (02)
    ("ConsumeRequest", "04 01 02 02", {"startFrom": None, "inclusive": True, "limit": None, "transaction": None}),
    # branch 0 = bytes, 20 of them (28); false; branch 0 = int, 100 (c801); branch 0 = bytes, 3 of them
    (
        "ConsumeRequest",
        "00 28 0102030405060708090a0b0c0d0e0f1011121314 00 00 c801 00 06 0a0001",
        {"startFrom": ID, "inclusive": False, "limit": 100, "transaction": b"\x0a\x00\x01"},
    ),
    # branch 1 = long, -1
    ("ConsumeRequest", "02 01 01 02 02", {"startFrom": -1, "inclusive": True, "limit": None, "transaction": None}),
    ("ConsumeResponse", "00", []),
    (
        "ConsumeResponse",
        "04 28 0102030405060708090a0b0c0d0e0f1011121314 0261 04 ffff 00 00",
        [{"id": ID, "payload": b"a"}, {"id": b"\xff\xff", "payload": b""}],
    ),
]


@pytest.mark.parametrize(("name", "hexed", "record"), TMS)
def test_a_body_of_tms_means_what_the_standard_says(name: str, hexed: str, record: Any) -> None:
    assert decoded(name, AVRO, bytes.fromhex(hexed)) == record


@pytest.mark.parametrize(("name", "hexed", "record"), [each for each in TMS if not each[1].startswith(("02 03", "02 02"))])
def test_a_record_is_encoded_to_the_bytes_of_tms(name: str, hexed: str, record: Any) -> None:
    assert codec.encode(name, AVRO, record) == bytes.fromhex(hexed)


def test_the_request_types_read_tms_bodies() -> None:
    assert codec.decode_publish_request(AVRO, bytes.fromhex("00 d804 02 0261 00")) == PublishRequest([b"a"], write_pointer=300)
    poll = bytes.fromhex("00 28" + ID_HEX + "00 00 c801 02")
    assert codec.decode_consume_request(AVRO, poll) == ConsumeRequest(ID, None, False, 100)


def test_a_tms_answer_is_put_together_from_encoded_messages() -> None:
    messages = [bytes.fromhex("28" + ID_HEX + "0261"), bytes.fromhex("04 ffff 00")]
    assert codec.encode_consume_response(AVRO, messages, ID) == bytes.fromhex("04 28" + ID_HEX + "0261 04 ffff 00 00")
    assert codec.encode_consume_response(AVRO, [], None) == b"\x00"


def test_a_tms_publish_answer_has_no_receipts() -> None:
    response = PublishResponse([ReceiptRun("stored", 2, 0, ID, 0)], 7, 10000, 0, 10000, 1)
    assert codec.encode_publish_response(AVRO, response) == bytes.fromhex("00 0e a09c01 00 a09c01 02")


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
FULL_POLL = ConsumeRequest(ID, None, False, 7, 1000, b"tx")
FULL_COMMIT = CommitRequest(
    group="g",
    parts=[Part("default", "t", FULL_PUBLISH), Part("other", "u", PublishRequest([b"c"]))],
    branches=("a", "b"),
    producer="p",
    sequence_id=0,
    incarnation="i",
    checksum="ü",
)


def test_our_own_requests_come_back_whole() -> None:
    assert codec.decode_commit_request(ONCELOG_AVRO, codec.encode_commit_request(FULL_COMMIT)) == FULL_COMMIT
    assert codec.decode_commit_request(ONCELOG_AVRO, codec.encode_commit_request(CommitRequest())) == CommitRequest(parts=[])
    assert codec.decode_publish_request(ONCELOG_AVRO, codec.encode_publish_request(FULL_PUBLISH)) == FULL_PUBLISH
    assert codec.decode_consume_request(ONCELOG_AVRO, codec.encode_consume_request(FULL_POLL)) == FULL_POLL


def test_our_own_publish_request_has_these_bytes_for_ever() -> None:
    assert codec.encode_publish_request(PublishRequest([b"a"], producer="p", epoch=1, sequence_ids=[0])) == bytes.fromhex(
        "00"  # no write pointer
        "02 02 70"  # producer "p"
        "02 02"  # epoch 1
        "04 00"  # sequence ids rising by one from 0
        "00 00 00 00 00 00"  # no keys, properties, ttls, expectations
        "02 02 61 00"  # one message
    )


def test_our_own_commit_request_has_these_bytes_for_ever() -> None:
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


def test_receipts_and_messages_come_back_whole() -> None:
    runs = [ReceiptRun("stored", 2, 0, ID, 5), ReceiptRun("duplicate", 1, 7, None, None)]
    assert codec.decode_publish_response(codec.encode_publish_response(ONCELOG_AVRO, PublishResponse(runs))) == runs
    message = {"id": ID, "offset": 5, "producer": "p", "sequenceId": 0, "key": b"", "properties": {"a": "b"}, "ttl": 1}
    body = codec.encode("ConsumeResponse", ONCELOG_AVRO, {"messages": [{**message, "payload": b"x"}], "position": ID})
    assert codec.decode_consume_response(body) == ([{**message, "payload": b"x"}], ID)


@pytest.mark.parametrize(
    "column",
    [{"sequence_ids": [1]}, {"keys": [None] * 3}, {"properties": []}, {"ttls": [1]}],
    ids=lambda column: next(iter(column)),
)
def test_a_column_of_another_length_than_the_messages_is_refused(column: dict[str, Any]) -> None:
    body = codec.encode_publish_request(PublishRequest([b"a", b"b"], **column))
    with pytest.raises(InvalidRequest, match="for 2 messages"):
        codec.decode_publish_request(ONCELOG_AVRO, body)
    parts = [Part("n", "t", PublishRequest([b"a"])), Part("n", "u", PublishRequest([b"a", b"b"], **column))]
    with pytest.raises(InvalidRequest, match=r"parts\[1\]: .* for 2 messages"):
        codec.decode_commit_request(ONCELOG_AVRO, codec.encode_commit_request(CommitRequest(parts=parts)))


@pytest.mark.parametrize("media", ["text/plain", "", "avro/binaryx", "application/avro", "application/problem+json"])
def test_another_media_type_is_415(media: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="avro/binary"):
        codec.decode("PublishRequest", media, b"\x02\x00")


def test_a_commit_is_not_read_in_the_media_type_of_tms() -> None:
    with pytest.raises(UnsupportedMediaType, match=r"use application/vnd[.]oncelog[+]avro, application/json"):
        codec.decode_commit_request(AVRO, codec.encode_commit_request(FULL_COMMIT))
    assert codec.media_types_of("CommitRequest") == (ONCELOG_AVRO, JSON)
    assert codec.media_types_of("PublishRequest") == (AVRO, ONCELOG_AVRO, JSON)


def test_a_published_schema_can_be_read_alone() -> None:
    for name in RECORDS:
        for media in codec.media_types_of(name):
            source = json.loads(json.dumps(codec.avro_source(media, name)))
            fastavro.parse_schema(source, named_schemas={})
    request = codec.avro_source(ONCELOG_AVRO, "CommitRequest")["fields"][-1]["type"]["items"]["fields"][-1]["type"]
    assert request == codec.avro_source(ONCELOG_AVRO, "PublishRequest")


def test_parameters_and_case_of_a_media_type_do_not_matter() -> None:
    assert decoded("PublishRequest", "Application/JSON; charset=utf-8", '{"messages":[]}')["messages"] == []


# --- what is not exactly a request: Avro --------------------------------------------------------------------------------

WHOLE = [
    ("PublishRequest", AVRO, bytes.fromhex("00 d804 04 0261 046263 00")),
    ("ConsumeRequest", AVRO, bytes.fromhex("00 28" + ID_HEX + "00 00 c801 00 06 0a0001")),
    ("PublishResponse", AVRO, bytes.fromhex("00 0e a09c01 00 a09c01 02")),
    ("ConsumeResponse", AVRO, bytes.fromhex("02 28" + ID_HEX + "0261 00")),
    ("PublishRequest", ONCELOG_AVRO, codec.encode_publish_request(FULL_PUBLISH)),
    ("ConsumeRequest", ONCELOG_AVRO, codec.encode_consume_request(FULL_POLL)),
    ("CommitRequest", ONCELOG_AVRO, codec.encode_commit_request(FULL_COMMIT)),
]


@pytest.mark.parametrize(("name", "media", "body"), WHOLE)
def test_a_body_cut_short_anywhere_is_refused(name: str, media: str, body: bytes) -> None:
    decoded(name, media, body)
    for size in range(len(body)):
        refused(name, media, body[:size])


@pytest.mark.parametrize(("name", "media", "body"), WHOLE)
@pytest.mark.parametrize("tail", [b"\x00", b"\xff", b"more"])
def test_bytes_after_the_record_are_refused(name: str, media: str, body: bytes, tail: bytes) -> None:
    assert f"{len(tail)} bytes follow" in refused(name, media, body + tail)


@pytest.mark.parametrize("name", RECORDS)
def test_an_empty_body_is_refused(name: str) -> None:
    for media in codec.media_types_of(name):
        refused(name, media, b"")


HUGE = [2**31, 2**62, 2**63 - 1]
FILLING = [b"", b"\x00" * 100, b"\x02a" * 50]


@pytest.mark.parametrize("filling", FILLING)
@pytest.mark.parametrize("count", [*HUGE, *(-each for each in HUGE), -(2**63)])
def test_an_absurd_array_count_is_refused_without_being_believed(count: int, filling: bytes) -> None:
    for media, before in ((AVRO, b"\x02"), (ONCELOG_AVRO, bytes(10)), (ONCELOG_AVRO, bytes(3) + b"\x02")):
        cheaply_refused("PublishRequest", media, before + encode_long(count) + filling)
    for before in (bytes(5), bytes(6), bytes(6) + b"\x02" + bytes(12)):  # of branches, of parts, of messages of a part
        cheaply_refused("CommitRequest", ONCELOG_AVRO, before + encode_long(count) + filling)


@pytest.mark.parametrize("filling", FILLING)
@pytest.mark.parametrize("size", [*HUGE, -1, -2, *(-each for each in HUGE), -(2**63)])
def test_a_negative_or_huge_length_is_refused_without_being_believed(size: int, filling: bytes) -> None:
    length = encode_long(size) + filling
    cheaply_refused("PublishRequest", AVRO, b"\x02\x02" + length)
    cheaply_refused("PublishRequest", ONCELOG_AVRO, b"\x00\x02" + length)
    cheaply_refused("ConsumeRequest", AVRO, b"\x00" + length)
    cheaply_refused("ConsumeRequest", ONCELOG_AVRO, b"\x00" + length)
    for before in (b"\x02", bytes(5) + b"\x02", bytes(6) + b"\x02"):  # of the group, of a branch, of a part's namespace
        cheaply_refused("CommitRequest", ONCELOG_AVRO, before + length)


@pytest.mark.parametrize("branch", [-(2**63), -4, 3, 4, 2**31, 2**63 - 1])
def test_a_branch_that_a_union_does_not_have_is_refused(branch: int) -> None:
    refused("PublishRequest", AVRO, encode_long(branch) + bytes(20))
    refused("ConsumeRequest", AVRO, encode_long(branch) + b"\x01\x02\x02")
    refused("CommitRequest", ONCELOG_AVRO, encode_long(branch) + bytes(6))


@pytest.mark.parametrize(
    "hexed",
    [
        "01 01 02 02",  # branch -1, which Python's lists have
        "05 01 02 02",  # branch -3
        "04 02 02 02",  # a boolean of 2
        "04 ff 02 02",
        "8480808080808080808080808000 01 02 02",  # branch 2 in 14 bytes
        "840001 02 02",  # … and in two
    ],
)
def test_a_poll_has_one_form_only(hexed: str) -> None:
    refused("ConsumeRequest", AVRO, bytes.fromhex(hexed))


def test_text_that_is_not_utf_8_is_refused() -> None:
    refused("PublishRequest", ONCELOG_AVRO, b"\x00\x02" + encode_bytes(b"\xff") + bytes(9))
    refused("CommitRequest", ONCELOG_AVRO, b"\x02" + encode_bytes(b"\xff") + bytes(6))


def test_a_number_without_end_is_refused_in_no_time() -> None:
    for start in (b"", b"\x02", b"\x00", b"\x02\x02"):
        for byte in (b"\x80", b"\xff"):
            cheaply_refused("PublishRequest", AVRO, start + byte * 1_000_000)
            cheaply_refused("CommitRequest", ONCELOG_AVRO, start + byte * 1_000_000)


# --- memory -------------------------------------------------------------------------------------------------------------

MANY = 20_000
COUNT = encode_long(MANY)
DISTINCT = [f"{number:x}" for number in range(MANY)]


def columns(**given: bytes) -> bytes:
    """A PublishRequest of our own from encoded columns; none of it where none is given."""
    names = ("wp", "producer", "epoch", "sequence_ids", "keys", "properties", "ttls", "offset", "last", "key_offsets")
    return b"".join(b"\x02" + given[name] if name in given else b"\x00" for name in names) + b"\x00"


AVRO_BOMBS = {
    "empty messages": (AVRO, b"\x02" + COUNT + bytes(MANY) + b"\x00"),
    "one empty message a block": (AVRO, b"\x02" + b"\x02\x00" * MANY + b"\x00"),
    "blocks that say their size": (AVRO, b"\x02" + b"\x01\x00\x00" * MANY + b"\x00"),
    "blocks of no messages": (AVRO, b"\x02" + b"\x01" * MANY + b"\x00"),
    "no keys": (ONCELOG_AVRO, columns(keys=COUNT + bytes(MANY + 1))),
    "short keys": (ONCELOG_AVRO, columns(keys=COUNT + b"\x02\x04xy" * MANY + b"\x00")),
    "sequence ids": (ONCELOG_AVRO, columns(sequence_ids=COUNT + b"\x80\x0a" * MANY + b"\x00")),
    "empty properties": (ONCELOG_AVRO, columns(properties=COUNT + b"\x02\x00" * MANY + b"\x00")),
    "properties of one": (ONCELOG_AVRO, columns(properties=COUNT + b"\x02\x02\x00\x00\x00" * MANY + b"\x00")),
    "key offsets": (
        ONCELOG_AVRO,
        columns(key_offsets=COUNT + b"".join(encode_string(key) + b"\x00" for key in DISTINCT) + b"\x00"),
    ),
}


@pytest.mark.parametrize("bomb", AVRO_BOMBS)
def test_no_avro_body_takes_more_than_a_fixed_multiple_of_its_size(bomb: str) -> None:
    cheaply("PublishRequest", *AVRO_BOMBS[bomb])


COMMIT_BOMBS = {
    "empty parts": (ONCELOG_AVRO, bytes(6) + COUNT + bytes(13 * MANY) + b"\x00"),
    "one empty part a block": (ONCELOG_AVRO, bytes(6) + (b"\x02" + bytes(13)) * MANY + b"\x00"),
    "a part of empty messages": (ONCELOG_AVRO, bytes(6) + b"\x02" + bytes(12) + COUNT + bytes(MANY + 2)),
    "empty branches": (ONCELOG_AVRO, bytes(5) + COUNT + bytes(MANY + 2)),
    "short branches": (ONCELOG_AVRO, bytes(5) + COUNT + b"\x04xy" * MANY + b"\x00\x00"),
    "empty parts in JSON": (
        JSON,
        b'{"parts":[' + b",".join([b'{"namespace":"","topic":"","request":{"messages":[]}}'] * MANY) + b"]}",
    ),
    "parts that are none": (JSON, b'{"parts":[' + b",".join([b"{}"] * MANY) + b"]}"),
    "branches in JSON": (JSON, b'{"branches":[' + b",".join([b'""'] * MANY) + b"]}"),
}


@pytest.mark.parametrize("bomb", COMMIT_BOMBS)
def test_no_commit_takes_more_than_a_fixed_multiple_of_its_size(bomb: str) -> None:
    cheaply("CommitRequest", *COMMIT_BOMBS[bomb])


def members(field: str, item: str) -> str:
    return '{"messages":[],"' + field + '":[' + ",".join([item] * MANY) + "]}"


JSON_BOMBS = {
    "empty messages": members("messages", '""'),
    "empty lists": members("messages", "[]"),
    "empty objects": members("messages", "{}"),
    "objects of one": members("messages", '{"":0}'),
    "no keys": members("keys", "null"),
    "sequence ids": members("sequenceIds", "999"),
    "empty properties": members("properties", "{}"),
    "tagged properties": members("properties", '{"map":{}}'),
    "properties of one": members("properties", '{"":""}'),
    "a good list that ends badly": members("properties", "{}")[:-2] + ",1]}",
    "objects for a number": members("transactionWritePointer", "{}"),
    "unknown fields": "{" + ",".join(f'"{key}":0' for key in DISTINCT) + "}",
    "key offsets": '{"messages":[],"expectedKeyOffsets":{' + ",".join(f'"{key}":0' for key in DISTINCT) + "}}",
    "wide characters": '{"messages":["' + "\U0001f600" * MANY + '"]}',
    "escapes": '{"messages":[],"epoch":"' + "\\u0001" * MANY + '"}',
    "floats": members("messages", "1e1"),
    "digits": members("sequenceIds", "9" * 4000)[: MANY * 10],
    "one long number": '{"messages":[],"epoch":' + "9" * MANY + "}",
    "open lists": "[" * MANY,
    "open objects": '{"":' * MANY,
}


@pytest.mark.parametrize("bomb", JSON_BOMBS)
def test_no_json_body_takes_more_than_a_fixed_multiple_of_its_size(bomb: str) -> None:
    cheaply("PublishRequest", JSON, JSON_BOMBS[bomb].encode())


# --- JSON ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("PublishRequest", '{"messages":["a","\\u0000\u00ff"]}', {"messages": [b"a", b"\x00\xff"], "sequenceIds": None}),
        ("PublishRequest", '{"messages":[],"sequenceIds":[0,9223372036854775807]}', {"sequenceIds": [0, 2**63 - 1]}),
        ("PublishRequest", '{"messages":[],"sequenceIds":{"array":[0]}}', {"sequenceIds": [0]}),
        ("PublishRequest", '{"messages":[],"transactionWritePointer":{"long":5}}', {"transactionWritePointer": 5}),
        ("PublishRequest", '{"messages":[],"transactionWritePointer":5}', {"transactionWritePointer": 5}),
        ("PublishRequest", '{"messages":[],"keys":[null,"k",{"bytes":"l"}]}', {"keys": [None, b"k", b"l"]}),
        ("PublishRequest", '{"messages":[],"properties":[{"map":{"a":"b"}}]}', {"properties": [{"a": "b"}]}),
        ("PublishRequest", '{"messages":[],"properties":[{"a":"b"},{},null]}', {"properties": [{"a": "b"}, {}, None]}),
        ("PublishRequest", '{"messages":[],"properties":[{"map":"b"}]}', {"properties": [{"map": "b"}]}),
        (
            "PublishRequest",
            '{"messages":[],"expectedKeyOffsets":{"k":null,"l":{"long":1}}}',
            {"expectedKeyOffsets": {"k": None, "l": 1}},
        ),
        ("CommitRequest", "{}", {"group": None, "sequenceId": None, "branches": [], "parts": []}),
        ("CommitRequest", '{"producer":"p","sequenceId":0}', {"producer": "p", "sequenceId": 0}),
        ("CommitRequest", '{"group":{"string":"g"},"sequenceId":{"long":0}}', {"group": "g", "sequenceId": 0}),
        ("ConsumeRequest", "{}", {"startFrom": None, "inclusive": True, "limit": None, "transaction": None}),
        (
            "ConsumeRequest",
            '{"startFrom":{"long":5},"inclusive":false,"limit":{"int":3}}',
            {"startFrom": 5, "inclusive": False, "limit": 3},
        ),
        ("ConsumeRequest", '{"startFrom":-1}', {"startFrom": -1}),
        ("ConsumeRequest", '{"startFrom":{"bytes":"abc"}}', {"startFrom": b"abc"}),
        ("ConsumeRequest", '{"transaction":"\\u000a"}', {"transaction": b"\n"}),
    ],
)
def test_a_json_body_may_leave_out_tags_and_fields(name: str, text: str, found: dict[str, Any]) -> None:
    record = decoded(name, JSON, text)
    assert {field: record[field] for field in found} == found


@pytest.mark.parametrize(
    "start", [json.dumps(ID.decode("latin-1")), f'"{ID_HEX}"', f'"{ID_HEX.upper()}"', f'{{"bytes":"{ID_HEX}"}}']
)
def test_in_json_a_message_id_may_be_its_40_hex_digits(start: str) -> None:
    assert codec.decode_consume_request(JSON, f'{{"startFrom":{start}}}'.encode()).start_from == ID


@pytest.mark.parametrize("start", ["", "a" * 19, "a" * 21, "g" * 40, "ab " * 13 + "a", "a" * 39, "\u00e9" * 40])
def test_a_start_that_is_no_message_id_is_refused(start: str) -> None:
    with pytest.raises(InvalidMessageId):
        codec.decode_consume_request(JSON, json.dumps({"startFrom": start}).encode())
    if len(start) != 20:
        record = {"startFrom": start.encode(), "inclusive": True, "limit": None, "transaction": None}
        body = codec.encode("ConsumeRequest", AVRO, record)
        with pytest.raises(InvalidMessageId):
            codec.decode_consume_request(AVRO, body)


@pytest.mark.parametrize("text", [json.dumps(ID.decode("latin-1")), f'"{ID_HEX}"', f'{{"bytes":"{ID_HEX.upper()}"}}'])
def test_an_expected_message_id_may_be_its_40_hex_digits_in_json(text: str) -> None:
    request = f'{{"messages":["a"],"expectedLastMessageId":{text}}}'
    commit = f'{{"parts":[{{"namespace":"n","topic":"t","request":{request}}}]}}'
    assert codec.decode_publish_request(JSON, request.encode()).expected_last_message_id == ID
    assert codec.decode_commit_request(JSON, commit.encode()).parts[0].request.expected_last_message_id == ID


@pytest.mark.parametrize("size", [0, 1, 19, 21, 40])
def test_an_expected_message_id_of_another_size_is_refused(size: int) -> None:
    request = PublishRequest([b"a"], expected_last_message_id=b"\xe9" * size)
    record = decoded("PublishRequest", ONCELOG_AVRO, codec.encode_publish_request(request))
    for media in (ONCELOG_AVRO, JSON):
        with pytest.raises(InvalidMessageId, match=r"^expectedLastMessageId"):
            codec.decode_publish_request(media, codec.encode("PublishRequest", media, record))
    with pytest.raises(InvalidMessageId, match=r"^parts\[0\]: expectedLastMessageId"):
        codec.decode_commit_request(ONCELOG_AVRO, codec.encode_commit_request(CommitRequest(parts=[Part("n", "t", request)])))


def test_what_a_body_leaves_out_is_not_shared_with_the_next_one() -> None:
    decoded("CommitRequest", JSON, "{}")["branches"].append("b")
    assert codec.decode_commit_request(JSON, b"{}") == CommitRequest(parts=[])


@pytest.mark.parametrize(
    "text",
    [
        *['{"parts":null}', '{"parts":{}}', '{"parts":[null]}', '{"parts":[{}]}', '{"branches":null}', '{"branches":[null]}'],
        *['{"branches":["\\ud800"]}', '{"branches":[1]}', '{"group":1}', '{"sequenceId":"0"}', '{"messages":[]}'],
        '{"parts":[{"namespace":"n","topic":"t"}]}',
        '{"parts":[{"namespace":"n","topic":"t","request":{}}]}',
        '{"parts":[{"namespace":"n","topic":"t","request":{"PublishRequest":{"messages":[]}}}]}',
        '{"parts":[{"namespace":"n","topic":null,"request":{"messages":[]}}]}',
    ],
)
def test_a_commit_of_another_shape_is_refused(text: str) -> None:
    refused("CommitRequest", JSON, text)


NOT_LONGS = ["true", "false", "1.0", "1e3", '"5"', "[]", "{}", '{"long":true}', '{"long":"5"}', '{"long":null}', '{"int":5}']
NOT_LONGS += ["9223372036854775808", "-9223372036854775809", "1" + "0" * 400]


@pytest.mark.parametrize("value", NOT_LONGS)
def test_what_is_not_a_whole_number_of_64_bits_is_no_long(value: str) -> None:
    assert "$.sequenceIds[0]" in refused("PublishRequest", JSON, f'{{"messages":[],"sequenceIds":[{value}]}}')
    for field in ("transactionWritePointer", "epoch", "expectedOffset"):
        assert f"$.{field}" in refused("PublishRequest", JSON, f'{{"messages":[],"{field}":{value}}}')
    refused("ConsumeRequest", JSON, f'{{"startOffset":{value}}}')
    refused("PublishRequest", JSON, f'{{"messages":[],"expectedKeyOffsets":{{"k":{value}}}}}')


@pytest.mark.parametrize("value", ["2147483648", "-2147483649", "true", "1.0", '"5"', '{"int":2147483648}', '{"long":5}'])
def test_what_does_not_fit_32_bits_is_no_int(value: str) -> None:
    refused("ConsumeRequest", JSON, f'{{"limit":{value}}}')
    refused("ConsumeRequest", JSON, f'{{"wait":{value}}}')


@pytest.mark.parametrize("value", ["0", "1", "null", '"true"', "[]", '{"boolean":true}'])
def test_only_true_and_false_are_booleans(value: str) -> None:
    assert "$.inclusive" in refused("ConsumeRequest", JSON, f'{{"inclusive":{value}}}')


@pytest.mark.parametrize("value", ["null", "1", "true", "[]", "{}", '"\\u0100"', '"\U0001f600"', '"\\ud800"', '{"bytes":"a"}'])
def test_only_characters_up_to_255_are_bytes(value: str) -> None:
    assert "$.messages[0]" in refused("PublishRequest", JSON, f'{{"messages":[{value}]}}')


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00", "\\udc00\\ud800"])
def test_half_a_surrogate_pair_is_no_text(half: str) -> None:
    assert "surrogate" in refused("PublishRequest", JSON, f'{{"messages":[],"producer":"{half}"}}')
    for member in (f'"{half}":"v"', f'"k":"{half}"'):
        assert "surrogate" in refused("PublishRequest", JSON, f'{{"messages":[""],"properties":[{{{member}}}]}}')
    refused("PublishRequest", JSON, f'{{"messages":[],"{half}":1}}')
    refused("PublishRequest", JSON, b'{"messages":[],"producer":"\xed\xa0\x80"}')


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert decoded("PublishRequest", JSON, '{"messages":[],"producer":"\\ud83d\\ude00"}')["producer"] == "\U0001f600"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "1e999", "01", "+1", ".5", "0x1", "1_000", "undefined"])
def test_what_json_does_not_have_is_refused(word: str) -> None:
    refused("PublishRequest", JSON, f'{{"messages":[],"epoch":{word}}}')
    refused("PublishRequest", JSON, word)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "null",
            "[]",
            '"x"',
            "0",
            "{",
            '{"messages":[]',
            '{"messages":[]}x',
            '{"messages":[],}',
            "{'messages':[]}",
            "\ufeff{}",
            "{}",
        ],
        *[
            '{"messages":{}}',
            '{"messages":null}',
            '{"messages":"a"}',
            '{"messages":{"array":[]}}',
            '{"messages":[],"sequenceid":[]}',
        ],
    ],
)
def test_json_of_another_shape_is_refused(text: str) -> None:
    refused("PublishRequest", JSON, text)


def test_bytes_that_are_not_utf_8_are_no_json() -> None:
    refused("PublishRequest", JSON, b'{"messages":["\xff"]}')


SHAPES = [
    '{{"messages":{0}{1}}}',
    '{{"messages":[],"epoch":{0}{1}}}',
    '{{"messages":[],"properties":[{0}{1}]}}',
    '{{"x":{0}{1}}}',
    '{{"parts":[{{"namespace":"","topic":"","request":{{"keys":{0}{1}}}}}]}}',
    "{0}{1}",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_nesting_of_any_depth_is_refused_and_never_too_deep_for_us(shape: str) -> None:
    """Every depth around the interpreter's limit: a parser that just manages leaves no room to quote the value."""
    for depth in [*range(2, 1100, 97), *range(900, 1100), 100_000]:
        refused("CommitRequest" if "parts" in shape else "PublishRequest", JSON, shape.format("[" * depth, "]" * depth))
        refused("PublishRequest", JSON, shape.format('{"a":' * depth, "}" * depth).replace("}}", "1}}", 1))


def test_answers_in_json_are_tagged() -> None:
    response = PublishResponse([ReceiptRun("stored", 1, 0, ID, 0)], None, 1, 0, 1, 0)
    answer = json.loads(codec.encode_publish_response(JSON, response))
    tagged = {"sequenceId": {"long": 0}, "messageId": {"bytes": ID.decode("latin-1")}, "offset": {"long": 0}}
    assert answer["receipts"] == [{"status": "stored", "count": 1, **tagged}]
    assert answer["transactionWritePointer"] is None


def test_a_json_poll_answers_a_bare_array_with_everything_about_each_message() -> None:
    one = encode_bytes(ID) + encode_long(5) + b"\x02" + encode_string("p") + b"\x02\x00" + b"\x00\x00\x00" + encode_bytes(b"\xff")
    assert json.loads(codec.encode_consume_response(JSON, [one], ID)) == [
        {
            "id": ID.decode("latin-1"),
            "offset": 5,
            "producer": {"string": "p"},
            "sequenceId": {"long": 0},
            "key": None,
            "properties": None,
            "ttl": None,
            "payload": "\xff",
        }
    ]


# --- fuzz ---------------------------------------------------------------------------------------------------------------

longs = st.integers(-(2**63), 2**63 - 1)
publishes = st.integers(0, 4).flatmap(
    lambda size: st.builds(
        PublishRequest,
        payloads=st.lists(st.binary(max_size=5), min_size=size, max_size=size),
        producer=st.none() | st.text(max_size=5),
        epoch=st.none() | longs,
        sequence_ids=st.none() | st.lists(longs, min_size=size, max_size=size),
        keys=st.none() | st.lists(st.none() | st.binary(max_size=5), min_size=size, max_size=size),
        properties=st.none()
        | st.lists(
            st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3), min_size=size, max_size=size
        ),
        ttls=st.none() | st.lists(st.none() | longs, min_size=size, max_size=size),
        write_pointer=st.none() | longs,
        expected_offset=st.none() | longs,
        expected_last_message_id=st.none() | st.binary(min_size=20, max_size=20),
        expected_key_offsets=st.none() | st.dictionaries(st.text(max_size=3), st.none() | longs, max_size=3),
    )
)
polls = st.builds(
    ConsumeRequest,
    start_from=st.none() | longs | st.binary(min_size=20, max_size=20),
    start_offset=st.none() | longs,
    inclusive=st.booleans(),
    limit=st.none() | st.integers(-(2**31), 2**31 - 1),
    wait=st.none() | st.integers(-(2**31), 2**31 - 1),
    transaction=st.none() | st.binary(max_size=20),
)


commits = st.builds(
    CommitRequest,
    group=st.none() | st.text(max_size=5),
    parts=st.lists(st.builds(Part, st.text(max_size=3), st.text(max_size=3), publishes), max_size=3),
    branches=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    producer=st.none() | st.text(max_size=5),
    sequence_id=st.none() | longs,
    incarnation=st.none() | st.text(max_size=5),
    checksum=st.none() | st.text(max_size=5),
)


def listed(request: PublishRequest) -> PublishRequest:
    """The same with the sequence ids as a list, however they travelled."""
    ids = request.sequence_ids
    return replace(request, sequence_ids=None if ids is None else list(ids))


def test_sequence_ids_that_leave_one_out_travel_one_by_one() -> None:
    body = codec.encode_publish_request(PublishRequest([b"a", b"b", b"c"], producer="p", sequence_ids=[5, 9, 7]))
    assert listed(codec.decode_publish_request(ONCELOG_AVRO, body)).sequence_ids == [5, 9, 7]


@given(publishes)
def test_every_publish_request_comes_back_in_both_encodings(request: PublishRequest) -> None:
    body = codec.encode_publish_request(request)
    assert listed(codec.decode_publish_request(ONCELOG_AVRO, body)) == request
    as_json = codec.encode("PublishRequest", JSON, decoded("PublishRequest", ONCELOG_AVRO, body))
    assert listed(codec.decode_publish_request(JSON, as_json)) == request


@given(polls)
def test_every_poll_comes_back_in_both_encodings(request: ConsumeRequest) -> None:
    body = codec.encode_consume_request(request)
    assert codec.decode_consume_request(ONCELOG_AVRO, body) == request
    as_json = codec.encode("ConsumeRequest", JSON, decoded("ConsumeRequest", ONCELOG_AVRO, body))
    assert codec.decode_consume_request(JSON, as_json) == request


@given(commits)
def test_every_commit_comes_back_in_both_encodings(request: CommitRequest) -> None:
    body = codec.encode_commit_request(request)
    as_json = codec.encode("CommitRequest", JSON, decoded("CommitRequest", ONCELOG_AVRO, body))
    for media, each in ((ONCELOG_AVRO, body), (JSON, as_json)):
        found = codec.decode_commit_request(media, each)
        found.parts = [part._replace(request=listed(part.request)) for part in found.parts]
        assert found == request


mutations = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "cut"]), st.integers(0, 400), st.binary(max_size=11)), min_size=1, max_size=4
)


def mutated(body: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, place, data in changes:
        at = place % (len(body) + 1)
        kept = at + (len(data) if kind == "set" else 0 if kind == "insert" else len(data) + 1)
        body = body[:at] + (b"" if kind == "cut" else data) + body[kept:]
    return body


@settings(max_examples=300)
@given(st.sampled_from(WHOLE[:2] + WHOLE[4:]), mutations)
def test_a_damaged_avro_body_is_a_request_or_an_invalid_one(
    whole: tuple[str, str, bytes], changes: list[tuple[str, int, bytes]]
) -> None:
    name, media, body = whole
    outcome = cheaply(name, media, mutated(body, changes))
    assert isinstance(outcome, InvalidRequest | PublishRequest | ConsumeRequest | CommitRequest)
    if isinstance(outcome, PublishRequest):
        assert all(type(payload) is bytes for payload in outcome.payloads)
    if not isinstance(outcome, InvalidRequest):
        WRITERS[type(outcome)](outcome)


@settings(max_examples=300)
@given(st.sampled_from(REQUESTS), st.sampled_from([AVRO, ONCELOG_AVRO, JSON]), st.binary(max_size=200))
def test_any_bytes_are_a_request_or_an_invalid_one(name: str, media: str, body: bytes) -> None:
    chosen = media if media in codec.media_types_of(name) else JSON
    assert isinstance(cheaply(name, chosen, body), InvalidRequest | PublishRequest | ConsumeRequest | CommitRequest)


FIELDS = [
    "messages",
    "sequenceIds",
    "keys",
    "properties",
    "ttls",
    "producer",
    "epoch",
    "startFrom",
    "limit",
    "inclusive",
    "expectedKeyOffsets",
    "expectedLastMessageId",
    "parts",
    "branches",
    "group",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["long", "int", "bytes", "array", "map", "string", "null", "x"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@settings(max_examples=300)
@given(st.sampled_from(REQUESTS), st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4), mutations | st.just([]))
def test_any_json_is_a_request_or_an_invalid_one(name: str, value: dict[str, Any], changes: list[tuple[str, int, bytes]]) -> None:
    outcome = cheaply(name, JSON, mutated(json.dumps(value).encode(), changes))
    assert isinstance(outcome, InvalidRequest | PublishRequest | ConsumeRequest | CommitRequest)
    if not isinstance(outcome, InvalidRequest):
        WRITERS[type(outcome)](outcome)


# --- the smallest parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hexed"),
    [
        *[(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001"), (8191, "fe7f"), (8192, "808001")],
        *[(2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")],
    ],
)
def test_a_long_is_the_bytes_of_the_standard(value: int, hexed: str) -> None:
    assert encode_long(value).hex() == hexed
    assert decode_long(bytes.fromhex(hexed), 0) == (value, len(hexed) // 2)


@given(longs, st.binary(max_size=3), st.binary(max_size=3))
def test_a_long_is_read_where_it_lies(value: int, before: bytes, after: bytes) -> None:
    data = encode_long(value)
    assert decode_long(before + data + after, len(before)) == (value, len(before + data))
    for size in range(len(data)):
        with pytest.raises(IndexError):
            decode_long(data[:size], 0)


@given(
    st.sampled_from([0, 1, 62, 63, 64, 127, 128, 8191, 8192, 2**35, 2**63 - 400]) | st.integers(0, 2**63 - 400),
    st.integers(0, 300),
)
def test_a_run_of_longs_is_each_of_them(start: int, count: int) -> None:
    assert encode_long_run(start, count) == [encode_long(value) for value in range(start, start + count)]


@given(st.sets(st.integers(0, 300) | st.integers(0, 2**63 - 1), max_size=30))
def test_rising_longs_are_each_of_them(values: set[int]) -> None:
    rising = sorted(values)
    assert encode_longs(rising) == [encode_long(value) for value in rising]


@given(st.lists(st.dictionaries(st.text(), st.text(), max_size=4), max_size=4))
def test_parts_put_together_are_what_fastavro_reads(value: list[dict[str, str]]) -> None:
    body = b"".join(encode_array(map(encode_map, value), len(value)))
    schema = fastavro.parse_schema({"type": "array", "items": {"type": "map", "values": "string"}})
    stream = io.BytesIO(body)
    assert fastavro.schemaless_reader(stream, schema, None) == value
    assert stream.read() == b""


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4095, 4096, 10_000])
def test_bytes_carry_their_length_before_them(size: int) -> None:
    assert encode_bytes(bytes(size)) == encode_long(size) + bytes(size)


# --- rollback -----------------------------------------------------------------------------------------------------------

PUBLISHED = PublishResponse([ReceiptRun("stored", 3, None, ID, 7)], 5, 1000, 3, 1000, 5)
TMS_ROLLBACK = bytes.fromhex("00 0a d00f 06 d00f 0a")  # branch 0 = long, 5; 1000 (d00f); 3; 1000; 5


def rollback_refused(media: str, body: bytes | str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        codec.decode_rollback(media, body.encode() if isinstance(body, str) else body)
    assert len(caught.value.detail) < 1000
    return caught.value.detail


def test_a_publish_answer_is_its_rollback_in_every_media_type() -> None:
    expected = Rollback(5, (1000, 3), (1000, 5))
    assert codec.decode_rollback(ONCELOG_AVRO, codec.encode_rollback(PUBLISHED)) == expected
    for media in (AVRO, ONCELOG_AVRO, JSON):
        assert codec.decode_rollback(media, codec.encode_publish_response(media, PUBLISHED)) == expected
    assert codec.encode_publish_response(AVRO, PUBLISHED) == TMS_ROLLBACK


def test_a_publish_answer_comes_back_whole() -> None:
    for response in (PUBLISHED, PublishResponse([]), replace(PUBLISHED, write_pointer=None)):
        assert codec.decode_published(codec.encode_publish_response(ONCELOG_AVRO, response)) == response


@pytest.mark.parametrize("receipts", ["", ', "receipts": []'])
def test_a_json_rollback_may_leave_out_tags_and_receipts(receipts: str) -> None:
    body = '{"transactionWritePointer": 5, "startTimestamp": 1, "startSequenceId": 0, "endTimestamp": 1, "endSequenceId": 0%s}'
    assert codec.decode_rollback(JSON, (body % receipts).encode()) == (5, (1, 0), (1, 0))


ABSURD: list[dict[str, Any]] = [
    {"write_pointer": None},
    {"write_pointer": 0},
    {"write_pointer": -5},
    {"write_pointer": -(2**63)},
    {"start_timestamp": -1},
    {"end_timestamp": -1},
    {"start_sequence_id": -1},
    {"end_sequence_id": 65_536},
    {"start_timestamp": 1001},
    {"start_sequence_id": 6},
]


@pytest.mark.parametrize("change", ABSURD, ids=str)
@pytest.mark.parametrize("media", [AVRO, ONCELOG_AVRO, JSON])
def test_a_rollback_that_nobody_can_have_been_answered_is_refused(media: str, change: dict[str, Any]) -> None:
    rollback_refused(media, codec.encode_publish_response(media, replace(PUBLISHED, **change)))


@pytest.mark.parametrize("media", [AVRO, ONCELOG_AVRO, JSON])
def test_a_rollback_cut_short_or_followed_by_more_is_refused(media: str) -> None:
    body = codec.encode_publish_response(media, PUBLISHED)
    for length in range(len(body)):
        rollback_refused(media, body[:length])
    rollback_refused(media, body + b"\x00")


def test_a_number_without_end_in_a_rollback_is_refused() -> None:
    """fastavro reads numbers of any length; Python refuses to print this one."""
    for at in (1, 2, 4, 5, 7):
        endless = TMS_ROLLBACK[:at] + b"\xff" * 30_000 + b"\x01" + TMS_ROLLBACK[at + 1 :]
        rollback_refused(AVRO, endless)


@given(body=st.binary(max_size=100), media=st.sampled_from([AVRO, ONCELOG_AVRO, JSON]))
def test_any_bytes_are_a_rollback_or_an_invalid_one(body: bytes, media: str) -> None:
    try:
        rollback = codec.decode_rollback(media, body)
    except InvalidRequest:
        return
    assert rollback.write_pointer > 0
    assert (0, 0) <= rollback.start <= rollback.end


def test_no_rollback_takes_more_than_a_fixed_multiple_of_its_size() -> None:
    smallest = b"\x00\x02\x00\x00\x00"  # a receipt: stored, one message, nothing else
    bomb = bytes.fromhex("02 0a d00f 06 d00f 0a") + encode_long(20_000) + smallest * 20_000 + b"\x00"
    tracemalloc.start()
    try:
        codec.decode_rollback(ONCELOG_AVRO, bomb)
        assert tracemalloc.get_traced_memory()[1] <= EXPANSION["PublishRequest"] * len(bomb) + CONSTANT
    finally:
        tracemalloc.stop()


def test_publishing_a_stored_group_is_a_request_without_messages() -> None:
    request = PublishRequest([], write_pointer=5)
    assert codec.decode_publish_request(ONCELOG_AVRO, codec.encode_publish_request(request)) == request
