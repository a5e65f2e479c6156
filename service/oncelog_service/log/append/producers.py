"""The named producers of one open topic: who they are, how far they have come, who is fenced.

A producer's row on disk holds its epoch; how far it has come is not stored there but folded from the log.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Literal, NoReturn

from oncelog.errors import InvalidRequest, OncelogError, ProducerEnded, ProducerFenced, ProducerNotFound
from oncelog.message_id import MessageId
from oncelog.wire.models import Gaps, OpenedProducer, Producer, Why
from oncelog_dedup import MAX_SEQUENCE_ID, LastEntry
from oncelog_service.log.append.history import MOST_RECENT, walk
from oncelog_service.log.checks import first_gap
from oncelog_service.log.names.assigned import counted_from, has_ended, is_assigned, new_name
from oncelog_service.log.names.epochs import begun_by, remembering
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.settling import Settling
from oncelog_service.reading import read
from oncelog_service.storage.keys import ROW_ID_SIZE, split_row_id
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import ProducerRow, encode_record


class Producers:
    """Works on the event loop that owns the topic, on the same maps as the publish path.

    An epoch that was handed out once the topic takes nothing more might come again in the next generation: so whether it is open
    is asked wherever something was awaited.
    """

    __slots__ = (
        "_clock",
        "_dedup",
        "_generations",
        "_opened",
        "_prefix",
        "_rows",
        "_settling",
        "_sorted",
        "_sorted_at",
        "_store",
        "_topic",
        "_writer",
    )

    def __init__(self, topic: OpenTopic, settling: Settling) -> None:
        self._topic = topic
        self._prefix = topic.prefix
        self._generations = topic.generations
        self._settling = settling
        self._rows = topic.producers
        self._dedup = topic.dedup
        self._store = topic.store
        self._writer = topic.writer
        self._clock = topic.clock
        self._sorted: list[str] = []
        """The names that there were at ``_sorted_at``, and maybe some that had gone."""
        self._sorted_at: tuple[int, int] | None = None
        self._opened: list[str] = []
        """Those that were opened since."""

    def counts_from(self, name: str) -> int:
        """The offset below which nothing of a producer counts."""
        return counted_from(self._rows, name)

    @property
    def highest_epoch(self) -> int:
        """The highest epoch of all producers; 0 for none."""
        return max((row.epoch or 0 for row in self._rows.values()), default=0)

    async def open(self, name: str | None, nonce: str, gaps: Gaps) -> OpenedProducer:
        """Begin a new incarnation, which fences all older ones and aborts their transactions, or answer again for a nonce that
        did so before. None: under a name that the service assigns.

        Raises InvalidRequest; ProducerFenced: the topic was deleted and made anew since this was asked first.
        DiskFull, QuotaExceeded: it would be a new one. ProducerEnded; ProducerInTransaction: a transaction of the producer is
        prepared.
        """
        if name is None:
            self._topic.check_open()
            name, row = new_name(), ProducerRow()
        else:
            row = await self._row_to_open(name, nonce)
        if is_assigned(name):
            row = replace(row, assigned_ms=self._clock.now_ms())
        epoch = begun_by(row.opens, nonce)
        new = epoch is None
        if epoch is None:
            epoch = self._generations.next_epoch(row.epoch)
            self._topic.check_producers([name])
            if name not in self._rows:
                self._writer.room.admit()
            await self._write(name, replace(row, epoch=epoch, opens=remembering(row.opens, nonce, epoch), gaps=gaps))
        await self._settling.end_transactions(name, new)
        # Everything admitted before the open is on disk when the open is: what is answered here is final. What an undecided
        # transaction holds does not count: a producer that resumed behind it would lose it if it is rolled back.
        await self._writer.drained()
        last_entry = self._dedup.fold.settled_entry(name)
        return OpenedProducer(
            name=name,
            epoch=epoch,
            last_sequence_id=None if last_entry is None else last_entry.sequence_id,
            last_message_id=None if last_entry is None else MessageId.from_bytes(last_entry.message_id),
        )

    async def _row_to_open(self, name: str, nonce: str) -> ProducerRow:
        if await self._generations.opened_before(ProducerRow, name, nonce):
            raise self._generations.producer_fenced(name, None, self._epoch(name))
        await self.check_epoch(name, None)
        self._topic.check_open()
        return self._rows.get(name, ProducerRow())

    async def end(self, name: str, epoch: int) -> None:
        """The name, which the service assigned, ends: nothing is stored under it any more. Idempotent.

        What is in flight is stored all the same. Raises InvalidRequest: a client chose the name; ProducerFenced.
        """
        if not is_assigned(name):
            raise InvalidRequest(f"only a name that the service assigned ends, and {name[:249]!r} is none")
        try:
            await self.check_epoch(name, epoch)
        except ProducerEnded:
            return  # and it is on disk
        self._topic.check_open()
        await self.end_all([name])

    def names_of_rows(self) -> list[str]:
        """The names of all producers that have a row now."""
        return list(self._rows)

    def idle(self, names: Iterable[str], before_ms: int) -> Iterator[str]:
        """Those of the names that are assigned, live, and had nothing opened or published under them since then."""
        for name in names:
            row = self._rows.get(name)
            if row is not None and row.assigned_ms is not None and row.assigned_ms < before_ms:
                last_entry = self._dedup.last_pushed(name)
                if last_entry is None or split_row_id(last_entry.message_id)[0] < before_ms:
                    yield name

    def end_all(self, names: Sequence[str]) -> asyncio.Future[None]:
        """These assigned names, none of which has ended, end; that counts from the call on."""
        batch = Batch()
        with self._writer.moving():
            for name in names:
                batch.delete(Table.PRODUCER, self._prefix + name.encode())
                del self._rows[name]
                self._forget(name)
            return self._writer.submit(batch)

    async def forget(self, name: str) -> None:
        """Drop what is known of a producer: its next sequence id may be any. Its running incarnation is fenced.

        Raises ProducerNotFound.
        """
        while self._dedup.in_flight(name):
            self._topic.check_open()
            await self._writer.drained()
        await self.shown(name)  # in the last moment: a name that has ended meanwhile must get no row
        self._topic.check_open()
        row = self._rows.get(name, ProducerRow())
        # Not the newest entry's offset: with deduplication off, lower ids may lie behind it, and would be back after a restart.
        below = self._dedup.fold.upcoming_offset
        epoch = None if row.epoch is None else row.epoch + 1
        with self._writer.moving():
            self._forget(name)
            done = self._write(name, ProducerRow(epoch, row.opens, forgotten_below=below, assigned_ms=row.assigned_ms))
        await done

    def _forget(self, name: str) -> None:
        self._dedup.forget(name)
        for watcher in self._topic.watchers:
            watcher.add(name)

    async def check_epoch(self, name: str, epoch: int | None) -> None:
        """Raises ProducerFenced if a newer incarnation was opened, or the topic made anew; ProducerEnded; InvalidRequest if this
        epoch was never handed out."""
        refusal = self.refusal(name, epoch)
        if refusal is not None:
            await self.refuse(refusal)

    async def refuse(self, refusal: OncelogError) -> NoReturn:
        """Raises what :meth:`refusal` has found, once that is certain."""
        if isinstance(refusal, ProducerFenced | ProducerEnded):
            await self._writer.drained()  # the newer epoch, or the end, may still be on its way to disk
        raise refusal

    def refusal(self, name: str, epoch: int | None) -> ProducerFenced | ProducerEnded | InvalidRequest | None:
        """What :meth:`check_epoch` would raise, for the last moment; it is raised once what is being written is on disk."""
        current = self._epoch(name) or 0
        # First: in a store that was restored, the newest epoch that a row knows may be one of before.
        if epoch is not None and self._generations.older(epoch):
            return self._generations.producer_fenced(name, epoch, current or None)
        if epoch is not None and epoch == current > 0:
            return None
        if has_ended(name, self._rows):
            return ProducerEnded(
                f"producer {name!r} has ended, whose name the service assigns: nothing is stored under it any more; open another",
                producer=name,
            )
        if epoch is None:
            return None
        if epoch > current or epoch < 1:
            return InvalidRequest(f"epoch {epoch} of producer {name!r} was never handed out; open the producer")
        return ProducerFenced(
            f"producer {name!r} was opened again: this is epoch {epoch}, the current one is {current}",
            producer=name,
            epoch=epoch,
            current_epoch=current,
        )

    def _epoch(self, name: str) -> int | None:
        row = self._rows.get(name)
        return None if row is None else row.epoch

    def gap(self, name: str, new_ids: Sequence[int], stored: LastEntry | None = None) -> tuple[int, int] | None:
        """(expected, received) of the first sequence id left out, if this producer refuses gaps.

        ``stored``: its newest message in the stored group that it adds to, if there is one.
        """
        row = self._rows.get(name)
        if row is None or row.gaps == "allow":
            return None
        pushed = stored or self._dedup.last_pushed(name)
        return first_gap(None if pushed is None else pushed.sequence_id + 1, new_ids)

    async def names(self, after: str, limit: int) -> list[str]:
        """The first ``limit`` names behind ``after``, sorted. A page costs what is on it, and who has come since the one before;
        the first costs a look at all, and has them sorted on a thread."""
        fold = self._dedup.fold
        came = None if self._sorted_at is None else fold.came_since(self._sorted_at)
        most_went = len(self._sorted) > 2 * (len(self._rows) + len(fold)) + _SORTED_AT_ONCE
        if came is None or len(came) > _SORTED_AT_ONCE or most_went:
            names = await self._sort_all()
        else:
            names = self._sorted = _with_new(self._sorted, [*came, *self._opened])
            self._sorted_at, self._opened = fold.moment, []
        behind = map(names.__getitem__, range(bisect_right(names, after), len(names)))
        return list(islice(filter(self._is_listed, behind), limit))

    async def _sort_all(self) -> list[str]:
        there = {name for name, row in self._rows.items() if row.is_open}
        there.update(name for name, _ in self._dedup.fold.items())
        at, self._sorted_at = self._dedup.fold.moment, None
        opened = self._opened = []
        names = await asyncio.to_thread(_sorted, there)
        if self._opened is opened:  # else others have begun to sort meanwhile, who know more
            self._sorted, self._sorted_at = names, at
        return names

    def _is_listed(self, name: str) -> bool:
        row = self._rows.get(name)
        return (row is not None and row.is_open) or name in self._dedup.fold

    def show(self, name: str) -> Producer:
        """A producer as the live maps have it. Raises ProducerNotFound."""
        row = self._rows.get(name, ProducerRow())
        pushed, last_entry = self._dedup.last_pushed(name), self._dedup.last_persisted(name)
        if pushed is None and not row.is_open:
            raise ProducerNotFound(f"no producer {name[:249]!r} on this topic has been opened or has published")
        return Producer(
            name=name,
            epoch=row.epoch,
            gaps="refuse" if row.gaps == "refuse" else "allow",
            last_pushed=None if pushed is None else pushed.sequence_id,
            last_persisted=None if last_entry is None else last_entry.sequence_id,
            last_message_id=None if last_entry is None else MessageId.from_bytes(last_entry.message_id),
            last_offset=None if last_entry is None else last_entry.offset,
            last_published_ms=None if last_entry is None else split_row_id(last_entry.message_id)[0],
            assigned=is_assigned(name),
        )

    async def shown(self, name: str) -> Producer:
        """As :meth:`show`, but that a producer was forgotten is on disk before the refusal leaves. Raises ProducerNotFound."""
        try:
            return self.show(name)
        except ProducerNotFound:
            await self._writer.drained()
            raise

    async def why(self, name: str, sequence_id: int, deduplication: bool) -> Why:
        """What a message with this sequence id would be judged now, and where the original is.

        Raises InvalidRequest, ProducerEnded.
        """
        await self.check_epoch(name, None)
        if not 0 <= sequence_id <= MAX_SEQUENCE_ID:
            raise InvalidRequest(f"sequence ids are 0 to {MAX_SEQUENCE_ID}, not {sequence_id}")
        last_entry = self._dedup.last_persisted(name)
        original = None
        if last_entry is not None and sequence_id <= last_entry.sequence_id:
            newest = last_entry.message_id[:ROW_ID_SIZE]
            walked = await read(walk, self._store, self._prefix, name, newest, [sequence_id], MOST_RECENT)
            original = walked.found.get(sequence_id)
        verdict = self._dedup.judge(name, [sequence_id])
        where = None if original is None else f"a message with this id is stored at offset {original.offset}"
        said: tuple[Literal["new", "in_flight", "duplicate", "not_judged"], str]
        if not deduplication:
            said = "not_judged", "deduplication is off for this topic: every message is stored"
        elif verdict.new and last_entry is None and not verdict.in_flight:
            said = "new", "this producer has never published on this topic"
        elif verdict.new:
            said = "new", f"it is above the last pushed sequence id {self.show(name).last_pushed}"
        elif verdict.in_flight:
            said = "in_flight", "a message with this id or a higher one is being written right now"
        else:
            assert last_entry is not None  # something was judged persisted
            at_or_below = (
                f"it is at or below the last persisted sequence id {last_entry.sequence_id} (offset {last_entry.offset})"
            )
            unseen = f"no message with this id was found among the latest {MOST_RECENT.rows}: it was left out, or it has expired"
            said = "duplicate", f"{at_or_below}; {where or unseen}"
        return Why(
            producer=name,
            sequence_id=sequence_id,
            verdict=said[0],
            reason=said[1],
            message_id=None if original is None else MessageId.from_bytes(original.message_id),
            offset=None if original is None else original.offset,
        )

    def _write(self, name: str, row: ProducerRow) -> asyncio.Future[None]:
        """Counts from the call on."""
        batch = Batch()
        batch.put(Table.PRODUCER, self._prefix + name.encode(), encode_record(row))
        before = self._rows.get(name)
        if row.is_open and (before is None or not before.is_open):
            self._opened.append(name)
            if len(self._opened) > _SORTED_AT_ONCE:  # nobody lists them, or seldom
                self._sorted, self._sorted_at, self._opened = [], None, []
        self._rows[name] = row
        return self._writer.submit(batch)


_SORTED_AT_ONCE = 10_000
"""Python sorts a list in one go, and no other thread has a turn: 5 ms."""
_INSERTED = 50
"""Names; each moves those behind it, of 100,000 in 0.04 ms."""


def _sorted(there: set[str]) -> list[str]:
    names, rising = list(there), list[str]()
    for at in range(0, len(names), _SORTED_AT_ONCE):
        rising += sorted(names[at : at + _SORTED_AT_ONCE])
    return sorted(rising)  # runs that rise: they are merged, which takes a few steps a name


def _with_new(names: list[str], came: Iterable[str]) -> list[str]:
    """The sorted names, and those that came, each once."""
    new = {name for name in came if (at := bisect_left(names, name)) == len(names) or names[at] != name}
    if len(new) > _INSERTED:
        return sorted(chain(names, new))  # two runs, one of them short
    for name in new:
        insort(names, name)
    return names
