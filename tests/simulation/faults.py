"""Faults to plant: each breaks one promise, and some seed must see it. What none sees is a hole in the world or in its model."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from unittest import mock

from oncelog.producing.twins import ProducerTwin
from oncelog.reading import twins
from oncelog.sql.outbox.database import OutboxDatabase
from oncelog_dedup import SequenceMap, Snapshot
from oncelog_dedup.deduplicator import Deduplicator, Verdict
from oncelog_service.access.access import Access
from oncelog_service.atomic.endings import Endings
from oncelog_service.cluster.leases import Lease
from oncelog_service.group_commit import Writer
from oncelog_service.log import settling
from oncelog_service.log.keep import recovery
from oncelog_service.log.keep.removal import Removal
from oncelog_service.log.keep.snapshots import Snapshots
from oncelog_service.log.read import pages, polls
from oncelog_service.rest.exchange import Step
from oncelog_service.rest.handlers.messages import PublishStep
from oncelog_service.storage.memory import MemoryStore
from oncelog_service.storage.port import Batch
from tests.world.workers import LoopWorker

Plant: TypeAlias = tuple[Any, str, Any]
"""Of what, which member, and what it becomes."""


def acknowledged_before_the_sync() -> Iterator[Plant]:
    for name in ("hand_over", "join"):
        before = getattr(Writer, name)

        def early(self: Any, batch: Any, more: Any, told: Any, before: Any = before) -> Any:
            found = before(self, batch, more, lambda _: None)
            if found is not False:
                asyncio.get_running_loop().call_soon(told, None)
            return found

        yield Writer, name, early


def a_step_answers_before_the_sync() -> Iterator[Plant]:
    begin, told = PublishStep.begin, PublishStep._told

    def early(self: PublishStep, behind: Step | None = None) -> bool:
        if done := begin(self, behind):
            asyncio.get_running_loop().call_soon(told, self, None)
        return done

    yield PublishStep, "begin", early
    yield PublishStep, "_told", lambda self, error: None


def the_loop_writes_before_the_worker_has_told() -> Iterator[Plant]:
    def late(self: LoopWorker, call: Callable[..., object], *args: object) -> None:
        self._reports.append(lambda: call(*args))
        self._after(0.02, self._tell)

    yield Writer, "_end_turn_soon", lambda self: self._loop.call_soon(self._end_turn)
    yield LoopWorker, "report", late


def duplicates_are_new() -> Iterator[Plant]:
    yield Deduplicator, "judge", lambda self, producer, ids: Verdict(0, 0, len(ids))


def the_last_id_is_new_again() -> Iterator[Plant]:
    def judge(self: Any, producer: str, ids: Sequence[int]) -> Verdict:
        last, pushed = self.fold.get(producer), self._pushed.get(producer)
        persisted = 0 if last is None else bisect_left(ids, last.sequence_id)
        known = persisted if pushed is None else bisect_right(ids, pushed.sequence_id)
        return Verdict(persisted, known - persisted, len(ids) - known)

    yield Deduplicator, "judge", judge


def a_failed_write_is_passed_over() -> Iterator[Plant]:
    yield Writer, "give_up", lambda self, error: None


def replay_loses_the_last_message() -> Iterator[Plant]:
    before: Any = getattr(recovery, "replay")  # noqa: B009
    yield recovery, "replay", lambda snapshot, found, *args: before(snapshot, list(found)[:-1], *args)


def a_producer_resumes_one_too_far() -> Iterator[Plant]:
    before: Any = vars(ProducerTwin)["last_sequence_id"].fget
    yield ProducerTwin, "last_sequence_id", property(lambda self: None if (last := before(self)) is None else last + 1)


def what_failed_stays_in_the_map() -> Iterator[Plant]:
    before = Writer._decided

    def decided(self: Any, group: Any, standing: Any, lost: Any, failure: Any, seconds: float, ahead: float) -> None:
        if failure is not None:
            for each in standing:
                each.on_written()
        before(self, group, standing, lost, failure, seconds, ahead)

    yield Writer, "_decided", decided
    yield Writer, "give_up", lambda self, error: None


def half_of_a_write_is_there() -> Iterator[Plant]:
    before = MemoryStore._apply

    def apply(self: Any, batches: Sequence[Any]) -> None:
        before(self, list(batches)[:-1] if self.disk.writes % 50 == 49 and len(batches) > 1 else batches)

    yield MemoryStore, "_apply", apply


def a_message_of_another_topic_is_acknowledged() -> Iterator[Plant]:
    yield twins, "check_place", lambda message, namespace, topic, generation, whose: None


def writes_stand_on_no_lease() -> Iterator[Plant]:
    yield Writer, "fence", lambda self, batch: None
    yield Lease, "is_valid", True


def a_revoked_token_is_let_in() -> Iterator[Plant]:
    before = Access._index

    def index(self: Any, tokens: Sequence[Any]) -> None:
        if len(tokens) >= len(self._tokens):
            before(self, tokens)

    yield Access, "_index", index


def a_trim_is_not_on_disk() -> Iterator[Plant]:
    before = Removal._put_trim

    async def put_trim(self: Any, batch: Any, row: Any, *, erased: bool = False) -> None:
        if erased:
            await before(self, batch, row, erased=erased)
        else:
            self._noted(row, erased)

    yield Removal, "_put_trim", put_trim


def an_erasure_is_not_on_disk() -> Iterator[Plant]:
    before = Removal._put_trim

    async def put_trim(self: Any, batch: Any, row: Any, *, erased: bool = False) -> None:
        await before(self, Batch() if erased else batch, row, erased=erased)

    yield Removal, "_put_trim", put_trim


def every_attempt_of_a_task_is_committed() -> Iterator[Plant]:
    def branches(self: Any, transaction: Any, request: Any, by: object) -> list[Any]:
        return [each for each in self._ledger.open.values() if each.of == transaction.id] if request.branches else []

    yield Endings, "_branches", branches


def a_relay_numbers_anew_what_another_one_has_numbered() -> Iterator[Plant]:
    before = OutboxDatabase.seen

    def seen(self: Any) -> Any:
        found = before(self)
        return None if found is None else found._replace(plan=type(found.plan)())

    yield OutboxDatabase, "seen", seen


def a_poll_is_given_what_is_undecided() -> Iterator[Plant]:
    yield polls, "COMMITTED", "nothing"


def a_transaction_sees_what_is_decided_later() -> Iterator[Plant]:
    before = pages.sight
    seen = {pages.Sight.UNDECIDED: pages.Sight.SEEN}

    def sight(transaction: Any, pointer: int) -> pages.Sight:
        return seen.get(found := before(transaction, pointer), found)

    yield pages, "sight", sight


def a_forged_rollback_is_answered() -> Iterator[Plant]:
    yield settling, "_are_rolled_back", lambda *args: True


def a_snapshot_passes_what_is_undecided() -> Iterator[Plant]:
    before = Snapshots._current

    def current(self: Any) -> list[Snapshot]:
        live = SequenceMap()
        for producer, last_entry in self._fold.items():
            live.raise_to(producer, last_entry)
        return [Snapshot(live, self._fold.position), *before(self)[1:]]

    yield Snapshots, "_current", current


SOON = {
    "acknowledged_before_the_sync": 25,
    "a_failed_write_is_passed_over": 25,
    "what_failed_stays_in_the_map": 25,
    "writes_stand_on_no_lease": 46,
    "a_trim_is_not_on_disk": 6,
    "a_relay_numbers_anew_what_another_one_has_numbered": 4,
}
"""Fault → a seed that sees it soon."""
ANY = (18, 25, 2, 5, 24)
"""Seeds of which one sees any other; short ones first."""
FAULTS: Mapping[str, Callable[[], Iterator[Plant]]] = {
    each.__name__: each
    for each in (
        acknowledged_before_the_sync,
        a_step_answers_before_the_sync,
        the_loop_writes_before_the_worker_has_told,
        duplicates_are_new,
        the_last_id_is_new_again,
        a_failed_write_is_passed_over,
        replay_loses_the_last_message,
        a_producer_resumes_one_too_far,
        what_failed_stays_in_the_map,
        half_of_a_write_is_there,
        writes_stand_on_no_lease,
        a_message_of_another_topic_is_acknowledged,
        a_revoked_token_is_let_in,
        a_trim_is_not_on_disk,
        an_erasure_is_not_on_disk,
        every_attempt_of_a_task_is_committed,
        a_relay_numbers_anew_what_another_one_has_numbered,
        a_poll_is_given_what_is_undecided,
        a_transaction_sees_what_is_decided_later,
        a_forged_rollback_is_answered,
        a_snapshot_passes_what_is_undecided,
    )
}


def planted(name: str) -> list[Any]:
    """The patches of a fault, to be entered."""
    return [mock.patch.object(owner, member, value) for owner, member, value in FAULTS[name]()]


def seen_by(name: str) -> Iterator[int]:
    """Seeds by which a fault is to be seen, in the order in which they are worth a try."""
    if name in SOON:
        yield SOON[name]
    yield from ANY
