"""Rows of a range of offsets → columns, as fast as Python can: what runs once per message is a slice or a comparison in C.

Neighbours are alike: their heads are the same bytes, so each field lies at the same place; what stands between offset and
payload (producer, sequence id, key, properties) is that of the row before with the next sequence id. Rows are taken by runs with
the same head, each check is made on a whole run, and fields are decoded only where they differ from what was foretold. Where a
check fails, the run is looked at row by row: there the error is made, and whatever is rare is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, groupby, islice
from operator import itemgetter
from struct import pack as pack_struct
from typing import NamedTuple

from oncelog.errors import TopicDamaged
from oncelog.wire.avro_parts import NULL_BRANCH, decode_long, encode_long_run
from oncelog.wire.columns import MessageColumns, OffsetRun, ProducerRun, pack, pack_optional
from oncelog_service.log.scan import (
    checked,
    damaged_payload,
    earliest_offset,
    end_of,
    find_offset,
    unchecked_from,
    unchecked_stored,
)
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, split_row_id
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import (
    GROUP,
    MESSAGE_AT,
    TTL,
    VERSION,
    Fields,
    T,
    all_intact,
    decode_fields,
    intact,
    messages_of,
    offset_of,
    payload_id_of,
    payload_place_of,
    write_pointer_of,
)

_HEAD = itemgetter(slice(0, 6))
"""Version, flags, where the payload is: rows with the same one have everything at the same places."""
_POINTER_SIGN = itemgetter(6)
_ROW_ID_AND_LENGTH = 21
_PAYLOAD_FIELDS_AT = 20
_CHECKSUM = -4
_BLOCK = 512
"""Rows that are taken from the store at a time, at most: 2,000 were not faster."""


class Range(NamedTuple):
    """What is asked for."""

    first: int
    upto: int
    begin: bytes
    """The key of the first row that has not expired."""
    now_ms: int
    limit: int
    """Messages delivered, at least 1."""
    max_bytes: int
    """Of rows; the answer ends after the message that reaches this."""
    properties: bool = False


def read_columns(store: Store, prefix: bytes, wanted: Range) -> MessageColumns:
    """The messages of the range that were not rolled back and have not expired, or the first of them.

    Raises:
        TopicDamaged: a row is damaged or missing.
    """
    if wanted.first >= wanted.upto:
        return Gathered(wanted).columns(wanted.upto)
    start = FIRST_ROW_ID if wanted.first == 0 else find_offset(store, prefix, wanted.first)
    if start is None:
        return _nothing_left(store, prefix, wanted.first, wanted)
    start = max(start, wanted.begin)
    offset, rows = unchecked_from(store, prefix, start[:ROW_ID_SIZE])
    walk = _Walk(store, prefix, wanted, start)
    offset = walk.along(rows, offset)
    if offset < wanted.upto and not walk.out.full:
        return _nothing_left(store, prefix, offset, wanted, walk.out)
    return walk.out.columns(min(offset, wanted.upto))


def _nothing_left(store: Store, prefix: bytes, offset: int, wanted: Range, out: Gathered | None = None) -> MessageColumns:
    """The log ended before the range did. Retention may have been here meanwhile; else something is missing."""
    if earliest_offset(store, prefix) < wanted.upto:
        raise TopicDamaged(f"offset {offset} is missing: nothing follows on the one before it")
    return (Gathered(wanted) if out is None else out).columns(wanted.upto)


class Gathered:
    """The columns so far."""

    def __init__(self, wanted: Range) -> None:
        self._limit = wanted.limit
        self._room = wanted.max_bytes
        self._with_properties = wanted.properties
        self._count = 0
        self._offsets: list[OffsetRun] = []
        self._ids: list[bytes] = []
        self._producers: list[ProducerRun] = []
        self._values: list[bytes] = []
        self._keys: list[bytes | None] = []
        self._properties: list[dict[str, str] | None] = []

    @property
    def full(self) -> bool:
        """Whether the answer ends here."""
        return self._count >= self._limit or self._room <= 0

    def fitting(self, rows: Sequence[bytes], most: int) -> int:
        """How many of the rows still go in, ``most`` at most."""
        most = min(most, self._limit - self._count, len(rows))
        if self._room <= 0 or most <= 0:
            return 0
        if sum(map(len, rows)) < self._room:
            return most
        return min(most, bisect_left(list(accumulate(map(len, rows))), self._room) + 1)

    def wanted(self, mean: int) -> int:
        """How many more rows of this size go in."""
        return min(self._limit - self._count, self._room // mean + 1)

    def add(self, rows: Sequence[bytes], ids: bytes, first: int, fields_at: int, payload_at: int) -> None:
        """Messages with offsets from ``first`` on, of rows in which everything lies at the same places."""
        count = len(rows)
        self._room -= sum(map(len, rows))
        self._count += count
        _extend_offsets(self._offsets, first, count)
        self._ids.append(ids)
        self._values += _values(rows, payload_at)
        self._fields([row[fields_at:payload_at] for row in rows])

    def _fields(self, texts: Sequence[bytes]) -> None:
        """What stands between offset and payload of each, encoded."""
        text, count = texts[0], len(texts)
        fields = decode_fields(text, 0)
        if fields.sequence_id is None:
            alike = texts.count(text) == count
        else:
            before, behind = text[: fields.sequence_at], text[fields.key_at :]
            alike = texts == [before + each + behind for each in encode_long_run(fields.sequence_id, count)]
        if alike:
            _extend_producers(self._producers, fields.producer, fields.sequence_id, count)
            self._keys += (fields.key,) * count
            if self._with_properties:
                self._properties += (fields.properties,) * count
            return
        for producer, sequence_id, key, properties in foretold(texts):
            _extend_producers(self._producers, producer, sequence_id, 1)
            self._keys.append(key)
            if self._with_properties:
                self._properties.append(properties)

    def columns(self, upcoming: int) -> MessageColumns:
        """All of them; ``upcoming``: the offset to go on at."""
        any_properties = self._with_properties and any(each is not None for each in self._properties)
        return MessageColumns(
            upcoming,
            self._offsets,
            b"".join(self._ids),
            self._producers,
            pack(self._values),
            pack_optional(self._keys),
            self._properties if any_properties else None,
        )


def _values(rows: Sequence[bytes], payload_at: int) -> list[bytes]:
    """The payloads behind their lengths, which are as long as each other where the payloads are about as large."""
    around = payload_at - _CHECKSUM
    least, most = min(map(len, rows)) - around, max(map(len, rows)) - around
    size = _length_size(least)
    if _length_size(most) == size:
        begin = payload_at + size
        return [row[begin:_CHECKSUM] for row in rows]
    return [row[decode_long(row, payload_at)[1] : _CHECKSUM] for row in rows]


def _length_size(total: int) -> int:
    """Bytes of the length in so many bytes of length and payload."""
    size = 1
    while total - size >= 64 << 7 * (size - 1):
        size += 1
    return size


def foretold(texts: Iterable[bytes]) -> Iterator[tuple[str | None, int | None, bytes | None, dict[str, str] | None]]:
    """Producer, sequence id, key and properties of each; one that goes on as foretold is compared, and not decoded."""
    expected: bytes | None = None
    ahead: Iterator[bytes] = iter(())
    behind, fields = b"", Fields(None, None, None, None, None, 0, 0)
    sequence_id: int | None = None
    before = b""
    for text in texts:
        if expected is not None and text.startswith(expected):
            if sequence_id is not None:
                sequence_id += 1
            rest = text[len(expected) :]
            if rest != behind:
                behind, fields = rest, decode_fields(NULL_BRANCH * 2 + rest, 0)._replace(producer=fields.producer)
        else:
            fields = decode_fields(text, 0)
            sequence_id, behind = fields.sequence_id, text[fields.key_at :]
            before = text[: fields.sequence_at]
            expected = before
            if sequence_id is not None:
                ahead = _rising(sequence_id + 1)
        if sequence_id is not None:
            expected = before + next(ahead)
        yield fields.producer, sequence_id, fields.key, fields.properties


def _rising(first: int) -> Iterator[bytes]:
    """Each number from ``first`` on, encoded: few at first, since many runs are short."""
    step = 4
    while True:
        yield from encode_long_run(first, step)
        first, step = first + step, min(4 * step, 256)


def _extend_offsets(runs: list[OffsetRun], first: int, count: int) -> None:
    if runs and runs[-1].first + runs[-1].count == first:
        first, count = runs[-1].first, runs.pop().count + count
    runs.append(OffsetRun(first, count))


def _extend_producers(runs: list[ProducerRun], producer: str | None, sequence_id: int | None, count: int) -> None:
    if runs:
        last = runs[-1]
        expected = None if last.sequence_id is None else last.sequence_id + last.count
        if last.producer == producer and expected == sequence_id:
            runs[-1] = ProducerRun(producer, last.sequence_id, last.count + count)
            return
    runs.append(ProducerRun(producer, sequence_id, count))


# --- along the log ------------------------------------------------------------------------------------------------------


class _Walk:
    """Goes along the rows of a range."""

    def __init__(self, store: Store, prefix: bytes, wanted: Range, start: bytes) -> None:
        self._store = store
        self._prefix = prefix
        self._wanted = wanted
        self._within = start[:ROW_ID_SIZE], start[ROW_ID_SIZE:]
        self.out = Gathered(wanted)

    def along(self, rows: Iterator[tuple[bytes, bytes]], offset: int) -> int:
        """Gather rows, the first of which must have this offset; returns the offset to go on at."""
        cut = len(self._prefix)

        def take(block: list[tuple[bytes, bytes]]) -> int:
            nonlocal offset
            bodies = [row for _, row in block]
            row_ids = [key[cut:] for key, _ in block]
            at = 0
            for _, same in groupby(bodies, _HEAD):
                count = len(list(same))
                if self.out.full or offset >= self._wanted.upto:
                    break
                offset = self._alike(row_ids[at : at + count], bodies[at : at + count], offset)
                at += count
            return self._wanted.upto - offset

        self._by_blocks(rows, self._wanted.upto - offset, take)
        return offset

    def _by_blocks(
        self, rows: Iterator[tuple[bytes, bytes]], left: int, take: Callable[[list[tuple[bytes, bytes]]], int]
    ) -> None:
        """Few at first: they may be large. ``take`` says how many more there may be."""
        size = 1
        while left > 0 and not self.out.full:
            block = list(islice(rows, min(size, left)))
            if not block:
                return
            left = take(block)
            mean = sum(len(row) for _, row in block) // len(block) + 1
            size = max(1, min(_BLOCK, 4 * size, self.out.wanted(mean)))

    def _alike(self, row_ids: list[bytes], rows: list[bytes], offset: int) -> int:
        """Rows with one head; returns the offset behind those that were dealt with."""
        version, flags = rows[0][0], rows[0][1]
        if version != VERSION or flags >= len(MESSAGE_AT) or flags & (GROUP | TTL):
            return self._one_by_one(row_ids, rows, offset)
        count = len(rows)
        offsets = encode_long_run(offset, count)
        at = MESSAGE_AT[flags]
        id_at, offset_at, fields_at = at + 1, at + _ROW_ID_AND_LENGTH, at + _ROW_ID_AND_LENGTH + len(offsets[0])
        if not (
            len(offsets[-1]) == len(offsets[0])
            and all_intact(rows)
            and [row[id_at : id_at + ROW_ID_SIZE] for row in rows] == row_ids
            and [row[offset_at:fields_at] for row in rows] == offsets
        ):
            return self._one_by_one(row_ids, rows, offset)
        if flags & T:
            signs = [*map(_POINTER_SIGN, rows)]
            if max(signs) > 127:
                if min(signs) > 127:
                    return offset + count  # rolled back
                return self._one_by_one(row_ids, rows, offset)
        fitting = self.out.fitting(rows, self._wanted.upto - offset)
        if fitting < count:
            row_ids, rows = row_ids[:fitting], rows[:fitting]
        payload_at = at + int.from_bytes(rows[0][2:6], "big")
        self.out.add(rows, FIRST_PAYLOAD_ID.join(row_ids) + FIRST_PAYLOAD_ID, offset, fields_at, payload_at)
        return offset + fitting

    def _one_by_one(self, row_ids: list[bytes], rows: list[bytes], offset: int) -> int:
        for row_id, row in checked(zip(row_ids, rows, strict=True), b"", offset):
            if self.out.full or offset >= self._wanted.upto:
                break
            flags = row[1]
            if flags & T and write_pointer_of(row) < 0:
                offset = end_of(row)
            elif flags & GROUP:
                offset = self._group(row_id, row)
            else:
                at = MESSAGE_AT[flags]
                fields_at, payload_at = decode_long(row, at + _ROW_ID_AND_LENGTH)[1], at + int.from_bytes(row[2:6], "big")
                if not flags & TTL or not self._expired(row_id, row, fields_at):
                    self.out.add([row], row_id + FIRST_PAYLOAD_ID, offset, fields_at, payload_at)
                offset += 1
        return offset

    def _expired(self, row_id: bytes, row: bytes, fields_at: int) -> bool:
        ttl = decode_fields(row, fields_at).ttl
        return ttl is not None and split_row_id(row_id)[0] + ttl * 1000 <= self._wanted.now_ms

    # --- stored groups

    def _group(self, row_id: bytes, row: bytes) -> int:
        """The messages of the group that the row stands for; returns the offset to go on at."""
        within = self._within[1] if row_id == self._within[0] else b""
        first, stop = offset_of(row), min(end_of(row), self._wanted.upto)
        place, payloads = unchecked_stored(self._store, self._prefix, row, within)
        offset = first + place

        def take(block: list[tuple[bytes, bytes]]) -> int:
            nonlocal offset
            bodies = [payload for _, payload in block]
            at = 0
            for _, same in groupby(bodies, _HEAD):
                count = len(list(same))
                if self.out.full:
                    break
                ids = [payload_id for payload_id, _ in block[at : at + count]]
                offset = self._payloads(row_id, row, ids, bodies[at : at + count], offset, first)
                at += count
            return stop - offset

        with closing(payloads):
            self._by_blocks(payloads, stop - offset, take)
        if offset < stop and not self.out.full:
            raise TopicDamaged(f"{messages_of(row)} payloads belong to the group at {row_id.hex()}, {offset - first} are there")
        return offset

    def _payloads(self, row_id: bytes, row: bytes, ids: list[bytes], rows: list[bytes], offset: int, first: int) -> int:
        """Payloads with one head; returns the offset behind those that were dealt with."""
        count, place = len(rows), offset - first
        if not (
            rows[0][0] == VERSION
            and not rows[0][1] & TTL
            and all_intact(rows)
            and [payload[6:16] for payload in rows] == ids
            and b"".join([payload[16:20] for payload in rows]) == pack_struct(f">{count}I", *range(place, place + count))
        ):
            return self._payloads_one_by_one(row_id, row, ids, rows, offset, first)
        fitting = self.out.fitting(rows, count)
        ids, rows = ids[:fitting], rows[:fitting]
        payload_at = int.from_bytes(rows[0][2:6], "big")
        self.out.add(rows, row_id + row_id.join(ids), offset, _PAYLOAD_FIELDS_AT, payload_at)
        return offset + fitting

    def _payloads_one_by_one(
        self, row_id: bytes, row: bytes, ids: list[bytes], rows: list[bytes], offset: int, first: int
    ) -> int:
        for payload_id, payload in zip(ids, rows, strict=True):
            if self.out.full:
                break
            if not intact(payload) or payload_id_of(payload) != payload_id or payload_place_of(payload) != offset - first:
                raise damaged_payload(offset - first, row)
            if not payload[1] & TTL or not self._expired(row_id, payload, _PAYLOAD_FIELDS_AT):
                at = int.from_bytes(payload[2:6], "big")
                self.out.add([payload], row_id + payload_id, offset, _PAYLOAD_FIELDS_AT, at)
            offset += 1
        return offset


# --- sizes --------------------------------------------------------------------------------------------------------------


def end_within(store: Store, prefix: bytes, first: int, upto: int, max_bytes: int) -> int:
    """Behind the last message, from ``first`` on and below ``upto``, that fits into ``max_bytes`` of rows; at least one does.

    Rows are only measured here, not checked. Raises TopicDamaged.
    """
    start = find_offset(store, prefix, first)
    if start is None or first >= upto:
        return upto
    offset, rows = unchecked_from(store, prefix, start[:ROW_ID_SIZE])
    sizes = _sizes(store, prefix, rows, start[ROW_ID_SIZE:], offset, upto)
    end, size = first, 0
    for behind, row_size in sizes:
        size += row_size
        if size > max_bytes and end > first:
            return end
        end = min(behind, upto)
        if size >= max_bytes or end == upto:
            return end
    return upto


def _sizes(
    store: Store, prefix: bytes, rows: Iterable[tuple[bytes, bytes]], within: bytes, offset: int, upto: int
) -> Iterator[tuple[int, int]]:
    """(offset behind it, bytes) of each message; of what was rolled back, no bytes."""
    for _, row in rows:
        if offset >= upto:
            return
        flags = row[1]
        if flags & T and write_pointer_of(row) < 0:
            offset = end_of(row)
            yield offset, 0
        elif flags & GROUP:
            place, payloads = unchecked_stored(store, prefix, row, within)
            with closing(payloads):
                for behind, (_, payload) in enumerate(payloads, offset + place + 1):
                    yield behind, len(payload)
            offset = end_of(row)
        else:
            offset += 1
            yield offset, len(row)
        within = b""
