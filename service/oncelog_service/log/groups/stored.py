"""Stored groups: what lies in the Payload Table under a write pointer and is not, or not yet, published.

Within its write pointer a group is a log of its own, in store order, with indexes for offsets: the same deduplication judges a
retried ``store``. Publishing inserts the one row of the Message Table that makes all of it appear. A pointer's group is published
once; what is never published is invisible and goes with its TTL.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice

from oncelog.errors import StoredGroupPublished, TopicDamaged
from oncelog_dedup import Deduplicator, Fold, LastEntry, Run, Verdict
from oncelog_service.log.key_index import key_name
from oncelog_service.log.numbers import Numbers, Taken, partly_taken
from oncelog_service.log.scan import Runs, last_payloads, payload_runs, read_back
from oncelog_service.log.stamps import Stamps
from oncelog_service.reading import read
from oncelog_service.storage.keys import AFTER_ANY, FIRST_PAYLOAD_ID, FIRST_ROW_ID, pointer_key
from oncelog_service.storage.payload_rows import Payload, decode_payload, decode_payloads
from oncelog_service.storage.port import Store, Table
from oncelog_service.storage.records import GroupRow, decode_record
from oncelog_service.storage.rows import GroupProducer, GroupSummary
from oncelog_service.storage.runs import decode_run


class StoredGroup:
    """What is stored under one write pointer. Not thread-safe."""

    def __init__(
        self, pointer: int, key: bytes, row: GroupRow | None, payloads: Iterator[Payload], keyed: bool = False, size: int = 0
    ) -> None:
        """``payloads``: what is on disk already, in order, and its ``size``. ``keyed``: the topic checks expectations.

        Raises TopicDamaged.
        """
        self.pointer = pointer
        self.bytes = size
        """Of the bodies that are stored, or on their way."""
        self.key = key
        """Begins the keys of its payloads."""
        self.row = row
        """Once it is published, or has expired."""
        self.dedup = Deduplicator(Fold())
        self.numbers = Numbers()
        """The sequence ids, pushed or stored, of messages without a producer."""
        self.first_payload_id: bytes | None = None
        self._last_payload_id = FIRST_PAYLOAD_ID
        self.keys: dict[str, tuple[bytes, int]] = {}
        """Of a topic that checks expectations: name of a key → payload id and index of its newest message, pushed or stored."""
        self._keyed = keyed
        self._first_ids: dict[str, int] = {}
        last: Payload | None = None
        for payload in payloads:
            if payload.group_index != self.messages:
                raise TopicDamaged(f"payload {self.messages} stored under write pointer {pointer} is missing")
            last_entry = None
            if payload.producer is not None and payload.sequence_id is not None:
                last_entry = (
                    payload.producer,
                    LastEntry(payload.sequence_id, _message_id(payload.payload_id), payload.group_index),
                )
                self._first_ids.setdefault(payload.producer, payload.sequence_id)
            elif payload.sequence_id is not None:
                self.numbers.add(Taken(payload.sequence_id, payload.sequence_id + 1))
            self._add(payload.payload_id, payload.payload_id, 1, last_entry)
            if keyed and payload.key is not None:
                self.keys[key_name(payload.key)] = payload.payload_id, payload.group_index
            last = payload
        self.stamps = Stamps(0, self.messages, None if last is None else last.payload_id)

    @property
    def messages(self) -> int:
        """How many are stored and synced."""
        return self.dedup.fold.upcoming_offset

    @property
    def drained(self) -> bool:
        """Whether nothing is being written."""
        return self.stamps.upcoming_offset == self.messages

    def push(self, producer: str | None, sequence_ids: Sequence[int] | None, payload_ids: Sequence[bytes], first: int) -> None:
        """Note what is about to be written, from the index ``first`` on."""
        if sequence_ids is None:
            return
        if producer is None:
            self.numbers.add(Taken(sequence_ids[0], sequence_ids[-1] + 1))
        else:
            self._first_ids.setdefault(producer, sequence_ids[0])
            self.dedup.push(producer, _mark(sequence_ids, payload_ids, first))

    def judge(self, producer: str | None, sequence_ids: Sequence[int]) -> Verdict:
        """What of a request is stored, what is being written and what is new; without a producer it is all of one kind.

        Raises InvalidRequest: without a producer, and only some of the ids are taken.
        """
        if producer is not None:
            return self.dedup.judge(producer, sequence_ids)
        taken = self.numbers.overlapping(sequence_ids)
        if not taken:
            return Verdict(0, 0, len(sequence_ids))
        if not self.drained:
            return Verdict(0, len(sequence_ids), 0)
        if not taken[0].holds(sequence_ids):
            raise partly_taken(self.pointer, sequence_ids, taken[0])
        return Verdict(len(sequence_ids), 0, 0)

    def push_keys(self, keys: Sequence[bytes | None] | None, payload_ids: Sequence[bytes], first: int) -> None:
        """Note the keys of what is about to be written, where the topic checks expectations."""
        if keys is None or not self._keyed:
            return
        for at, key in enumerate(keys):
            if key is not None:
                self.keys[key_name(key)] = payload_ids[at], first + at

    def persist(self, producer: str | None, sequence_ids: Sequence[int] | None, payload_ids: Sequence[bytes], first: int) -> None:
        """Note that it is synced."""
        named = producer is not None and sequence_ids is not None
        last_entry = (producer, _mark(sequence_ids, payload_ids, first)) if named else None  # type: ignore[arg-type]
        self._add(payload_ids[0], payload_ids[-1], len(payload_ids), last_entry)  # type: ignore[arg-type]

    def _add(self, first_id: bytes, last_id: bytes, count: int, last_entry: tuple[str, LastEntry] | None) -> None:
        if self.first_payload_id is None:
            self.first_payload_id = first_id
        self._last_payload_id = last_id
        last_entries = () if last_entry is None else (last_entry,)
        self.dedup.persist(Run(self.messages, count, _message_id(first_id), _message_id(last_id), last_entries))

    def producers(self) -> Sequence[str]:
        """The named producers whose messages are in it, or on their way."""
        return tuple(self._first_ids)

    def first_sequence_id(self, producer: str) -> int:
        """The lowest sequence id of one of them."""
        return self._first_ids[producer]

    def summary(self, topic: Deduplicator) -> GroupSummary:
        """What the group's row says about it; ``topic`` knows where each producer's message before it lies."""
        parts, fold = [], self.dedup.fold
        for name, first_sequence_id in self._first_ids.items():
            last_entry, before = fold.get(name), topic.last_pushed(name)
            assert last_entry is not None  # nothing of the group is being written
            previous = FIRST_ROW_ID if before is None else before.message_id[: len(FIRST_ROW_ID)]
            payload_id = last_entry.message_id[len(FIRST_ROW_ID) :]
            parts.append(GroupProducer(name, first_sequence_id, last_entry.sequence_id, payload_id, last_entry.offset, previous))
        branch = -self.pointer if self.pointer < 0 else None
        return GroupSummary(fold.upcoming_offset, self._last_payload_id, tuple(parts), branch)

    def check_open(self) -> None:
        """Raises StoredGroupPublished once nothing can be added any more."""
        if self.row is None:
            return
        if self.row.row_id is None:
            raise StoredGroupPublished(
                f"what was stored under write pointer {self.pointer} expired before it was published", write_pointer=self.pointer
            )
        raise StoredGroupPublished(
            f"what was stored under write pointer {self.pointer} is published already, by the row {self.row.row_id}",
            write_pointer=self.pointer,
            message_id=self.row.row_id + FIRST_PAYLOAD_ID.hex(),
        )


class Groups:
    """The stored groups of one topic that are in use, read from disk when they are first used."""

    __slots__ = ("_keyed", "_open", "_prefix", "_store")

    def __init__(self, prefix: bytes, store: Store, keyed: bool = False) -> None:
        """``keyed``: the topic checks expectations, so that groups must know their messages' keys."""
        self._prefix = prefix
        self._store = store
        self._keyed = keyed
        self._open: dict[int, StoredGroup] = {}

    async def open(self, pointer: int) -> StoredGroup:
        """What is stored under the pointer, perhaps nothing. Raises TopicDamaged."""
        group = self._open.get(pointer)
        if group is None:
            loaded = await read(load_group, self._store, self._prefix, pointer, self._keyed)
            group = self._open.setdefault(pointer, loaded)  # somebody else may have read it meanwhile
        return group

    def close(self, pointer: int) -> None:
        """Let go of what is known about it: its transaction has ended."""
        self._open.pop(pointer, None)

    @property
    def any(self) -> bool:
        """Whether any is in use."""
        return bool(self._open)

    def pointers_of(self, producer: str) -> list[int]:
        """The write pointers under which messages of this producer are stored and not yet published."""
        return [pointer for pointer, group in self._open.items() if group.row is None and producer in group.producers()]


def last_entries_of(summary: GroupSummary, row_id: bytes, offset: int) -> tuple[tuple[str, LastEntry], ...]:
    """The newest message of each named producer in the stored group that appears at this row and offset."""
    return tuple(
        (part.name, LastEntry(part.last_sequence_id, row_id + part.last_payload_id, offset + part.last_index))
        for part in summary.producers
    )


def load_group(store: Store, prefix: bytes, pointer: int, keyed: bool = False) -> StoredGroup:
    """Read what is stored under a pointer; of a published group only that it is, and its first id. Raises TopicDamaged."""
    row = read_group_row(store, prefix, pointer)
    key = pointer_key(prefix, pointer)
    with closing(payloads(store, prefix, pointer)) as found:
        last = last_payloads(store, prefix, pointer) if row is None else None
        group = StoredGroup(pointer, key, row, found if row is None else iter(()), keyed, 0 if last is None else last.upto_bytes)
        if row is not None:
            group.first_payload_id = next((each.payload_id for each in found), None)
    return group


def read_group_row(store: Store, prefix: bytes, pointer: int) -> GroupRow | None:
    """What became of a pointer's group: None while it is not published. Raises TopicDamaged."""
    data = store.get(Table.GROUP, pointer_key(prefix, pointer))
    return None if data is None else read_back(decode_record, GroupRow, data)


def payloads(store: Store, prefix: bytes, pointer: int) -> Generator[Payload]:
    """What is stored under a write pointer or a branch key, in store order; to be closed. Raises TopicDamaged."""
    with closing(payload_runs(store, prefix, pointer)) as runs:
        for run in runs:
            yield from decode_payloads(run)


def latest_stored(store: Store, key: bytes, limit: int | None, total: int | None = None) -> Iterator[Payload]:
    """The last ``limit`` payloads, None: all, whose keys begin with ``key``, the newest first.

    ``total``: how many were stored, if it is known. Raises TopicDamaged: one is damaged or missing.
    """
    with closing(_runs_back(store, key, total)) as runs:
        yield from islice((decode_payload(run, index) for run in runs for index in reversed(range(len(run)))), limit)


def _runs_back(store: Store, key: bytes, total: int | None) -> Runs:
    behind = total
    with closing(store.scan(Table.PAYLOAD, key, key + AFTER_ANY, reverse=True)) as rows:
        for row_key, row in rows:
            run = read_back(decode_run, key, row_key[len(key) :], row)
            if behind not in (None, run.end):
                raise TopicDamaged(f"of the payloads under {key.hex()}, number {run.end} is missing")
            yield run
            behind = run.first
    if behind and total is not None:
        raise TopicDamaged(f"of the payloads under {key.hex()}, number {behind - 1} is missing")


def find_stored(store: Store, key: bytes, producer: str | None, sequence_ids: Sequence[int]) -> dict[int, Payload]:
    """sequence id → stored payload of the producer, for those of ``sequence_ids`` among the latest; of none: for all.

    Without a producer nothing else tells a repetition from another message under the same id, which is nowhere: so it is
    looked for as far back as it lies. What is repeated soon, as repetitions are, is found soon. Raises TopicDamaged.
    """
    wanted = set(sequence_ids)
    found: dict[int, Payload] = {}
    for payload in latest_stored(store, key, None if producer is None else len(sequence_ids) + 1_000):
        if payload.producer == producer and payload.sequence_id in wanted:
            found[payload.sequence_id] = payload
            if len(found) == len(wanted):
                break
    return found


def _mark(sequence_ids: Sequence[int], payload_ids: Sequence[bytes], first: int) -> LastEntry:
    return LastEntry(sequence_ids[-1], _message_id(payload_ids[-1]), first + len(payload_ids) - 1)


def _message_id(payload_id: bytes) -> bytes:
    """Where it lies within its group; the row id comes with publishing."""
    return FIRST_ROW_ID + payload_id
