"""Shows the rows of a topic as they lie in its tables, so that one can find what became of a message.

Bounded in rows, and of a payload only the beginning: this is to be looked at, not to be processed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from oncelog.errors import InvalidRequest, TransactionsUnavailable
from oncelog.message_id import MessageId
from oncelog.wire.models import InspectedGroup, InspectedPayload, InspectedRow, RowState
from oncelog_service.log.groups.payloads import pointers_with_payloads
from oncelog_service.log.groups.stored import payloads, read_group_row
from oncelog_service.log.keep.recovery import rows
from oncelog_service.log.open_topic import OpenTopic
from oncelog_service.log.read.polls import Polls
from oncelog_service.log.scan import last_payloads
from oncelog_service.reading import read
from oncelog_service.storage.keys import FIRST_PAYLOAD_ID, ROW_ID_SIZE
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import Row

SHOWN_BYTES = 100
"""Of each payload."""


class Glance(NamedTuple):
    """What is undecided on a topic at one moment."""

    undecided: frozenset[int]
    """Write pointers."""
    upcoming_offset: int


class Inspection:
    """Shows what lies in the tables of one open topic, and what became of it."""

    __slots__ = ("_fold", "_polls", "_prefix", "_store", "_topic", "_transactions")

    def __init__(self, topic: OpenTopic, polls: Polls) -> None:
        self._prefix = topic.prefix
        self._store = topic.store
        self._fold = topic.dedup.fold
        self._transactions = topic.transactions
        self._topic = topic
        self._polls = polls

    def glance(self) -> Glance:
        """What is undecided at this very moment: to be taken before rows are read, and held against them by ``row_state``."""
        return Glance(frozenset(self._fold.unsettled), self._fold.position.upcoming_offset)

    def row_state(self, glance: Glance, pointer: int, offset: int) -> RowState:
        """What became of a row that was read after ``glance``; a negative pointer is that of a row which is rolled back.

        A row that was undecided at one of the two moments is taken for in progress: what was read of it may be older than
        what is known by now. Nobody is asked.
        """
        if pointer < 0:
            return "rolled_back"
        undecided = pointer in glance.undecided or pointer in self._fold.unsettled
        return "in_progress" if undecided or offset >= glance.upcoming_offset else "committed"

    async def rows(self, first: int, limit: int) -> list[InspectedRow]:
        """Rows of the log from the offset ``first`` on, as they lie there. Raises OffsetOutOfRange, TopicDamaged."""
        if first < 0:
            raise InvalidRequest(f"an offset is 0 or more, not {first}")
        self._topic.check_open()
        glance = self.glance()
        found = await read(_rows, self._store, self._prefix, await self._polls.start_at_offset(first), limit)
        states = [
            None
            if each.write_pointer is None
            else self.row_state(glance, _signed(each.write_pointer, each.rolled_back), each.offset)
            for each in found
        ]
        asked = {row.write_pointer for row, state in zip(found, states, strict=True) if state in ("in_progress", "rolled_back")}
        said = await self._transactions_say([each for each in asked if each is not None])
        return [
            row.model_copy(update={"state": _told(state, said.get(row.write_pointer or 0))})
            for row, state in zip(found, states, strict=True)
        ]

    async def groups(self, limit: int) -> list[InspectedGroup]:
        """What is stored apart from the log. Raises TopicDamaged."""
        self._topic.check_open()
        found = await read(_groups, self._store, self._prefix, limit)
        states = await self._transactions_say([each.write_pointer for each in found if each.write_pointer is not None])
        return [each.model_copy(update={"state": states.get(each.write_pointer or 0)}) for each in found]

    async def payloads(self, pointer: int, limit: int) -> list[InspectedPayload]:
        """What is stored under one write pointer. Raises TopicDamaged."""
        self._topic.check_open()
        return await read(_payloads, self._store, self._prefix, pointer, limit)

    async def _transactions_say(self, pointers: Sequence[int]) -> dict[int, RowState]:
        try:
            states = await self._transactions.states(pointers) if pointers else {}
        except TransactionsUnavailable:
            return {}
        return {pointer: "rolled_back" if state == "aborted" else state for pointer, state in states.items()}


def _rows(store: Store, prefix: bytes, start: bytes, limit: int) -> list[InspectedRow]:
    """Returns the rows of the Message Table from the key ``start`` on. Raises TopicDamaged."""
    with closing(rows(store, prefix, start[:ROW_ID_SIZE])) as each:
        return [_inspected(row) for row in islice(each, limit)]


def _inspected(row: Row) -> InspectedRow:
    return InspectedRow(
        message_id=MessageId.from_bytes(row.message_id),
        offset=row.offset,
        messages=row.messages,
        group=row.group is not None,
        producer=row.producer,
        sequence_id=row.sequence_id,
        key=_text(row.key),
        ttl=row.ttl,
        write_pointer=None if row.write_pointer is None else abs(row.write_pointer),
        rolled_back=row.write_pointer is not None and row.write_pointer < 0,
        payload_bytes=len(row.payload),
        payload=_text(row.payload[:SHOWN_BYTES]) or "",
    )


def _groups(store: Store, prefix: bytes, limit: int) -> list[InspectedGroup]:
    """Returns what is stored apart from the log, by write pointer. Raises TopicDamaged."""
    found = []
    for pointer in pointers_with_payloads(store, prefix)[:limit]:
        row, last = read_group_row(store, prefix, pointer), last_payloads(store, prefix, pointer)
        published = None if row is None or row.row_id is None else bytes.fromhex(row.row_id) + FIRST_PAYLOAD_ID
        found.append(
            InspectedGroup(
                write_pointer=pointer if pointer > 0 else None,
                atomic_number=-pointer if pointer < 0 else None,
                messages=0 if last is None else last.end,
                published=None if published is None else MessageId.from_bytes(published),
                expired=row is not None and row.row_id is None,
                producer=None if row is None else row.producer,
            )
        )
    return found


def _payloads(store: Store, prefix: bytes, pointer: int, limit: int) -> list[InspectedPayload]:
    """Returns the payloads stored under one write pointer, in the order of storing. Raises TopicDamaged."""
    return [
        InspectedPayload(
            payload_id=each.payload_id.hex(),
            index=each.group_index,
            producer=each.producer,
            sequence_id=each.sequence_id,
            payload_bytes=len(each.payload),
            payload=_text(each.payload[:SHOWN_BYTES]) or "",
        )
        for each in islice(payloads(store, prefix, pointer), limit)
    ]


def _text(data: bytes | None) -> str | None:
    """As text; bytes that are none are shown as escapes."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _signed(pointer: int, rolled_back: bool) -> int:
    return -pointer if rolled_back else pointer


def _told(state: RowState | None, said: RowState | None) -> RowState | None:
    """What is known here of a row, made precise by what the transaction service says of its transaction."""
    if state == "in_progress":
        return said or "unknown"
    return "invalid" if state == "rolled_back" and said == "invalid" else state
