"""What happened to the transactions of atomic commits, as values; on disk the events of JOURNAL (storage/events.py draws them).

What is known of the transactions of a partition is the fold of its records (plan.py).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from oncelog_service.storage.events import NUMBER, NUMBERS, OPTIONAL_TEXT, TEXT, EventLog, record
from oncelog_service.storage.port import Table


class TopicRef(NamedTuple):
    """One generation of a topic."""

    namespace: str
    topic: str
    generation: int


class Begin(NamedTuple):
    """A transaction began."""

    number: int
    id: str
    group: str
    began: int
    """Milliseconds."""
    expires: int
    """Milliseconds: when it is given up unless it is committing by then."""
    of: str | None
    """Of a branch: the id of the transaction that it is for, which need not have begun."""
    owner: str | None = None
    """The principal that began it; None: nobody with a name."""


class Enlist(NamedTuple):
    """A topic holds chunks of it. Durable no later than the first of them."""

    number: int
    topic: TopicRef


class Commit(NamedTuple):
    """It is committed: it has ended, and its branches with it. In one write with the rows of all its topics and the outcome."""

    number: int
    branches: tuple[int, ...]
    """Numbers of the other transactions that became part of it, in their order."""


class Abort(NamedTuple):
    """It has ended and nothing of it is to be seen. In one write with the outcome, which says why."""

    number: int


Record: TypeAlias = Begin | Enlist | Commit | Abort

RECORDS = EventLog[Record](
    Table.JOURNAL,
    "record of atomic commits",
    {
        Begin: (NUMBER, TEXT, TEXT, NUMBER, NUMBER, OPTIONAL_TEXT, OPTIONAL_TEXT),
        Enlist: (NUMBER, record(TopicRef, TEXT, TEXT, NUMBER)),
        Commit: (NUMBER, NUMBERS),
        Abort: (NUMBER,),
    },
)
