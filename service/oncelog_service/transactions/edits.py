"""What happened to transactions, as values; on disk the events of TRANSACTION_EDIT (storage/events.py draws them).

The state of all transactions is their fold (state.py).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from oncelog.wire.transaction import TransactionType
from oncelog_service.storage.events import KEYS, NUMBER, NUMBERS, OPTIONAL_TEXT, TEXT, EventLog, one_of
from oncelog_service.storage.port import Table


class Started(NamedTuple):
    """A transaction began."""

    pointer: int
    kind: TransactionType
    lifetime_ms: int
    """How long it may live. A duration: no clock can make it end sooner, or later."""
    owner: str | None = None
    """The principal that began it; None: nobody with a name."""


class HandedIn(NamedTuple):
    """can-commit was granted: a transaction's keys and, when it is prepared, the database that decides it."""

    pointer: int
    lifetime_ms: int
    resource: str | None
    changes: frozenset[bytes]


class Committed(NamedTuple):
    """A transaction committed; ``changes`` are the keys that commit brought beyond those handed in."""

    pointer: int
    changes: frozenset[bytes]


class Aborted(NamedTuple):
    """A transaction was undone."""

    pointer: int


class Invalidated(NamedTuple):
    """A transaction timed out, or was given up."""

    pointer: int


class Checkpointed(NamedTuple):
    """A transaction got a further write pointer."""

    pointer: int
    checkpoint: int


class Pruned(NamedTuple):
    """These transactions left the list of invalid ones."""

    pointers: tuple[int, ...]


class Enlisted(NamedTuple):
    """A participant is about to hold something under this pointer (of the transaction or of a checkpoint)."""

    pointer: int
    participant: str


class Acknowledged(NamedTuple):
    """A participant has dealt with the end of a transaction."""

    pointer: int
    participant: str


class ChangesDropped(NamedTuple):
    """The change sets that committed up to this commit pointer are dropped, whoever may still conflict with them."""

    commit_pointer: int


Edit: TypeAlias = (
    Started | HandedIn | Committed | Aborted | Invalidated | Checkpointed | Pruned | Enlisted | Acknowledged | ChangesDropped
)

EDITS = EventLog[Edit](
    Table.TRANSACTION_EDIT,
    "transaction edit",
    {
        Started: (NUMBER, one_of(*TransactionType), NUMBER, OPTIONAL_TEXT),
        HandedIn: (NUMBER, NUMBER, OPTIONAL_TEXT, KEYS),
        Committed: (NUMBER, KEYS),
        Aborted: (NUMBER,),
        Invalidated: (NUMBER,),
        Checkpointed: (NUMBER, NUMBER),
        Pruned: (NUMBERS,),
        Enlisted: (NUMBER, TEXT),
        Acknowledged: (NUMBER, TEXT),
        ChangesDropped: (NUMBER,),
    },
)
