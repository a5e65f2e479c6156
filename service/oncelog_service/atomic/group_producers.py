"""The producers of groups: under each name the newest numbered commit, which tells the next one from a repeat.

A name is that of who committed under it first, until it is forgotten. On disk it is a row with that commit's number, and a note
beside it that says where its commits went (repeats.py); both are written with the commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.errors import GroupProducerNotFound, ProducerFenced, SequenceGap
from oncelog.wire.models import GroupProducer, GroupTopic
from oncelog.wire.requests import CommitRequest
from oncelog_service.access.grants import EVERYBODY, Principal, Right
from oncelog_service.access.owners import check_owner, may_touch
from oncelog_service.atomic.ledger import Ledger
from oncelog_service.atomic.outcomes import Ended
from oncelog_service.atomic.plan import Transaction
from oncelog_service.atomic.records import TopicRef
from oncelog_service.atomic.repeats import Newest, Written, noted, written_by
from oncelog_service.bounds.holding import Held, check_held
from oncelog_service.group_commit import Writer
from oncelog_service.storage.incarnation import raised
from oncelog_service.storage.keys import group_producer_key
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.records import encode_record
from oncelog_service.topics.topics import Topics


class GroupProducers:
    """Knows every producer of a group. Belongs to one opening of the store and one event loop."""

    def __init__(
        self, newest: dict[tuple[str, str], Newest], ledger: Ledger, writer: Writer, topics: Topics, max_of_one: int
    ) -> None:
        """``newest``: what is on disk; ``max_of_one``: names that one owner may have."""
        self.newest = newest
        """(group, name) → its newest commit."""
        self._held = Held()
        """Names: each takes memory until it is forgotten."""
        for known in newest.values():
            self._held.add(known.row.owner, 1)
        self._ledger = ledger
        self._writer = writer
        self._topics = topics
        self._max_of_one = max_of_one

    # --- of a commit

    async def check(self, group: str, name: str, by: str | None, right: Right = Right.ADMIN) -> None:
        """Raises NotAllowed: the name is another principal's than ``by``; that is on disk then."""
        known = self.newest.get((group, name))
        if known is not None and not may_touch(known.row.owner, by):
            await self._writer.drained()
            check_owner(known.row.owner, by, producer_of(group, name), right)

    def check_name(self, group: str, producer: str | None, owner: str | None) -> None:
        """Raises QuotaExceeded unless the owner commits under a name that is known, or may have one more."""
        if producer is not None and (group, producer) not in self.newest:
            what, way_out = "names of producers in groups", "have those forgotten that are not needed"
            held, limit = self._held.of(owner), self._max_of_one
            check_held(owner, held, 1, limit, "group_producers", what, way_out, soon=False)

    def original(self, group: str, request: CommitRequest, by: str | None = None) -> Newest | None:
        """Returns the producer's newest commit, if its sequence id is that of this one or higher.

        Raises ProducerFenced; NotAllowed: the name is not that of ``by``, who might fence or outrun its principal; SequenceGap:
        both refuse gaps, and there is one between them.
        """
        if request.producer is None or request.sequence_id is None:
            return None
        known = self.newest.get((group, request.producer))
        if known is None:
            return None
        row = known.row
        check_owner(row.owner, by, producer_of(group, request.producer))
        if row.incarnation != request.incarnation:
            raise fenced(group, request.producer, request.incarnation, row.incarnation)
        if request.sequence_id <= row.sequence_id:
            return known
        expected = row.sequence_id + 1
        if request.refuses_gaps and known.refused_gaps and request.sequence_id != expected:
            raise SequenceGap(
                f"{producer_of(group, request.producer)} has come to number {row.sequence_id}: {expected} is the next one, and "
                f"{request.sequence_id} leaves out what should be between; nothing was stored",
                producer=request.producer,
                expected=expected,
                received=request.sequence_id,
            )
        return None

    async def went(self, of: Newest, itself: bool = False) -> list[Written] | None:
        """Returns where commits under a producer's name went, as far as that is known; None: nobody knows any more.

        ``itself``: only where the newest did, which wrote something.
        """
        if of.topics is not None:
            return of.topics if itself else [*of.topics, *of.earlier]
        row = of.row
        ended = await self._ledger.find(row.transaction)  # the row has no note; the outcome is kept for a time
        if not isinstance(ended, Ended) or ended.outcome.sequence_id != row.sequence_id:
            return None
        return written_by(ended.outcome) or None  # one without messages says nothing of those before it

    def note(
        self, batch: Batch, transaction: Transaction, request: CommitRequest, topics: Iterable[TopicRef], messages: int
    ) -> None:
        """Notes a commit as the newest under its name, if it has one, and adds that to ``batch``."""
        if request.producer is None:
            return
        name = transaction.group, request.producer
        before, went = self.newest.get(name), [Written(*each) for each in topics]
        known = self.newest[name] = noted(request, transaction, went, messages, before)
        if before is not None:
            self._held.add(before.row.owner, -1)
        self._held.add(known.row.owner, 1)
        assert known.note is not None
        batch.put(Table.GROUP_PRODUCER, group_producer_key(*name), encode_record(known.row))
        batch.put(Table.GROUP_NOTE, group_producer_key(*name), encode_record(known.note))

    # --- asked for

    async def show(self, group: str, name: str, principal: Principal = EVERYBODY) -> GroupProducer:
        """Returns the newest commit under a producer's name. Raises GroupProducerNotFound; NotAllowed: it is another's."""
        known = self.newest.get((group, name))
        await self._writer.drained()
        if known is None:
            raise GroupProducerNotFound(f"group {group[:249]!r} knows of no producer {name[:249]!r}")
        row = known.row
        check_owner(row.owner, principal.whose(Right.OPERATE), producer_of(group, name), Right.OPERATE)
        return GroupProducer(
            group=group,
            producer=name,
            sequence_id=row.sequence_id,
            incarnation=row.incarnation,
            transaction=row.transaction,
            messages=row.messages,
            checksum=row.checksum,
            owner=row.owner,
            topics=[await self._went(each) for each in await self.went(known) or ()],
        )

    async def _went(self, to: Written) -> GroupTopic:
        directory = self._topics.directory
        now, incarnation = await directory.generation(to.namespace, to.topic), directory.incarnation
        return GroupTopic(
            namespace=to.namespace,
            topic=to.topic,
            generation=raised(to.generation, incarnation),
            current_generation=None if now is None else raised(now, incarnation),
        )

    async def forget(self, group: str, name: str, incarnation: str | None = None, principal: Principal = EVERYBODY) -> None:
        """Forgets a producer: its next sequence id and incarnation may be any.

        ``incarnation``: only if its newest commit is of this one.

        Raises GroupProducerNotFound; ProducerFenced: it is of another; NotAllowed: the name is another principal's.
        Nothing is forgotten then.
        """
        await self.check(group, name, principal.whose(Right.OPERATE), Right.OPERATE)
        known = self.newest.get((group, name))
        if known is None or incarnation not in (None, known.row.incarnation):
            await self.show(group, name)  # the refusal waits until what it was judged against is synced
            assert known is not None
            raise fenced(group, name, incarnation, known.row.incarnation)
        self._writer.check()
        self._held.add(self.newest.pop((group, name)).row.owner, -1)
        batch = Batch()
        for table in (Table.GROUP_PRODUCER, Table.GROUP_NOTE):
            batch.delete(table, group_producer_key(group, name))
        await self._writer.submit(batch)


def producer_of(group: str, name: str) -> str:
    """Returns what a refusal calls a producer of a group."""
    return f"producer {name!r} of group {group!r}"


def fenced(group: str, producer: str, incarnation: str | None, current: str | None) -> ProducerFenced:
    """Returns the refusal of an incarnation that is not that of the producer's newest commit."""
    return ProducerFenced(
        f"producer {producer!r} of group {group!r} belongs to incarnation {current!r}, not to {incarnation!r}; "
        "use another name, or have the group forget this one",
        producer=producer,
        incarnation=incarnation,
        current_incarnation=current,
    )
