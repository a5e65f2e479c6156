"""Trims, erasures, publishes of every kind, retention, stops and crashes in any order, against a model that is a page long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import MessageInTransaction, MessagesExpired, OffsetOutOfRange
from oncelog.message_id import MessageId
from oncelog.values.receipt import Receipts
from oncelog.wire.columns import decode_message_columns, unpack
from oncelog.wire.models import EraseMessage, TopicAsked, TrimTopic
from oncelog.wire.requests import ConsumeRequest, PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.bounds.size import MaxBytes
from oncelog_service.log.read.pages import AS_ONCELOG
from oncelog_service.log.scan import expired_rows, runs_from, stored_in
from oncelog_service.log.verify import verify_log
from oncelog_service.storage.keys import FIRST_ROW_ID
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.runs import GROUP
from tests.examples import examples
from tests.service.house import PREFIX, House, crashed, opened
from tests.service.undecided import Undecided
from tests.world.clock import ManualClock
from tests.world.polls import decoded

PRODUCER = "p"
KEYS = (None, b"a", b"b")


@dataclass
class Written:
    """One message of the log."""

    payload: bytes
    key: bytes | None
    pointer: int | None
    sequence_id: int | None
    message_id: bytes = b""
    published_ms: int = 0
    erased: bool = False


@dataclass
class Model(Undecided[Written]):
    """What must be."""

    begin: int = 0


class Run:
    """Does the same to the log and to the model, and compares what they answer."""

    def __init__(self, limit: MaxBytes | None = None) -> None:
        self.disk, self.clock, self.model, self.limit = Disk(), ManualClock(), Model(), limit
        self.sent: list[PublishRequest] = []
        """By the named producer."""
        self.next_id = 0

    async def through(self, lives: Sequence[Sequence[Any]]) -> None:
        for *steps, end in lives:
            async with opened(self.disk, self.clock, clean=end == "stop", keyed=True, max_bytes=self.limit) as self.house:
                await self._settled()
                await self._compare(1)
                for at, (name, *rest) in enumerate(steps):
                    await getattr(self, f"_{name}")(*rest)
                    await self._settled()
                    await self._compare(1 + at % 7)
                await self._resend()
                *_, found = verify_log(self.house.store, self.house.log)
                assert not found.problems
            if end == "crash":
                self.disk = crashed(self.disk)

    @property
    def _house(self) -> House:
        return self.house

    async def _settled(self) -> None:
        """Return when the topic does nothing by itself any more."""

    # --- what is answered

    async def _compare(self, limit: int) -> None:
        log, model = self._house.log, self.model
        assert log.topic.size.present == self._bytes(model.begin)
        left = [(offset, each) for offset, each in enumerate(model.log) if offset >= model.begin]
        found, position = list[Any](), None
        while True:
            records, last, *_ = decoded(
                await log.poll(ConsumeRequest(position, inclusive=position is None, limit=limit), AS_ONCELOG)
            )
            if last is None:
                break
            found += records
            position = last
        assert [(each["offset"], each["payload"], each["key"]) for each in found] == [
            (offset, b"" if each.erased else each.payload, each.key) for offset, each in left
        ]
        for record, (_, each) in zip(found, left, strict=True):
            each.message_id = each.message_id or record["id"]
            assert record["id"] == each.message_id
            assert record["sequenceId"] == each.sequence_id
            expected = {"oncelog.erased"} if each.erased else {"said"}
            assert set(record["properties"]) == expected
        offsets = await log.ranges.offsets(TopicAsked())
        stable = offsets.stable
        assert stable <= model.stable, "it may not have been said yet how transactions ended"
        assert offsets.earliest == min(model.begin, stable)
        begin = max(model.begin, log.earliest_offset)
        columns = decode_message_columns(await log.ranges.columns(min(begin, stable), stable))
        assert unpack(columns.values) == [
            b"" if each.erased else each.payload for each in model.log[begin:stable] if each.pointer not in model.rolled_back
        ]
        refused = ConsumeRequest(start_offset=0, refuse_expired=True)
        if model.begin:
            with pytest.raises(MessagesExpired) as raised:
                await log.poll(refused, AS_ONCELOG)
            assert (raised.value.earliest, raised.value.upcoming) == (model.begin, len(model.log))
        await log.poll(ConsumeRequest(start_offset=model.begin, refuse_expired=True), AS_ONCELOG)

    def _bytes(self, begin: int) -> int:
        """What messages take whose runs do not end before this offset."""
        found = 0
        with closing(runs_from(self._house.store, PREFIX, FIRST_ROW_ID)) as runs:
            for run in runs:
                if run.end > begin:
                    group = run.flags & GROUP
                    there = [*stored_in(self._house.store, PREFIX, run)] if group else [run]
                    found += sum(len(body) for each in there for body in each.bodies())
        return found

    async def _resend(self) -> None:
        """All that the producer has sent, from the first to the last: duplicates."""
        end = len(self.model.log)
        for request in self.sent:
            response = await self._house.log.publish(request)
            assert {run.status for run in response.receipts} == {"duplicate"}
        if self.sent:
            receipts = Receipts(response.receipts)
            for receipt in receipts:
                offset = next(at for at, each in enumerate(self.model.log) if each.sequence_id == receipt.sequence_id)
                is_known = offset >= self._house.log.earliest_offset or receipt == receipts[-1]
                assert receipt.offset == offset or (receipt.offset is None and not is_known), "the newest request is found"
        assert self._house.log.position.upcoming_offset == end

    # --- what is done

    def _messages(self, count: int, pointer: int | None = None, named: bool = False) -> tuple[list[Written], PublishRequest]:
        self.clock.advance(1)
        begin = len(self.model.log)
        ids = range(self.next_id, self.next_id + count) if named else None
        written = [
            Written(b"message %d" % (begin + at), KEYS[(begin + at) % 3], pointer, None if ids is None else ids[at])
            for at in range(count)
        ]
        request = PublishRequest(
            [each.payload for each in written],
            PRODUCER if named else None,
            sequence_ids=ids,
            keys=[each.key for each in written],
            properties=[{"said": str(at)} for at in range(count)],
            write_pointer=pointer,
        )
        return written, request

    async def _publish(self, count: int, named: bool) -> None:
        written, request = self._messages(count, named=named)
        await self._house.log.publish(request)
        self._appear(written)
        if named:
            self.sent.append(request)
            self.next_id += count

    async def _transact(self, count: int, stored: bool) -> None:
        pointer = await self._start()
        written, request = self._messages(count, pointer)
        if stored:
            await self._house.log.store(request)
            request = PublishRequest([], write_pointer=pointer)
        await self._house.log.publish(request)
        self.model.undecided.add(pointer)
        self._appear(written)

    async def _start(self) -> int:
        return (await self._house.transactions.start(TransactionType.SHORT)).write_pointer

    def _appear(self, written: list[Written]) -> None:
        for each in written:
            each.published_ms = self._house.log.last_timestamp
        self.model.log += written

    async def _end(self, at: int, commit: bool) -> None:
        await self.model.end(self._house, at, commit)

    async def _trim(self, at: int, by_time: bool) -> None:
        model, removal = self.model, self._house.log.removal
        stable = self._house.log.ranges.stable
        before = at % (len(model.log) + 1)
        if by_time and before < len(model.log):
            ms = model.log[before].published_ms
            before = next(offset for offset, each in enumerate(model.log) if each.published_ms >= ms)
            asked = TrimTopic(before_time=ms)
            before = min(before, stable)
        else:
            asked = TrimTopic(before_offset=before)
            if before > stable:
                with pytest.raises(OffsetOutOfRange):
                    await removal.trim(asked)
                return
        model.begin = max(model.begin, before)
        for _ in range(2):
            assert (await removal.trim(asked)).earliest_offset == model.begin

    async def _erase(self, at: int, by_id: bool) -> None:
        model, log = self.model, self._house.log
        if not model.log:
            return
        offset = at % len(model.log)
        message = model.log[offset]
        asked = EraseMessage(offset=offset)
        if by_id and message.message_id:
            asked = EraseMessage(message_id=MessageId.from_bytes(message.message_id))
        if offset < log.earliest_offset:
            with pytest.raises(MessagesExpired):
                await log.removal.erase(asked)
        elif message.pointer in model.undecided:
            with pytest.raises(MessageInTransaction):
                await log.removal.erase(asked)
        else:
            first, second = await log.removal.erase(asked), await log.removal.erase(asked)
            assert first == second
            assert first.offset == offset
            message.erased = True
            assert all(message.payload + b"\x00" not in row + b"\x00" for row in self._rows()), "whole, at the end of a body"

    def _rows(self) -> list[bytes]:
        return [row for table in self.disk.tables.values() for row in table.values()]

    async def _retain(self, limit: int) -> None:
        log = self._house.log
        rows = expired_rows(self._house.store, PREFIX, 0, self.clock.now_ms(), limit)
        stable = log.ranges.stable
        assert await log.removal.delete(rows) == sum(row.end <= stable for row in rows)
        assert log.earliest_offset <= self.model.begin


steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("publish"), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("transact"), st.integers(1, 5), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 7), st.booleans()),
    st.tuples(st.just("trim"), st.integers(0, 60), st.booleans()),
    st.tuples(st.just("erase"), st.integers(0, 60), st.booleans()),
    st.tuples(st.just("erase"), st.integers(0, 60), st.booleans()),
    st.tuples(st.just("retain"), st.integers(1, 10)),
)
lives = st.tuples(st.lists(steps, max_size=20), st.sampled_from(["stop", "crash"])).map(lambda life: [*life[0], life[1]])
BEGIN = [
    *(("publish", 6, True), ("transact", 4, True), ("transact", 3, False), ("publish", 2, False)),
    *(("end", 0, True), ("end", 0, False), ("erase", 2, False), ("erase", 7, True), ("erase", 11, False)),
    *(("trim", 3, False), ("retain", 10), ("trim", 8, False), "crash"),
]


@examples(10)
@given(st.lists(lives, min_size=1, max_size=4))
def test_whatever_happens_readers_are_given_what_is_left_in_its_place_and_nothing_is_forgotten(found: list[Any]) -> None:
    asyncio.run(Run().through([BEGIN, *found]))
