"""What is sent is read back equal, or it raises before it is sent; NaN equals NaN."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, create_model, field_validator

from oncelog import Client, Producer, Reader
from oncelog.codecs import AvroCodec, JsonCodec, PydanticCodec, codec_for
from oncelog.codecs.rules import rule_of
from oncelog.errors import CodecError

Schema = Any


def record(kind: Schema, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind, **more}]}


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL_MILLIS, LOCAL_MICROS = logical("long", "local-timestamp-millis"), logical("long", "local-timestamp-micros")
TIME_MILLIS, TIME_MICROS = logical("int", "time-millis"), logical("long", "time-micros")
DATE, IDENTIFIER = logical("int", "date"), logical("string", "uuid")
DECIMAL = logical("bytes", "decimal", precision=8, scale=2)
FIXED_DECIMAL = logical("fixed", "decimal", name="D", size=4, precision=8, scale=2)


def same(sent: Any, read: Any) -> bool:
    """As the tests see it: equal, or both NaN, part by part."""
    if isinstance(sent, float | Decimal) and sent != sent:
        return isinstance(read, float | Decimal) and bool(read != read)
    if isinstance(sent, dict) and isinstance(read, dict):
        return sent.keys() == read.keys() and all(same(each, read[key]) for key, each in sent.items())
    if isinstance(sent, list) and isinstance(read, list):
        return len(sent) == len(read) and all(map(same, sent, read))
    if isinstance(sent, BaseModel):
        return type(sent) is type(read) and same([sent.__dict__, sent.model_extra], [read.__dict__, read.model_extra])
    if isinstance(sent, datetime) and isinstance(read, datetime) and sent.tzinfo is not None and read.tzinfo is not None:
        return sent.astimezone(UTC) == read.astimezone(UTC)
    return bool(sent == read)


def raises_or_reads_back_equal(codec: Any, value: Any) -> bool:
    try:
        data = codec.encode(value)
    except CodecError as error:
        return error.definite
    return same(value, codec.decode(data))


# --- whatever there is --------------------------------------------------------------------------------------------------

NOON, ZONE = datetime.fromisoformat("2026-07-01T12:00"), ZoneInfo("Europe/Berlin")
NAIVE = st.datetimes(NOON.replace(year=1900), NOON.replace(year=2200))
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=45)), ZONE, timezone(timedelta(microseconds=1))])
TIMES = st.builds(lambda each, zone: each.replace(tzinfo=zone), NAIVE, ZONES) | st.builds(
    lambda minute, fold: datetime(2026, 10, 25, 2, minute, fold=fold, tzinfo=ZONE),
    st.integers(0, 59),
    st.integers(0, 1),  # an hour that the clock shows twice
)
ATOMS = st.one_of(
    st.none() | st.booleans() | st.text(max_size=3) | st.binary(max_size=3),
    st.integers() | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63]),
    st.floats() | st.sampled_from([0.1, 0.5, math.nan, math.inf]) | st.decimals(places=2) | st.decimals(),
    TIMES | TIMES.map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000)),
    st.dates() | st.times(),
    st.uuids() | st.uuids().map(str),
)
"""Of every sort that a codec may have to do with, those that it changes among them."""
ANYTHING = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers() | st.booleans() | st.none() | st.floats(), inner, max_size=3)
    ),
    max_leaves=6,
)
SCALARS = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = [MILLIS, MICROS, LOCAL_MILLIS, LOCAL_MICROS, TIME_MILLIS, TIME_MICROS, DATE, IDENTIFIER, DECIMAL, FIXED_DECIMAL]
LEAVES = st.sampled_from([*SCALARS, *LOGICAL])
SCHEMAS = st.one_of(
    LEAVES,
    LEAVES.map(lambda kind: {"type": "array", "items": kind}),
    LEAVES.map(lambda kind: {"type": "map", "values": kind}),
    st.lists(LEAVES, min_size=2, max_size=4, unique_by=lambda kind: kind if isinstance(kind, str) else kind["type"]),
)
FIELD_TYPES: list[Any] = [
    *(bool, int, float, str, bytes, Decimal, date, datetime, clock_time, UUID, SecretStr, Any),
    *(float | None, int | str, date | datetime, datetime | None, list[float], tuple[int, ...], dict[int, str], dict[str, Any]),
]


@given(ANYTHING)
def test_json_raises_or_reads_back_equal(value: Any) -> None:
    assert raises_or_reads_back_equal(codec_for("json"), value)


@given(SCHEMAS, st.data())
def test_avro_raises_or_reads_back_equal(kind: Schema, data: st.DataObject) -> None:
    value = {"x": data.draw(ANYTHING | st.lists(ATOMS, max_size=3) | st.dictionaries(st.text(), ATOMS, max_size=3))}
    assert raises_or_reads_back_equal(AvroCodec(record(kind)), value)


@given(st.sampled_from(FIELD_TYPES), st.sampled_from(["null", "constants", "strings"]), st.data())
def test_a_model_raises_or_reads_back_equal(kind: Any, constants: Any, data: st.DataObject) -> None:
    model = create_model("Drawn", __config__=ConfigDict(ser_json_inf_nan=constants), x=(kind, ...))
    value = model.model_construct(x=data.draw(ANYTHING | st.text().map(SecretStr)))
    assert raises_or_reads_back_equal(codec_for(model), value)


# --- what fits is sent --------------------------------------------------------------------------------------------------

AWARE = TIMES.filter(lambda each: each.tzinfo is not None and not each.utcoffset() % timedelta(minutes=1))


FITTING: list[tuple[Schema, st.SearchStrategy[Any]]] = [
    ("double", st.floats() | st.integers(-(2**53), 2**53)),
    ("float", st.floats(width=32)),
    ("bytes", st.binary() | st.binary().map(bytearray)),
    (MICROS, AWARE),
    (MILLIS, AWARE.map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000))),
    (LOCAL_MICROS, NAIVE),
    (TIME_MICROS, st.times()),
    (DATE, st.dates()),
    (IDENTIFIER, st.uuids()),
    (DECIMAL, st.decimals(-999_999, 999_999, places=2)),
    (FIXED_DECIMAL, st.decimals(-999_999, 999_999, places=2)),
    (["null", MICROS], st.none() | AWARE),
    (["long", "double"], st.integers(-(2**63), 2**63 - 1) | st.floats()),
    ({"type": "array", "items": ["null", "double"]}, st.lists(st.none() | st.floats())),
    ({"type": "map", "values": "double"}, st.dictionaries(st.text(), st.floats())),
]


@given(st.sampled_from(FITTING), st.data())
def test_avro_takes_whatever_reads_back_equal(fitting: tuple[Schema, st.SearchStrategy[Any]], data: st.DataObject) -> None:
    kind, values = fitting
    value = {"x": data.draw(values)}
    assert same(value, AvroCodec(record(kind)).decode(AvroCodec(record(kind)).encode(value)))


Kind = tuple[Schema, st.SearchStrategy[Any]]
PLAIN: list[Kind] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32)),
    ("double", st.floats() | st.integers(-(2**53), 2**53)),
    ("string", st.text()),
    ("bytes", st.binary()),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, st.sampled_from(["A", "B"])),
    ({"type": "fixed", "name": "F", "size": 2}, st.binary(min_size=2, max_size=2)),
    (MILLIS, AWARE.map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000))),
    (MICROS, AWARE),
    (LOCAL_MILLIS, NAIVE.map(lambda each: each.replace(microsecond=0))),
    (LOCAL_MICROS, NAIVE),
    (TIME_MILLIS, st.times().map(lambda each: each.replace(microsecond=0))),
    (TIME_MICROS, st.times()),
    (DATE, st.dates()),
    (IDENTIFIER, st.uuids()),
]
"""What a rule judges, with values that it says yes to."""


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    """A schema that a rule judges, or holds a part that it does not, with values that fit it."""
    kind, values = draw(st.sampled_from([*PLAIN, *FITTING]))
    match draw(st.sampled_from(["alone", "null", "array", "map", "record"])):
        case "null" if not isinstance(kind, list) and kind != "null":
            return [kind, "null"], st.none() | values
        case "array":
            return {"type": "array", "items": kind}, st.lists(values, max_size=3)
        case "map":
            return {"type": "map", "values": kind}, st.dictionaries(st.text(), values, max_size=3)
        case "record":
            fields = [{"name": "a", "type": kind}, {"name": "b", "type": "long", "default": 7}]
            inner = {"type": "record", "name": "Inner", "fields": fields}
            return inner, st.fixed_dictionaries({"a": values}, optional={"b": st.integers(0, 2**63 - 1)})
    return kind, values


@given(kinds(), st.data())
def test_what_a_rule_lets_pass_is_what_validating_and_reading_back_let_pass(kind: Kind, data: st.DataObject) -> None:
    schema, values = kind
    value = {"x": data.draw(values | ATOMS)}
    if data.draw(st.integers(0, 7)) == 7:
        value = data.draw(st.sampled_from([{}, value | {"y": 1}, [value]]))
    ruled, slow = AvroCodec(record(schema)), AvroCodec(record(schema))
    slow._keeps = lambda value: False
    try:
        sent = slow.encode(value)
    except CodecError:
        with pytest.raises(CodecError):
            ruled.encode(value)
    else:
        assert ruled.encode(value) == sent


@pytest.mark.parametrize("index", range(len(PLAIN)))
@given(data=st.data())
def test_a_rule_judges_plain_values_alone(index: int, data: st.DataObject) -> None:
    schema, values = PLAIN[index]
    value, odd = data.draw(values), data.draw(ATOMS)
    alone, slow = rule_of(fastavro.parse_schema(record(schema))), AvroCodec(record(schema), read_back=False)
    assert alone({"x": value})
    if alone({"x": odd}):
        assert same({"x": odd}, slow.decode(slow.encode({"x": odd})))
    optional = fastavro.parse_schema(record(["null", {"type": "array", "items": schema}], default=None))
    assert all(map(rule_of(optional), ({"x": [value]}, {"x": None}, {})))


def test_a_rule_says_no_to_what_it_cannot_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "long"}]}
    twice = {"type": "record", "name": "Twice", "fields": [{"name": "x", "type": inner}, {"name": "y", "type": "Inner"}]}
    itself = {"type": "record", "name": "Itself", "fields": [{"name": "next", "type": ["null", "Itself"]}]}
    assert rule_of(fastavro.parse_schema(twice))({"x": {"a": 1}, "y": {"a": 2}})
    for schema, value in (
        (twice, {"x": {"a": 1}, "y": {"a": 2.0}}),
        (itself, {"next": None}),
        (record("float"), {"x": 0.1}),
        (record("double"), {"x": 2**53 + 1}),
        (record("double"), {"x": True}),
        (record(DECIMAL), {"x": Decimal("0.5")}),
        (record(["null", "long", "double"]), {"x": 1}),
        (record(logical("long", "of-ones-own")), {"x": 1}),
        (record("long"), {}),
        (record("long"), {"x": 1, "y": 2}),
        (record("long"), {"x": True}),
        (record("long"), {"x": 2**63}),
        (record({"type": "map", "values": "long"}), {"x": {1: 1}}),
        (record({"type": "fixed", "name": "F", "size": 2}), {"x": b"x"}),
        (record(MICROS), {"x": NOON}),
        (record(MILLIS), {"x": NOON.replace(tzinfo=timezone(timedelta(microseconds=1)))}),
    ):
        assert not rule_of(fastavro.parse_schema(schema))(value)
    assert AvroCodec(itself).decode(AvroCodec(itself).encode({"next": {"next": None}})) == {"next": {"next": None}}
    assert rule_of(fastavro.parse_schema(record("float")))({"x": math.nan})
    monkeypatch.setattr(fastavro.validation, "validate", lambda *_: pytest.fail("it was judged by its rule"))
    assert AvroCodec(record("long")).encode({"x": 1})


class Point(NamedTuple):
    x: float
    y: float


@dataclass
class Reading:
    celsius: float


class Station(BaseModel):
    """Of everything that reads back equal, though ``==`` may say that it does not."""

    model_config = ConfigDict(ser_json_inf_nan="constants", extra="allow")

    at: datetime
    point: Point
    readings: list[Reading]
    by_name: dict[str, float]
    seen: set[float]
    last: deque[float]
    _seen: object = PrivateAttr(default_factory=object)


@given(AWARE, st.floats())
@example(NOON.replace(hour=2, month=10, day=25, tzinfo=ZONE), math.nan)
def test_a_model_whose_fields_read_back_equal_is_sent_whatever_it_is_made_of(at: datetime, x: float) -> None:
    sent = Station(at=at, point=Point(x, 1.0), readings=[Reading(x)], by_name={"a": x}, seen={x, 1.0}, last=deque([x]), more=[x])  # type: ignore[call-arg]
    read = PydanticCodec(Station).decode(PydanticCodec(Station).encode(sent))
    assert read.at.astimezone(UTC) == at.astimezone(UTC)
    assert [*map(repr, (read.point, read.readings, read.by_name, read.last, read.model_extra))] == [
        *map(repr, (sent.point, sent.readings, sent.by_name, sent.last, sent.model_extra))
    ]
    assert {*map(str, read.seen)} == {*map(str, sent.seen)}


# --- what would be changed ----------------------------------------------------------------------------------------------


class Measured(BaseModel):
    celsius: float | None


class TwoAliases(BaseModel):
    delay: int = Field(default=0, validation_alias="in", serialization_alias="out")


class Login(BaseModel):
    password: SecretStr


class Excluded(BaseModel):
    note: str = Field(default="", exclude=True)


class Hidden(BaseModel):
    pins: list[str] = Field(default=[], exclude=True, repr=False)


class Base(BaseModel):
    x: int = 0


class Derived(Base):
    y: int = 0


class Holder(BaseModel):
    anything: Any = None
    held: Base = Base()


class Rising(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def _one_more(cls, x: int) -> int:
        return x + 1


class Kept(BaseModel):
    """Of lists and mappings that another reader has added to, or taken from."""

    model_config = ConfigDict(extra="allow")

    items: list[int] = []
    by_name: dict[str, float] = {}

    @field_validator("items")
    @classmethod
    def _first(cls, items: list[int]) -> list[int]:
        return items[:1]

    @field_validator("by_name")
    @classmethod
    def _with_total(cls, by_name: dict[str, float]) -> dict[str, float]:
        return by_name and by_name | {"total": 0.0}


class Seen(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")

    seen: set[float]

    @field_validator("seen")
    @classmethod
    def _numbers(cls, seen: set[float]) -> set[float]:
        return {each for each in seen if each == each}


Make = Callable[[bool], Any]


def avro(kind: Schema) -> Make:
    return lambda read_back: AvroCodec(record(kind), read_back=read_back)


def model(kind: type[BaseModel]) -> Make:
    return lambda read_back: PydanticCodec(kind, read_back=read_back)


def json_codec(read_back: bool) -> Any:
    return JsonCodec(read_back=read_back)


CHANGED: dict[str, tuple[Make, Any, str]] = {
    "a key that is a number": (json_codec, {"a": {1: "x"}}, r"value\['a'\] has the key 1, which would be lost"),
    "a key that is true": (json_codec, {True: "x"}, "has the key True"),
    "a key that is None": (json_codec, {None: "x"}, "has the key None"),
    "two keys with one text": (json_codec, {1: "x", "1": "y"}, "has the key 1"),
    "a tuple": (json_codec, [(1, 2)], r"value\[0\] is \(1, 2\), and would be read back as \[1, 2\]"),
    "NaN in a model": (model(Measured), Measured(celsius=math.nan), "celsius is nan, and would be read back as None"),
    "infinity in a model": (model(Measured), Measured(celsius=math.inf), "celsius is inf, and would be read back as None"),
    "two aliases": (model(TwoAliases), TwoAliases.model_validate({"in": 5}), "delay is 5, and would be read back as 0"),
    "a secret": (model(Login), Login(password=SecretStr("hunter2")), r"password is SecretStr\('\*+'\), and would"),
    "an excluded field": (model(Excluded), Excluded(note="n"), "note is 'n', and would be read back as ''"),
    "a field that is not shown": (model(Hidden), Hidden(pins=["hunter2"]), "pins would not be read back as it is"),
    "more in a set": (model(Seen), Seen.model_construct(seen={1.0, math.nan}), r"seen is {.*}, and would be read back as {1.0}"),
    "a subclass": (model(Base), Derived(y=1), r"value is Derived.* would be read back as Base"),
    "a validator that changes": (model(Rising), Rising.model_construct(x=1), "x is 1, and would be read back as 2"),
    "a validator that drops": (model(Kept), Kept.model_construct(items=[1, 2]), r"items is \[1, 2\], .* as \[1\]"),
    "a validator that adds": (model(Kept), Kept.model_construct(by_name={"a": 1.0}), "by_name would be read back with more keys"),
    "NaN in what is extra": (model(Kept), Kept.model_construct(more=math.nan), r"model_extra\['more'\] is nan, .* as None"),
    "a time in a field of anything": (model(Holder), Holder(anything=NOON), "anything is datetime"),
    "a tuple in a field of anything": (model(Holder), Holder(anything=(1,)), r"anything is \(1,\)"),
    "text that is no uuid": (avro(IDENTIFIER), {"x": "no uuid"}, "could not be read back: badly formed"),
    "text that is a uuid": (avro(IDENTIFIER), {"x": str(UUID(int=1))}, "would be read back as UUID"),
    "a time without a zone": (avro(MICROS), {"x": NOON}, r"value\['x'\] is datetime.*tzinfo"),
    "a time with a zone where none is": (avro(LOCAL_MICROS), {"x": NOON.replace(tzinfo=ZONE)}, "is datetime"),
    "microseconds cut": (avro(MILLIS), {"x": datetime(2026, 7, 1, 12, 0, 0, 1, tzinfo=UTC)}, "is datetime"),
    "microseconds cut from a time of day": (avro(TIME_MILLIS), {"x": clock_time(12, 0, 0, 1)}, "is datetime.time"),
    "a zone cut from a time of day": (avro(TIME_MICROS), {"x": clock_time(12, tzinfo=UTC)}, "is datetime.time"),
    "a number for a time": (avro(MILLIS), {"x": 5}, "is 5, and would be read back as datetime"),
    "a time for a date": (avro(DATE), {"x": NOON}, "would be read back as datetime.date"),
    "text for a date": (avro(DATE), {"x": "2026-07-01"}, "is '2026-07-01'"),
    "a long as the double of a union": (avro(["double", "long"]), {"x": 2**53 + 1}, "9007199254740993, .* as 9007199254740992.0"),
    "a long as a double": (avro("double"), {"x": 2**53 + 1}, "9007199254740993, .* as 9007199254740992.0"),
    "a double as a float": (avro("float"), {"x": 0.1}, "is 0.1, and would be read back as 0.10000000149"),
    "a tuple for an array": (avro({"type": "array", "items": "int"}), {"x": (1, 2)}, r"is \(1, 2\)"),
    "the name of a branch": (avro(["null", "long"]), {"x": ("long", 1)}, r"is \('long', 1\), and would be read back as 1"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_would_be_changed_raises_before_it_is_sent_and_not_where_reading_back_is_off(what: str) -> None:
    make, value, says = CHANGED[what]
    with pytest.raises(CodecError, match=says) as caught:
        make(True).encode(value)
    assert caught.value.definite
    assert "hunter2" not in str(caught.value)
    assert len(caught.value.detail) < 400
    data = make(False).encode(value)
    try:
        assert not same(value, make(False).decode(data)), "else it is nothing that is changed"
    except CodecError:
        assert what == "text that is no uuid"


def test_the_bytes_of_a_message_are_those_they_were_without_reading_back() -> None:
    for make, value in ((json_codec, {"a": 1.5}), (model(Base), Base(x=1)), (avro("long"), {"x": 1})):
        assert make(True).encode(value) == make(False).encode(value)


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/New_York"])
def test_a_message_is_the_same_wherever_it_is_encoded(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry on another machine is no other message."""
    aware = {"x": NOON.replace(tzinfo=UTC)}
    here = AvroCodec(record(MILLIS)).encode(aware)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert AvroCodec(record(MILLIS)).encode(aware) == here
        with pytest.raises(CodecError):
            AvroCodec(record(MILLIS)).encode({"x": NOON})
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_would_be_changed_is_not_sent_and_uses_no_number_whichever_way(client: Client, topic: str) -> None:
    changed = {1: "x"}
    with Producer[Any](topic, name="p", client=client, codec="json") as producer:
        for send in (producer.send, producer.send_async, lambda value: producer.send_batch([0, value])):
            with pytest.raises(CodecError):
                send(changed)
        producer.send("sent")
        with client.atomic() as batch:
            with pytest.raises(CodecError):
                batch.send(topic, changed, producer=producer)
            batch.send(topic, "in a batch", producer=producer)
        with client.transaction() as tx:
            for options in ({"producer": producer}, {"codec": "json"}):
                with pytest.raises(CodecError):
                    tx.send(topic, changed, **options)
            tx.send(topic, "in a transaction", producer=producer)
    with Reader(topic, client=client, codec="json", timeout=0) as reader:
        assert [message.value for message in reader] == ["sent", "in a batch", "in a transaction"]
    with Producer[bytes](topic, name="p", client=client) as again:
        assert again.last_sequence_id == 2
