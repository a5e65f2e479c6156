"""What is handed over while the writer is busy is stored as one addition, and each request is answered as if it had come alone.

The reference is a writer that nothing joins: the same requests, in the same order, at the same moments of the same writes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import OncelogError, StorageUnavailable
from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_dedup import LastEntry
from oncelog_service.cluster.leases import Lease
from oncelog_service.group_commit import Told, Writer
from oncelog_service.log.addition import Addition
from oncelog_service.log.limits import Limits
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import ROW_ID_SIZE, row_id
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.payload_rows import decode_payloads
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.rows import decode_rows, encode_messages, message_id_of
from oncelog_service.storage.runs import StoredRun, decode_run
from tests.patience import PATIENCE
from tests.service.house import BEGIN, PREFIX, House, numbered, opened, turns
from tests.world.clock import ManualClock
from tests.world.workers import InPlace


class HeldStore(MemoryStore):
    """Each write waits until it is let through, and can be read beside."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.standing = threading.Semaphore(0)
        self.through = threading.Semaphore(0)
        self.batches: list[int] = []
        """Of each write, how many it carried."""

    def write(self, batches: Sequence[Batch]) -> None:
        self.batches.append(len(batches))
        self.standing.release()
        assert self.through.acquire(timeout=PATIENCE)
        super().write(batches)


class Alone(Writer):
    """Nothing joins what is queued."""

    def join(self, batch: Batch, more: Callable[[], object], told: Told) -> bool:
        return False


class Run:
    """One log, whose writer is held between the steps: it stands in a write, and everything since is queued."""

    def __init__(self, house: House, store: HeldStore) -> None:
        self.house, self.store = house, store
        self.asked: list[asyncio.Task[object]] = []
        self._aside = house.writer.under(Lease(None, lambda: True))

    def hold(self) -> None:
        """Have the writer take everything that is queued, and stand in that write."""
        self._aside.submit(Batch())
        assert self.store.standing.acquire(timeout=PATIENCE)

    async def let(self) -> None:
        """The write at which the writer stands ends, and all that was queued by now is the next one."""
        self._aside.submit(Batch())
        self.store.through.release()
        assert self.store.standing.acquire(timeout=PATIENCE)
        await turns()

    async def answered(self) -> None:
        """Everything that was asked is answered."""
        while not all(each.done() for each in self.asked):
            await self.let()

    async def ask(self, what: Any) -> asyncio.Task[object]:
        self.asked.append(asyncio.ensure_future(what))
        await turns()
        return self.asked[-1]

    def finish(self) -> None:
        self.store.through.release(10_000)

    async def outcomes(self) -> list[object]:
        return [_plain(each) for each in await asyncio.gather(*self.asked, return_exceptions=True)]


def _plain(outcome: object) -> object:
    if isinstance(outcome, OncelogError):
        return outcome.to_problem()
    return type(outcome) if isinstance(outcome, BaseException) else outcome


async def ran(kind: type[Writer], drive: Callable[[Run], Any], **settings: Any) -> tuple[object, ...]:
    """What came of it: each answer, and all that is on disk and in memory."""
    asyncio.get_running_loop().set_default_executor(InPlace())
    disk = Disk()
    store = HeldStore(disk)
    clock = ManualClock(BEGIN)
    async with opened(disk, clock, writing=kind, store=store, **settings) as house:
        run = Run(house, store)
        run.hold()
        try:
            await drive(run)
        finally:
            run.finish()
        outcomes = await run.outcomes()
        await house.writer.drained()  # also what somebody who gave up had handed over
        fold, keys, topic = house.log.dedup.fold, house.log.topic.keys, house.log.topic
        memory = (sorted(fold.items()), fold.position, dict(fold.unsettled), topic.counts.own)
        by_key = None if keys is None else (sorted(keys.fold.items()), keys.upcoming_offset, keys.last_message_id)
        # Message by message: what waits together is laid together.
        at_hand = [row for each in topic.cache.runs(b"") for row in decode_rows(each)] if topic.cache.messages else []
        on_disk: dict[Table, object] = {table: dict(disk.tables[table]) for table in (Table.GROUP, Table.PRODUCER)}
        on_disk[Table.MESSAGE] = [row for each in _runs(disk, Table.MESSAGE) for row in decode_rows(each)]
        on_disk[Table.PAYLOAD] = [payload for each in _runs(disk, Table.PAYLOAD) for payload in decode_payloads(each)]
        assert not any(map(house.log.dedup.in_flight, "pqr"))
    return outcomes, memory, by_key, at_hand, on_disk


def _runs(disk: Disk, table: Table) -> list[StoredRun]:
    return [decode_run(key[:-ROW_ID_SIZE], key[-ROW_ID_SIZE:], row) for key, row in sorted(disk.tables[table].items())]


# --- the property

FOREIGN = BEGIN * POINTERS_PER_MS + 5


@dataclass
class Ask:
    """A request at a moment; numbers are small, so that requests repeat, overlap, leave out and lose to each other."""

    producer: str | None
    first: int
    count: int
    payload: bytes = b"x"
    epoch: int | None = None
    keys: str = ""
    """Of the messages in turn; "-" for none."""
    expects: dict[str, Any] = field(default_factory=dict)
    pointer: int | None = None
    stores: bool = False
    broken: bool = False
    """It cannot be encoded."""

    def request(self) -> PublishRequest:
        payloads = [b"%s%d" % (self.payload, self.first + each) for each in range(self.count)]
        request = PublishRequest(payloads) if self.producer is None else numbered(payloads, self.producer, self.first)
        request.epoch, request.write_pointer = self.epoch, self.pointer
        if self.keys:
            named = [None if each == "-" else each.encode() for each in self.keys]
            request.keys = (named * self.count)[: self.count]
        if self.broken:
            request.properties = [{"a": "\ud800"}] * self.count
        return replace(request, **self.expects)


small = st.integers(0, 6)
nothing: st.SearchStrategy[dict[str, Any]] = st.just({})
expectations = st.one_of(
    *(6 * [nothing]),
    st.fixed_dictionaries({"expected_offset": small}),
    st.fixed_dictionaries({"expected_last_message_id": st.just(bytes(20))}),
    st.fixed_dictionaries({"expected_key_offsets": st.dictionaries(st.sampled_from("ab"), st.none() | small, min_size=1)}),
)
plain = st.builds(
    Ask,
    producer=st.sampled_from(["p", "p", "p", "q", "r", None]),
    first=small,
    count=st.integers(1, 3),
    payload=st.sampled_from([b"x", b"x", b"x", b"x", b"y"]),
    epoch=st.sampled_from([*[None] * 8, 1, 2]),
    keys=st.sampled_from(["", "", "a", "ab-", "-b"]),
    expects=expectations,
    broken=st.sampled_from([*[False] * 15, True]),
)
transactional = st.builds(
    Ask,
    producer=st.sampled_from(["p", "r", None]),
    first=small,
    count=st.integers(1, 2),
    pointer=st.just(FOREIGN),
    stores=st.booleans(),
)
others = st.one_of(
    transactional,
    st.tuples(st.just("cancel"), small),
    st.tuples(st.just("open"), st.sampled_from("pq")),
    st.tuples(st.just("settle"), st.booleans()),
    st.tuples(st.just("appear"), st.none()),
    st.tuples(st.just("tick"), st.integers(-1, 1)),
)
steps = st.lists(st.one_of(*(9 * [plain]), others, others, st.tuples(st.just("let"), st.none())), min_size=4, max_size=40)


async def drive(run: Run, told: Sequence[Ask | tuple[str, Any]]) -> None:
    log = run.house.log
    for gaps, name in (("refuse", "q"), ("allow", "p")):
        await run.ask(log.producers.open(name, "first", gaps))  # type: ignore[arg-type]
        await run.answered()
    for step in told:
        if isinstance(step, Ask):
            await run.ask((log.store if step.stores else log.publish)(step.request()))
            continue
        kind, value = step
        if kind == "cancel":
            run.asked[-1 - min(value, len(run.asked) - 1)].cancel()
        elif kind == "open":
            await run.ask(log.producers.open(value, "again", "allow"))
        elif kind == "settle":
            await run.ask(log.settling.end_foreign(FOREIGN, committed=value))
        elif kind == "appear":
            await run.ask(log.publish(PublishRequest([], write_pointer=FOREIGN)))
        elif kind == "tick":
            run.house.log.topic.clock.advance(value)  # type: ignore[attr-defined]
        else:
            await run.let()
    await run.answered()


@given(steps, st.booleans(), st.booleans())
def test_each_is_judged_stored_and_answered_as_if_nothing_had_joined_it(
    told: Sequence[Ask | tuple[str, Any]], keyed: bool, deduplication: bool
) -> None:
    said = {"keyed": keyed, "deduplication": deduplication, "limits": Limits(foreign_write_pointers=True)}
    together, alone = (asyncio.run(ran(kind, lambda run: drive(run, told), **said)) for kind in (Writer, Alone))
    for at, (first, second) in enumerate(zip(together, alone, strict=True)):
        assert first == second, f"part {at}"


# --- what is shared, and what is not


async def requests(run: Run, count: int) -> list[asyncio.Task[object]]:
    return [await run.ask(run.house.log.publish(numbered([b"m%d" % each], f"p{each}", 0))) for each in range(count)]


async def test_all_that_wait_are_one_batch_and_one_block_in_order_and_awake_together() -> None:
    async def meet(run: Run) -> None:
        asked = await requests(run, 64)
        await run.let()
        assert not any(each.done() for each in asked)
        assert run.store.batches[-1] == 2, "one of the requests, one of this test"
        await run.let()
        assert all(each.done() for each in asked)
        answers: list[PublishResponse] = [each.result() for each in asked]  # type: ignore[misc]
        assert [each.receipts[0].offset for each in answers] == [*range(64)]
        assert [each.start_sequence_id for each in answers] == [each.end_sequence_id for each in answers] == [*range(64)]
        assert run.house.writer.counts.group.sum >= 64, "what joined is counted"
        assert len(run.store.disk.tables[Table.MESSAGE]) == 1, "laid together"

    *_, at_hand, on_disk = await ran(Writer, meet)
    assert at_hand == on_disk[Table.MESSAGE]  # type: ignore[index]


async def test_a_topic_that_is_closed_answers_what_was_handed_over_and_refuses_the_rest() -> None:
    async def meet(run: Run) -> None:
        asked = await requests(run, 4)
        closing = asyncio.ensure_future(run.house.log.close(snapshot=False))
        await turns()
        late = await run.ask(run.house.log.publish(PublishRequest([b"late"])))
        with pytest.raises(StorageUnavailable):
            await late
        run.asked.remove(late)
        run.finish()
        await closing
        assert all(each.done() for each in asked)
        assert run.house.log.position.upcoming_offset == 4

    await ran(Writer, meet)


def test_of_what_joined_a_write_the_highest_sequence_id_counts_and_of_equal_ones_the_first_and_all_keys() -> None:
    addition, ids = Addition(PREFIX, 0, None), [row_id(1, each) for each in range(3)]
    for at, sequence_id in enumerate((0, 1, 1)):
        entry = LastEntry(sequence_id, message_id_of(ids[at]), at)
        messages = encode_messages(Columns([b"x"], "p", [sequence_id]), ids[at : at + 1], at)
        addition.add(ids[at : at + 1], messages, None, ("p", entry), ((f"key {at}", entry),))
    assert addition.run.last_entries == (("p", LastEntry(1, message_id_of(ids[1]), 1)),)
    assert [name for name, _ in addition.keyed.last_entries] == ["key 0", "key 1", "key 2"]
