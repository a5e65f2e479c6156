"""Bodies that anybody may have made up: exactly a request, or an InvalidRequest, in bounded memory and no time.

Here, at the codec, once for all; that a handler gives its body to the codec is proved in tests/rest, with bytes at random.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest, RequestTooLarge
from oncelog.wire import avro_strict, codec
from oncelog.wire.avro_parts import encode_array, encode_long, encode_string
from oncelog.wire.json_encoding import holds_more_values
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from tests.sdk.test_wire import FULL_COMMIT, FULL_POLL, FULL_PUBLISH, ID_HEX, PUBLISHED

READERS: dict[str, Callable[[str, bytes], Any]] = {
    "PublishRequest": codec.decode_publish_request,
    "ConsumeRequest": codec.decode_consume_request,
    "CommitRequest": codec.decode_commit_request,
    "PublishResponse": codec.decode_rollback,
    "ConsumeResponse": lambda media, body: codec.decode("ConsumeResponse", media, body),
}
EXPANSION, CONSTANT = 96, 2**17
"""No request may take more memory than so many times its size, and this besides. (A part of a commit is a whole record, in 13
bytes.)"""


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
    assert peak <= EXPANSION * len(body) + CONSTANT, f"{peak} bytes for a body of {len(body)}"
    assert not isinstance(outcome, InvalidRequest) or (outcome.definite and len(outcome.detail) < 1000)
    return outcome


def refused(name: str, media: str, body: bytes | str) -> str:
    """The detail of the InvalidRequest that this body is."""
    outcome = cheaply(name, media, body.encode() if isinstance(body, str) else body)
    assert isinstance(outcome, InvalidRequest), (name, media, body[:60])
    return outcome.detail


# --- Avro ---------------------------------------------------------------------------------------------------------------

WHOLE = [
    ("PublishRequest", AVRO, bytes.fromhex("00 d804 04 0261 046263 00")),
    ("ConsumeRequest", AVRO, bytes.fromhex("00 28" + ID_HEX + "00 00 c801 00 06 0a0001")),
    ("PublishResponse", AVRO, bytes.fromhex("00 0e a09c01 00 a09c01 02")),
    ("ConsumeResponse", AVRO, bytes.fromhex("02 28" + ID_HEX + "0261 00")),
    ("PublishRequest", ONCELOG_AVRO, codec.encode_publish_request(FULL_PUBLISH)),
    ("ConsumeRequest", ONCELOG_AVRO, codec.encode_consume_request(FULL_POLL)),
    ("CommitRequest", ONCELOG_AVRO, codec.encode_commit_request(FULL_COMMIT)),
    ("PublishResponse", ONCELOG_AVRO, codec.encode_publish_response(ONCELOG_AVRO, PUBLISHED)),
    ("PublishResponse", JSON, codec.encode_publish_response(JSON, PUBLISHED)),
]


@pytest.mark.parametrize(("name", "media", "body"), WHOLE)
def test_a_body_that_is_cut_short_anywhere_or_followed_by_more_is_refused(name: str, media: str, body: bytes) -> None:
    READERS[name](media, body)
    for size in range(len(body)):
        with pytest.raises(InvalidRequest):
            READERS[name](media, body[:size])
    for tail in (b"\x00", b"\xff", b"more"):
        detail = refused(name, media, body + tail)
        assert media == JSON or f"{len(tail)} bytes follow" in detail


# --- JSON ---------------------------------------------------------------------------------------------------------------

NOT_LONGS = ["true", "false", "1.0", "1e3", '"5"', "[]", "{}", '{"long":true}', '{"long":"5"}', '{"long":null}', '{"int":5}']
NOT_LONGS += ["1e999", "9223372036854775808", "-9223372036854775809", "1" + "0" * 39]
NO_JSON = ["NaN", "Infinity", "-Infinity", "nan", "01", "+1", ".5", "0x1", "1_000", "undefined"]
HALVES = ["\\ud800", "\\udc00", "\\udc00\\ud800"]
PUBLISH = '{"messages":[],%s}'

VALUES: dict[str, tuple[list[str], list[tuple[str, str, str]]]] = {
    "long": (
        NOT_LONGS,
        [
            ("PublishRequest", PUBLISH % '"sequenceIds":[%s]', "$.sequenceIds[0]"),
            ("PublishRequest", PUBLISH % '"transactionWritePointer":%s', "$.transactionWritePointer"),
            ("PublishRequest", PUBLISH % '"expectedKeyOffsets":{"k":%s}', "$.expectedKeyOffsets"),
        ],
    ),
    "int": (
        ["2147483648", "-2147483649", "true", "1.0", '"5"', '{"int":2147483648}', '{"long":5}'],
        [("ConsumeRequest", '{"limit":%s}', "$.limit")],
    ),
    "boolean": (["0", "1", "null", '"true"', "[]", '{"boolean":true}'], [("ConsumeRequest", '{"inclusive":%s}', "$.inclusive")]),
    "bytes": (
        ["null", "1", "true", "[]", "{}", '"\\u0100"', '"\U0001f600"', '"\\ud800"', '{"bytes":"a"}'],
        [("PublishRequest", '{"messages":[%s]}', "$.messages[0]")],
    ),
    "text": (
        HALVES,
        [
            ("PublishRequest", PUBLISH % '"producer":"%s"', "surrogate"),
            ("PublishRequest", '{"messages":[""],"properties":[{"%s":"v"}]}', "surrogate"),
            ("PublishRequest", '{"messages":[""],"properties":[{"k":"%s"}]}', "surrogate"),
            ("PublishRequest", PUBLISH % '"%s":1', ""),
        ],
    ),
    "publish": (
        [
            *["null", "[]", '"x"', "{", '{"messages":[]', '{"messages":[]}x', '{"messages":[],}', "{'messages':[]}", "\ufeff{}"],
            *["{}", '{"messages":{}}', '{"messages":null}', '{"messages":{"array":[]}}', '{"messages":[],"sequenceid":[]}'],
        ],
        [("PublishRequest", "%s", "")],
    ),
    "commit": (
        [
            *['{"parts":{}}', '{"parts":[null]}', '{"parts":[{}]}', '{"branches":[null]}', '{"group":1}', '{"messages":[]}'],
            '{"parts":[{"namespace":"n","topic":"t","request":{}}]}',
            '{"parts":[{"namespace":"n","topic":"t","request":{"PublishRequest":{"messages":[]}}}]}',
        ],
        [("CommitRequest", "%s", "")],
    ),
}
"""What is none of these, and where it is put: the record, its text, and what the refusal names."""


@pytest.mark.parametrize("kind", VALUES)
def test_json_of_another_shape_is_refused_and_its_place_is_named(kind: str) -> None:
    values, places = VALUES[kind]
    for name, text, says in places:
        for value in values:
            assert says in refused(name, JSON, text % value), value


def test_bytes_that_are_not_utf_8_are_no_json() -> None:
    for body in (b'{"messages":["\xff"]}', b'{"messages":[],"producer":"\xed\xa0\x80"}'):
        refused("PublishRequest", JSON, body)


@pytest.mark.parametrize("text", NO_JSON)
def test_what_python_reads_and_json_does_not_have_is_refused_wherever_json_is_read(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not JSON for a greeting"):
        codec.decode_json(text.encode(), "greeting")


def test_a_number_has_40_digits_at_the_most_before_it_is_made_and_a_string_any() -> None:
    """To read one of n digits takes n²: 240 of 4,000 digits in a body of 1 MB kept everybody waiting."""
    most = "9" * 40
    assert codec.decode_json(f'[{most}, -{most}, 0.{most}, 1e{most}, "{most}1"]'.encode(), "greeting")[:2] == [
        int(most),
        -int(most),
    ]
    for text in (f"{most}0", f"-{most}0", f"0.{most}1", f"{most}1e5", f"1e{most}1", f'["{most}1", {{"a": {most}1}}]'):
        for encoding in ("utf-8", "utf-16"):
            with pytest.raises(InvalidRequest):
                codec.decode_json(text.encode(encoding), "greeting")


SHAPES = [
    '{{"messages":{0}{1}}}',
    '{{"messages":[],"properties":[{0}{1}]}}',
    '{{"x":{0}{1}}}',
    '{{"parts":[{{"namespace":"","topic":"","request":{{"keys":{0}{1}}}}}]}}',
    "{0}{1}",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_nesting_of_any_depth_is_refused_and_never_too_deep_for_us(shape: str) -> None:
    """Every depth around the interpreter's limit: a parser that just manages leaves no room to quote the value."""
    name = "CommitRequest" if "parts" in shape else "PublishRequest"
    for depth in [*range(2, 1100, 97), *range(900, 1100, 3), 100_000]:
        for text in (shape.format("[" * depth, "]" * depth), shape.format('{"a":' * depth, "1" + "}" * depth)):
            with pytest.raises(InvalidRequest) as caught:
                READERS[name](JSON, text.encode())
            assert len(caught.value.detail) < 1000


# --- memory -------------------------------------------------------------------------------------------------------------

MANY = 5_000
COUNT = encode_long(MANY)
DISTINCT = [f"{number:x}" for number in range(MANY)]


def members(field: str, item: str) -> bytes:
    return ('{"messages":[],"' + field + '":[' + ",".join([item] * MANY) + "]}").encode()


PAIRS = ",".join(f'"{key}":0' for key in DISTINCT)
BOMBS: dict[str, tuple[str, str, bytes]] = {
    "empty messages": ("PublishRequest", AVRO, b"\x02" + COUNT + bytes(MANY) + b"\x00"),
    "blocks that say their size": ("PublishRequest", AVRO, b"\x02" + b"\x01\x00\x00" * MANY + b"\x00"),
    "key offsets": (
        *("PublishRequest", ONCELOG_AVRO),
        bytes(9) + b"\x02" + COUNT + b"".join(encode_string(key) + b"\x00" for key in DISTINCT) + bytes(2),
    ),
    "empty parts": ("CommitRequest", ONCELOG_AVRO, bytes(6) + (b"\x02" + bytes(13)) * MANY + b"\x00"),
    # receipts: stored, one message, nothing else
    "receipts": (
        *("PublishResponse", ONCELOG_AVRO),
        bytes.fromhex("02 0a d00f 06 d00f 0a") + COUNT + b"\x00\x02\x00\x00\x00" * MANY + b"\x00",
    ),
    **{
        f"JSON {field} {item}": ("PublishRequest", JSON, members(field, item))
        for field, item in [("messages", '""'), ("properties", '{"":""}')]
    },
    "unknown fields": ("PublishRequest", JSON, ("{" + PAIRS + "}").encode()),
    "JSON key offsets": ("PublishRequest", JSON, (PUBLISH % ('"expectedKeyOffsets":{' + PAIRS + "}")).encode()),
    "one long number": ("PublishRequest", JSON, (PUBLISH % ('"epoch":' + "9" * MANY)).encode()),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_body_takes_more_than_a_fixed_multiple_of_its_size(bomb: str) -> None:
    cheaply(*BOMBS[bomb])


TOO_MANY = 200_000
HEAD = b"\x00" * 5  # no pointer, producer, epoch, ids, keys
BODIES_OF_TOO_MANY = {
    "maps": (ONCELOG_AVRO, HEAD + b"\x02" + b"".join(encode_array([b"\x02\x00"] * TOO_MANY, TOO_MANY))),
    "entries of one map": (ONCELOG_AVRO, HEAD + b"\x02\x02\x02" + encode_long(TOO_MANY) + b"\x02k\x02v" * TOO_MANY),
    "messages in blocks of one": (AVRO, b"\x02" + b"\x02\x00" * TOO_MANY + b"\x00"),
    "JSON arrays": (JSON, b'{"messages": [' + b"[]," * TOO_MANY + b"[]]}"),
    "JSON strings": (JSON, b'{"messages": [' + b'"",' * TOO_MANY + b'""]}'),
}


@pytest.mark.parametrize("what", BODIES_OF_TOO_MANY)
def test_what_is_too_much_is_refused_before_it_is_made(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    media, body = BODIES_OF_TOO_MANY[what]
    made = 0
    take = avro_strict.Allowance.take

    def counted(self: avro_strict.Allowance, count: int) -> None:
        nonlocal made
        take(self, count)
        made += count

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it is parsed")

    monkeypatch.setattr(avro_strict.Allowance, "take", counted)
    monkeypatch.setattr(codec.json, "loads", never)  # type: ignore[attr-defined]
    with pytest.raises(RequestTooLarge) as caught:
        codec.decode_publish_request(media, body, 1_000)
    assert made <= 1_000
    assert caught.value.to_problem()["limit"] == 1_000


@given(st.lists(st.text('a,[{"\\\\:}]', max_size=12), max_size=8), st.integers(0, 12))
def test_values_of_json_are_counted_outside_of_strings(texts: list[str], most: int) -> None:
    values = 1 + len(texts) if texts else 2
    assert holds_more_values(json.dumps(texts).encode(), most) == (values > most)
