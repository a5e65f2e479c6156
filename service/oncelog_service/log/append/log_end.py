"""The end of a topic's log in memory: where messages get their ids and offsets, and are known from then on.

Whatever adds messages to a log does it here: publishes, with and without a transaction, and atomic commits that bring theirs
themselves place messages; a stored group appears by one row that stands for all of its messages. The caller has been admitted
(admission.py), lays what it is given in a batch, and hands that to the writer in the same step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from oncelog.wire.requests import PublishRequest
from oncelog_dedup import LastEntry, Run
from oncelog_service.log.addition import Addition, Appeared
from oncelog_service.log.groups.stored import StoredGroup, last_entries_of
from oncelog_service.log.key_index import KeyEntries, group_key_entries, key_entries, key_name
from oncelog_service.log.numbers import Numbers, Taken
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import GroupRow, encode_record
from oncelog_service.storage.rows import chain_of, encode_group, encode_messages, message_id_of
from oncelog_service.storage.runs import Bodies

_ABOUT = 150
"""Bytes of a row that stands for a group, with a producer or two."""


class Placed(NamedTuple):
    """Messages that have ids and offsets, and that nobody has seen yet."""

    columns: Columns
    row_ids: list[bytes]
    first_offset: int
    bodies: Bodies


class LogEnd:
    """Of one open topic. Works on the event loop that owns it."""

    __slots__ = ("_clock", "_dedup", "_keys", "_numbers", "_prefix", "_size", "_stamps")

    def __init__(self, topic: OpenTopic) -> None:
        self._prefix = topic.prefix
        self._clock = topic.clock
        self._dedup = topic.dedup
        self._stamps = topic.stamps
        self._keys = topic.keys
        self._size = topic.size
        self._numbers = topic.numbers

    def newest_row(self, producer: str | None) -> bytes | None:
        """Row id of a producer's newest message, in flight or on disk: what the next one names as the one before it."""
        newest = None if producer is None else self._dedup.last_pushed(producer)
        return None if newest is None else newest.message_id[:ROW_ID_SIZE]

    def key_names(self, keys: Iterable[bytes | None]) -> Collection[str]:
        """What messages that have these keys make known where the topic checks expectations; else nothing."""
        return () if self._keys is None else {key_name(key) for key in keys if key is not None}

    def place(self, columns: Columns) -> Placed:
        """Stamp and encode. Nothing moves but the stamps."""
        row_ids, first_offset = self._stamps.take(len(columns.payloads), self._clock.now_ms())
        return Placed(columns, row_ids, first_offset, encode_messages(columns, row_ids, first_offset))

    def push(self, placed: Placed, addition: Addition | None = None) -> Addition:
        """Note that they are about to be written, and add them to what that write adds: to ``addition``, or to a new one."""
        columns, row_ids, first_offset, bodies = placed
        pointer, producer, ids = columns.write_pointer, columns.producer, columns.sequence_ids
        last_entry: tuple[str, LastEntry] | None = None
        if ids is not None and producer is not None:
            last_entry = producer, LastEntry(ids[-1], row_ids[-1] + FIRST_PAYLOAD_ID, first_offset + len(row_ids) - 1)
            self._dedup.push(*last_entry)
        elif ids is not None and pointer is not None:
            self._numbers.setdefault(pointer, Numbers()).add(Taken(ids[0], ids[-1] + 1, row_ids[0]))
        keys: KeyEntries = ()
        if self._keys is not None:
            keys = key_entries(columns.keys, row_ids, first_offset)
            self._keys.push(Run(first_offset, len(row_ids), message_id_of(row_ids[0]), message_id_of(row_ids[-1]), keys, pointer))
        size = self._size
        if pointer is not None:
            size.undecided(row_ids[0], first_offset, size.handed_over)
        if addition is None:
            addition = Addition(self._prefix, first_offset, pointer, size.handed_over)
        addition.add(row_ids, bodies, chain_of(columns), last_entry, keys)
        size.handed_over = addition.laying.upto_bytes
        return addition

    def appear(self, group: StoredGroup, producer: str | None = None) -> Appeared:
        """Have a stored group appear, published by ``producer``. Memory moves; :meth:`put_appeared` adds that to a batch."""
        summary = group.summary(self._dedup)
        pointer = group.pointer if summary.branch is None else None
        at, offset = self._stamps.take_row(summary.messages, self._clock.now_ms())
        last_entries = last_entries_of(summary, at, offset)
        run = Run(offset, summary.messages, at + FIRST_PAYLOAD_ID, at + summary.last_payload_id, last_entries, pointer)
        group.row = GroupRow(at.hex(), producer)
        if pointer is not None:
            self._size.undecided(at, offset, self._size.handed_over)
        upto = self._size.handed_over = self._size.handed_over + group.bytes
        for name, last_entry in last_entries:
            self._dedup.push(name, last_entry)
        keyed = None
        if self._keys is not None:
            keyed = self._keys.push(run._replace(last_entries=group_key_entries(group.keys, at, offset)))
        return Appeared(run, keyed, upto, at, summary, group.key, group.row)

    def put_appeared(self, batch: Batch, groups: Sequence[Appeared]) -> None:
        """Add to ``batch`` the rows by which stored groups appear, and the notes that they are published. They are encoded by the
        write: a commit may bring 10,000."""
        prefix, size = self._prefix, _ABOUT * len(groups)

        def rows() -> Iterable[tuple[bytes, bytes]]:
            for run, _, upto, at, summary, *_ in groups:
                yield at, encode_group(prefix, at, run.first_offset, run.write_pointer, summary, upto).data

        batch.put_later(Table.MESSAGE, prefix, size, rows)
        batch.put_later(Table.GROUP, b"", size, lambda: [(each.key, encode_record(each.row)) for each in groups])


def columns_of(request: PublishRequest, known: int, previous: bytes | None, write_pointer: int | None = None) -> Columns:
    """The request's messages behind the first ``known`` ones; ``previous``: row id of the producer's message before them."""
    new = slice(known, None)
    return Columns(
        payloads=request.payloads[new],
        producer=request.producer,
        sequence_ids=request.sequence_ids and request.sequence_ids[new],
        keys=request.keys and request.keys[new],
        properties=request.properties and request.properties[new],
        ttls=request.ttls and request.ttls[new],
        previous=previous,
        write_pointer=write_pointer,
        tails=request.tails and request.tails[new],
    )
