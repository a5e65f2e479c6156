"""Rows of a range of offsets → columns, as fast as Python can: what runs once per message is a slice or a comparison in C.

Neighbours are alike: with the same flags id and offset lie at the same places, and what stands between offset and payload
(producer, sequence id, key, properties, ttl: the *fields*) is mostly that of the row before with the next sequence id. Rows are
taken by runs with the same flags, each check is made on a whole run, and fields are decoded only where they differ from what was
foretold. Where a check fails, the run is looked at row by row: there the error is made, and whatever is rare is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, groupby, islice, repeat
from operator import itemgetter
from struct import pack as pack_struct
from typing import NamedTuple, TypeAlias

from oncelog.errors import TopicDamaged
from oncelog.wire.avro_parts import NULL_BRANCH, VALUE_BRANCH, decode_long, encode_long, encode_long_run
from oncelog.wire.columns import MessageColumns, OffsetRun, ProducerRun, pack, pack_optional
from oncelog_service.log.judgements import Judgements, judged_at
from oncelog_service.log.scan import (
    checked,
    damaged_payload,
    earliest_offset,
    end_of,
    find_offset,
    is_trimmed,
    unchecked_from,
    unchecked_stored,
)
from oncelog_service.storage.checksum import all_match
from oncelog_service.storage.fields import GROUP, TTL, VERSION, T, decode_fields, intact
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, split_row_id
from oncelog_service.storage.payload_rows import payload_id_of, payload_index_of
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import MESSAGE_AT, messages_of, offset_of, write_pointer_of

_HEAD = itemgetter(slice(0, 6))
"""Version, flags, where the payload is: rows with the same one have everything at the same places."""
_KIND = itemgetter(slice(0, 2))
_PAYLOAD_AT = itemgetter(slice(2, 6))
_POINTER_SIGN = itemgetter(6)
_NOTHING = NULL_BRANCH * 3
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
    judgements: Judgements = ()
    expired_at: list[int] | None = None
    """Takes when the ttl of each message ended that was passed over for its own ttl."""


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
    with closing(rows):
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
        """How many of the rows still go in, ``most`` at most: at least one, as long as it is not full."""
        most = min(most, self._limit - self._count, len(rows))
        if len(rows) * max(map(len, rows)) < self._room:
            return most
        return min(most, bisect_left(list(accumulate(map(len, rows))), self._room) + 1)

    def wanted(self, size: int) -> int:
        """How many more rows of this size go in."""
        return min(self._limit - self._count, self._room // size + 1)

    def add(self, ids: bytes, first: int, rows: Sequence[bytes], texts: Sequence[bytes], places: Places) -> None:
        """Messages with offsets from ``first`` on: their fields as ``texts``, their payloads at ``places`` in the ``rows``."""
        count = len(rows)
        self._room -= sum(map(len, rows))
        self._count += count
        _extend_offsets(self._offsets, first, count)
        self._ids.append(ids)
        self._values += _values(rows, places)
        self._fields(texts)

    def _fields(self, texts: Sequence[bytes]) -> None:
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
        for producer, sequence_id, same in foretold(texts):
            _extend_producers(self._producers, producer, sequence_id, len(same))
            for behind in same:
                key, properties = _key_and_properties(behind)
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


Places: TypeAlias = int | Sequence[int]
"""Where a thing lies in each of some rows: at the same place, or one for each."""


def _texts(rows: Sequence[bytes], begin: int, places: Places) -> list[bytes]:
    """From ``begin`` up to ``places``."""
    if isinstance(places, int):
        return [row[begin:places] for row in rows]
    return [row[begin:place] for row, place in zip(rows, places, strict=True)]


def _values(rows: Sequence[bytes], places: Places) -> list[bytes]:
    """The payloads behind their lengths, which are as long as each other where the payloads are about as large."""
    if not isinstance(places, int):
        return [row[decode_long(row, place)[1] : _CHECKSUM] for row, place in zip(rows, places, strict=True)]
    around = places - _CHECKSUM
    size = _length_size(min(map(len, rows)) - around)
    if _length_size(max(map(len, rows)) - around) == size:
        begin = places + size
        return [row[begin:_CHECKSUM] for row in rows]
    return [row[decode_long(row, places)[1] : _CHECKSUM] for row in rows]


def _length_size(total: int) -> int:
    """Bytes of the length in so many bytes of length and payload."""
    size = 1
    while total - size >= 64 << 7 * (size - 1):
        size += 1
    return size


def foretold(texts: Iterable[bytes]) -> Iterator[tuple[str | None, int | None, list[bytes]]]:
    """Runs of one producer whose sequence ids rise by one: both, and of each message what stands behind them.

    A text that goes on as foretold is compared, and not decoded.
    """
    expected, ahead = b"\xff", iter((b"",))  # begins no text
    before, found = b"", None
    for text in texts:
        if text.startswith(expected) and found is not None:
            found[2].append(text[len(expected) :])
        else:
            if found is not None:
                yield found
            fields = decode_fields(text, 0)
            before, found = text[: fields.sequence_at], (fields.producer, fields.sequence_id, [text[fields.key_at :]])
            ahead = repeat(b"") if fields.sequence_id is None else _rising(fields.sequence_id + 1)
        expected = before + next(ahead)
    if found is not None:
        yield found


def _key_and_properties(behind: bytes) -> tuple[bytes | None, dict[str, str] | None]:
    """Decode what stands behind the sequence id. Mostly that is a short key alone."""
    if behind == _NOTHING:
        return None, None
    if behind[0] == 2 and behind[1] < 0x80 and len(behind) == 4 + (behind[1] >> 1):
        return behind[2:-2], None
    fields = decode_fields(NULL_BRANCH * 2 + behind, 0)
    return fields.key, fields.properties


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
            for begin, end, alike in _runs(bodies):
                if self.out.full or offset >= self._wanted.upto:
                    break
                offset = self._run(row_ids[begin:end], bodies[begin:end], offset, alike)
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
            size = max(1, min(_BLOCK, 4 * size, self.out.wanted(len(block[-1][1]))))

    def _run(self, row_ids: list[bytes], rows: list[bytes], offset: int, alike: bool) -> int:
        """Rows with the same flags; returns the offset behind those that were dealt with."""
        version, flags = rows[0][0], rows[0][1]
        if version != VERSION or flags >= len(MESSAGE_AT) or flags & GROUP:
            return self._one_by_one(row_ids, rows, offset)
        offsets = encode_long_run(offset, len(rows))
        at = MESSAGE_AT[flags]
        id_at, offset_at, fields_at = at + 1, at + _ROW_ID_AND_LENGTH, at + _ROW_ID_AND_LENGTH + len(offsets[0])
        if not (
            len(offsets[-1]) == len(offsets[0])
            and all_match(rows)
            and [row[id_at : id_at + ROW_ID_SIZE] for row in rows] == row_ids
            and [row[offset_at:fields_at] for row in rows] == offsets
        ):
            return self._one_by_one(row_ids, rows, offset)
        if flags & T:
            signs = [*map(_POINTER_SIGN, rows)]
            if min(signs) > 127:
                return offset + len(rows)  # rolled back
            if max(signs) > 127:
                return self._one_by_one(row_ids, rows, offset)
        places = _payload_places(rows, at, alike)
        if flags & TTL and not self._all_live(row_ids[0], _texts(rows, fields_at, places)):
            return self._one_by_one(row_ids, rows, offset)
        fitting = self.out.fitting(rows, self._wanted.upto - offset)
        if fitting < len(rows):
            row_ids, rows = row_ids[:fitting], rows[:fitting]
            places = _payload_places(rows, at, alike)
        texts = _texts(rows, fields_at, places)
        self.out.add(FIRST_PAYLOAD_ID.join(row_ids) + FIRST_PAYLOAD_ID, offset, rows, texts, places)
        return offset + fitting

    def _all_live(self, row_id: bytes, texts: Sequence[bytes]) -> bool:
        """Whether all have the same ttl, and the oldest, with this row id, lives.

        The ttl ends the fields. No byte of it but the last is below 128, as the one before it is: so the end names it.
        """
        ttl = decode_fields(texts[0], 0).ttl
        assert ttl is not None  # the flag says so
        end = VALUE_BRANCH + encode_long(ttl)
        return not self._expired(row_id, ttl) and all(text.endswith(end) for text in texts)

    def _expired(self, row_id: bytes, ttl: int | None) -> bool:
        if ttl is None:
            return False
        end, wanted = split_row_id(row_id)[0] + ttl * 1000, self._wanted
        gone = end <= judged_at(wanted.judgements, row_id, wanted.now_ms)
        if gone and wanted.expired_at is not None:
            wanted.expired_at.append(end)
        return gone

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
                _, fields_at = decode_long(row, at + _ROW_ID_AND_LENGTH)
                self._one(row_id, row_id + FIRST_PAYLOAD_ID, row, offset, fields_at, at)
                offset += 1
        return offset

    def _one(self, row_id: bytes, message_id: bytes, row: bytes, offset: int, fields_at: int, at: int) -> None:
        place = at + int.from_bytes(_PAYLOAD_AT(row), "big")
        text = row[fields_at:place]
        if not row[1] & TTL or not self._expired(row_id, decode_fields(text, 0).ttl):
            self.out.add(message_id, offset, [row], [text], place)

    # --- stored groups

    def _group(self, row_id: bytes, row: bytes) -> int:
        """The messages of the group that the row stands for; returns the offset to go on at."""
        try:
            return self._whole_group(row_id, row)
        except TopicDamaged:
            if not is_trimmed(self._store, self._prefix, row_id):
                raise
            return min(end_of(row), self._wanted.upto)

    def _whole_group(self, row_id: bytes, row: bytes) -> int:
        within = self._within[1] if row_id == self._within[0] else b""
        first, stop = offset_of(row), min(end_of(row), self._wanted.upto)
        place, payloads = unchecked_stored(self._store, self._prefix, row, within)
        offset = first + place

        def take(block: list[tuple[bytes, bytes]]) -> int:
            nonlocal offset
            bodies = [payload for _, payload in block]
            payload_ids = [payload_id for payload_id, _ in block]
            for begin, end, alike in _runs(bodies):
                if self.out.full:
                    break
                offset = self._payloads(row_id, row, payload_ids[begin:end], bodies[begin:end], offset, first, alike)
            return stop - offset

        with closing(payloads):
            self._by_blocks(payloads, stop - offset, take)
        if offset < stop and not self.out.full:
            raise TopicDamaged(f"{messages_of(row)} payloads belong to the group at {row_id.hex()}, {offset - first} are there")
        return offset

    def _payloads(
        self, row_id: bytes, row: bytes, ids: list[bytes], rows: list[bytes], offset: int, first: int, alike: bool
    ) -> int:
        """Payloads with the same flags; returns the offset behind those that were dealt with."""
        count, place = len(rows), offset - first
        if not (
            rows[0][0] == VERSION
            and all_match(rows)
            and [payload[6:16] for payload in rows] == ids
            and b"".join([payload[16:20] for payload in rows]) == pack_struct(f">{count}I", *range(place, place + count))
        ):
            return self._payloads_one_by_one(row_id, row, ids, rows, offset, first)
        places = _payload_places(rows, 0, alike)
        if rows[0][1] & TTL and not self._all_live(row_id, _texts(rows, _PAYLOAD_FIELDS_AT, places)):
            return self._payloads_one_by_one(row_id, row, ids, rows, offset, first)
        fitting = self.out.fitting(rows, count)
        if fitting < count:
            ids, rows = ids[:fitting], rows[:fitting]
            places = _payload_places(rows, 0, alike)
        texts = _texts(rows, _PAYLOAD_FIELDS_AT, places)
        self.out.add(row_id + row_id.join(ids), offset, rows, texts, places)
        return offset + fitting

    def _payloads_one_by_one(
        self, row_id: bytes, row: bytes, ids: list[bytes], rows: list[bytes], offset: int, first: int
    ) -> int:
        for payload_id, payload in zip(ids, rows, strict=True):
            if self.out.full:
                break
            if not intact(payload) or payload_id_of(payload) != payload_id or payload_index_of(payload) != offset - first:
                raise damaged_payload(offset - first, row)
            self._one(row_id, row_id + payload_id, payload, offset, _PAYLOAD_FIELDS_AT, 0)
            offset += 1
        return offset


def _runs(rows: Sequence[bytes]) -> Iterator[tuple[int, int, bool]]:
    """Where neighbours with the same flags begin and end, and whether their payloads lie at the same place."""
    heads = [*map(_HEAD, rows)]
    if heads.count(heads[0]) == len(heads):
        yield 0, len(rows), True
        return
    begin = 0
    for _, same in groupby(map(_KIND, heads)):
        end = begin + len(list(same))
        yield begin, end, len(set(heads[begin:end])) == 1
        begin = end


def _payload_places(rows: Sequence[bytes], at: int, alike: bool) -> Places:
    """Where the payload is in each, counted from ``at``."""
    if alike:
        return at + int.from_bytes(_PAYLOAD_AT(rows[0]), "big")
    return [at + int.from_bytes(place, "big") for place in map(_PAYLOAD_AT, rows)]


# --- sizes --------------------------------------------------------------------------------------------------------------


def end_within(store: Store, prefix: bytes, first: int, upto: int, max_bytes: int) -> int:
    """Behind the last message, from ``first`` on and below ``upto``, that fits into ``max_bytes`` of rows; at least one does.

    Rows are only measured here, not checked. Raises TopicDamaged.
    """
    start = find_offset(store, prefix, first)
    if start is None or first >= upto:
        return upto
    offset, rows = unchecked_from(store, prefix, start[:ROW_ID_SIZE])
    end, size = first, 0
    with closing(rows), closing(_sizes(store, prefix, rows, start[ROW_ID_SIZE:], offset, upto)) as sizes:
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
) -> Generator[tuple[int, int]]:
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
