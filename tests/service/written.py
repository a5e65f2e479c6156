"""A log written row by row, as publishing would, with stored groups and roll-backs; and a naive list of what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.log.stamps import Stamps
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, pointer_key
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.payload_rows import Payload, decode_payload_row, encode_payload_rows
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import GroupRow, encode_record
from oncelog_service.storage.rows import GroupProducer, GroupSummary, encode_group_row, encode_rows, message_id_of, rolled_back
from tests.service.house import BEGIN, PREFIX

POINTER = BEGIN * POINTERS_PER_MS

Request = tuple[str, int, bool, int, str | None]
"""Its kind, how many messages, whether it is rolled back later, so many ms after the one before, and its producer."""
requests = st.lists(
    st.tuples(
        st.sampled_from(["plain", "direct", "group"]),
        st.integers(0, 5),
        st.booleans(),
        st.integers(1, 10**6),
        st.sampled_from(["a", "b", None]),
    ),
    min_size=1,
    max_size=10,
)


class Message(NamedTuple):
    message_id: bytes
    offset: int
    payload: bytes
    producer: str | None = None
    sequence_id: int | None = None
    ttl: int | None = None
    pointer: int | None = None
    """Negative once rolled back."""

    @property
    def row_id(self) -> bytes:
        return self.message_id[:10]


class WrittenLog:
    """Grows by requests, a millisecond apart unless told otherwise."""

    def __init__(self, disk: Disk | None = None, prefix: bytes = PREFIX) -> None:
        self.disk = Disk() if disk is None else disk
        self.prefix = prefix
        self.now_ms = BEGIN
        self.row_ids: list[bytes] = []
        self.pointers: list[int | None] = []
        """Of each row."""
        self.messages: list[Message] = []
        self.newest: dict[str, bytes] = {}
        """Row id of each producer's newest message that was not rolled back."""
        self._stamps = Stamps(0)
        self._places: dict[int, Stamps] = {}

    @property
    def store(self) -> MemoryStore:
        """A fresh opening of the disk."""
        return MemoryStore(self.disk)

    def publish(self, columns: Columns, *, rolled: bool = False, step_ms: int = 1) -> list[bytes]:
        """One request; returns its row ids."""
        self.now_ms += step_ms
        if columns.producer is not None and columns.previous is None:
            columns.previous = self.newest.get(columns.producer)
        row_ids, offset = self._stamps.take(len(columns.payloads), self.now_ms)
        rows = encode_rows(columns, row_ids, offset)
        pointer = columns.write_pointer
        if rolled:
            assert pointer is not None
            rows, pointer = [rolled_back(row) for row in rows], -pointer
        self._put(row_ids, rows, pointer)
        for number, payload in enumerate(columns.payloads):
            sequence_id = None if columns.sequence_ids is None else columns.sequence_ids[number]
            ttl = None if columns.ttls is None else columns.ttls[number]
            message_id = message_id_of(row_ids[number])
            self.messages.append(Message(message_id, offset + number, payload, columns.producer, sequence_id, ttl, pointer))
        if columns.producer is not None and not rolled:
            self.newest[columns.producer] = row_ids[-1]
        return row_ids

    def put(self, pointer: int, columns: Columns, *, now_ms: int | None = None) -> list[bytes]:
        """Store under a write pointer; returns the payload ids."""
        stamps = self._places.setdefault(pointer, Stamps(0))
        payload_ids, place = stamps.take(len(columns.payloads), self.now_ms if now_ms is None else now_ms)
        key = pointer_key(self.prefix, pointer)
        for payload_id, row in zip(payload_ids, encode_payload_rows(columns, payload_ids, place), strict=True):
            self.disk.tables[Table.PAYLOAD][key + payload_id] = row
        return payload_ids

    def publish_stored(
        self, pointer: int, *, rolled: bool = False, producer: str | None = None, step_ms: int = 1, noted: bool = True
    ) -> bytes:
        """The row that makes a group appear; returns its id. A ``pointer`` below 0 is the key of a branch."""
        self.now_ms += step_ms
        payloads = self.stored(pointer)
        row_id, offset = self._stamps.take_row(len(payloads), self.now_ms)
        summary = self._summary(payloads)
        if pointer < 0:
            self._put([row_id], [encode_group_row(row_id, offset, None, summary._replace(branch=-pointer))], None)
        else:
            row = encode_group_row(row_id, offset, pointer, summary)
            self._put([row_id], [rolled_back(row) if rolled else row], -pointer if rolled else pointer)
        if noted:
            data = encode_record(GroupRow(row_id.hex(), producer))
            self.disk.tables[Table.GROUP][pointer_key(self.prefix, pointer)] = data
        for each in payloads:
            message_id, offset_of = row_id + each.payload_id, offset + each.group_index
            marked = None if pointer < 0 else -pointer if rolled else pointer
            self.messages.append(Message(message_id, offset_of, each.payload, each.producer, each.sequence_id, each.ttl, marked))
            if each.producer is not None and not rolled:
                self.newest[each.producer] = row_id
        return row_id

    def stored(self, pointer: int) -> list[Payload]:
        """What lies under a write pointer."""
        key = pointer_key(self.prefix, pointer)
        rows = self.disk.tables[Table.PAYLOAD].items()
        return [decode_payload_row(each[len(key) :], row) for each, row in sorted(rows) if each.startswith(key)]

    def _summary(self, payloads: Sequence[Payload]) -> GroupSummary:
        parts: dict[str, GroupProducer] = {}
        for each in payloads:
            if each.producer is not None and each.sequence_id is not None:
                first = parts[each.producer].first_sequence_id if each.producer in parts else each.sequence_id
                before = self.newest.get(each.producer, FIRST_ROW_ID)
                parts[each.producer] = GroupProducer(
                    each.producer, first, each.sequence_id, each.payload_id, each.group_index, before
                )
        last_id = payloads[-1].payload_id if payloads else FIRST_PAYLOAD_ID
        return GroupSummary(len(payloads), last_id, tuple(parts.values()))

    def _put(self, row_ids: Sequence[bytes], rows: Sequence[bytes], pointer: int | None) -> None:
        for row_id, row in zip(row_ids, rows, strict=True):
            self.disk.tables[Table.MESSAGE][self.prefix + row_id] = row
            self.row_ids.append(row_id)
            self.pointers.append(pointer)


def written(history: Sequence[Request]) -> WrittenLog:
    """The log of such requests, each under a pointer of its own but for plain ones. A group's payloads come two at a time, and
    one without a producer behind them. What is rolled back gives its sequence ids back."""
    log, upcoming = WrittenLog(), dict[str | None, int]()
    for pointer, (kind, count, rolled, step_ms, producer) in enumerate(history, 1):
        rolled = rolled and kind != "plain"
        begin = upcoming.get(producer, 0)
        ids = None if producer is None else list(range(begin, begin + count))
        bodies = [b"%d.%d" % (pointer, each) for each in range(count)]
        if kind == "group":
            for at in range(0, count, 2):
                part = Columns(bodies[at : at + 2], producer, ids and ids[at : at + 2])
                log.put(pointer, part, now_ms=log.now_ms + at // 4)
            if count:
                log.put(pointer, Columns([b"unnamed"]), now_ms=log.now_ms + 2)
            log.publish_stored(pointer, rolled=rolled, step_ms=step_ms)
        elif count:
            columns = Columns(bodies, producer, ids, write_pointer=pointer if kind == "direct" else None)
            log.publish(columns, rolled=rolled, step_ms=step_ms)
        if not rolled:
            upcoming[producer] = begin + count
    return log
