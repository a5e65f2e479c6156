"""Requests in Avro: read as fastavro reads them; what is out of bounds costs nothing, what is odd is refused."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest, RequestTooLarge
from oncelog.wire import avro_strict, codec
from oncelog.wire.avro_parts import encode_array, encode_bytes, encode_long
from oncelog.wire.avro_strict import NotAvro, TooManyItems, compile_reader, read_long, read_whole
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO

LONGS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
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
records = st.fixed_dictionaries(
    {
        "a": st.none() | LONGS,
        "b": st.lists(st.none() | st.binary(max_size=200), max_size=5),
        "c": st.lists(st.binary(max_size=9_000), max_size=3),
        "d": st.dictionaries(TEXT, TEXT | st.integers(-(2**31), 2**31 - 1) | st.none(), max_size=4),
        "e": st.lists(st.sampled_from("XY"), max_size=4),
        "f": st.booleans(),
        "g": st.lists(LONGS | st.integers(-9_000, 9_000), max_size=5),
        "h": st.lists(st.none() | LONGS, max_size=3),
        "i": st.lists(st.none() | st.dictionaries(TEXT | st.text("x", min_size=64, max_size=70), TEXT, max_size=3), max_size=3),
    }
)
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


@pytest.mark.parametrize("value", [0, -1, 1, 63, 64, -64, -65, 2**31, 2**63 - 1, -(2**63)])
def test_every_long_has_one_form(value: int) -> None:
    body = encode_long(value)
    assert read_long(body, 0) == (value, len(body))
    longer = body[:-1] + bytes([body[-1] | 0x80, 0])
    with pytest.raises(NotAvro):
        read_long(longer, 0)


@pytest.mark.parametrize("body", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\xff" * 30])
def test_a_long_of_more_than_64_bits_is_refused(body: bytes) -> None:
    with pytest.raises(NotAvro):
        read_long(body, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"\x01" + b"\x00",  # branch -1 of the union: fastavro takes it for the last one
        b"\x03" + b"\x00",
        b"\x04" + b"\x00",  # there are two branches
        b"\x00" + b"\xff" * 10 + b"\x01" + b"\x00",  # a write pointer of more than 64 bits
        b"\x02" + b"\x02" + b"\x01",  # a message of -1 bytes
        b"\x02" + b"\x03\x80\x08" + b"\x00",  # a block that says it is longer than the body
    ],
)
def test_what_is_not_as_avro_writes_it_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        codec.decode_publish_request(AVRO, body)


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


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63 - 1])
@pytest.mark.parametrize("name", ["limit", "wait"])
def test_an_int_that_is_none_is_refused(name: str, number: int) -> None:
    limit = b"\x00" + encode_long(number) if name == "limit" else b"\x02"
    wait = b"\x02" + encode_long(number) if name == "wait" else b"\x00"
    with pytest.raises(InvalidRequest):
        codec.decode_consume_request(ONCELOG_AVRO, b"\x04\x00\x01" + limit + wait + b"\x02")


def bodies_of_too_many() -> dict[str, tuple[str, bytes]]:
    many = 200_000
    head = b"\x00" * 5  # no pointer, producer, epoch, ids, keys
    empty_maps = head + b"\x02" + b"".join(encode_array([b"\x02\x00"] * many, many))
    one_map = head + b"\x02\x02\x02" + encode_long(many) + b"\x02k\x02v" * many
    blocks = b"\x02" + b"\x02\x00" * many + b"\x00"
    return {
        "maps": (ONCELOG_AVRO, empty_maps),
        "entries of one map": (ONCELOG_AVRO, one_map),
        "messages in blocks of one": (AVRO, blocks),
        "JSON arrays": (JSON, b'{"messages": [' + b"[]," * many + b"[]]}"),
        "JSON strings": (JSON, b'{"messages": [' + b'"",' * many + b'""]}'),
    }


TOO_MANY = bodies_of_too_many()


@pytest.mark.parametrize("what", TOO_MANY)
def test_what_is_too_much_is_refused_before_it_is_made(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    media, body = TOO_MANY[what]
    made = 0
    take = avro_strict.Allowance.take

    def counted(self: avro_strict.Allowance, count: int) -> None:
        nonlocal made
        take(self, count)
        made += count

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it is parsed")

    monkeypatch.setattr(avro_strict.Allowance, "take", counted)
    monkeypatch.setattr(codec.json, "loads", never)
    with pytest.raises(RequestTooLarge) as refused:
        codec.decode_publish_request(media, body, 1_000)
    assert made <= 1_000
    assert refused.value.to_problem()["limit"] == 1_000


def test_a_count_that_the_bytes_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="cannot be in"):
        codec.decode_publish_request(AVRO, b"\x02" + encode_long(2**40) + b"\x00" * 100)


@given(st.lists(st.text('a,[{"\\\\:}]', max_size=12), max_size=8), st.integers(0, 12))
def test_values_of_json_are_counted_outside_of_strings(texts: list[str], most: int) -> None:
    body = codec.json.dumps(texts).encode()
    values = 1 + len(texts) if texts else 2
    assert codec.holds_more_values(body, most) == (values > most)


def test_a_message_that_looks_like_many_values_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = codec.json.dumps([{"a": [1, 2, 'quoted "x" and \\']}] * 1_000)
    request = codec.decode_publish_request(JSON, codec.json.dumps({"messages": [payload]}).encode(), 20)
    assert request.payloads == [payload.encode()]


def test_messages_of_every_length_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [0, 1, 63, 64, 127, 128, 8_191, 8_192, 8_193, 2**20]
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    body = b"\x02" + b"".join(encode_array(map(encode_bytes, payloads), len(payloads)))
    assert codec.decode_publish_request(AVRO, body).payloads == payloads
