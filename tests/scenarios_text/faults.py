"""Faults to plant: each breaks one promise, and the scenario that is named must come out otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from unittest import mock

from oncelog.api.retry import Tries
from oncelog.errors import CommitGone, InvalidRequest, OncelogError
from oncelog.http.transport import Requests
from oncelog.wire.requests import CommitRequest
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_dedup.sequence_map import SequenceMap
from oncelog_dedup.snapshot import Snapshot, SnapshotDamaged
from oncelog_service import renewal
from oncelog_service.atomic import endings
from oncelog_service.atomic.group_producers import GroupProducers
from oncelog_service.log import checks
from oncelog_service.log.groups import pointers
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.settling import Settling
from oncelog_service.rest.routes import Call
from oncelog_service.storage.incarnation import next_number
from oncelog_service.storage.records import EndedRow
from oncelog_service.transactions import decisions
from tests.simulation.faults import Plant, a_poll_is_given_what_is_undecided


def our_pointers_come_from_both_halves() -> Iterator[Plant]:
    yield decisions, "_next_pointer", lambda state, now_ms: max(state.last + 1, now_ms * POINTERS_PER_MS)


def an_unknown_pointer_of_our_half_is_foreign() -> Iterator[Plant]:
    yield pointers, "is_own", lambda pointer: False


def an_operators_word_is_in_memory_alone() -> Iterator[Plant]:
    async def note_end(self: Any, pointer: int, committed: bool) -> None:
        self._pointers.ended_by_hand[pointer] = EndedRow(committed, 0)

    yield Settling, "_note_end", note_end


def no_commit_is_gone() -> Iterator[Plant]:
    async def gone(*args: object) -> CommitGone | None:
        return None

    yield endings, "gone", gone


def a_numbered_commit_may_leave_gaps() -> Iterator[Plant]:
    before = GroupProducers.original

    def original(self: GroupProducers, group: str, request: CommitRequest, by: str | None = None) -> Any:
        with mock.patch.object(request, "refuses_gaps", False):
            return before(self, group, request, by)

    yield GroupProducers, "original", original


def a_short_wait_counts_as_none() -> Iterator[Plant]:
    before, first = Call.still, dict[int, tuple[Call, float]]()

    def still(self: Call) -> None:
        now = self.service.clock.monotonic()
        if now - first.setdefault(id(self), (self, now))[1] >= 0.005:
            before(self)

    yield Call, "still", still


def a_grant_is_asked_for_when_it_is_staged_alone() -> Iterator[Plant]:
    yield Call, "may_write", lambda self, namespace, topic, producers=(): None


def ids_of_a_lost_time_are_taken() -> Iterator[Plant]:
    before = OpenTopic.check_message_id

    def check_message_id(self: OpenTopic, message_id: bytes) -> None:
        with mock.patch.object(self, "lost", ()):
            before(self, message_id)

    yield OpenTopic, "check_message_id", check_message_id


def an_incarnation_is_numbered_by_the_clock_alone() -> Iterator[Plant]:
    yield renewal, "next_number", lambda known, now_ms, chance: next_number(0, now_ms, chance)


def the_mark_of_an_erasure_is_refused() -> Iterator[Plant]:
    def check_mark(payload: bytes, properties: Mapping[str, str]) -> None:
        raise InvalidRequest("only the service lays it")

    yield checks, "check_mark", check_mark


def what_a_poll_waits_is_trying() -> Iterator[Plant]:
    before = Tries.wait_after

    def wait_after(self: Any, error: OncelogError, now: float, fraction: float) -> float | None:
        self._is_heard = False
        return before(self, error, now, fraction)

    yield Tries, "wait_after", wait_after


def nobody_else_is_asked() -> Iterator[Plant]:
    async def who_serves(*_: object) -> str | None:
        return None

    yield Requests, "who_serves", who_serves


def no_snapshot_can_be_read() -> Iterator[Plant]:
    def from_bytes(data: bytes) -> Snapshot:
        raise SnapshotDamaged("not a snapshot")

    yield Snapshot, "from_bytes", from_bytes


def what_came_before_is_lost_in_a_merge() -> Iterator[Plant]:
    yield SequenceMap, "precede", lambda self, producer, last_entry: None


SEEN_BY: Collection[tuple[Callable[[], Iterator[Plant]], str]] = (
    (our_pointers_come_from_both_halves, "foreign_pointers"),
    (an_unknown_pointer_of_our_half_is_foreign, "foreign_in_our_half"),
    (an_operators_word_is_in_memory_alone, "foreign_pointers"),
    (no_commit_is_gone, "commit_gone"),
    (a_numbered_commit_may_leave_gaps, "atomic_gap"),
    (a_poll_is_given_what_is_undecided, "transaction_commits"),
    (a_short_wait_counts_as_none, "revoked_at_once"),
    (a_grant_is_asked_for_when_it_is_staged_alone, "granted_less"),
    (ids_of_a_lost_time_are_taken, "restored_positions"),
    (an_incarnation_is_numbered_by_the_clock_alone, "renewed_twice"),
    (the_mark_of_an_erasure_is_refused, "erased_copied"),
    (what_a_poll_waits_is_trying, "poll_is_retried"),
    (nobody_else_is_asked, "silent_instance"),
    (no_snapshot_can_be_read, "known_by_snapshots"),
    (what_came_before_is_lost_in_a_merge, "behind_the_undecided"),
)
"""A fault, and the name of the scenario."""
