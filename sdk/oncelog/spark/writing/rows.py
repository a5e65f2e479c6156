"""Rows of a DataFrame as requests to the service: taken from Arrow column by column, cut into chunks, summed up. Pure.

Nothing is done row by row in Python where a whole column can be, since a hundred thousand rows a second come through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from oncelog.producing.cutting import REQUEST, Messages
from oncelog.wire.requests import PublishRequest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HELD_MESSAGES = 50_000
HELD_BYTES = 32 << 20
"""What a task holds in memory at most while its rows go to many topics, or are of many producers."""


# --- what columns there must be ------------------------------------------------------------------------------------------

_TEXT = ("binary", "string")
_INTEGERS = ("bigint", "int", "smallint", "tinyint")
_HEADERS = tuple(f"array<struct<key:string,value:{kind}>>" for kind in _TEXT)


def check_columns(schema: StructType, topic: str | None, keep_producers: bool) -> None:
    """Whether a DataFrame of this schema can be written. Raises ValueError, which names the column."""
    required = ["value"] + ["topic"] * (topic is None) + ["producer", "sequence_id"] * keep_producers
    allowed = {"value": _TEXT, "key": _TEXT, "headers": _HEADERS}
    allowed |= {"topic": ("string",)} if topic is None else {}
    allowed |= {"producer": ("string",), "sequence_id": _INTEGERS} if keep_producers else {}
    kinds = {each.name: each.dataType.simpleString() for each in schema.fields}
    for name in required:
        if name not in kinds:
            raise ValueError(f"there is no column {name}: {_HOW[name]}; there are {', '.join(kinds) or 'none'}")
    for name, kind in kinds.items():
        if kind not in allowed.get(name, (kind,)):
            raise ValueError(f"column {name} is of type {kind}, not {' or '.join(allowed[name])}; cast it")


_HOW = {
    "value": 'what a message says, binary or string, as from .selectExpr("to_json(struct(*)) AS value")',
    "topic": "set option topic for all rows, or add it",
    "producer": "keepProducers=true writes it with each message",
    "sequence_id": "keepProducers=true writes it with each message",
}


# --- from Arrow ---------------------------------------------------------------------------------------------------------


def split(batch: pa.RecordBatch, topic: str | None, keep_producers: bool) -> Iterator[tuple[str, PublishRequest]]:
    """The rows of each topic and producer, in the order of first appearance; those of one stay in order.

    ``topic``: where all go, else where their column says. Columns that are not written are left alone.

    Raises:
        ValueError: a value, topic or sequence id is null; a header cannot be a property.
    """
    if batch.num_rows == 0:
        return
    if topic is None and len(unique := batch.column("topic").unique()) == 1:
        topic = unique[0].as_py() or None
    if topic is not None and not keep_producers:
        yield topic, _request(batch, topic, None)
        return
    topics = repeat(topic) if topic is not None else batch.column("topic").to_pylist()
    producers = batch.column("producer").to_pylist() if keep_producers else repeat(None)
    rows: dict[tuple[str | None, str | None], list[int]] = {}
    for row, target in zip(range(batch.num_rows), zip(topics, producers, strict=False), strict=False):
        rows.setdefault(target, []).append(row)
    for (name, producer), numbers in rows.items():
        if not name:
            raise ValueError(f"column topic is {name!r} in {len(numbers)} rows: fill it, or set option topic for all rows")
        yield name, _request(batch if len(rows) == 1 else batch.take(pa.array(numbers, pa.int32())), name, producer)


def _request(rows: pa.RecordBatch, topic: str, producer: str | None) -> PublishRequest:
    """All of them as one request, of any size. A column in which no row has anything is None."""
    names = rows.schema.names
    value = rows.column("value")
    if value.null_count:
        raise ValueError(f"column value is null in {value.null_count} rows for topic {topic}: every message has a value")
    request = PublishRequest(_bytes(value), producer)
    if "key" in names and (key := rows.column("key")).null_count < len(key):
        request.keys = _bytes(key)
    if "headers" in names and (headers := rows.column("headers")).null_count < len(headers):
        request.properties = [_properties(each) for each in headers.to_pylist()]
    if producer is not None:
        ids = rows.column("sequence_id")
        if ids.null_count:
            raise ValueError(f"column sequence_id is null in {ids.null_count} rows of producer {producer!r}")
        request.sequence_ids = ids.to_pylist()
    return request


def _bytes(column: pa.Array) -> list[Any]:
    """Of a column of strings or of bytes, in their small or large form."""
    values: list[Any] = column.cast(pa.large_binary()).to_pylist()
    return values


def _properties(headers: Sequence[Mapping[str, Any] | None] | None) -> dict[str, str] | None:
    if not headers:
        return None
    found: dict[str, str] = {}
    for header in headers:
        if header is None or header["key"] is None or header["value"] is None:
            raise ValueError("column headers holds a null: a message's properties have a name and a value each")
        name, value = header["key"], header["value"]
        if name in found:
            raise ValueError(f"column headers names {name!r} twice in a row: a message has one property of a name")
        try:
            found[name] = value if isinstance(value, str) else bytes(value).decode()
        except UnicodeDecodeError:
            raise ValueError(f"the header {name!r} is not UTF-8: a message's properties are text") from None
    return found


# --- the sum ------------------------------------------------------------------------------------------------------------


SUM_BYTES = 16


def checksum(topic: str, rows: PublishRequest) -> int:
    """The sum of a number for each row, drawn from all that is written of it: the same in whatever order the rows come.

    The number is a hash of 128 bits. A CRC would be twice as fast and is no hash: it is linear, so that two rows that swap their
    values have the same sum once in ten thousand times.
    """
    where = f"{topic}\0{rows.producer or ''}\0".encode()
    plain, framed = (blake2b(where + kind, digest_size=SUM_BYTES) for kind in (b"0", b"1"))
    more = (rows.keys, rows.properties, rows.sequence_ids)
    if more == (None, None, None):
        return sum(_hashed(plain, payload) for payload in rows.payloads)
    each = zip(rows.payloads, *(repeat(None) if column is None else column for column in more), strict=False)
    # A row that has a value only counts the same whether others beside it have more.
    return sum(
        _hashed(framed, _frame(key, properties, sequence_id) + payload)
        if key is not None or properties or sequence_id is not None
        else _hashed(plain, payload)
        for payload, key, properties, sequence_id in each
    )


def _hashed(begin: blake2b, rest: bytes) -> int:
    row = begin.copy()
    row.update(rest)
    return int.from_bytes(row.digest(), "big")


def _frame(key: bytes | None, properties: Mapping[str, str] | None, sequence_id: int | None) -> bytes:
    """What a row has beside its value; says itself where it ends."""
    text = ascii((key, sorted((properties or {}).items()), sequence_id)).encode()
    return b"%d:%b" % (len(text), text)


def checksum_text(rows: int, total: int) -> str:
    """As it is kept with the commit: how many rows, and the sum over all of them."""
    return f"{rows}:{total % 2 ** (8 * SUM_BYTES):0{2 * SUM_BYTES}x}"


# --- chunks -------------------------------------------------------------------------------------------------------------


class Chunks:
    """Cuts the rows of a task into requests: each of one topic and producer, in order, within the bounds of a request."""

    def __init__(self, most: int = REQUEST.messages) -> None:
        """``most``: messages in one request."""
        self._bounds = REQUEST._replace(messages=most)
        self._waiting: dict[tuple[str, str | None], Messages] = {}
        self._messages = 0
        self._size = 0

    def add(self, topic: str, rows: PublishRequest) -> Iterator[tuple[str, PublishRequest]]:
        """Yield topic and request of what is full now."""
        target = topic, rows.producer
        waiting = self._waiting.setdefault(target, Messages())
        self._size += waiting.extend(rows.payloads, rows.sequence_ids, rows.keys, rows.properties)
        self._messages += len(rows.payloads)
        while len(waiting) >= self._bounds.messages or waiting.size > self._bounds.bytes:
            yield self._take(*target)
        if self._messages > HELD_MESSAGES or self._size > HELD_BYTES:
            # The longest first: many small requests are what makes a write slow.
            for each, held in sorted(self._waiting.items(), key=lambda each: -each[1].size):
                if self._messages <= HELD_MESSAGES // 2 and self._size <= HELD_BYTES // 2:
                    break
                while held.payloads:
                    yield self._take(*each)

    def rest(self) -> Iterator[tuple[str, PublishRequest]]:
        """Yield what is left."""
        for target, waiting in self._waiting.items():
            while waiting.payloads:
                yield self._take(*target)

    def _take(self, topic: str, producer: str | None) -> tuple[str, PublishRequest]:
        waiting = self._waiting[topic, producer]
        taken = waiting.take(waiting.fitting(self._bounds))
        self._size -= taken.size
        self._messages -= len(taken)
        return topic, taken.request(producer)
