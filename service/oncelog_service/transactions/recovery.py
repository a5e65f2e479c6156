"""What the transaction service's memory is rebuilt from: the newest valid snapshot and the edits after it.

It refuses to know half of it: a missing or damaged edit is an error, never passed over.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from oncelog_service.storage.keys import AFTER_NUMBERS, SNAPSHOT_SLOTS, edit_key
from oncelog_service.storage.pieces import get_pieces
from oncelog_service.storage.port import Store, StoreDamaged, Table
from oncelog_service.transactions.edits import EditDamaged, decode_edit
from oncelog_service.transactions.snapshot import decode_snapshot
from oncelog_service.transactions.state import TransactionsState

_log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """All that memory holds of transactions when the service begins."""

    state: TransactionsState
    snapshots: list[int | None]
    """The number of the last edit in the snapshot of each slot; None where there is no valid one."""
    first_edit: int
    """The number of the oldest edit that is still stored, or of the next one."""


def recover(store: Store) -> Recovered:
    """Fold what is on disk.

    Raises:
        StoreDamaged: an edit is missing or cannot be read. StoreError: the store cannot be read.
    """
    stored = [get_pieces(store, Table.TRANSACTION_SNAPSHOT, slot) for slot in SNAPSHOT_SLOTS]
    states = [None if data is None else _snapshot(data) for data in stored]
    numbers = [None if state is None else state.number for state in states]
    state = max((each for each in states if each is not None), key=lambda each: each.number, default=TransactionsState())
    first = _first_edit(store, state.number + 1)
    if (
        not any(states)
        and (any(each is not None for each in stored) or first != 1)
        and store.get(Table.TRANSACTION_EDIT, edit_key(1)) is None
    ):
        raise StoreDamaged("no snapshot of the transactions is valid and their first edits are deleted; restore a backup")
    rows = store.scan(Table.TRANSACTION_EDIT, edit_key(state.number + 1), AFTER_NUMBERS)
    try:
        for key, data in rows:
            _replay(state, int.from_bytes(key, "big"), data)
    finally:
        rows.close()
    return Recovered(state, numbers, first)


def _replay(state: TransactionsState, number: int, data: bytes) -> None:
    if number != state.number + 1:
        raise StoreDamaged(f"transaction edit {state.number + 1} is missing: the next one stored is {number}")
    try:
        edit = decode_edit(number, data)
    except EditDamaged as damage:
        raise StoreDamaged(str(damage)) from damage
    state.apply(edit)


def _snapshot(data: bytes) -> TransactionsState | None:
    try:
        return decode_snapshot(data)
    except EditDamaged as damage:
        _log.warning("a snapshot of the transactions is damaged, the one before it and more edits are read instead: %s", damage)
        return None


def _first_edit(store: Store, upcoming: int) -> int:
    rows = store.scan(Table.TRANSACTION_EDIT, b"", AFTER_NUMBERS)
    try:
        return next((int.from_bytes(key, "big") for key, _ in rows), upcoming)
    finally:
        rows.close()
