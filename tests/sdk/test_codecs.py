"""What a codec encodes it decodes to the same value, and what it cannot do it says."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field

from oncelog.codecs import AvroCodec, Codec, codec_for
from oncelog.errors import CodecError

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "long"], "default": None},
        {"name": "cancelled", "type": "boolean", "default": False},
    ],
}


def shown(value: object) -> str:
    """A test's name must be the same in every process."""
    return re.sub(r" at 0x\w+", "", repr(value))


class Flight(BaseModel):
    carrier: str
    delay: int | None = None


class Renamed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dep_delay: int = Field(alias="depDelay")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def late(self) -> bool:
        return self.dep_delay > 0


class ByNameOnly(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)

    dep_delay: int = Field(alias="depDelay")


class Reversed:
    """A codec of the user's own."""

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


class Broken:
    def encode(self, value: object) -> bytes:
        return "text"  # type: ignore[return-value]

    def decode(self, data: bytes) -> object:
        raise KeyError("no such thing")


def codec(spec: object) -> Codec[Any]:
    found = codec_for(spec)
    assert found is not None
    return found


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
flights = st.fixed_dictionaries(
    {"carrier": st.text(), "delay": st.none() | st.integers(-(2**63), 2**63 - 1), "cancelled": st.booleans()}
)


values = st.one_of(
    st.tuples(st.just("bytes"), st.binary()),
    st.tuples(st.just("str"), st.text()),
    st.tuples(st.just("json"), json_values),
    st.tuples(st.just(Flight), flights.map(lambda value: Flight(carrier=value["carrier"], delay=value["delay"]))),
    st.tuples(st.just(FLIGHT), flights),
    st.tuples(st.just(Reversed()), st.text()),
    st.sampled_from([(Renamed, Renamed(depDelay=5)), (ByNameOnly, ByNameOnly(dep_delay=5))]),  # type: ignore[call-arg]
)


@given(values)
def test_what_is_encoded_comes_back(given_value: tuple[Any, Any]) -> None:
    spec, value = given_value
    data = codec(spec).encode(value)
    assert codec(spec).decode(data) == value
    if spec == "bytes":
        assert codec(spec).encode(bytearray(value)) == codec(spec).encode(memoryview(value)) == value
    if spec == "json":
        assert json.loads(data) == value, "to others too"


def test_json_is_compact_and_keeps_its_order_and_an_avro_datum_is_the_bytes_of_the_standard() -> None:
    """Single-object encoding; of "int" the standard's own tests give the fingerprint 0x7275d51a3f395c8f."""
    assert codec("json").encode({"b": [1, None], "a": "é"}) == '{"b":[1,null],"a":"é"}'.encode()
    assert codec(["int"]).encode(1)[2:10] != codec({"type": "int"}).encode(1)[2:10]
    assert codec({"type": "int"}).encode(1) == bytes.fromhex("c301 8f5c393f1ad57572 02")
    data = codec(FLIGHT).encode({"carrier": "UA", "delay": -2, "cancelled": True})
    assert (data[:2], data[10:]) == (b"\xc3\x01", bytes.fromhex("04 5541 02 03 01"))
    assert [codec(["null", "long"]).encode(value)[10:] for value in (None, 1)] == [b"\x00", b"\x02\x02"]


def test_a_schema_may_be_a_file_is_copied_and_fills_in_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "flight.avsc").write_text(json.dumps(FLIGHT))
    schema: dict[str, Any] = json.loads(json.dumps(FLIGHT))
    made = codec(schema)
    schema["fields"].clear()
    data = made.encode({"carrier": "UA"})
    assert codec(tmp_path / "flight.avsc").decode(data) == {"carrier": "UA", "delay": None, "cancelled": False}
    told = {**point("x"), "doc": "of the plane"}
    assert AvroCodec(told).fingerprint == AvroCodec(point("x", x=1.0)).fingerprint != AvroCodec(point("y")).fingerprint


def point(*names: str, **defaults: float) -> dict[str, Any]:
    fields = [{"name": name, "type": "double"} | ({"default": defaults[name]} if name in defaults else {}) for name in names]
    return {"type": "record", "name": "Point", "fields": fields}


def test_fields_that_changed_places_are_not_mistaken_for_each_other() -> None:
    """Both decode without a complaint, each as the other one."""
    data = codec(point("x", "y")).encode({"x": 1.0, "y": 2.5})
    assert AvroCodec(point("y", "x"), known=[point("x", "y")]).decode(data) == {"x": 1.0, "y": 2.5}
    with pytest.raises(CodecError, match=f"fingerprint {AvroCodec(point('x', 'y')).fingerprint}.*known="):
        codec(point("y", "x")).decode(data)


def test_what_an_older_schema_wrote_is_read_as_the_newer_one() -> None:
    known = [point("x", "y"), point("y", "x")]
    newer = AvroCodec(point("z", "x", z=7.0), known=known)
    assert [newer.decode(codec(each).encode({"x": 1.0, "y": 2.5})) for each in known] == [{"z": 7.0, "x": 1.0}] * 2
    assert newer.decode(newer.encode({"x": 3.0})) == {"z": 7.0, "x": 3.0}
    assert pickle.loads(pickle.dumps(newer)).decode(codec(known[0]).encode({"x": 1.0, "y": 2.5})) == {"z": 7.0, "x": 1.0}
    with pytest.raises(CodecError, match="cannot decode"):
        AvroCodec(point("w"), known=known).decode(codec(known[0]).encode({"x": 1.0, "y": 2.5}))  # w is nowhere


def test_a_codec_can_be_pickled_and_given_again() -> None:
    values = [("bytes", b"x"), ("str", "x"), ("json", 1), (Flight, Flight(carrier="x")), (FLIGHT, {"carrier": "x"})]
    for spec, value in [*values, (["null", "long"], None), (Reversed(), "x")]:
        original = codec(spec)
        assert codec_for(original) is original
        assert pickle.loads(pickle.dumps(original)).encode(value) == original.encode(value)


# --- what cannot be done ------------------------------------------------------------------------------------------------


def loop() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


BAD_FLIGHTS: list[dict[str, object]] = [{"delay": 1.5}, {"delay": "1"}, {"delay": 2**63}, {"cancelled": "no"}, {"color": "red"}]
BAD_VALUES: list[tuple[object, list[object]]] = [
    ("bytes", ["text", 5, [1, 2]]),
    ("str", [b"bytes", "\ud800"]),
    ("json", [math.nan, math.inf, {1, 2}, "\ud800", loop()]),
    (Flight, [{"carrier": "UA"}, Renamed(depDelay=1), Flight.model_construct(carrier=5)]),  # type: ignore[arg-type]
    (FLIGHT, [*({"carrier": "UA", **bad} for bad in BAD_FLIGHTS), {"delay": 1}, None]),
    ({"type": "long"}, [1.5, True]),
    ({"type": "int"}, [2**31]),
    (Broken(), ["x"]),
]
BAD_DATUMS = ("0455410203", "045541020301 00", "045541090301", "015541020301", "fffffffffffffffffe01 5541")
BAD_BYTES: list[tuple[object, list[bytes]]] = [
    ("str", [b"\xff", b"\xed\xa0\x80"]),
    ("json", [b"", b"NaN", b"[Infinity]", b"{} {}", b'"\xed\xa0\x80"', '"x"'.encode("utf-16"), b"[" * 100_000]),
    (Flight, [b'{"delay":1}', b"carrier"]),
    (FLIGHT, [b"", b"\xc3", b"\xc3\x01", b"\xc3\x01" + bytes(7), b"\x04UA\x02\x03\x01", bytes(30)]),
    (FLIGHT, [b"\xc3\x01" + bytes.fromhex(AvroCodec(FLIGHT).fingerprint + datum) for datum in BAD_DATUMS]),
    (Broken(), [b"x"]),
]


def test_a_value_that_does_not_fit_is_a_definite_error_and_never_changed() -> None:
    for spec, value in ((spec, value) for spec, values in BAD_VALUES for value in values):
        with pytest.raises(CodecError) as caught:
            codec(spec).encode(value)
        assert caught.value.definite
        assert caught.value.__cause__ is not None
        assert len(caught.value.detail) < 400


def test_bytes_that_are_no_such_value_are_a_definite_error() -> None:
    for spec, data in ((spec, data) for spec, several in BAD_BYTES for data in several):
        with pytest.raises(CodecError) as caught:
            codec(spec).decode(data)
        assert caught.value.definite
        assert caught.value.__cause__ is not None
        assert f"{len(data)} bytes" in caught.value.detail


@given(st.sampled_from(["bytes", "str", "json", Flight, FLIGHT]), st.binary(max_size=60))
def test_no_payload_raises_anything_but_a_codec_error(spec: object, data: bytes) -> None:
    with contextlib.suppress(CodecError):
        codec(spec).decode(data)


# --- what is no codec ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    ["yaml", "JSON", "", 5, True, object(), b"json", json, str, Reversed, {}, {"type": "nope"}, {"a": 1}, ["nope"]],
    ids=shown,
)
def test_what_is_no_codec_is_refused_with_what_is_accepted(spec: object) -> None:
    with pytest.raises(TypeError, match=r"None, .bytes., .str., .json., a pydantic model class, an Avro schema .* or an object"):
        codec_for(spec)
    assert codec_for(None) is None


def test_a_schema_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "flight.avsc"
    with pytest.raises(FileNotFoundError):
        codec_for(path)
    path.write_text("not json")
    for schema in ("int", 5, None, {"type": "nothing"}, path):
        for make in (lambda schema=schema: AvroCodec(schema), lambda schema=schema: AvroCodec(FLIGHT, known=[schema])):
            with pytest.raises(TypeError, match="schema"):
                make()
