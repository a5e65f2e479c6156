"""A log written run by run, as publishing would, with stored groups and roll-backs; and a naive list of what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from unittest import mock

from hypothesis import strategies as st

from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_service.log.stamps import Stamps
from oncelog_service.storage import runs
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, FIRST_ROW_ID, pointer_key
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.payload_rows import Payload, decode_payloads, encode_payloads
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import GroupRow, TrimRow, encode_record
from oncelog_service.storage.rows import GroupProducer, GroupSummary, chain_of, encode_group, encode_messages, message_id_of
from oncelog_service.storage.runs import RUN_BYTES, Laying, StoredRun, decode_run, rolled_back
from tests.service.house import BEGIN, PREFIX

POINTER = BEGIN * POINTERS_PER_MS

Request = tuple[str, int, bool, int, str | None]
"""Its kind, how many messages, whether it is rolled back later, so many ms after the one before, and its producer. One that
*waits* is a plain one that is laid together with the one before it, if that is plain too."""
requests = st.lists(
    st.tuples(
        st.sampled_from(["plain", "waits", "direct", "group"]),
        st.integers(0, 5),
        st.booleans(),
        st.integers(1, 10**6),
        st.sampled_from(["a", "b", None]),
    ),
    min_size=1,
    max_size=10,
)
bounds = st.sampled_from([1, 100, 150, RUN_BYTES])
"""Of a run: each message by itself, some of a request's, all of it."""


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

    def __init__(self, disk: Disk | None = None, prefix: bytes = PREFIX, run_bytes: int = RUN_BYTES) -> None:
        """``run_bytes``: of bodies, in a run of more than one."""
        self.disk = Disk() if disk is None else disk
        self.prefix = prefix
        self.run_bytes = run_bytes
        self.now_ms = BEGIN
        self.row_ids: list[bytes] = []
        """Of each message, and of what stands for a group."""
        self.pointers: list[int | None] = []
        """Of the same."""
        self.messages: list[Message] = []
        self.newest: dict[str, bytes] = {}
        """Row id of each producer's newest message that was not rolled back."""
        self._stamps = Stamps(0)
        self._places: dict[int, Stamps] = {}

    @property
    def store(self) -> MemoryStore:
        """A fresh opening of the disk."""
        return MemoryStore(self.disk)

    def trim(self, count: int) -> None:
        """Retention deletes so many rows."""
        gone = self.runs[:count]
        for run in gone:
            del self.disk.tables[Table.MESSAGE][self.prefix + run.id]
        self.disk.tables[Table.TRIM][self.prefix] = encode_record(
            TrimRow(gone[-1].end, bytes_below=gone[-1].upto_bytes) if gone else TrimRow(0)
        )

    @property
    def runs(self) -> list[StoredRun]:
        """The rows of the Message Table, in their order."""
        return self._runs(Table.MESSAGE, self.prefix)

    def key_of(self, row_id: bytes) -> bytes:
        """The key of the row that a message is in."""
        return self.prefix + next(run.id for run in self.runs if run.first_id <= row_id <= run.id)

    def publish(self, *requests: Columns, rolled: bool = False, step_ms: int = 1) -> list[bytes]:
        """A request, or plain ones that wait for the same write; returns the row ids."""
        self.now_ms += step_ms
        pointer = requests[0].write_pointer
        laying = Laying(Table.MESSAGE, self.prefix, self._stamps.upcoming_offset, pointer, self._upto_bytes())
        marked = -pointer if rolled and pointer is not None else pointer
        row_ids: list[bytes] = []
        for columns in requests:
            assert columns.write_pointer == pointer
            if columns.producer is not None and columns.previous is None:
                columns.previous = self.newest.get(columns.producer)
            ids, offset = self._stamps.take(len(columns.payloads), self.now_ms)
            laying.add(ids, encode_messages(columns, ids, offset), chain_of(columns))
            row_ids += ids
            for number, payload in enumerate(columns.payloads):
                sequence_id = None if columns.sequence_ids is None else columns.sequence_ids[number]
                ttl = None if columns.ttls is None else columns.ttls[number]
                message_id = message_id_of(ids[number])
                self.messages.append(Message(message_id, offset + number, payload, columns.producer, sequence_id, ttl, marked))
            if columns.producer is not None and not rolled:
                self.newest[columns.producer] = ids[-1]
        laid = self._laid(laying)
        self._put([rolled_back(self.prefix, run) for run in laid] if rolled else laid)
        self.row_ids += row_ids
        self.pointers += [marked] * len(row_ids)
        return row_ids

    def put(self, pointer: int, columns: Columns, *, now_ms: int | None = None) -> list[bytes]:
        """Store under a write pointer; returns the payload ids."""
        stamps = self._places.setdefault(pointer, Stamps(0))
        payload_ids, place = stamps.take(len(columns.payloads), self.now_ms if now_ms is None else now_ms)
        laying = Laying(Table.PAYLOAD, pointer_key(self.prefix, pointer), place, before_bytes=self._stored_bytes(pointer))
        laying.add(payload_ids, encode_payloads(columns))
        for run in self._laid(laying):
            self.disk.tables[Table.PAYLOAD][laying.prefix + run.id] = run.data
        return payload_ids

    def _upto_bytes(self, table: Table = Table.MESSAGE, prefix: bytes | None = None) -> int:
        prefix, rows = prefix or self.prefix, self.disk.tables[table]
        last = max((key for key in rows if key.startswith(prefix)), default=None)
        return 0 if last is None else decode_run(prefix, last[len(prefix) :], rows[last]).upto_bytes

    def _stored_bytes(self, pointer: int) -> int:
        return self._upto_bytes(Table.PAYLOAD, pointer_key(self.prefix, pointer))

    def publish_stored(
        self, pointer: int, *, rolled: bool = False, producer: str | None = None, step_ms: int = 1, noted: bool = True
    ) -> bytes:
        """The row that makes a group appear; returns its id. A ``pointer`` below 0 is the key of a branch."""
        self.now_ms += step_ms
        payloads = self.stored(pointer)
        row_id, offset = self._stamps.take_row(len(payloads), self.now_ms)
        summary = self._summary(payloads)
        upto = self._upto_bytes() + self._stored_bytes(pointer)
        if pointer < 0:
            self._put([encode_group(self.prefix, row_id, offset, None, summary._replace(branch=-pointer), upto)])
        else:
            run = encode_group(self.prefix, row_id, offset, pointer, summary, upto)
            self._put([rolled_back(self.prefix, run) if rolled else run])
        marked = None if pointer < 0 else -pointer if rolled else pointer
        self.row_ids.append(row_id)
        self.pointers.append(marked)
        if noted:
            data = encode_record(GroupRow(row_id.hex(), producer))
            self.disk.tables[Table.GROUP][pointer_key(self.prefix, pointer)] = data
        for each in payloads:
            message_id, offset_of = row_id + each.payload_id, offset + each.group_index
            self.messages.append(Message(message_id, offset_of, each.payload, each.producer, each.sequence_id, each.ttl, marked))
            if each.producer is not None and not rolled:
                self.newest[each.producer] = row_id
        return row_id

    def stored(self, pointer: int) -> list[Payload]:
        """What lies under a write pointer."""
        return [each for run in self.stored_runs(pointer) for each in decode_payloads(run)]

    def stored_runs(self, pointer: int) -> list[StoredRun]:
        """The rows of the Payload Table under a write pointer."""
        return self._runs(Table.PAYLOAD, pointer_key(self.prefix, pointer))

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

    def _laid(self, laying: Laying) -> list[StoredRun]:
        with mock.patch.object(runs, "RUN_BYTES", self.run_bytes):
            return laying.runs

    def _put(self, laid: Sequence[StoredRun]) -> None:
        for run in laid:
            self.disk.tables[Table.MESSAGE][self.prefix + run.id] = run.data

    def _runs(self, table: Table, prefix: bytes) -> list[StoredRun]:
        rows = sorted(self.disk.tables[table].items())
        return [decode_run(prefix, key[len(prefix) :], data) for key, data in rows if key.startswith(prefix)]


def written(history: Sequence[Request], run_bytes: int = RUN_BYTES) -> WrittenLog:
    """The log of such requests, each under a pointer of its own but for plain ones. A group's payloads come two at a time, and
    one without a producer behind them. What is rolled back gives its sequence ids back."""
    log, upcoming = WrittenLog(run_bytes=run_bytes), dict[str | None, int]()
    waiting, waited_ms = list[Columns](), 0

    def write() -> None:
        if waiting:
            log.publish(*waiting, step_ms=waited_ms)
            waiting.clear()

    for pointer, (kind, count, rolled, step_ms, producer) in enumerate(history, 1):
        rolled = rolled and kind in ("direct", "group")
        begin = upcoming.get(producer, 0)
        ids = None if producer is None else list(range(begin, begin + count))
        bodies = [b"%d.%d" % (pointer, each) for each in range(count)]
        if kind != "waits" and count:
            write()
        if kind == "group":
            write()
            for at in range(0, count, 2):
                part = Columns(bodies[at : at + 2], producer, ids and ids[at : at + 2])
                log.put(pointer, part, now_ms=log.now_ms + at // 4)
            if count:
                log.put(pointer, Columns([b"unnamed"]), now_ms=log.now_ms + 2)
            log.publish_stored(pointer, rolled=rolled, step_ms=step_ms)
        elif count and kind == "direct":
            log.publish(Columns(bodies, producer, ids, write_pointer=pointer), rolled=rolled, step_ms=step_ms)
        elif count:
            waited_ms = waited_ms if waiting else step_ms
            waiting.append(Columns(bodies, producer, ids))
        if not rolled:
            upcoming[producer] = begin + count
    write()
    return log
