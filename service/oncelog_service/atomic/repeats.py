"""Where the numbered commits of a producer went: what a repeat is judged by, so that none is passed over which is not there.

A topic that is deleted takes its messages with it, and a group's producer outlives it. So a note beside its row
names the generation of each topic that its commits wrote to: once the topic was made anew, a number of then is no duplicate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from oncelog.errors import CommitGone
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest
from oncelog_service.atomic.plan import Transaction
from oncelog_service.storage.incarnation import Incarnation, raised
from oncelog_service.storage.records import GroupNoteRow, GroupProducerRow

ALLOWED, REFUSED = "allow", "refuse"
"""What a note says of gaps."""
MAX_EARLIER = 100
"""Topics of earlier commits that are kept of each producer: the row is written with every commit."""

Names = Collection[tuple[str, str]]
"""(namespace, topic) of each."""


class Written(NamedTuple):
    """A generation of a topic that commits of a producer went to."""

    namespace: str
    topic: str
    generation: int
    since: int | None = None
    """The first number that did, if earlier ones are known to have gone to an older generation."""


class Newest(NamedTuple):
    """The newest commit under a producer's name."""

    row: GroupProducerRow
    note: GroupNoteRow | None
    """None: a version that knows of none has written the row."""

    @property
    def topics(self) -> list[Written] | None:
        """Where it went, or the newest before it that wrote anything; None: no note says it."""
        return None if self.note is None else [Written(*each) for each in self.note.topics]

    @property
    def earlier(self) -> list[Written]:
        """Where else commits before it went, as far as that is known."""
        return [Written(*each) for each in self.note.earlier] if self.note else []

    @property
    def refused_gaps(self) -> bool:
        """Whether it was to come right behind the one before it."""
        return self.note is not None and self.note.gaps == REFUSED


def newest(row: GroupProducerRow, note: GroupNoteRow | None) -> Newest:
    """Puts a row and the note beside it together, unless that is about another commit."""
    fits = note is not None and (note.sequence_id, note.transaction) == (row.sequence_id, row.transaction)
    return Newest(row, note if fits else None)


def written_by(outcome: AtomicOutcome) -> list[Written]:
    """Returns where this commit went."""
    return [Written(each.namespace, each.topic, each.generation) for each in outcome.topics]


def noted(request: CommitRequest, became: Transaction, went: list[Written], messages: int, before: Newest | None) -> Newest:
    """Returns what is kept of a producer whose newest commit ``became`` this, and ``went`` there; ``before``: what was so far."""
    number = request.sequence_id
    assert number is not None  # it has a producer
    topics, earlier = (before and before.topics) or [], before.earlier if before else []
    if went:  # one without messages says nothing of where those before it went
        known = {each[:2]: each for each in (*earlier, *topics)}
        topics = [_behind(known.pop(each[:2], None), each, number) for each in went]
        earlier = list(known.values())[-MAX_EARLIER:]
    owner = (before and before.row.owner) or became.owner  # who takes a name keeps it, whoever else may commit under it
    row = GroupProducerRow(number, request.incarnation, became.id, messages, request.checksum, owner)
    gaps = REFUSED if request.refuses_gaps else ALLOWED
    return Newest(row, GroupNoteRow(number, became.id, [list(each) for each in topics], [list(each) for each in earlier], gaps))


def _behind(before: Written | None, this: Written, number: int) -> Written:
    if before is None:
        return this
    return this._replace(since=before.since if before.generation == this.generation else number)


async def gone(
    request: CommitRequest,
    group: str,
    original: GroupProducerRow,
    went: Iterable[Written] | None,
    concerned: Names,
    generation_of: Callable[[str, str], Awaitable[int | None]],
    incarnation: Incarnation,
) -> CommitGone | None:
    """Returns why a commit whose number is taken is no duplicate; None: it is one.

    Args:
        original: the newest commit of its producer.
        went: where that went, or if the repeat is not of that, where any did. None: nobody knows any more; then it is one if its
            topics never were made anew.
        concerned: the topics that the repeat would write to. Those of the original count if it is the repeat's.
        generation_of: the generation of a topic now; None: there is none, nor anything that a reader could miss in it.
        incarnation: of the store, for generations as clients are told them.
    """
    number = request.sequence_id
    assert number is not None  # it is taken
    same = number == original.sequence_id
    wrote = same and original.messages > 0  # else it went nowhere itself, and its row says where those before it did
    for each in [Written(*name, 0) for name in sorted(concerned)] if went is None else went:
        now = await generation_of(each.namespace, each.topic)
        if now is None or not (wrote or (each.namespace, each.topic) in concerned):
            continue
        if now == (each.generation or 1) and (same or each.since is None or number >= each.since):
            continue
        of_then = each.generation if each.generation not in (0, now) else None
        return _error(request, group, original.transaction if same else None, each, of_then, now, incarnation)
    return None


def _error(
    request: CommitRequest,
    group: str,
    transaction: str | None,
    topic: Written,
    then: int | None,
    now: int,
    incarnation: Incarnation,
) -> CommitGone:
    name, there = f"{topic.namespace}/{topic.topic}", raised(now, incarnation)
    return CommitGone(
        f"number {request.sequence_id} of producer {request.producer!r} of group {group!r} is taken by a commit to topic {name} "
        f"of before it was deleted; generation {there}, made anew, has nothing of that, and nothing was stored now. To write it "
        "again, have the group forget the producer, or commit it under another name, or under a number above all earlier ones",
        producer=request.producer,
        transaction=transaction,
        topic=name,
        generation=None if then is None else raised(then, incarnation),
        current_generation=there,
    )
