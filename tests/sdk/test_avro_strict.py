"""The strict reader of Avro: as fastavro reads, but in one form only, in every loop of its own."""

from __future__ import annotations

from io import BytesIO
from typing import Any
from unittest import mock

import fastavro
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest
from oncelog.wire import codec
from oncelog.wire.avro_parts import encode_long
from oncelog.wire.avro_strict import NotAvro, TooManyItems, compile_reader, read_long, read_whole
from oncelog.wire.codec import (
    _decode_one_run,
    decode_plain,
    decode_publish_request,
    decode_published,
    encode_publish_request,
    encode_publish_response,
    encode_stored,
)
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import DUPLICATE, STORED, PublishRequest, PublishResponse, ReceiptRun
from tests.sdk.test_wire import records_of

EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "a", "type": ["null", "long"]},
        {"name": "b", "type": {"type": "array", "items": ["null", "bytes"]}},
        {"name": "c", "type": {"type": "array", "items": "bytes"}},
        {"name": "d", "type": {"type": "map", "values": ["string", "int", "null"]}},
        {"name": "e", "type": {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}}},
        {"name": "f", "type": "boolean"},
        {"name": "g", "type": {"type": "array", "items": "long"}},
        {"name": "h", "type": {"type": "array", "items": ["null", "long"]}},
        {"name": "i", "type": {"type": "array", "items": ["null", {"type": "map", "values": "string"}]}},
    ],
}
records = records_of(EVERYTHING)
READER = compile_reader(EVERYTHING)
PARSED = fastavro.parse_schema(EVERYTHING)


def written(record: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, PARSED, record)
    return stream.getvalue()


@settings(deadline=None)
@given(records)
def test_whatever_fastavro_writes_is_read_as_it_was(record: dict[str, Any]) -> None:
    assert read_whole(READER, written(record), 100) == record


@settings(deadline=None)
@given(records, st.data())
def test_what_is_cut_short_or_altered_is_refused_or_read_and_never_fails_otherwise(record: dict[str, Any], data: Any) -> None:
    body = bytearray(written(record))
    with pytest.raises(NotAvro):
        read_whole(READER, bytes(body[: data.draw(st.integers(0, len(body) - 1))]), 100)
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = read_whole(READER, bytes(body), 100)
    except (NotAvro, TooManyItems):
        return
    assert read == fastavro.schemaless_reader(BytesIO(body), PARSED, None)


def test_every_long_has_one_form_of_at_most_64_bits() -> None:
    for value in (0, -1, 1, 63, 64, -64, -65, 2**31, 2**63 - 1, -(2**63)):
        body = encode_long(value)
        assert read_long(body, 0) == (value, len(body))
        with pytest.raises(NotAvro):
            read_long(body[:-1] + bytes([body[-1] | 0x80, 0]), 0)
    for body in (b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\xff" * 30):
        with pytest.raises(NotAvro):
            read_long(body, 0)


HUGE = [*map(encode_long, (2**31, 2**62, 2**63 - 1, -(2**31), -(2**62), -(2**63)))]
FILLED = [number + filling for number in HUGE for filling in (b"", bytes(100), b"\x02a" * 50)]


@pytest.mark.parametrize(
    ("schema", "bodies"),
    [
        ("boolean", [b"\x02"]),
        ("int", [encode_long(2**31), encode_long(-(2**31) - 1)]),
        ("string", [b"\x02\xff"]),
        ("bytes", [*FILLED, b"\x01" + bytes(9), b"\x03" + bytes(9)]),
        ({"type": "enum", "symbols": ["X", "Y"]}, [b"\x04", b"\x01"]),
        (["null", "long"], [each + bytes(20) for each in (b"\x01", b"\x03", b"\x04", b"\x82" + b"\x80" * 12 + b"\x00", *HUGE)]),
        ({"type": "array", "items": "bytes"}, [*FILLED, b"\x03\x80\x08\x02a\x02a\x00"]),  # a block longer than all there is
        (["null", {"type": "array", "items": "bytes"}], [b"\x02" + b"\xff" * 1_000_000]),
    ],
    ids=str,
)
def test_a_number_that_cannot_be_is_refused_without_being_believed(schema: Any, bodies: list[bytes]) -> None:
    for body in bodies:
        with pytest.raises(NotAvro):
            read_whole(compile_reader(schema), body, 10**6)


def test_no_more_items_are_made_than_there_are_bytes() -> None:
    with pytest.raises(NotAvro, match="cannot be in"):  # though nothing is as small as this
        read_whole(compile_reader({"type": "array", "items": "null"}), encode_long(2**20) + bytes(100), 10**9)


MAP = {"type": "map", "values": "string"}


@pytest.mark.parametrize(
    ("items", "before", "behind"),
    [
        ("bytes", b"\x02", b"12345\x00"),
        (["null", "bytes"], b"\x02\x02", b"12345\x00"),
        ("long", b"\x02", b"\x00"),
        (["null", "long"], b"\x02\x02", b"\x00"),
        (["null", MAP], b"\x02\x02\x02", b"12345\x00\x00\x00"),
        (["null", MAP], b"\x02\x02\x02\x00", b"12345\x00\x00"),
    ],
)
def test_no_loop_takes_a_number_that_is_not_as_avro_writes_it(items: Any, before: bytes, behind: bytes) -> None:
    reader = compile_reader({"type": "array", "items": items})
    assert len(read_whole(reader, before + b"\x0a" + behind, 10)) == 1
    for five in (b"\x8a\x00", b"\x8a\x80\x00"):
        with pytest.raises(NotAvro, match="not encoded as Avro does"):
            read_whole(reader, before + five + behind, 10)
    if "long" not in items:
        for negative in (b"\x09", b"\x81\x01", b"\x81\x80\x01"):
            with pytest.raises(NotAvro, match=r"cut short|UTF-8"):
                read_whole(reader, before + negative + behind + bytes(9_000), 10)
    if items != "bytes" and items != "long":
        with pytest.raises(NotAvro, match="a branch that there is not"):
            read_whole(reader, b"\x02\x01" + before[2:] + b"\x0a" + behind, 10)


LONGS = st.integers(0, 2**62) | st.builds(lambda bits, more: max(0, 2**bits + more), st.integers(0, 61), st.integers(-2, 2))


@st.composite
def publishes(draw: st.DrawFn) -> PublishRequest:
    """As nearly all are, and some that say a little more."""
    payloads = draw(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
    first = draw(LONGS)
    producer = draw(st.none() | st.sampled_from(["p", "p.q:1@=-", "p" * 249]))
    ids = None if producer is None else range(first, first + len(payloads))
    more = {"keys": [b"k"] * len(payloads)} if draw(st.integers(0, 5)) == 5 else {}
    epoch = None if producer is None else draw(st.none() | LONGS)
    return PublishRequest(payloads, producer, epoch, ids, **more)


@settings(deadline=None)
@given(publishes(), st.data())
def test_a_plain_publish_is_read_as_its_schema_says_and_nothing_else_is(request: PublishRequest, data: Any) -> None:
    """Also where any bytes of it are others: what is read so is what all of the schema's reader would make of it."""
    body = bytearray(encode_publish_request(request))
    assert (decode_plain(bytes(body), 100) is not None) == (request.keys is None)
    with pytest.raises(InvalidRequest):
        decode_publish_request(ONCELOG_AVRO, bytes(body) + b"\0\0", 100)
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    sent = bytes(body[: data.draw(st.sampled_from([len(body), len(body) - 1]))]) + data.draw(st.sampled_from([b"", b"\0"]))
    plain = decode_plain(sent, 100)
    if plain is not None:
        whole = decode_publish_request(f"{ONCELOG_AVRO}; q=1", sent, 100)  # which goes by the schema
        assert (plain, plain.sequence_ids, plain.size) == (whole, whole.sequence_ids, whole.size)
    assert decode_plain(sent, 0) is None, "no more items than may be"


@settings(deadline=None)
@given(
    publishes(),
    st.sampled_from(["", "ids", "no ids", "no producer", "write_pointer", "expected_offset", "properties", "ttls", "many"]),
)
@example(PublishRequest([b"a", b"b"], "p", None, [3, 5]), "")
@example(PublishRequest([b"a", b"b"], "p", None, [5, 4]), "")
def test_a_publish_is_written_to_the_bytes_that_its_schema_says(request: PublishRequest, odd: str) -> None:
    count = len(request.payloads)
    if odd == "ids" and request.sequence_ids is not None:
        request.sequence_ids = [each // 2 for each in request.sequence_ids]
    elif odd == "no ids":
        request.sequence_ids = None
    elif odd == "no producer":
        request.producer = None
    elif odd == "properties":
        request.properties = [{"a": "b"}] * count
    elif odd == "ttls":
        request.ttls = [7] * count
    elif odd in ("write_pointer", "expected_offset"):
        setattr(request, odd, 5)
    elif odd == "many":
        request.payloads = [*request.payloads] * 16
    written = encode_publish_request(request)
    with mock.patch.object(codec, "_encode_plain", return_value=None):
        assert written == encode_publish_request(request)


ANSWERS = st.builds(
    PublishResponse,
    st.lists(
        st.builds(
            ReceiptRun,
            st.sampled_from([STORED, DUPLICATE]),
            LONGS,
            st.none() | LONGS,
            st.none() | st.binary(min_size=20, max_size=20) | st.binary(max_size=3),
            st.none() | LONGS,
        ),
        max_size=2,
    ),
    st.none() | LONGS,
    *[LONGS, st.integers(0, 2**31 - 1)] * 2,
)


@settings(deadline=None)
@given(ANSWERS, st.data())
def test_an_answer_of_one_run_is_read_as_its_schema_says_and_nothing_else_is(response: PublishResponse, data: Any) -> None:
    """Also where any bytes of it are others."""
    body = bytearray(encode_publish_response(ONCELOG_AVRO, response))
    assert decode_published(bytes(body)) == response
    is_plain = response.write_pointer is None and len(response.receipts) == 1
    ids, places = [each.message_id for each in response.receipts], (response.start_sequence_id, response.end_sequence_id)
    assert _decode_one_run(bytes(body) + b"\0") is None
    assert (_decode_one_run(bytes(body)) is not None) == (
        is_plain and (ids == [None] or len(ids[0] or b"") == 20) and max(places) < 2**16
    )
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    sent = bytes(body[: data.draw(st.sampled_from([len(body), len(body) - 1]))]) + data.draw(st.sampled_from([b"", b"\0"]))
    if (found := _decode_one_run(sent)) is not None:
        with mock.patch.object(codec, "_decode_one_run", return_value=None):
            assert found == decode_published(sent)


@pytest.mark.parametrize("name", ["", ".", "no name", "naïve", "p" * 250])
def test_a_plain_publish_under_what_is_no_name_is_refused_as_any_other(name: str) -> None:
    body = encode_publish_request(PublishRequest([b"x"], name, None, [0]))
    assert decode_plain(body, 100) is None
    with pytest.raises(InvalidRequest, match="a producer's name"):
        decode_publish_request(ONCELOG_AVRO, body)


@given(LONGS, st.integers(0, 60_000), st.integers(1, 5_000), st.none() | LONGS, st.binary(min_size=20, max_size=20), LONGS)
def test_an_answer_of_what_was_just_stored_is_what_its_parts_are(
    timestamp: int, seq_id: int, count: int, sequence_id: int | None, message_id: bytes, offset: int
) -> None:
    receipts = [ReceiptRun(STORED, count, sequence_id, message_id, offset)]
    response = PublishResponse(receipts, None, timestamp, seq_id, timestamp, seq_id + count - 1)
    found = encode_stored(timestamp, seq_id, count, sequence_id, message_id, offset)
    assert found == encode_publish_response(ONCELOG_AVRO, response)
