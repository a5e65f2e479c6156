"""Rebuilds the transaction service's memory: from the newest valid snapshot and the edits after it.

It refuses to know half of it: a missing or damaged edit is an error, never passed over.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import NamedTuple

from oncelog_service.storage.events import EventDamaged
from oncelog_service.storage.incarnation import find_incarnation
from oncelog_service.storage.keys import AFTER_NUMBERS, SNAPSHOT_SLOTS, edit_key
from oncelog_service.storage.pieces import get_pieces
from oncelog_service.storage.port import Store, StoreDamaged, Table
from oncelog_service.transactions.edits import EDITS
from oncelog_service.transactions.openings import Opening, find_openings
from oncelog_service.transactions.outcomes import read_outcomes
from oncelog_service.transactions.snapshot import decode_snapshot
from oncelog_service.transactions.state import TransactionsState

_log = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """Everything that memory holds of transactions when the service begins."""

    state: TransactionsState
    snapshots: list[int | None]
    """The number of the last edit in the snapshot of each slot; None where there is no valid one."""
    first_edit: int
    """The number of the oldest edit that is still stored, or of the next one."""
    first_ms: int
    """No pointer that is handed out from now on is of an earlier time: an earlier incarnation of the store may have had it."""
    openings: list[Opening]
    """Those that have handed out write pointers before this one."""


def recover(store: Store) -> Recovered:
    """Folds what is on disk.

    Raises:
        StoreDamaged: an edit is missing or cannot be read. StoreError: the store cannot be read.
    """
    stored = [get_pieces(store, Table.TRANSACTION_SNAPSHOT, slot) for slot in SNAPSHOT_SLOTS]
    states = [None if data is None else _snapshot(data) for data in stored]
    numbers = [None if state is None else state.number for state in states]
    state = max((each for each in states if each is not None), key=lambda each: each.number, default=TransactionsState())
    first = _first_edit(store, state.number + 1)
    # Without a snapshot everything is folded from the first edit on: where that is deleted, a snapshot was there that held it.
    if not any(states) and any(each is not None for each in stored) and store.get(Table.TRANSACTION_EDIT, edit_key(1)) is None:
        raise StoreDamaged("no snapshot of the transactions is valid and their first edits are deleted; restore a backup")
    if state.committed:
        outcomes = read_outcomes(store, [each.pointer for each in state.committed])
        state.attribute({pointer: outcome.owner for pointer, outcome in outcomes.items()})
    EDITS.replay(store, edit_key, state.number + 1, state.apply)
    return Recovered(state, numbers, first, find_incarnation(store).pointers_ms, find_openings(store))


def _snapshot(data: bytes) -> TransactionsState | None:
    try:
        return decode_snapshot(data)
    except EventDamaged as damage:
        _log.warning("a snapshot of the transactions is damaged, the one before it and more edits are read instead: %s", damage)
        return None


def _first_edit(store: Store, upcoming: int) -> int:
    with closing(store.scan(Table.TRANSACTION_EDIT, b"", AFTER_NUMBERS)) as rows:
        return next((int.from_bytes(key, "big") for key, _ in rows), upcoming)
