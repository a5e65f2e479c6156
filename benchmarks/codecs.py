"""Processor time of each codec for one message, with and without reading it back before it is sent, in turns."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from benchmarks.measure import Row
from oncelog.codecs import AvroCodec, JsonCodec, PydanticCodec

_FIELDS: list[tuple[str, Any]] = [
    ("carrier", "string"),
    ("number", "long"),
    ("origin", "string"),
    ("delay", ["null", "double"]),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("stops", {"type": "array", "items": "string"}),
]
_SCHEMA = {"type": "record", "name": "Flight", "fields": [{"name": name, "type": kind} for name, kind in _FIELDS]}
_FLIGHT = {"carrier": "UA", "number": 1545, "origin": "EWR", "delay": 2.5, "stops": ["IAH", "DFW"]}
_AT = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
_WITH_DECIMAL = {**_SCHEMA, "fields": [{"name": name, "type": _DECIMAL if name == "delay" else kind} for name, kind in _FIELDS]}
_TURNS, _MESSAGES = 200, 200


class Flight(BaseModel):
    """The flight, as a model."""

    carrier: str
    number: int
    origin: str
    delay: float | None
    at: datetime
    stops: list[str]


def codec_rates() -> list[Row]:
    """The least of all turns, of a flight of six fields."""
    pairs: dict[str, tuple[Any, Any, Any]] = {
        "JSON": (JsonCodec(read_back=False), JsonCodec(), {**_FLIGHT, "at": _AT.isoformat()}),
        "a pydantic model": (PydanticCodec(Flight, read_back=False), PydanticCodec(Flight), Flight(**_FLIGHT, at=_AT)),
        "Avro": (AvroCodec(_SCHEMA, read_back=False), AvroCodec(_SCHEMA), {**_FLIGHT, "at": _AT}),
        "Avro, a decimal": (
            AvroCodec(_WITH_DECIMAL, read_back=False),
            AvroCodec(_WITH_DECIMAL),
            {**_FLIGHT, "at": _AT, "delay": Decimal("2.5")},
        ),
    }
    rows = []
    for name, (plain, checked, value) in pairs.items():
        turns = [(_microseconds(plain, value), _microseconds(checked, value)) for _ in range(_TURNS)]
        rows += [
            Row(f"{name}, a message encoded", min(each for each, _ in turns), "µs of processor"),
            Row(f"{name}, encoded, known to be read back equal", min(each for _, each in turns), "µs of processor"),
        ]
    return rows


def _microseconds(codec: Any, value: Any) -> float:
    began = time.process_time()
    for _ in range(_MESSAGES):
        codec.encode(value)
    return (time.process_time() - began) / _MESSAGES * 1e6
