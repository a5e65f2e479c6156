"""Two transaction services hand out write pointers on one topic, ours and Tephra: neither takes or hides what is the other's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import UnknownWritePointer
from oncelog.wire.requests import PublishRequest, PublishResponse, Rollback
from oncelog_service.log.limits import Limits
from oncelog_service.storage.memory import Disk
from tests.model.rows import entries
from tests.service.house import BEGIN, House, opened
from tests.world.clock import ManualClock

BOTH = Limits(foreign_write_pointers=True)


@dataclass
class Tephra:
    """The other service: it counts up from the beginning of each millisecond, and looks at nobody else's pointers."""

    clock: ManualClock
    last: int = 0

    def start(self) -> int:
        self.last = max(self.last + 1, self.clock.now_ms() * 1_000_000)
        return self.last


@dataclass
class Told:
    """A transaction, and the messages that were published in it."""

    pointer: int
    ours: bool
    payloads: list[bytes] = field(default_factory=list)
    answers: list[PublishResponse] = field(default_factory=list)
    aborted: bool = False


async def end(house: House, told: Told, committed: bool) -> None:
    told.aborted = not committed
    if told.ours:
        await (house.transactions.commit if committed else house.transactions.abort)(told.pointer)
        await house.log.settle(told.pointer, committed)
    elif not committed:  # its client rolls back what it was answered
        for each in told.answers:
            first, last = (each.start_timestamp, each.start_sequence_id), (each.end_timestamp, each.end_sequence_id)
            await house.log.settling.roll_back(Rollback(told.pointer, first, last))


def check(disk: Disk, all_told: Sequence[Told]) -> None:
    counts = {each.payload: each.counts for each in entries(disk.tables, "orders")}
    assert counts == {payload: not told.aborted for told in all_told for payload in told.payloads}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.booleans()),
        st.tuples(st.just("publish"), st.integers(0, 5)),
        st.tuples(st.just("publish"), st.integers(0, 5)),
        st.tuples(st.just("checkpoint"), st.integers(0, 5)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("abort"), st.integers(0, 5)),
        st.tuples(st.just("clock"), st.integers(-2, 2)),
    ),
    min_size=20,
    max_size=40,
)


async def history(told: Sequence[tuple[str, int]]) -> None:
    clock, disk = ManualClock(BEGIN), Disk()
    async with opened(disk, clock, BOTH) as house:
        tephra, begun, serial = Tephra(clock), [], 0
        living: list[Told] = []
        for what, value in told:
            if what == "clock":
                clock.ms += value
            elif what == "begin":
                living.append(Told(await house.start() if value else tephra.start(), bool(value)))
                begun.append(living[-1])
            elif living:
                chosen = living[-1 - value % len(living)]
                if what == "publish":
                    serial += 1
                    chosen.payloads.append(b"%d" % serial)
                    request = PublishRequest([b"%d" % serial], write_pointer=chosen.pointer)
                    chosen.answers.append(await house.log.publish(request))
                elif what == "checkpoint" and chosen.ours:
                    await house.transactions.checkpoint(chosen.pointer)
                elif what == "checkpoint":
                    tephra.start()
                else:
                    living.remove(chosen)
                    await end(house, chosen, what == "commit")
        check(disk, begun)


@given(steps)
def test_whatever_both_do_in_the_same_milliseconds_nothing_of_one_is_refused_or_hidden_by_the_other(
    told: Sequence[tuple[str, int]],
) -> None:
    asyncio.run(history(told))


@pytest.mark.parametrize("place", [500_000, 999_999])
async def test_a_foreign_pointer_from_where_ours_lie_is_refused_and_told_whose_it_may_be(place: int) -> None:
    async with opened(Disk(), limits=BOTH) as house:
        request = PublishRequest([b"x"], write_pointer=BEGIN * 1_000_000 + place)
        for publish in (house.log.publish, house.log.store):
            with pytest.raises(UnknownWritePointer, match=r"Tephra.*tx-serve") as refusal:
                await publish(request)
            assert (refusal.value.definite, refusal.value.write_pointer) == (True, request.write_pointer)
        assert house.log.position.upcoming_offset == 0
        await house.log.publish(PublishRequest([b"x"], write_pointer=BEGIN * 1_000_000 + 499_999))
