"""Does on one topic what atomic commits need of it: messages are staged, judged, copied into the log, or dropped.

What is staged lies in the Payload Table under the transaction's number, in chunks. Copying it into the
log is one row per branch that stands for all its messages, as a stored group's does, and belongs to no transaction any more:
readers that know nothing of transactions see it, and only then. What a commit brings itself is held in memory alone, and so is
what is left where the topic has some of its messages already; to copy that is to write its messages as a publish does. The rows
of all topics and the record that ends the transaction are one write, so that it happens once.

From :meth:`AtomicOnTopic.judged` to the last :meth:`AtomicOnTopic.copy` of a commit nothing awaits, on any of its topics.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from oncelog.errors import ChunkReused, InvalidRequest, SequenceReused, TopicDamaged
from oncelog.wire.media import TRACEPARENT, TRACESTATE
from oncelog.wire.requests import PublishRequest
from oncelog_dedup import LastEntry
from oncelog_service.log.addition import Appeared
from oncelog_service.log.admission import Admission
from oncelog_service.log.append.expectations import Expectations, topic_name
from oncelog_service.log.append.judge import Judge, sequence_gap
from oncelog_service.log.append.log_end import LogEnd, columns_of
from oncelog_service.log.append.producers import Producers
from oncelog_service.log.conditions import TopicState, mismatch
from oncelog_service.log.groups.payloads import branch_keys
from oncelog_service.log.groups.stored import StoredGroup, load_group
from oncelog_service.log.key_index import key_name
from oncelog_service.log.memory import Memory
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.scan import payload_runs, read_back
from oncelog_service.reading import read
from oncelog_service.storage.fields import Columns, decode_fields
from oncelog_service.storage.keys import AFTER_ANY, FIRST_PAYLOAD_ID, FIRST_ROW_ID, chunk_key, pointer_key
from oncelog_service.storage.payload_rows import Payload, decode_payloads, encode_payloads, tails_of
from oncelog_service.storage.port import Batch, Store, Table
from oncelog_service.storage.records import ChunkRow, decode_record, encode_record
from oncelog_service.storage.rows import encode_messages
from oncelog_service.storage.runs import Laying

_DROPPED_AT_ONCE = 1_000
_UNNAMED = bytes(2)
"""What the fields of a message without producer and sequence id begin with."""


@dataclass(slots=True)
class Staged:
    """What one transaction has staged on one topic. Memory is ahead of the disk: an answer from it waits for the writer."""

    number: int
    group: StoredGroup
    chunks: dict[int, ChunkRow] = field(default_factory=dict)
    """By their numbers, in store order."""
    brought: PublishRequest | None = None
    """The one that this holds in memory: its messages are nowhere on disk, or are not copied from there."""
    known: int = 0
    """How many of its first messages the topic has already."""

    @property
    def next_chunk(self) -> int:
        """The number that the next chunk must have."""
        return len(self.chunks)


class Ready(NamedTuple):
    """The messages of a commit for one topic, in order, without those that the topic has already; and what the step that judges
    and copies them must know of them, so that it looks at no branch that only has to be copied."""

    staged: Sequence[Staged]
    first_ids: Mapping[str, int]
    """Producer → the lowest sequence id of what is to be copied."""
    cleared: Mapping[str, frozenset[int]]
    """Producer → its unsettled transactions that do not forbid it to publish."""
    senders: Collection[str | None]
    """All producers, those that number nothing too; None among them: messages of no producer."""
    carried: tuple[int, int]
    """How many messages are written with the commit, and of how many bytes."""
    keys: Collection[str]
    """Names of the messages' keys, where the topic checks expectations."""
    judged: Sequence[tuple[int, Staged, Sequence[ChunkRow]]]
    """Those that have keys, or chunks to be judged in the last moment: where each begins within the commit, and these chunks."""


class Copied(NamedTuple):
    """The index in a topic's log to which a commit was copied."""

    messages: int
    first_offset: int | None
    first_id: bytes | None


@dataclass(slots=True, eq=False)
class AtomicOnTopic:
    """Stages, judges and copies atomic commits on one open topic. Works on the event loop that owns it."""

    _topic: OpenTopic
    _memory: Memory
    _producers: Producers
    _judge: Judge
    _expectations: Expectations
    _end: LogEnd
    _staged: dict[int, Staged] = field(default_factory=dict)

    @property
    def _name(self) -> str:
        return topic_name(self._topic.prefix)

    # --- stage

    async def open(self, number: int) -> Staged:
        """Returns what the transaction has staged here, perhaps nothing. Raises TopicDamaged."""
        staged = self._staged.get(number)
        if staged is None:
            loaded = await read(_load, self._topic.store, self._topic.prefix, number, self._topic.keys is not None)
            staged = self._staged.setdefault(number, loaded)
        return staged

    def begun(self, number: int) -> Staged:
        """Begin what a transaction stages here, of which nothing is on disk; it is known from its first chunk on."""
        return self._staged.get(number) or self._empty(number)

    def _empty(self, number: int) -> Staged:
        key = pointer_key(self._topic.prefix, -number)
        return Staged(number, StoredGroup(-number, key, None, iter(()), self._topic.keys is not None))

    def brought(self, request: PublishRequest) -> Staged:
        """Holds what a commit brings itself, in memory alone: nobody else knows of it, and nothing is to be dropped.

        Raises ExpectationsNotChecked, ProducerFenced, SequenceGap, StorageUnavailable: it cannot be committed. A refusal may
        depend on what is being written.
        """
        self._check_new(request)
        return self._held(request)

    def _held(self, request: PublishRequest, known: int = 0) -> Staged:
        """Holds a request in memory, without its first messages, which the topic has already."""
        staged = self._empty(0)
        staged.brought, staged.known = request, known
        self._note(staged, 0, _chunk_row(staged.group, request, known=known), columns_of(request, known, None))
        return staged

    def close(self, number: int) -> None:
        """Lets go of what is known about a transaction that has ended."""
        self._staged.pop(number, None)

    def is_new(self, staged: Staged, chunk: int, request: PublishRequest) -> bool:
        """Returns whether the chunk is to be staged; False: it is staged already, or on its way.

        Raises:
            ChunkReused, InvalidRequest, ExpectationsNotChecked, ProducerFenced, SequenceGap: it cannot be staged. A refusal may
                depend on what is being written; wait for that before it is answered.
        """
        self._topic.check_open()
        present = staged.chunks.get(chunk)
        if present is not None:
            if present.digest != _digest(request):
                raise ChunkReused(f"chunk {chunk} is staged already with other content", topic=self._name, chunk=chunk)
            return False
        if chunk != staged.next_chunk:
            raise InvalidRequest(f"chunk {chunk} of {self._name}: the next one has the number {staged.next_chunk}")
        self._check_new(request, staged)
        return True

    def _check_new(self, request: PublishRequest, staged: Staged | None = None) -> None:
        """``staged``: what it goes behind, if there is anything."""
        self._topic.check_open()
        if request.conditional:
            self._expectations.check_on()
        producer, ids = request.producer, request.sequence_ids
        if producer is None or ids is None:
            return
        refusal = self._producers.refusal(producer, request.epoch)
        if refusal is not None:
            raise refusal
        last = None if staged is None else staged.group.dedup.last_pushed(producer)
        if last is not None and ids[0] <= last.sequence_id:
            raise _not_rising(producer, last.sequence_id, ids[0])
        # Within the first request too: the commit looks only at what lies before it.
        before = last or LastEntry(ids[0] - 1, b"", 0)
        gap = self._producers.gap(producer, ids, before) if self._topic.rules.deduplicates else None
        if gap is not None:
            raise sequence_gap(producer, *gap)

    def put(self, batch: Batch, staged: Staged, chunk: int, request: PublishRequest) -> None:
        """Adds to ``batch`` what stages a chunk that is new."""
        self._topic.writer.fence(batch)
        row, columns = _chunk_row(staged.group, request, _digest(request)), columns_of(request, 0, None)
        payload_ids, first = self._note(staged, chunk, row, columns)
        laying = Laying(Table.PAYLOAD, staged.group.key, first, before_bytes=staged.group.bytes)
        laying.add(payload_ids, encode_payloads(columns))
        staged.group.bytes = laying.upto_bytes
        batch.put_laid(laying)
        batch.put(Table.CHUNK, chunk_key(self._topic.prefix, staged.number, chunk), encode_record(row))
        self._staged[staged.number] = staged

    def _note(self, staged: Staged, chunk: int, row: ChunkRow, columns: Columns) -> tuple[list[bytes], int]:
        """Notes in memory what is staged; returns the payload ids and the index of the first."""
        group = staged.group
        payload_ids, first = group.stamps.take(row.messages, self._topic.clock.now_ms())
        staged.chunks[chunk] = row
        group.push(row.producer, columns.sequence_ids, payload_ids, first)
        group.push_keys(columns.keys, payload_ids, first)
        group.persist(row.producer, columns.sequence_ids, payload_ids, first)
        return payload_ids, first

    # --- judge

    async def ready(self, staged: Sequence[Staged]) -> Ready:
        """Returns what is to be copied of these, in this order, once nothing that it depends on is under way.

        Messages that the topic has already are left out; the others are held in memory then.

        Raises:
            InvalidRequest: a producer's sequence ids do not rise from one to the next. SequenceGap: they leave out what it needs.
            SequenceReused: one is stored with another payload. ProducerInTransaction, TopicDamaged, StorageUnavailable.
        """
        staged = [each for each in staged if each.group.messages]
        self._check_gaps(staged)
        while True:
            self._topic.check_open()
            ready, cleared = _looked_at(staged), dict[str, frozenset[int]]()
            persisted: list[str] = []
            in_flight = False
            for producer, first in ready.first_ids.items() if self._topic.rules.deduplicates else ():
                cleared[producer] = await self._judge.cleared(producer, first)
                verdict = self._topic.dedup.judge(producer, [first])
                in_flight = in_flight or self._topic.dedup.in_flight(producer)
                if verdict.persisted:
                    persisted.append(producer)
            if in_flight:
                await self._topic.writer.drained()
            elif not persisted:
                return ready._replace(cleared=cleared)
            else:
                staged = await self._without(staged, persisted)

    def _check_gaps(self, staged: Iterable[Staged]) -> None:
        """Checks for gaps between one branch and the next; the one before the first is known in the last moment only.

        Raises SequenceGap.
        """
        last: dict[str, LastEntry] = {}
        for each in staged if self._topic.rules.deduplicates else ():
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
        self._topic.check_open()
        for producer, first in ready.first_ids.items() if self._topic.rules.deduplicates else ():
            if not self._is_new(producer, first, ready.cleared.get(producer, frozenset())):
                return False
        earlier: dict[str, int] = {}
        for index, staged, chunks in ready.judged:
            for chunk in chunks:
                self._check_chunk(chunk, index, earlier)
            earlier.update({name: index + at for name, (_, at) in staged.group.keys.items()})
        return True

    def judged_at_once(self, staged: Staged) -> Ready | None:
        """Returns what a commit brings, if it can be copied at this very moment and nothing is to be left out; None: it is to be
        waited for. Raises as :meth:`judged`."""
        ready = _looked_at([staged])
        if self._topic.rules.deduplicates and any(map(self._topic.dedup.in_flight, ready.first_ids)):
            return None
        return ready if self.judged(ready) else None

    def _is_new(self, producer: str, first: int, cleared: frozenset[int]) -> bool:
        pushed = self._topic.dedup.last_pushed(producer)
        if pushed is not None and pushed.sequence_id >= first:
            return False
        if self._topic.any_transactions and not self._topic.transactions_of(producer) <= cleared:
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
        if not chunk.conditional:
            return
        self._expectations.check_on()
        request = _request_of(chunk)
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
        assert self._topic.keys is not None
        state = self._topic.keys.state()
        upcoming = state.upcoming_offset
        before = {**earlier, **{_name_of(key): base + at for key, at in chunk.key_indexes.items()}}

        def newest(key: str) -> int | None:
            at = before.get(_name_of(key))
            return state.newest(key) if at is None else upcoming + at

        def held_by(key: str) -> int | None:
            return None if _name_of(key) in before else state.held_by(key)

        return TopicState(upcoming + index, state.last_message_id, newest, held_by)

    # --- messages that are there already

    async def _without(self, staged: Sequence[Staged], producers: Sequence[str]) -> list[Staged]:
        """Holds the messages in memory, without those of ``producers`` that are in the log."""
        await self._topic.writer.drained()  # a chunk may be on its way to disk
        requests, where = list[PublishRequest](), (self._topic.store, self._topic.prefix)
        for each in staged:
            chunks = list(each.chunks.values())
            found = [each.brought] if each.brought else await read(_requests, *where, each.number, chunks)
            requests += found
        last: dict[str, int] = {}
        for producer in producers:
            own = [request for request in requests if request.producer == producer]
            ids = [each for request in own for each in request.sequence_ids or ()]
            persisted = self._topic.dedup.judge(producer, ids).persisted
            if persisted:
                self._judge.check_undecided(producer, ids[:persisted])
                last[producer] = ids[persisted - 1]
            await self._judge.originals(producer, ids[:persisted], _joined(own))
        known = [bisect_right(each.sequence_ids or (), last.get(each.producer or "", -1)) for each in requests]
        return [self._held(each, at) for each, at in zip(requests, known, strict=True) if at < len(each.payloads)]

    # --- copy

    def copy(self, batch: Batch, staged: Iterable[Staged], written: list[Callable[[], None]]) -> Copied:
        """Adds to ``batch`` what copies these into the log, in this order, one behind the other; to ``written`` what is to be
        called, in order, once they are on disk.

        Memory moves, so nothing raises here: the caller has asked :meth:`check_open` or :meth:`judged` in this very step.
        """
        self._topic.writer.fence(batch)
        total, first_offset, first_id = 0, None, None
        groups = list[Appeared]()
        for each in staged:
            group = each.group
            if each.brought is not None:
                columns = columns_of(each.brought, each.known, self._end.newest_row(each.brought.producer))
                addition = self._end.push(self._end.place(columns))
                batch.put_laid(addition.laying)
                run = addition.run
                written.append(partial(self._memory.written, addition))
                begin = run.first_id
            else:
                assert group.row is None  # what is copied is let go of in the same step
                appeared = self._end.appear(group)
                groups.append(appeared)
                for chunk in each.chunks:
                    batch.delete(Table.CHUNK, chunk_key(self._topic.prefix, each.number, chunk))
                written.append(partial(self._memory.group_written, appeared))
                run, begin = appeared.run, appeared.at + (group.first_payload_id or FIRST_PAYLOAD_ID)
            total += run.count
            if first_id is None:
                first_id, first_offset = begin, run.first_offset
        if groups:
            self._end.put_appeared(batch, groups)
        return Copied(total, first_offset, first_id)

    def admission(self, ready: Ready) -> tuple[Admission, int]:
        """Says what :meth:`Admission.together` is to take in for this to be copied. What is staged lies there already, was
        counted then, and appears by a row."""
        more = 0 if self._topic.rules.max_bytes is None else self._bytes_of(ready.staged)
        return Admission(self._topic, *ready.carried, ready.first_ids, ready.keys), more

    def _bytes_of(self, staged: Iterable[Staged]) -> int:
        """Bytes that what a commit has for the topic takes in the log, if it is copied now."""
        total, offset = 0, self._topic.stamps.upcoming_offset
        for each in staged:
            if each.brought is None:
                total += each.group.bytes
            else:  # how many bytes an offset takes depends on it
                columns = columns_of(each.brought, each.known, None)
                total += encode_messages(columns, [FIRST_ROW_ID] * len(columns.payloads), offset).total
            offset += each.group.messages
        return total

    def bytes_with(self, staged: Staged, request: PublishRequest) -> int:
        """Bytes of what is staged with this request behind it; 0 where none are too many."""
        if self._topic.rules.max_bytes is None:
            return 0
        return staged.group.bytes + encode_payloads(columns_of(request, 0, None)).total

    # --- drop

    async def drop(self, number: int) -> None:
        """Deletes what a transaction staged here and nobody will see. Not for one that was copied."""
        self.close(number)
        while keys := await read(branch_keys, self._topic.store, pointer_key(self._topic.prefix, -number), _DROPPED_AT_ONCE):
            batch = Batch()
            for table, key in keys:
                batch.delete(table, key)
            await self._topic.writer.submit_lazily(batch)


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


def _chunk_row(group: StoredGroup, request: PublishRequest, digest: str = "", known: int = 0) -> ChunkRow:
    """Makes the row of a chunk that goes behind what ``group`` has; without a digest, of one that no other is held against.

    ``known``: so many of its first messages are in the log already. Raises SequenceReused.
    """
    keys, last_id, offset = request.expected_key_offsets, request.expected_last_message_id, request.expected_offset
    if known and (last_id is not None or keys is not None):
        raise SequenceReused(
            f"{known} of {len(request.payloads)} messages of producer {request.producer!r} are in the log already, so that what "
            "was expected before them cannot be judged",
            producer=request.producer,
        )
    return ChunkRow(
        first_index=group.messages,
        messages=len(request.payloads) - known,
        digest=digest,
        producer=request.producer,
        epoch=request.epoch,
        expected_offset=None if offset is None else offset + known,
        expected_last_message_id=None if last_id is None else last_id.hex(),
        expected_key_offsets=None if keys is None else dict(keys),
        key_indexes={key: group.keys[name][1] for key in keys or () if (name := _name_of(key)) in group.keys},
    )


def _requests(store: Store, prefix: bytes, number: int, chunks: Sequence[ChunkRow]) -> list[PublishRequest]:
    """Reads back what staged these chunks. Raises TopicDamaged."""
    with closing(payload_runs(store, prefix, -number)) as runs:
        rows = [each for run in runs for each in zip(decode_payloads(run), tails_of(run), strict=True)]
    return [_request_of(chunk, rows[chunk.first_index :][: chunk.messages]) for chunk in chunks]


def _request_of(chunk: ChunkRow, rows: Sequence[tuple[Payload, bytes]] = ()) -> PublishRequest:
    """Returns what a chunk was staged by: its messages, as they lie in ``rows``, and what it expects."""
    last_id = chunk.expected_last_message_id
    return PublishRequest(
        [payload.payload for payload, _ in rows],
        producer=chunk.producer,
        epoch=chunk.epoch,
        sequence_ids=[payload.sequence_id for payload, _ in rows if payload.sequence_id is not None] or None,
        keys=[payload.key for payload, _ in rows],
        properties=[decode_fields(_UNNAMED + tail, 0).properties for _, tail in rows],
        ttls=[payload.ttl for payload, _ in rows],
        expected_offset=chunk.expected_offset,
        expected_last_message_id=None if last_id is None else bytes.fromhex(last_id),
        expected_key_offsets=chunk.expected_key_offsets,
        tails=[tail for _, tail in rows],
    )


def _joined(requests: Sequence[PublishRequest]) -> PublishRequest:
    """Returns what messages of these say, one behind the other."""
    return PublishRequest(
        [payload for request in requests for payload in request.payloads],
        properties=[each for request in requests for each in request.properties or [None] * len(request.payloads)],
    )


def _looked_at(staged: Sequence[Staged]) -> Ready:
    """Looks at each of these once. Raises InvalidRequest if the sequence ids of a producer do not rise throughout."""
    first, last = dict[str, int](), dict[str, int]()
    senders, epochs = dict[str | None, None](), set[tuple[str | None, int | None]]()
    keys, judged, index = set[str](), list[tuple[int, Staged, Sequence[ChunkRow]]](), 0
    for each in staged:
        for producer, last_entry in each.group.dedup.fold.items():
            begin = each.group.first_sequence_id(producer)
            if producer in last and begin <= last[producer]:
                raise _not_rising(producer, last[producer], begin)
            first.setdefault(producer, begin)
            last[producer] = last_entry.sequence_id
        chunks = []
        for chunk in each.chunks.values():
            epoch = chunk.producer, chunk.epoch
            if chunk.conditional or (chunk.producer is not None and epoch not in epochs):
                chunks.append(chunk)  # who is fenced is, whichever of its chunks is looked at
            epochs.add(epoch)
            senders[chunk.producer] = None
        if chunks or each.group.keys:
            judged.append((index, each, chunks))
            keys.update(each.group.keys)
        index += each.group.messages
    held = [(each, each.brought) for each in staged if each.brought is not None]
    messages, size = sum(len(brought.payloads) - each.known for each, brought in held), sum(brought.size for _, brought in held)
    return Ready(staged, first, {}, senders, (messages, size), keys, judged)


def _not_rising(producer: str, last: int, received: int) -> InvalidRequest:
    return InvalidRequest(
        f"sequence ids of producer {producer!r} must strictly rise within an atomic commit: {received} follows {last}"
    )


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
    properties came in, and whether a column that says nothing is there.

    In which trace a message was sent says nothing of it: who comes again after a restart means the same one, in another trace.
    """
    properties = [_untraced(each) if each else None for each in request.properties or ()]
    return [_column(request.keys), _column(properties), _column(request.ttls), [*map(len, request.payloads)]]


def _untraced(properties: Mapping[str, str]) -> list[tuple[str, str]] | None:
    return sorted(each for each in properties.items() if each[0] not in (TRACEPARENT, TRACESTATE)) or None


def _column(values: Sequence[object] | None) -> list[object] | None:
    return None if all(each is None for each in values or ()) else list(values or ())


def _name_of(key: str) -> str:
    return key_name(key.encode("latin-1"))
