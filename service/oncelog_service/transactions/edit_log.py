"""Appends the edits of transactions in their order, takes snapshots when they are due, and deletes the edits that both hold.

Two snapshots are kept, in two slots written in turn, as of topics: if the newest is damaged, the one before it and more edits
give the same state. A snapshot is due after ``snapshot_edits`` edits and as many as the state has entries, so that however large
the state is, writing it costs no more than a fixed share of writing edits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from oncelog.errors import OncelogError
from oncelog_service.group_commit import Writer
from oncelog_service.storage.keys import SNAPSHOT_SLOTS, edit_key
from oncelog_service.storage.pieces import put_pieces
from oncelog_service.storage.port import Batch, Table
from oncelog_service.transactions.edits import EDITS, Committed, Edit, HandedIn
from oncelog_service.transactions.recovery import Recovered
from oncelog_service.transactions.snapshot import encode_snapshot
from oncelog_service.transactions.state import TransactionsState

_log = logging.getLogger(__name__)

_ENCODED_AT_ONCE = 2_000
"""States up to this size are encoded on the event loop; larger ones are copied and encoded on a thread."""
_DELETED_AT_ONCE = 1_000
_KEYS_AT_ONCE = 500
"""Keys of an edit up to which it is encoded here; more are by the write: 20,000 are sorted and joined in 30 ms."""


class EditLog:
    """Writes edits and snapshots. Belongs to one event loop and one opening of the store."""

    def __init__(self, recovered: Recovered, writer: Writer, snapshot_edits: int) -> None:
        self._writer = writer
        self._snapshot_edits = snapshot_edits
        self._snapshots = recovered.snapshots
        self._first_edit = recovered.first_edit
        self._covered = max((number for number in recovered.snapshots if number is not None), default=0)
        """The last edit that the newest snapshot, also one that is being written, holds."""
        self._running: asyncio.Future[None] | None = None
        self._trimming = False

    def append(self, state: TransactionsState, edits: Sequence[Edit], batch: Batch, lazily: bool = False) -> asyncio.Future[None]:
        """Submits the edits, together with what else is in ``batch``, and applies them.

        Raises StorageUnavailable; then neither has happened.
        """
        for number, edit in enumerate(edits, state.number + 1):
            keys = edit.changes if isinstance(edit, HandedIn | Committed) else ()
            EDITS.put(batch, edit_key(number), edit, sum(map(len, keys)) if len(keys) > _KEYS_AT_ONCE else 0)
        # What can refuse is asked before anything moves: an edit that is applied and not submitted would be in answers, and
        # never on disk.
        self._writer.check()
        with self._writer.moving():
            done = (self._writer.submit_lazily if lazily else self._writer.submit)(batch)
            for edit in edits:
                state.apply(edit)
        if self._running is None and state.number - self._covered >= max(self._snapshot_edits, state.size):
            self._begin(state)
        return done

    async def close(self, state: TransactionsState) -> None:
        """Leaves a snapshot that holds everything. Raises StorageFailed or StorageUnavailable."""
        while self._running is not None:
            await asyncio.wait([self._running])
        if self._covered < state.number:
            await self._begin(state)

    def _begin(self, state: TransactionsState) -> asyncio.Future[None]:
        self._covered = state.number
        if state.size <= _ENCODED_AT_ONCE:
            self._running = self._submit(encode_snapshot(state), state.number)
        else:
            self._running = asyncio.ensure_future(self._encode_and_submit(state.copy()))
        self._running.add_done_callback(self._ended)
        return self._running

    async def _encode_and_submit(self, copy: TransactionsState) -> None:
        data = await asyncio.to_thread(encode_snapshot, copy)
        await self._submit(data, copy.number)

    def _submit(self, data: bytes, number: int) -> asyncio.Future[None]:
        # Over the older of the two: should this one be damaged, the one before it and more edits give the same state.
        slot = 0 if (self._snapshots[0] or -1) <= (self._snapshots[1] or -1) else 1
        batch = Batch()
        put_pieces(batch, Table.TRANSACTION_SNAPSHOT, SNAPSHOT_SLOTS[slot], data)
        return self._writer.submit_lazily(batch, lambda: self._written(slot, number))

    def _written(self, slot: int, number: int) -> None:
        self._snapshots[slot] = number
        if not self._trimming:
            self._trim()

    def _ended(self, ended: asyncio.Future[None]) -> None:
        self._running = None
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not isinstance(error, OncelogError):  # of those the writer has told
            _log.error("a snapshot of the transactions failed; the next one will be taken later: %s", error, exc_info=error)

    def _trim(self) -> None:
        """Deletes edits that both snapshots hold, slice after slice."""
        end = min(self._covered_by_both + 1, self._first_edit + _DELETED_AT_ONCE)
        self._trimming = end > self._first_edit
        if not self._trimming:
            return
        batch = Batch()
        for number in range(self._first_edit, end):
            batch.delete(Table.TRANSACTION_EDIT, edit_key(number))
        self._first_edit = end
        self._writer.submit_lazily(batch, self._trim)  # where it is refused, the next opening of the store goes on here

    @property
    def _covered_by_both(self) -> int:
        return min(number or 0 for number in self._snapshots)
