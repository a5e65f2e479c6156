"""The rooms of a store's topics, put together, and what one open topic is made of."""

from __future__ import annotations

from functools import partial

from oncelog_service.clock import Clock
from oncelog_service.cluster.leases import Leases
from oncelog_service.group_commit import Writer
from oncelog_service.log.cache import RecentMessages
from oncelog_service.log.limits import Limits
from oncelog_service.log.open_topic import OpenTopic, Recovered
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.reading import Scans
from oncelog_service.storage.port import Store
from oncelog_service.storage.records import TopicRow
from oncelog_service.topics.changes import Changes
from oncelog_service.topics.directory import Directory, TopicName
from oncelog_service.topics.listing import Listing
from oncelog_service.topics.logs import Logs
from oncelog_service.topics.participants import Participants
from oncelog_service.topics.policies import Policies
from oncelog_service.topics.rolled_back import RolledBack
from oncelog_service.transactions.port import Transactions
from oncelog_service.transactions.wanted import participant


class Topics:
    """Every topic over one opening of the store. Belongs to the event loop that owns the writer."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        clock: Clock,
        cache: RecentMessages,
        limits: Limits,
        transactions: Transactions,
        store_id: str,
        *,
        leases: Leases,
        scans: Scans,
    ) -> None:
        """Reads the store. ``store_id``: this store among those that share a transaction service."""
        self.transactions = transactions
        """Knows how transactions ended; topics ask it."""
        self.directory = Directory(store)
        self.policies = Policies(store, writer, leases, limits)
        self.rolled_back = RolledBack(store)

        def build(name: TopicName, row: TopicRow, prefix: bytes, under_lease: Writer, recovered: Recovered) -> TopicLog:
            topic = OpenTopic(
                prefix=prefix,
                row=row,
                store=store,
                writer=under_lease,
                clock=clock,
                limits=limits,
                transactions=transactions,
                participant=participant(store_id, *name, row.generation),
                incarnation=self.directory.incarnation,
                rules_of=partial(self.policies.rules, name[0]),
                cache=cache.topic(),
                counts=writer.counts.topics.of(name),
                rolled_back_by_hand=self.rolled_back.keys,
                recovered=recovered,
            )
            return TopicLog(topic, recovered, scans)

        self.logs = Logs(store, writer, leases, scans, self.directory, self.policies, build)
        self.listing = Listing(store, leases, scans, self.directory, self.policies, self.logs)
        self.changes = Changes(store, writer, leases, clock, limits, self.directory, self.policies, self.logs)
        self.participants = Participants(store_id, leases, self.directory, self.logs)
