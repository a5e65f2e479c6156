"""Rows of a DataFrame as requests to the service: taken from Arrow column by column, cut into chunks, summed up. Pure.

Nothing is done row by row in Python where a whole column can be, since a hundred thousand rows a second come through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from oncelog.producing.cutting import REQUEST, Messages
from oncelog.wire.requests import PublishRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

HELD_MESSAGES = 50_000
HELD_BYTES = 32 << 20
"""What a task holds in memory at most while its rows go to many topics, or are of many producers."""


class Target(NamedTuple):
    """Whose requests a row goes into."""

    topic: str
    producer: str | None = None


@dataclass(slots=True)
class Columns:
    """Rows of one target, in their order. None: no row has any."""

    payloads: list[bytes]
    keys: list[bytes | None] | None = None
    properties: list[Mapping[str, str] | None] | None = None
    sequence_ids: list[int] | None = None
    """Where the target has a producer."""


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


def split(batch: pa.RecordBatch, topic: str | None, keep_producers: bool) -> Iterator[tuple[Target, Columns]]:
    """The rows of each target, in the order of first appearance; those of one target stay in order.

    ``topic``: where all go, else where their column says. Columns that are not written are left alone.

    Raises:
        ValueError: a value, topic or sequence id is null; a header cannot be a property.
    """
    if batch.num_rows == 0:
        return
    for target, rows in _targets(batch, topic, keep_producers):
        yield target, _columns(batch if rows is None else batch.take(rows), target)


def _targets(batch: pa.RecordBatch, topic: str | None, keep_producers: bool) -> list[tuple[Target, pa.Array | None]]:
    """Which rows belong to each target; None: all."""
    import pyarrow as pa

    if topic is None and len(unique := batch.column("topic").unique()) == 1:
        topic = unique[0].as_py() or None
    if topic is not None and not keep_producers:
        return [(Target(topic), None)]
    topics = repeat(topic) if topic is not None else _words(batch, "topic")
    producers = _words(batch, "producer") if keep_producers else repeat(None)
    rows: dict[tuple[str | None, str | None], list[int]] = {}
    for row, target in enumerate(zip(topics, producers, range(batch.num_rows), strict=False)):
        rows.setdefault(target[:2], []).append(row)
    found: list[tuple[Target, pa.Array | None]] = []
    for (name, producer), numbers in rows.items():
        if not name:
            raise ValueError(f"column topic is {name!r} in {len(numbers)} rows: fill it, or set option topic for all rows")
        found.append((Target(name, producer), None if len(rows) == 1 else pa.array(numbers, pa.int32())))
    return found


def _words(batch: pa.RecordBatch, name: str) -> Sequence[str | None]:
    words: list[str | None] = batch.column(name).to_pylist()
    return words


def _columns(batch: pa.RecordBatch, target: Target) -> Columns:
    names = batch.schema.names
    value = batch.column("value")
    if value.null_count:
        raise ValueError(f"column value is null in {value.null_count} rows for topic {target.topic}: every message has a value")
    columns = Columns(_bytes(value))
    if "key" in names and (key := batch.column("key")).null_count < len(key):
        columns.keys = _bytes(key)
    if "headers" in names and (headers := batch.column("headers")).null_count < len(headers):
        columns.properties = [_properties(each) for each in headers.to_pylist()]
    if target.producer is not None:
        ids = batch.column("sequence_id")
        if ids.null_count:
            raise ValueError(f"column sequence_id is null in {ids.null_count} rows of producer {target.producer!r}")
        columns.sequence_ids = ids.to_pylist()
    return columns


def _bytes(column: pa.Array) -> list[Any]:
    """Of a column of strings or of bytes, in their small or large form."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    values: list[Any] = column.to_pylist()
    return values


def _properties(headers: Sequence[Mapping[str, Any] | None] | None) -> dict[str, str] | None:
    if not headers:
        return None
    found: dict[str, str] = {}
    for header in headers:
        name = None if header is None else header["key"]
        if header is None or name is None or header["value"] is None:
            raise ValueError("column headers holds a null: a message's properties have a name and a value each")
        if name in found:
            raise ValueError(f"column headers names {name!r} twice in a row: a message has one property of a name")
        value = header["value"]
        try:
            found[name] = value if isinstance(value, str) else bytes(value).decode()
        except UnicodeDecodeError:
            raise ValueError(f"the header {name!r} is not UTF-8: a message's properties are text") from None
    return found


# --- the sum ------------------------------------------------------------------------------------------------------------


SUM_BYTES = 16


def checksum(target: Target, columns: Columns) -> int:
    """The sum of a number for each row, drawn from all that is written of it: the same in whatever order the rows come.

    The number is a hash of 128 bits. A CRC would be twice as fast and is no hash: it is linear, so that two rows that swap their
    values have the same sum once in ten thousand times.
    """
    where = f"{target.topic}\0{target.producer or ''}\0".encode()
    plain, framed = (blake2b(where + kind, digest_size=SUM_BYTES) for kind in (b"0", b"1"))
    more = (columns.keys, columns.properties, columns.sequence_ids)
    if more == (None, None, None):
        return sum(_hashed(plain, payload) for payload in columns.payloads)
    rows = zip(columns.payloads, *(repeat(None) if column is None else column for column in more), strict=False)
    # A row that has a value only counts the same whether others beside it have more.
    return sum(
        _hashed(framed, _frame(key, properties, sequence_id) + payload)
        if key is not None or properties or sequence_id is not None
        else _hashed(plain, payload)
        for payload, key, properties, sequence_id in rows
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
    """Cuts the rows of a task into requests: each of one target, in the order of its rows, within the bounds of a request."""

    def __init__(self, most: int = REQUEST.messages) -> None:
        """``most``: messages in one request."""
        self._bounds = REQUEST._replace(messages=most)
        self._waiting: dict[Target, Messages] = {}
        self._messages = 0
        self._size = 0

    def add(self, target: Target, columns: Columns) -> Iterator[tuple[str, PublishRequest]]:
        """Yield topic and request of what is full now."""
        waiting = self._waiting.setdefault(target, Messages())
        self._size += waiting.extend(columns.payloads, columns.sequence_ids, columns.keys, columns.properties)
        self._messages += len(columns.payloads)
        while len(waiting) >= self._bounds.messages or waiting.size > self._bounds.bytes:
            yield self._take(target)
        if self._messages > HELD_MESSAGES or self._size > HELD_BYTES:
            yield from self._relieve()

    def rest(self) -> Iterator[tuple[str, PublishRequest]]:
        """Yield what is left."""
        for target, waiting in self._waiting.items():
            while waiting.payloads:
                yield self._take(target)

    def _relieve(self) -> Iterator[tuple[str, PublishRequest]]:
        """The longest first: many small requests are what makes a write slow."""
        for target, waiting in sorted(self._waiting.items(), key=lambda each: -each[1].size):
            if self._messages <= HELD_MESSAGES // 2 and self._size <= HELD_BYTES // 2:
                break
            while waiting.payloads:
                yield self._take(target)

    def _take(self, target: Target) -> tuple[str, PublishRequest]:
        waiting = self._waiting[target]
        taken = waiting.take(waiting.fitting(self._bounds))
        self._size -= taken.size
        self._messages -= len(taken)
        return target.topic, taken.request(target.producer)
