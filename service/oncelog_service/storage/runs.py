"""Runs: what a row of the Message Table, or of the Payload Table, is. Messages of one millisecond that are handed over together
are one row, up to some size.

LevelDB, SQLite and PostgreSQL all cost per row they keep: to write it, to merge it, to step to it. So the messages of a request,
and of plain requests that wait for the same write, lie side by side in one row under one checksum. A message by itself is a run
of one. A run is written once; what may happen to it happens to all of it: it is rolled back, it expires, it is deleted.

A row of either table, version 1, big-endian::

    offset  size  field
    0       1     version = 1
    1       1     flags: 1 T, 4 TTL, 8 GROUP
    2       4     count u32: how many messages the run stands for
    6       8     first i64: the offset of the first message; of payloads, its index within their write pointer
    14      4     payload_at u32: from the beginning of a body to its payload, where that is the same in all; else 0
    18      4     body_size u32: bytes of a body, where all bodies are as large and have their payloads at the same place; else 0
    22      4     begins u32: how many requests that can be found again begin in the run
    26      8     upto_bytes i64: bytes of all bodies that were ever laid in this log, up to this run and with it; of payloads,
                  within their write pointer
    34      8     only with T: write pointer of the transaction, i64; negative once rolled back
    ..      14 b  of each of these requests: index u32 of its first message · row id of the same producer's message before it,
                  zeros where there is none
    ..      4 n   only where body_size is 0: end u32 of each body, counted from the beginning of the first
    ..      4 n   only where payload_at is 0: from the beginning of each body to its payload u32
    ..      ...   the bodies, side by side (rows.py, payload_rows.py)
    end-4   4     CRC-32 of the row's key and of everything before it, little-endian

What holds of every run:

* it lies under the key of its **last** message: a seek to any of its messages finds it, and a log ends where its last row does;
* the ids of its messages have one millisecond and rise by one, so the key says them all, nothing can lie among them, and no two
  runs overlap; offsets, or indexes, rise by one too;
* it has at most RUN_BYTES of bodies, or one body: whoever wants one message does not read a whole large request;
* it is of one transaction, or of none; one of a transaction holds messages of one request alone.

The requests of a named producer form a chain from the newest to the oldest, which finds the original of a repeated message
without a row per message. Requests of a transaction are noted too, named or not, so that they can be told apart.

``upto_bytes`` never changes, whatever becomes of this run and of those before it: so what a log takes between two runs is a
difference, and nobody has to read them (bounds/size.py). A run that stands for a group has in it what its payloads had when they
appeared, and not its own body.

TTL says that some message has a time to live of its own. GROUP: the one body stands for all messages that were stored in the
Payload Table, ``count`` of them.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import NamedTuple

from oncelog_service.storage.checksum import SIZE, matches, with_checksum
from oncelog_service.storage.keys import ROW_ID_SIZE, SEQ_BYTES
from oncelog_service.storage.port import RowDamaged, Table

RUN_BYTES = 32 * 2**10
"""Of bodies, in a run of more than one. Twice as much was not faster to write, and is slower to seek into."""
_AT_ONCE_BYTES = 2 * 2**20
"""Laid on the event loop: 10 ms. What is larger the writer's thread lays, while others have their turns on the loop."""
VERSION = 1
T, TTL, GROUP = 1, 4, 8
"""The flags of a run."""
_FLAGS = frozenset((0, T, TTL, T | TTL, GROUP, T | GROUP))
_HEAD = struct.Struct(">BBIqIIIq")
_POINTER = struct.Struct(">q")
_BEGIN = struct.Struct(f">I{ROW_ID_SIZE}s")
_NUMBER = struct.Struct(">I")


class Bodies(NamedTuple):
    """What the messages of a request come to, before they are laid together."""

    bodies: Sequence[bytes]
    shapes: Sequence[int]
    """Of each: twice the number of bytes before its payload, and 1 more where it has a ttl of its own. One, where it is that of
    all."""
    size: int = 0
    """Bytes of each, where all have one size and one shape; else 0."""
    sizes: Sequence[int] = ()
    """Else those of each."""

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.size * len(self.bodies) or sum(self.sizes)

    @property
    def each(self) -> Iterable[int]:
        """Bytes of each."""
        return self.sizes or repeat(self.size, len(self.bodies))


class StoredRun:
    """A row of the Message or the Payload Table. What is looked at is decoded then."""

    __slots__ = (
        "_begins",
        "_begins_at",
        "_body_size",
        "_ends",
        "_ends_at",
        "base",
        "count",
        "data",
        "first",
        "flags",
        "id",
        "payload_at",
        "upto_bytes",
        "write_pointer",
    )

    first: int
    count: int
    payload_at: int
    base: int
    upto_bytes: int

    def __init__(self, id: bytes, data: bytes) -> None:  # noqa: A002
        """``id``: how the key ends. ``data``: checked, or just laid."""
        self.id = id
        self.data = data
        head = _HEAD.unpack_from(data)
        _, self.flags, self.count, self.first, self.payload_at, self._body_size, self._begins, self.upto_bytes = head
        self.write_pointer: int | None = None
        """Negative once rolled back."""
        at = _HEAD.size
        if self.flags & T:
            (self.write_pointer,) = _POINTER.unpack_from(data, at)
            at += _POINTER.size
        self._begins_at = at
        self._ends_at = at + _BEGIN.size * self._begins
        self.base = self._ends_at + 4 * len(self) * ((not self._body_size) + (not self.payload_at))
        """Where the first body begins."""
        self._ends: Sequence[int] | None = None

    def __len__(self) -> int:
        """Counts the bodies: one for each message, or one that stands for a group."""
        return 1 if self.flags & GROUP else self.count

    @property
    def end(self) -> int:
        """The offset, or the index, behind the last message."""
        return self.first + self.count

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return len(self.data) - SIZE - self.base

    @property
    def is_rolled_back(self) -> bool:
        """Tells whether the messages do not count any more."""
        return self.write_pointer is not None and self.write_pointer < 0

    @property
    def ends(self) -> Sequence[int]:
        """Where each body ends, counted from :attr:`base`."""
        if self._ends is None:
            count, size = len(self), self._body_size
            self._ends = range(size, size * count + 1, size) if size else self._numbers(0, count)
        return self._ends

    def _numbers(self, begin: int, end: int) -> tuple[int, ...]:
        return struct.unpack_from(f">{end - begin}I", self.data, self._ends_at + 4 * begin)

    @property
    def begins(self) -> dict[int, bytes]:
        """Index → row id of the message before, of the requests that begin here and can be found again."""
        return dict(_BEGIN.iter_unpack(self.data[self._begins_at : self._ends_at]))

    @property
    def first_id(self) -> bytes:
        """How the key of the first message would end."""
        return self.id_at(0)

    def id_at(self, index: int) -> bytes:
        """The id of a message: 10 bytes, its row id or its payload id."""
        return self.id[:-2] + SEQ_BYTES[self._seq_of(index)]

    def ids(self, begin: int = 0, end: int | None = None) -> list[bytes]:
        """The ids of some messages in a row."""
        seq, millisecond = self._seq_of(0), self.id[:-2]
        return [millisecond + each for each in SEQ_BYTES[seq + begin : seq + (len(self) if end is None else end)]]

    def index_from(self, id: bytes) -> int:  # noqa: A002
        """The index of the first message whose id is at or behind this one; the number of messages, if none is.

        A longer one lies behind the message with the id that it begins with.
        """
        if id <= self.first_id:
            return 0
        if id > self.id:
            return len(self)
        return int.from_bytes(id[ROW_ID_SIZE - 2 : ROW_ID_SIZE], "big") - self._seq_of(0) + (len(id) > ROW_ID_SIZE)

    def at(self, index: int) -> int:
        """Where a body begins in the row; behind the last one, where the bodies end."""
        return self.base + (self.ends[index - 1] if index else 0)

    def text(self, begin: int, end: int) -> bytes:
        """Some bodies in a row, as they lie there."""
        if not begin and end == len(self):
            return self.data[self.base : -SIZE]
        return self.data[self.at(begin) : self.at(end)]

    def bodies(self, begin: int = 0, end: int | None = None) -> list[bytes]:
        """Some bodies in a row, apart."""
        base = self.base
        places = [self.at(begin), *(base + each for each in self.ends[begin:end])]
        return [*map(self.data.__getitem__, map(slice, places, places[1:]))]

    def fitting(self, begin: int, end: int, room: int) -> int:
        """Behind which of some bodies in a row the first ``room`` bytes of them are full, at the earliest; ``end`` at most."""
        if len(self.data) < room:
            return end
        return min(end, bisect_left(self.ends, self.at(begin) - self.base + room, begin) + 1)

    def payload_places(self, begin: int = 0, end: int | None = None) -> int | Sequence[int]:
        """How far behind the beginning of some bodies in a row their payloads are: of all, or of each."""
        if self.payload_at:
            return self.payload_at
        count = len(self)  # no more than is asked for: where messages have ttls, each is asked for by itself
        return self._numbers(count + begin, count + (count if end is None else end))

    def payload_place(self, index: int) -> int:
        """The same of one of them."""
        if self.payload_at:
            return self.payload_at
        # One alone, since all are asked for one after the other. Behind the ends: where those are left out, payload_at is not 0.
        (place,) = _NUMBER.unpack_from(self.data, self._ends_at + 4 * (len(self) + index))
        return int(place)

    def _seq_of(self, index: int) -> int:
        return int.from_bytes(self.id[-2:], "big") - (len(self) - 1 - index)


def decode_run(prefix: bytes, id: bytes, data: bytes) -> StoredRun:  # noqa: A002
    """Reads a row of the Message or the Payload Table; ``prefix`` and ``id`` are its key.

    Raises:
        RowDamaged: the checksum does not hold, the layout is unknown, or the row does not belong to this key.
    """
    if not matches(data, prefix + id) or len(data) < _HEAD.size or data[0] != VERSION or data[1] not in _FLAGS:
        raise RowDamaged(f"the row at {id.hex()} does not match its checksum or is of an unknown version")
    return StoredRun(id, data)


def rolled_back(prefix: bytes, run: StoredRun) -> StoredRun:
    """Makes the write pointer of a run negative; one that has no positive one is a caller's bug."""
    assert run.write_pointer is not None
    assert run.write_pointer > 0
    behind = _HEAD.size + _POINTER.size
    body = run.data[: _HEAD.size] + _POINTER.pack(-run.write_pointer) + run.data[behind:-SIZE]
    return StoredRun(run.id, with_checksum(body, prefix + run.id))


def with_body(prefix: bytes, run: StoredRun, index: int, body: bytes, payload_at: int) -> StoredRun:
    """Lays a run anew with another body in the place of one: its key, its numbers, ``upto_bytes`` and what is noted of
    requests stay.

    ``payload_at``: from the beginning of the body to its payload. Not for a run that stands for a group.
    """
    assert not run.flags & GROUP
    bodies, places = run.bodies(), [run.payload_place(each) for each in range(len(run))]
    bodies[index], places[index] = body, payload_at
    ends = [*accumulate(map(len, bodies))]
    place = places[0] if len({*places}) == 1 else 0
    size = len(body) if place and len({*map(len, bodies)}) == 1 else 0
    numbers = [*([] if size else ends), *([] if place else places)]
    return _encoded(
        prefix,
        run.id,
        _HEAD.pack(VERSION, run.flags, run.count, run.first, place, size, len(run.begins), run.upto_bytes),
        run.data[_HEAD.size : run._ends_at],
        struct.pack(f">{len(numbers)}I", *numbers),
        *bodies,
    )


class Laying:
    """Messages of one log that one write brings. They are laid together as soon as they fill a run, and all by the write.

    It may grow until then. The messages' ids, and their offsets or indexes, are behind all that are there, in this order.
    """

    __slots__ = (
        "_begins",
        "_bytes",
        "_first",
        "_flags",
        "_ids",
        "_is_whole",
        "_laid",
        "_laid_bytes",
        "_parts",
        "_upto",
        "_write_pointer",
        "prefix",
        "table",
        "upto_bytes",
    )

    def __init__(self, table: Table, prefix: bytes, first: int, write_pointer: int | None = None, before_bytes: int = 0) -> None:
        """``before_bytes``: :attr:`StoredRun.upto_bytes` of what lies before."""
        self.upto_bytes = self._laid_bytes = before_bytes
        self.table = table
        self.prefix = prefix
        self._first = first
        self._write_pointer = write_pointer
        self._flags = 0 if write_pointer is None else T
        self._ids: list[bytes] = []
        self._begins: list[tuple[int, bytes]] = []
        self._laid: list[StoredRun] = []
        self._upto = 0
        """How many messages are laid."""
        self._parts: list[Bodies] = []
        """The others."""
        self._bytes = 0
        """Of these."""
        self._is_whole = False

    @property
    def size(self) -> int:
        """Bytes of what was added, as it will lie on disk but for the heads of runs."""
        return self._bytes + sum(len(run.data) for run in self._laid)

    def add(self, ids: Sequence[bytes], messages: Bodies, previous: bytes | None = None) -> None:
        """Add a request; ``previous``: what its entry in the chain says, None: it has none."""
        assert not self._is_whole
        if previous is not None:
            self._begins.append((len(self._ids), previous))
        self._ids += ids
        self._parts.append(messages)
        size = messages.total
        self._bytes += size
        self.upto_bytes += size
        if RUN_BYTES <= self._bytes <= _AT_ONCE_BYTES:
            # Here, on the event loop: the writer's thread waits for the interpreter wherever it has let go of it, and while it
            # lays runs for several requests everybody waits for it.
            self._lay_parts()

    @property
    def runs(self) -> list[StoredRun]:
        """The runs; from the first call on nothing is added any more."""
        self._is_whole = True
        if self._parts:
            self._lay_parts()
        return self._laid

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        """(how the key ends, row) of each run."""
        return [(run.id, run.data) for run in self.runs]

    def _lay_parts(self) -> None:
        self._laid += self._lay()
        self._upto, self._parts, self._bytes, self._begins = len(self._ids), [], 0, []

    def _lay(self) -> Iterator[StoredRun]:
        bodies = self._parts[0].bodies if len(self._parts) == 1 else [each for part in self._parts for each in part.bodies]
        alike = {(part.size, *part.shapes[:1]) for part in self._parts}
        size, shape = min(alike) if len(alike) == 1 else (0, 0)
        if size:
            step = max(1, RUN_BYTES // size)
            for begin, end in _rising_by_one(self._ids[self._upto :]):
                for at in range(begin, end, step):
                    upto = min(end, at + step)
                    yield self._run(at, upto, shape & 1, shape >> 1, size, (), bodies[at:upto])
            return
        shapes = [each for part in self._parts for each in _of_each(part)]
        ends = [*accumulate(chain.from_iterable(part.each for part in self._parts), initial=0)]
        for begin, end in _rising_by_one(self._ids[self._upto :]):
            at = begin
            while at < end:
                upto = min(end, max(at + 1, bisect_right(ends, ends[at] + RUN_BYTES, at) - 1))
                kinds = {*shapes[at:upto]}
                numbers = [each - ends[at] for each in ends[at + 1 : upto + 1]]
                payload_at = shapes[at] >> 1 if len(kinds) == 1 else 0
                if not payload_at:
                    numbers += [each >> 1 for each in shapes[at:upto]]
                yield self._run(at, upto, any(each & 1 for each in kinds), payload_at, 0, numbers, bodies[at:upto])
                at = upto

    def _run(
        self, at: int, upto: int, own_ttl: int, payload_at: int, size: int, numbers: Sequence[int], bodies: Sequence[bytes]
    ) -> StoredRun:
        begin, end = self._upto + at, self._upto + upto
        begins = [(at - begin, previous) for at, previous in self._begins if begin <= at < end]
        flags = self._flags | (TTL if own_ttl else 0)
        self._laid_bytes += size * (end - begin) or numbers[end - begin - 1]
        return _encoded(
            self.prefix,
            self._ids[end - 1],
            _HEAD.pack(VERSION, flags, end - begin, self._first + begin, payload_at, size, len(begins), self._laid_bytes),
            b"" if self._write_pointer is None else _POINTER.pack(self._write_pointer),
            *(_BEGIN.pack(*each) for each in begins),
            struct.pack(f">{len(numbers)}I", *numbers),
            *bodies,
        )


def _of_each(part: Bodies) -> Sequence[int]:
    return [*part.shapes] * len(part.bodies) if len(part.shapes) == 1 else part.shapes


def lay_group(
    prefix: bytes,
    id: bytes,  # noqa: A002
    first: int,
    messages: int,
    body: Bodies,
    write_pointer: int | None,
    upto_bytes: int,
) -> StoredRun:
    """Encodes the row that stands for ``messages`` messages of the Payload Table."""
    flags, begins = (GROUP, b"") if write_pointer is None else (GROUP | T, _POINTER.pack(write_pointer))
    head = _HEAD.pack(VERSION, flags, messages, first, body.shapes[0] >> 1, len(body.bodies[0]), 0, upto_bytes)
    return _encoded(prefix, id, head, begins, body.bodies[0])


def _encoded(prefix: bytes, id: bytes, *parts: bytes) -> StoredRun:  # noqa: A002
    return StoredRun(id, with_checksum(b"".join(parts), prefix + id))


def _rising_by_one(ids: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where pieces begin and end whose ids have one millisecond and rise by one; mostly that is all of them.

    They rise strictly, so what has risen by as much as there are ids between leaves nothing out.
    """
    begin = 0
    while begin < len(ids):
        millisecond, first = ids[begin][:-2], int.from_bytes(ids[begin], "big") - begin

        def is_apart(at: int, millisecond: bytes = millisecond, first: int = first) -> bool:
            return ids[at][:-2] != millisecond or int.from_bytes(ids[at], "big") - at != first

        end = len(ids)
        if is_apart(end - 1):
            end = bisect_left(range(end), True, begin, key=is_apart)
        yield begin, end
        begin = end
