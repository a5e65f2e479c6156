"""Topics as participants of transactions: of which ends this process wants to hear, and what becomes of one that it hears of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from oncelog_service.cluster.leases import Leases, topic_resource
from oncelog_service.cluster.placement import preferred
from oncelog_service.storage.keys import topic_key
from oncelog_service.topics.directory import Directory
from oncelog_service.topics.logs import Logs
from oncelog_service.transactions.wanted import Wanted, topic_of_participant


class Participants:
    """Belongs to the event loop of the logs."""

    def __init__(self, store_id: str, leases: Leases, directory: Directory, logs: Logs) -> None:
        """``store_id``: this store among those that share a transaction service."""
        self._store_id = store_id
        self._leases = leases
        self._directory = directory
        self._logs = logs

    def wanted(self, without: frozenset[str]) -> Wanted:
        """Of which participants' ends this process wants to be notified: those that it serves, ``without`` some."""
        alive = self._leases.alive
        if alive is None:
            return Wanted(without=without)
        member, ids = alive
        also = {
            log.participant
            for name, log in self._logs.opened.items()
            if log.waits_for_an_end and preferred(topic_resource(topic_key(*name)), ids) != member
        }
        return Wanted(member, ids, frozenset(also) - without, without)

    def unsettled(self) -> dict[str, list[int]]:
        """The pointers that are unsettled on each topic that is open here, by its name as a participant."""
        return {log.participant: [*log.dedup.fold.unsettled] for log in self._logs.opened.values()}

    async def settle(self, participant: str, pointer: int, committed: bool) -> None:
        """Tell a participant of this service how a transaction ended. One that is gone has nothing to settle, nor has one whose
        name is no generation of a topic: anybody may enlist under any name."""
        try:
            namespace, topic, generation = topic_of_participant(participant)
        except ValueError:
            return
        log = self._logs.opened.get((namespace, topic))
        if log is None:
            row = await self._directory.row(namespace, topic)
            if row is None or row.deleted:
                return
            log = await self._logs.open(namespace, topic)
        log.topic.check_open()  # one of an earlier lease may be of an earlier generation than the participant
        if log.row.generation == generation:
            await log.settle(pointer, committed)

    def named(self, participants: Iterable[str]) -> list[tuple[str, str, int]]:
        """Returns the topics of this store, with their generations, among participants of a transaction; of another store's
        nobody here knows who may write there."""
        found, own = list[tuple[str, str, int]](), f"{self._store_id}:"
        for each in participants:
            with suppress(ValueError):  # a service enlists under any name
                found += [topic_of_participant(each)] if each.startswith(own) else []
        return found
