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


def test_no_codec_is_no_codec() -> None:
    assert codec_for(None) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
flights = st.fixed_dictionaries(
    {"carrier": st.text(), "delay": st.none() | st.integers(-(2**63), 2**63 - 1), "cancelled": st.booleans()}
)


@given(st.binary())
def test_bytes_come_back(value: bytes) -> None:
    assert codec("bytes").encode(value) == value == codec("bytes").decode(value)
    assert codec("bytes").encode(bytearray(value)) == codec("bytes").encode(memoryview(value)) == value


@given(st.text())
def test_text_comes_back(value: str) -> None:
    assert codec("str").decode(codec("str").encode(value)) == value


@given(json_values)
def test_json_comes_back_and_is_json_to_others(value: Any) -> None:
    data = codec("json").encode(value)
    assert codec("json").decode(data) == value == json.loads(data)


def test_json_is_compact_and_keeps_the_order_of_its_members() -> None:
    assert codec("json").encode({"b": [1, None], "a": "é"}) == '{"b":[1,null],"a":"é"}'.encode()


@given(flights)
def test_a_model_comes_back(value: dict[str, Any]) -> None:
    flight = Flight(carrier=value["carrier"], delay=value["delay"])
    assert codec(Flight).decode(codec(Flight).encode(flight)) == flight


@pytest.mark.parametrize("value", [Renamed(depDelay=5), ByNameOnly(dep_delay=5)])
def test_a_model_with_aliases_and_computed_fields_comes_back(value: BaseModel) -> None:
    assert codec(type(value)).decode(codec(type(value)).encode(value)) == value


@given(flights)
def test_an_avro_datum_comes_back(value: dict[str, Any]) -> None:
    assert codec(FLIGHT).decode(codec(FLIGHT).encode(value)) == value


def test_an_avro_datum_is_the_bytes_of_the_standard() -> None:
    """Single-object encoding; of "int" the standard's own tests give the fingerprint 0x7275d51a3f395c8f."""
    assert codec(["int"]).encode(1)[2:10] != codec({"type": "int"}).encode(1)[2:10]
    assert codec({"type": "int"}).encode(1) == bytes.fromhex("c301 8f5c393f1ad57572 02")
    data = codec(FLIGHT).encode({"carrier": "UA", "delay": -2, "cancelled": True})
    assert (data[:2], data[10:]) == (b"\xc3\x01", bytes.fromhex("04 5541 02 03 01"))


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


def test_what_changes_nothing_that_is_written_is_the_same_schema() -> None:
    told = {**point("x"), "doc": "of the plane"}
    assert AvroCodec(told).fingerprint == AvroCodec(point("x", x=1.0)).fingerprint != AvroCodec(point("y")).fingerprint


@pytest.mark.parametrize("data", [b"", b"\xc3", b"\xc3\x01", b"\xc3\x01" + bytes(7), b"\x04UA\x02\x03\x01", bytes(30)])
def test_bytes_that_name_no_schema_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        codec(FLIGHT).decode(data)


@pytest.mark.parametrize("schema", ["int", 5, None, {"type": "nothing"}])
def test_what_is_no_avro_schema_is_refused_at_once(schema: Any) -> None:
    for make in (lambda: AvroCodec(schema), lambda: AvroCodec(FLIGHT, known=[schema])):
        with pytest.raises(TypeError, match="schema"):
            make()


def test_an_avro_field_left_out_takes_its_default() -> None:
    assert codec(FLIGHT).decode(codec(FLIGHT).encode({"carrier": "UA"})) == {"carrier": "UA", "delay": None, "cancelled": False}


def test_an_avro_schema_may_be_a_union_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "flight.avsc"
    path.write_text(json.dumps(FLIGHT))
    flight = {"carrier": "UA", "delay": None, "cancelled": False}
    assert codec(path).encode(flight) == codec(FLIGHT).encode(flight)
    assert [codec(["null", "long"]).encode(value)[10:] for value in (None, 1)] == [b"\x00", b"\x02\x02"]


def test_a_codec_of_ones_own_is_used() -> None:
    assert codec(Reversed()).encode("abc") == b"cba"
    assert codec(Reversed()).decode(b"cba") == "abc"


@pytest.mark.parametrize("spec", ["bytes", "str", "json", Flight, FLIGHT, ["null", "long"], Reversed()], ids=shown)
def test_a_codec_can_be_pickled_and_given_again(spec: object) -> None:
    original = codec(spec)
    assert codec_for(original) is original
    again = pickle.loads(pickle.dumps(original))
    value = {"bytes": b"x", "str": "x", "json": 1}.get(spec) if isinstance(spec, str) else None
    value = Flight(carrier="x") if spec is Flight else {"carrier": "x"} if spec is FLIGHT else value
    value = "x" if isinstance(spec, Reversed) else value
    assert again.encode(value) == original.encode(value)


# --- what cannot be done ------------------------------------------------------------------------------------------------


def loop() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("bytes", "text"),
        ("bytes", 5),
        ("bytes", [1, 2]),
        ("str", b"bytes"),
        ("str", "\ud800"),
        ("json", math.nan),
        ("json", math.inf),
        ("json", {1, 2}),
        ("json", "\ud800"),
        ("json", loop()),
        (Flight, {"carrier": "UA"}),
        (Flight, Renamed(depDelay=1)),
        (Flight, Flight.model_construct(carrier=5)),
        (FLIGHT, {"carrier": "UA", "delay": 1.5}),
        (FLIGHT, {"carrier": "UA", "delay": "1"}),
        (FLIGHT, {"carrier": "UA", "delay": 2**63}),
        (FLIGHT, {"carrier": "UA", "cancelled": "no"}),
        (FLIGHT, {"carrier": "UA", "color": "red"}),
        (FLIGHT, {"delay": 1}),
        (FLIGHT, None),
        ({"type": "long"}, 1.5),
        ({"type": "long"}, True),
        ({"type": "int"}, 2**31),
        (Broken(), "x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_does_not_fit_is_a_definite_error_and_never_changed(spec: object, value: object) -> None:
    with pytest.raises(CodecError) as caught:
        codec(spec).encode(value)
    assert caught.value.definite
    assert caught.value.__cause__ is not None
    assert len(caught.value.detail) < 400


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        ("str", b"\xff"),
        ("str", b"\xed\xa0\x80"),
        ("json", b""),
        ("json", b"NaN"),
        ("json", b"[Infinity]"),
        ("json", b"{} {}"),
        ("json", b'"\xed\xa0\x80"'),
        ("json", '"x"'.encode("utf-16")),
        ("json", b"[" * 100_000),
        (Flight, b'{"delay":1}'),
        (Flight, b"carrier"),
        (FLIGHT, b""),
        (FLIGHT, bytes.fromhex("04 5541 02 03")),
        (FLIGHT, bytes.fromhex("04 5541 02 03 01 00")),
        (FLIGHT, bytes.fromhex("04 5541 09 03 01")),
        (FLIGHT, bytes.fromhex("01 5541 02 03 01")),
        (FLIGHT, bytes.fromhex("fffffffffffffffffe01 5541")),
        (Broken(), b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bytes_that_are_no_such_value_are_a_definite_error(spec: object, data: bytes) -> None:
    with pytest.raises(CodecError) as caught:
        codec(spec).decode(data)
    assert caught.value.definite
    assert caught.value.__cause__ is not None
    assert f"{len(data)} bytes" in caught.value.detail


@pytest.mark.parametrize("spec", ["bytes", "str", "json", Flight, FLIGHT], ids=["bytes", "str", "json", "pydantic", "avro"])
@given(st.binary(max_size=60))
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


@pytest.mark.parametrize(("content", "kind"), [(None, FileNotFoundError), ("{}", TypeError), ("not json", TypeError)])
def test_a_schema_file_that_is_none_is_refused(tmp_path: Path, content: str | None, kind: type[Exception]) -> None:
    path = tmp_path / "flight.avsc"
    if content is not None:
        path.write_text(content)
    with pytest.raises(kind):
        codec_for(path)


def test_a_schema_changed_afterwards_does_not_change_the_codec() -> None:
    schema: dict[str, Any] = json.loads(json.dumps(FLIGHT))
    made = codec(schema)
    schema["fields"].clear()
    assert made.encode({"carrier": "UA"})[10:] == bytes.fromhex("04 5541 00 00")
