"""Does on one topic what atomic commits need of it: messages are staged, judged, copied into the log, or dropped.

What is staged lies in the Payload Table under the transaction's number, in chunks. Copying it into the
log is one row per branch that stands for all its messages, as a stored group's does, and belongs to no transaction any more:
readers that know nothing of transactions see it, and only then. What a commit brings itself is staged in memory alone, and to
copy it is to write its messages as a publish does. The rows of all topics and the record that ends the transaction are one write,
so that it happens once.

From :meth:`AtomicOnTopic.judged` to the last :meth:`AtomicOnTopic.copy` of a commit nothing awaits, on any of its topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from oncelog.errors import ChunkReused, InvalidRequest, SequenceReused, TopicDamaged
from oncelog.wire.requests import PublishRequest
from oncelog_dedup import LastEntry
from oncelog_service.log.append.appearances import Appearances
from oncelog_service.log.append.expectations import Expectations, topic_name
from oncelog_service.log.append.judge import Judge, sequence_gap
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.append.transactional import columns_of
from oncelog_service.log.conditions import TopicState, mismatch
from oncelog_service.log.groups.payloads import branch_keys
from oncelog_service.log.groups.stored import StoredGroup, load_group, payload_rows
from oncelog_service.log.key_index import key_name
from oncelog_service.log.memory import Memory
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import read_back
from oncelog_service.reading import read
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import AFTER_ANY, FIRST_PAYLOAD_ID, ROW_ID_SIZE, chunk_key, pointer_key
from oncelog_service.storage.payload_rows import Payload, decode_payload_row, encode_payload_rows, moved_payload
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import ChunkRow, decode_record, encode_record

_DROPPED_AT_ONCE = 1_000


@dataclass(slots=True)
class Staged:
    """What one transaction has staged on one topic. Memory is ahead of the disk: an answer from it waits for the writer."""

    number: int
    group: StoredGroup
    chunks: dict[int, ChunkRow] = field(default_factory=dict)
    """By their numbers, in store order."""
    brought: Columns | None = None
    """Messages that the commit brings itself: they are nowhere on disk."""
    payload_ids: Sequence[bytes] = ()
    """Of these: where they would be in the Payload Table."""

    @property
    def next_chunk(self) -> int:
        """The number that the next chunk must have."""
        return len(self.chunks)


class Ready(NamedTuple):
    """The messages of a commit for one topic, in order, without those that the topic has already."""

    staged: Sequence[Staged]
    cleared: dict[str, frozenset[int]]
    """Producer → its unsettled transactions that do not forbid it to publish."""


class Copied(NamedTuple):
    """The index in a topic's log to which a commit was copied."""

    messages: int
    first_offset: int | None
    first_id: bytes | None
    on_written: Callable[[], None]


class AtomicOnTopic:
    """Stages, judges and copies atomic commits on one open topic. Works on the event loop that owns it."""

    def __init__(
        self,
        topic: OpenTopic,
        memory: Memory,
        producers: Producers,
        judge: Judge,
        expectations: Expectations,
        appearances: Appearances,
    ) -> None:
        self._topic = topic
        self._name = topic_name(topic.prefix)
        self._prefix = topic.prefix
        self._store = topic.store
        self._writer = topic.writer
        self._clock = topic.clock
        self._dedup = topic.dedup
        self._keys = topic.keys
        self._check_open = topic.check_open
        self._memory = memory
        self._producers = producers
        self._judge = judge
        self._expectations = expectations
        self._appearances = appearances
        self._staged: dict[int, Staged] = {}

    # --- stage

    async def open(self, number: int) -> Staged:
        """Returns what the transaction has staged here, perhaps nothing. Raises TopicDamaged."""
        staged = self._staged.get(number)
        if staged is None:
            loaded = await read(_load, self._store, self._prefix, number, self._keys is not None)
            staged = self._staged.setdefault(number, loaded)
        return staged

    def begun(self, number: int) -> Staged:
        """Begin what a transaction stages here, of which nothing is on disk; it is known from its first chunk on."""
        staged = self._staged.get(number)
        if staged is None:
            key = pointer_key(self._prefix, -number)
            staged = Staged(number, StoredGroup(-number, key, None, iter(()), self._keys is not None))
        return staged

    def brought(self, number: int, request: PublishRequest) -> Staged:
        """Stage what a commit brings itself, in memory alone: nobody else knows of it, and nothing is to be dropped.

        Raises ExpectationsNotChecked, ProducerFenced, SequenceGap, StorageUnavailable: it cannot be committed. A refusal may
        depend on what is being written.
        """
        staged = self.begun(number)
        self._check_new(staged, request)
        staged.brought = columns_of(request, 0, None)
        row = _chunk_row(staged.group, request)
        staged.payload_ids, _ = self._note(staged, 0, row, request.sequence_ids, request.keys)
        return staged

    def close(self, number: int) -> None:
        """Lets go of what is known about a transaction that has ended."""
        self._staged.pop(number, None)

    @property
    def known(self) -> list[int]:
        """The numbers under which something is staged and known here."""
        return list(self._staged)

    def is_new(self, staged: Staged, chunk: int, request: PublishRequest) -> bool:
        """Returns whether the chunk is to be staged; False: it is staged already, or on its way.

        Raises:
            ChunkReused, InvalidRequest, ExpectationsNotChecked, ProducerFenced, SequenceGap: it cannot be staged. A refusal may
                depend on what is being written; wait for that before it is answered.
        """
        self._check_open()
        present = staged.chunks.get(chunk)
        if present is not None:
            if present.digest != _digest(request):
                raise ChunkReused(f"chunk {chunk} is staged already with other content", topic=self._name, chunk=chunk)
            return False
        if chunk != staged.next_chunk:
            raise InvalidRequest(f"chunk {chunk} of {self._name}: the next one has the number {staged.next_chunk}")
        self._check_new(staged, request)
        return True

    def _check_new(self, staged: Staged, request: PublishRequest) -> None:
        self._check_open()
        if request.conditional:
            self._expectations.check_on()
        self._check_named(staged, request)

    def _check_named(self, staged: Staged, request: PublishRequest) -> None:
        producer, ids = request.producer, request.sequence_ids
        if producer is None or ids is None:
            return
        refusal = self._producers.refusal(producer, request.epoch)
        if refusal is not None:
            raise refusal
        last = staged.group.dedup.last_pushed(producer)
        if last is not None and ids[0] <= last.sequence_id:
            raise _not_rising(producer, last.sequence_id, ids[0])
        # Within the first request too: the commit looks only at what lies before it.
        before = last or LastEntry(ids[0] - 1, b"", 0)
        gap = self._producers.gap(producer, ids, before) if self._topic.deduplicates else None
        if gap is not None:
            raise sequence_gap(producer, *gap)

    def put(self, batch: Batch, staged: Staged, chunk: int, request: PublishRequest) -> None:
        """Adds to ``batch`` what stages a chunk that is new."""
        self._writer.fence(batch)
        row = _chunk_row(staged.group, request, _digest(request))
        columns = columns_of(request, 0, None)
        self._add(batch, staged, chunk, row, request.sequence_ids, request.keys, partial(encode_payload_rows, columns))

    def _add(
        self,
        batch: Batch,
        staged: Staged,
        chunk: int,
        row: ChunkRow,
        sequence_ids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
        rows: Callable[[Sequence[bytes], int], list[bytes]],
    ) -> None:
        """``rows``: the payload rows, from their ids and the index of the first."""
        payload_ids, first = self._note(staged, chunk, row, sequence_ids, keys)
        batch.put_run(Table.PAYLOAD, staged.group.key, payload_ids, rows(payload_ids, first))
        batch.put(Table.CHUNK, chunk_key(self._prefix, staged.number, chunk), encode_record(row))
        self._staged[staged.number] = staged

    def _note(
        self,
        staged: Staged,
        chunk: int,
        row: ChunkRow,
        sequence_ids: Sequence[int] | None,
        keys: Sequence[bytes | None] | None,
    ) -> tuple[list[bytes], int]:
        """Note in memory what is staged; returns the payload ids and the index of the first."""
        group = staged.group
        payload_ids, first = group.stamps.take(row.messages, self._clock.now_ms())
        staged.chunks[chunk] = row
        group.push(row.producer, sequence_ids, payload_ids, first)
        group.push_keys(keys, payload_ids, first)
        group.persist(row.producer, sequence_ids, payload_ids, first)
        return payload_ids, first

    # --- judge

    async def ready(self, staged: Sequence[Staged], allot: Callable[[], int]) -> Ready:
        """Returns what is to be copied of these, in this order, once nothing that it depends on is under way.

        Messages that the topic has already are left out, by staging the others once more, under a number from ``allot``.

        Raises:
            InvalidRequest: a producer's sequence ids do not rise from one to the next. SequenceGap: they leave out what it needs.
            SequenceReused: one is stored with another payload. ProducerInTransaction, TopicDamaged, StorageUnavailable.
        """
        staged = [each for each in staged if each.group.messages]
        self._check_gaps(staged)
        while True:
            self._check_open()
            cleared: dict[str, frozenset[int]] = {}
            persisted: list[str] = []
            in_flight = False
            for producer, first in _first_ids(staged).items() if self._topic.deduplicates else ():
                cleared[producer] = await self._judge.cleared(producer, first)
                verdict = self._dedup.judge(producer, [first])
                in_flight = in_flight or self._dedup.in_flight(producer)
                if verdict.persisted:
                    persisted.append(producer)
            if in_flight:
                await self._writer.drained()
            elif not persisted:
                return Ready([each for each in staged if each.group.messages], cleared)
            else:
                staged = await self._without(staged, persisted, allot())

    def _check_gaps(self, staged: Iterable[Staged]) -> None:
        """Checks for gaps between one branch and the next; the one before the first is known in the last moment only.

        Raises SequenceGap.
        """
        last: dict[str, LastEntry] = {}
        for each in staged if self._topic.deduplicates else ():
            for producer, last_entry in each.group.dedup.fold.items():
                begin = each.group.first_sequence_id(producer)
                gap = self._producers.gap(producer, [begin], last[producer]) if producer in last else None
                if gap is not None:
                    raise sequence_gap(producer, *gap)
                last[producer] = last_entry

    def judged(self, ready: Ready) -> bool:
        """Returns whether what is ready can be copied at this very moment; False: look again, something has come between.

        Raises:
            ProducerFenced, SequenceGap, OffsetMismatch, KeyInTransaction, InvalidRequest: it cannot. A refusal may depend on
                what is being written; wait for that before it is answered.
        """
        self._check_open()
        for producer, first in _first_ids(ready.staged).items():
            if self._topic.deduplicates and not self._is_new(producer, first, ready.cleared.get(producer, frozenset())):
                return False
        index = 0
        earlier: dict[str, int] = {}
        for staged in ready.staged:
            for chunk in staged.chunks.values():
                self._check_chunk(chunk, index, earlier)
            earlier.update({name: index + at for name, (_, at) in staged.group.keys.items()})
            index += staged.group.messages
        return True

    def judged_at_once(self, staged: Staged) -> Ready | None:
        """Returns what a commit brings, if it can be copied at this very moment and nothing is to be left out; None: it is to be
        waited for. Raises as :meth:`judged`."""
        ready = Ready([staged], {})
        if self._topic.deduplicates and any(map(self._dedup.in_flight, _first_ids(ready.staged))):
            return None
        return ready if self.judged(ready) else None

    def _is_new(self, producer: str, first: int, cleared: frozenset[int]) -> bool:
        pushed = self._dedup.last_pushed(producer)
        if (pushed is not None and pushed.sequence_id >= first) or not self._topic.transactions_of(producer) <= cleared:
            return False
        gap = self._producers.gap(producer, [first])
        if gap is not None:
            raise sequence_gap(producer, *gap)
        return True

    def _check_chunk(self, chunk: ChunkRow, index: int, earlier: dict[str, int]) -> None:
        """``index``: where its branch begins within the commit; ``earlier``: key → index of its newest message before that."""
        if chunk.producer is not None:
            refusal = self._producers.refusal(chunk.producer, chunk.epoch)
            if refusal is not None:
                raise refusal
        request = _expectations(chunk)
        if not request.conditional:
            return
        self._expectations.check_on()
        index += chunk.first_index
        if index and request.expected_last_message_id is not None:
            raise InvalidRequest(
                f"expectedLastMessageId on {self._name}: only the first messages of an atomic commit on a topic can expect it"
            )
        found = mismatch(request, self._state(index, index - chunk.first_index, chunk, earlier))
        if found is not None:
            raise self._expectations.refusal(found)

    def _state(self, index: int, base: int, chunk: ChunkRow, earlier: dict[str, int]) -> TopicState:
        """Returns the topic as the messages from this index on would meet it."""
        assert self._keys is not None
        state = self._keys.state()
        upcoming = state.upcoming_offset
        before = {**earlier, **{_name_of(key): base + at for key, at in chunk.key_indexes.items()}}

        def newest(key: str) -> int | None:
            at = before.get(_name_of(key))
            return state.newest(key) if at is None else upcoming + at

        def held_by(key: str) -> int | None:
            return None if _name_of(key) in before else state.held_by(key)

        return TopicState(upcoming + index, state.last_message_id, newest, held_by)

    # --- messages that are there already

    async def _without(self, staged: Sequence[Staged], producers: Sequence[str], number: int) -> list[Staged]:
        """Stage the messages anew under ``number``, without those of ``producers`` that are in the log."""
        await self._writer.drained()  # a chunk may be on its way to disk
        rows = [_payloads_brought(each) or await read(_payloads, self._store, each.group.key) for each in staged]
        known: dict[str, int] = {}
        for producer in producers:
            own = [payload for each in rows for payload, _ in each if payload.producer == producer]
            ids = [payload.sequence_id for payload in own if payload.sequence_id is not None]
            persisted = self._dedup.judge(producer, ids).persisted
            if persisted:
                self._judge.check_undecided(producer, ids[:persisted])
            await self._judge.originals(producer, ids[:persisted], [payload.payload for payload in own])
            known[producer] = ids[persisted - 1] if persisted else -1
        return [self._staged_anew(staged, rows, known, number)]

    def _staged_anew(
        self, staged: Sequence[Staged], rows: Sequence[list[tuple[Payload, bytes]]], known: dict[str, int], number: int
    ) -> Staged:
        anew, batch = self.begun(number), Batch()
        for each, payloads in zip(staged, rows, strict=True):
            for chunk in each.chunks.values():
                part = payloads[chunk.first_index : chunk.first_index + chunk.messages]
                kept = [
                    (payload, row) for payload, row in part if (payload.sequence_id or 0) > known.get(payload.producer or "", -1)
                ]
                if not kept:
                    continue
                row = _shortened(chunk, anew.group, len(part), len(kept))
                ids = [payload.sequence_id for payload, _ in kept if payload.sequence_id is not None] or None
                keys = [payload.key for payload, _ in kept]
                self._add(batch, anew, len(anew.chunks), row, ids, keys, partial(_moved, [row for _, row in kept]))
        self._writer.submit(batch)
        return anew

    # --- copy

    def copy(self, batch: Batch, staged: Iterable[Staged]) -> Copied:
        """Adds to ``batch`` what copies these into the log, in this order, one behind the other.

        Memory moves, so nothing raises here: the caller has asked :meth:`check_open` or :meth:`judged` in this very step.
        """
        self._writer.fence(batch)
        total, first_offset, first_id = 0, None, None
        written: list[Callable[[], None]] = []
        for each in staged:
            group = each.group
            if each.brought is not None:
                run, keyed, row_ids, rows = self._appearances.put_messages(batch, each.brought)
                written.append(partial(self._memory.written, run, keyed, row_ids, rows))
                begin = run.first_id
            else:
                assert group.row is None  # what is copied is let go of in the same step
                run, keyed = self._appearances.put(batch, group)
                for chunk in each.chunks:
                    batch.delete(Table.CHUNK, chunk_key(self._prefix, each.number, chunk))
                written.append(partial(self._memory.group_written, run, keyed))
                begin = run.first_id[:ROW_ID_SIZE] + (group.first_payload_id or FIRST_PAYLOAD_ID)
            total += run.count
            if first_id is None:
                first_id, first_offset = begin, run.first_offset
        return Copied(total, first_offset, first_id, lambda: _call_all(written))

    # --- drop

    async def drop(self, number: int) -> None:
        """Deletes what a transaction staged here and nobody will see. Not for one that was copied."""
        self.close(number)
        while keys := await read(branch_keys, self._store, pointer_key(self._prefix, -number), _DROPPED_AT_ONCE):
            batch = Batch()
            for table, key in keys:
                batch.delete(table, key)
            await self._writer.submit_lazily(batch)


def _load(store: Store, prefix: bytes, number: int, keyed: bool) -> Staged:
    staged = Staged(number, load_group(store, prefix, -number, keyed))
    base = pointer_key(prefix, -number)
    with closing(store.scan(Table.CHUNK, base, base + AFTER_ANY)) as rows:
        found = {int.from_bytes(key[len(base) :], "big"): read_back(decode_record, ChunkRow, data) for key, data in rows}
    staged.chunks.update(sorted(found.items(), key=lambda chunk: chunk[1].first_index))
    messages = sum(chunk.messages for chunk in staged.chunks.values())
    if staged.group.row is None and staged.chunks and messages != staged.group.messages:
        raise TopicDamaged(f"branch {number} has staged {messages} messages, {staged.group.messages} are there")
    return staged


def _chunk_row(group: StoredGroup, request: PublishRequest, digest: str = "") -> ChunkRow:
    """Makes the row of a chunk that goes behind what ``group`` has; without a digest, of one that no other is held against."""
    keys = request.expected_key_offsets or {}
    return ChunkRow(
        first_index=group.messages,
        messages=len(request.payloads),
        digest=digest,
        producer=request.producer,
        epoch=request.epoch,
        expected_offset=request.expected_offset,
        expected_last_message_id=None if request.expected_last_message_id is None else request.expected_last_message_id.hex(),
        expected_key_offsets=None if request.expected_key_offsets is None else dict(keys),
        key_indexes=_key_indexes(keys, group),
    )


def _payloads_brought(staged: Staged) -> list[tuple[Payload, bytes]]:
    """Returns the messages that a commit brings itself, each with the row that it would have in the Payload Table."""
    if staged.brought is None:
        return []
    rows = encode_payload_rows(staged.brought, staged.payload_ids, 0)
    return [(decode_payload_row(each, row), row) for each, row in zip(staged.payload_ids, rows, strict=True)]


def _payloads(store: Store, key: bytes) -> list[tuple[Payload, bytes]]:
    return list(payload_rows(store, key))


def _first_ids(staged: Iterable[Staged]) -> dict[str, int]:
    """Returns producer → the lowest sequence id of what is to be copied. Raises InvalidRequest if they do not rise throughout."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for each in staged:
        for producer, last_entry in each.group.dedup.fold.items():
            begin = each.group.first_sequence_id(producer)
            if producer in last and begin <= last[producer]:
                raise _not_rising(producer, last[producer], begin)
            first.setdefault(producer, begin)
            last[producer] = last_entry.sequence_id
    return first


def _not_rising(producer: str, last: int, received: int) -> InvalidRequest:
    return InvalidRequest(
        f"sequence ids of producer {producer!r} must strictly rise within an atomic commit: {received} follows {last}"
    )


def _expectations(chunk: ChunkRow) -> PublishRequest:
    last_id = chunk.expected_last_message_id
    return PublishRequest(
        [],
        expected_offset=chunk.expected_offset,
        expected_last_message_id=None if last_id is None else bytes.fromhex(last_id),
        expected_key_offsets=chunk.expected_key_offsets,
    )


def _shortened(chunk: ChunkRow, group: StoredGroup, messages: int, kept: int) -> ChunkRow:
    """Returns the chunk behind what ``group`` has, without its first messages, which are in the log already."""
    known = messages - kept
    if known and (chunk.expected_last_message_id is not None or chunk.expected_key_offsets is not None):
        raise SequenceReused(
            f"{known} of {messages} messages of producer {chunk.producer!r} are in the log already, so that what was expected "
            "before them cannot be judged",
            producer=chunk.producer,
        )
    return replace(
        chunk,
        first_index=group.messages,
        messages=kept,
        expected_offset=None if chunk.expected_offset is None else chunk.expected_offset + known,
        key_indexes=_key_indexes(chunk.expected_key_offsets or (), group),
    )


def _moved(rows: Sequence[bytes], payload_ids: Sequence[bytes], first: int) -> list[bytes]:
    return [moved_payload(row, payload_ids[at], first + at) for at, row in enumerate(rows)]


def _key_indexes(keys: Iterable[str], group: StoredGroup) -> dict[str, int]:
    return {key: group.keys[name][1] for key in keys if (name := _name_of(key)) in group.keys}


def _digest(request: PublishRequest) -> str:
    """Digest everything that the request says, whatever media type it came in."""
    ids = None if request.sequence_ids is None else list(request.sequence_ids)
    keys = None if request.expected_key_offsets is None else sorted(request.expected_key_offsets.items())
    expected = (request.expected_offset, request.expected_last_message_id, keys)
    said = (said_of(request), request.producer, request.epoch, ids, expected)
    digest = blake2b(repr(said).encode(), digest_size=16)
    digest.update(b"".join(request.payloads))
    return digest.hexdigest()


def said_of(request: PublishRequest) -> list[object]:
    """Returns what a request says of its messages beside their payloads, alike for all that say the same: whatever order
    properties came
    in, and whether a column that says nothing is there."""
    properties = [sorted(each.items()) if each else None for each in request.properties or ()]
    return [_column(request.keys), _column(properties), _column(request.ttls), [*map(len, request.payloads)]]


def _column(values: Sequence[object] | None) -> list[object] | None:
    return None if all(each is None for each in values or ()) else list(values or ())


def _name_of(key: str) -> str:
    return key_name(key.encode("latin-1"))


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
