"""Messages of a range of offsets → columns, as fast as Python can: what runs once per message is a slice or a comparison in C.

What stands between offset and payload (producer, sequence id, key, properties, ttl: the *fields*) is mostly that of the message
before with the next sequence id. Messages are taken by runs; fields are decoded only where they differ from what was foretold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import repeat
from typing import NamedTuple, TypeAlias

from oncelog.errors import TopicDamaged
from oncelog.wire.avro_parts import NULL_BRANCH, VALUE_BRANCH, decode_long, encode_long, encode_long_run
from oncelog.wire.columns import MessageColumns, OffsetRun, ProducerRun, pack, pack_optional
from oncelog_service.log.judgements import Judgements, judged_at
from oncelog_service.log.scan import earliest_offset, find_offset, run_before, runs_from, stored_in
from oncelog_service.storage.fields import decode_fields
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, ROW_ID_SIZE, split_row_id
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import OFFSET_AT
from oncelog_service.storage.runs import GROUP, TTL, StoredRun

_NOTHING = NULL_BRANCH * 3


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
    walk = _Walk(store, prefix, wanted, max(start, wanted.begin))
    with closing(runs_from(store, prefix, walk.start[:ROW_ID_SIZE])) as runs:
        offset = walk.along(runs)
    if offset < wanted.upto and not walk.out.full:
        expired = run_before(store, prefix, walk.start[:ROW_ID_SIZE])
        if expired is not None and expired.end >= wanted.upto:
            return walk.out.columns(wanted.upto)
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

    def fitting(self, run: StoredRun, begin: int, end: int) -> int:
        """Behind which of some messages in a row the answer is full, ``end`` at most; one goes in, as long as it is not full."""
        return run.fitting(begin, min(end, begin + self._limit - self._count), self._room)

    def add(self, ids: bytes, first: int, bodies: Sequence[bytes], fields_at: int, places: Places) -> None:
        """Messages with offsets from ``first`` on, whose fields begin at ``fields_at`` and whose payloads at ``places``."""
        count = len(bodies)
        self._room -= sum(map(len, bodies))
        self._count += count
        _extend_offsets(self._offsets, first, count)
        self._ids.append(ids)
        self._values += _values(bodies, places)
        self._fields(_texts(bodies, fields_at, places))

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


def _texts(bodies: Sequence[bytes], begin: int, places: Places) -> list[bytes]:
    """From ``begin`` up to ``places``."""
    if isinstance(places, int):
        return [body[begin:places] for body in bodies]
    return [body[begin:place] for body, place in zip(bodies, places, strict=True)]


def _values(bodies: Sequence[bytes], places: Places) -> list[bytes]:
    """The payloads behind their lengths, which are as long as each other where the payloads are about as large."""
    if not isinstance(places, int):
        return [body[decode_long(body, place)[1] :] for body, place in zip(bodies, places, strict=True)]
    size = _length_size(min(map(len, bodies)) - places)
    if _length_size(max(map(len, bodies)) - places) == size:
        begin = places + size
        return [body[begin:] for body in bodies]
    return [body[decode_long(body, places)[1] :] for body in bodies]


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
    """Goes along the runs of a range."""

    def __init__(self, store: Store, prefix: bytes, wanted: Range, start: bytes) -> None:
        """``start``: the key of the first message."""
        self._store = store
        self._prefix = prefix
        self._wanted = wanted
        self.start = start
        self.out = Gathered(wanted)

    def along(self, runs: Iterable[StoredRun]) -> int:
        """Gather messages; returns the offset to go on at."""
        offset = self._wanted.first
        for run in runs:
            if self.out.full:
                break
            begin = run.index_from(self.start[:ROW_ID_SIZE])
            offset = run.first + begin
            if offset >= self._wanted.upto:
                break
            if run.is_rolled_back:
                offset = run.end
            elif run.flags & GROUP:
                offset = self._group(run)
            else:
                offset = run.first + self._take(run, begin, run)
        return offset

    def _group(self, group: StoredRun) -> int:
        """The messages of a stored group; returns the offset to go on at."""
        within = self.start[ROW_ID_SIZE:] if self.start[:ROW_ID_SIZE] == group.id else b""
        offset = group.first
        with closing(stored_in(self._store, self._prefix, group, within)) as payloads:
            for each in payloads:
                if offset >= self._wanted.upto or self.out.full:
                    return offset
                offset = group.first + each.first + self._take(each, each.index_from(within), group)
        return offset if self.out.full else group.end

    def _take(self, run: StoredRun, begin: int, of: StoredRun) -> int:
        """Messages of a run; returns the index behind what was dealt with. ``of``: the run of the log, its own or its group's."""
        is_stored = run is not of
        first = run.first + (of.first if is_stored else 0)
        upto = min(self._wanted.upto - first, len(run))
        while begin < upto and not self.out.full:
            fields_at, end = 0, upto
            if not is_stored:  # as long as the offset is as long
                size = len(encode_long(first + begin))
                fields_at, end = OFFSET_AT + size, min(upto, (64 << 7 * (size - 1)) - first)
            end = self.out.fitting(run, begin, end)
            bodies, places, ids = run.bodies(begin, end), run.payload_places(begin, end), run.ids(begin, end)
            message_ids = of.id + of.id.join(ids) if is_stored else FIRST_PAYLOAD_ID.join(ids) + FIRST_PAYLOAD_ID
            if not run.flags & TTL or self._all_live(of.id, _texts(bodies, fields_at, places)):
                self.out.add(message_ids, first + begin, bodies, fields_at, places)
            else:
                for at, body in enumerate(bodies):
                    if not self._expired(of.id, decode_fields(body, fields_at).ttl):
                        place = places if isinstance(places, int) else places[at]
                        self.out.add(message_ids[20 * at : 20 * at + 20], first + begin + at, [body], fields_at, place)
            begin = end
        return begin

    def _all_live(self, row_id: bytes, texts: Sequence[bytes]) -> bool:
        """Whether all have the same ttl and live.

        The ttl ends the fields. No byte of it but the last is below 128, as the one before it is: so the end names it.
        """
        ttl = decode_fields(texts[0], 0).ttl
        if ttl is None:
            return False
        end = VALUE_BRANCH + encode_long(ttl)
        return all(text.endswith(end) for text in texts) and not self._expired(row_id, ttl)

    def _expired(self, row_id: bytes, ttl: int | None) -> bool:
        if ttl is None:
            return False
        end, wanted = split_row_id(row_id)[0] + ttl * 1000, self._wanted
        gone = end <= judged_at(wanted.judgements, row_id, wanted.now_ms)
        if gone and wanted.expired_at is not None:
            wanted.expired_at.append(end)
        return gone


# --- sizes --------------------------------------------------------------------------------------------------------------


def end_within(store: Store, prefix: bytes, first: int, upto: int, max_bytes: int) -> int:
    """Behind the last message, from ``first`` on and below ``upto``, that fits into ``max_bytes`` of rows; at least one does.

    What was rolled back takes none. Raises TopicDamaged.
    """
    start = find_offset(store, prefix, first)
    if start is None or first >= upto:
        return upto
    end, room = first, max_bytes
    with closing(runs_from(store, prefix, start[:ROW_ID_SIZE])) as runs, closing(_parts(store, prefix, runs, start)) as parts:
        for behind, run, begin in parts:
            if run is None:
                end = min(behind, upto)
            else:
                before = run.at(begin) - run.base
                fits = max(bisect_right(run.ends, before + room, begin), begin + (end == first))
                end, room = behind - len(run) + fits, room - (run.at(fits) - run.base - before)
                if end < behind and end < upto:
                    return end
            if end >= upto or room <= 0:
                return min(end, upto)
    return upto


def _parts(store: Store, prefix: bytes, runs: Iterable[StoredRun], start: bytes) -> Generator[tuple[int, StoredRun | None, int]]:
    """(offset behind it, a run of messages, the index of the first that counts); of what was rolled back, no run."""
    row_id, within = start[:ROW_ID_SIZE], start[ROW_ID_SIZE:]
    for run in runs:
        if run.is_rolled_back:
            yield run.end, None, 0
        elif run.flags & GROUP:
            with closing(stored_in(store, prefix, run, within if run.id == row_id else b"")) as stored:
                for each in stored:
                    yield run.first + each.end, each, each.index_from(within if run.id == row_id else b"")
        else:
            yield run.end, run, run.index_from(row_id)
