"""What is counted of the whole process, and how it is at this moment."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from oncelog.errors import StorageUnavailable
from oncelog_service.atomic.coordinator import AtomicCommits
from oncelog_service.counting.counts import Counts
from oncelog_service.health import is_damaged, writing_seconds
from oncelog_service.metrics.families import COUNTER, GAUGE, Measure
from oncelog_service.metrics.overview import Overview
from oncelog_service.service import Service
from oncelog_service.transactions.edits import Aborted, Committed, Started
from oncelog_service.transactions.manager import TransactionManager

COUNTED: Sequence[Measure[Counts]] = (
    Measure(COUNTER, "writes", "Synced writes", lambda it: it.group.count),
    Measure(COUNTER, "submissions", "Requests that those writes carried", lambda it: it.group.sum),
    Measure(COUNTER, "messages", "Messages stored", lambda it: it.topics.all.messages),
    Measure(COUNTER, "bytes", "Bytes of payloads, keys and properties taken in", lambda it: it.topics.all.bytes),
    Measure(COUNTER, "duplicates", "Messages refused as duplicates", lambda it: it.topics.all.duplicates),
    Measure(COUNTER, "delivered", "Messages handed to readers and consumers", lambda it: it.topics.all.delivered),
    Measure(COUNTER, "delivered_bytes", "Bytes of the answers that had them", lambda it: it.topics.all.delivered_bytes),
    Measure(COUNTER, "replayed", "Messages replayed when topics were opened", lambda it: it.replayed),
    Measure(COUNTER, "transactions_started", "Transactions started", lambda it: it.transactions[Started]),
    Measure(COUNTER, "transactions_committed", "Transactions committed", lambda it: it.transactions[Committed]),
    Measure(COUNTER, "transactions_aborted", "Transactions aborted", lambda it: it.transactions[Aborted]),
    Measure(COUNTER, "transactions_timed_out", "Transactions that timed out", lambda it: it.timed_out),
    Measure(COUNTER, "atomic_committed", "Atomic commits", lambda it: it.atomic_committed),
    Measure(COUNTER, "atomic_aborted", "Atomic commits aborted", lambda it: it.atomic_aborted),
)
"""As long as the process lives."""

ALWAYS: Sequence[Measure[Service]] = (
    Measure(COUNTER, "store_failures", "Times the store failed and had to be reopened", lambda it: it.failures.count),
    Measure(
        COUNTER,
        "background_failures",
        "Times a background task met an unforeseen error and went on",
        lambda it: it.background.failures,
    ),
    Measure(COUNTER, "disk_refusals", "Requests that were refused since the disk has no room", lambda it: it.room.refused),
    Measure(GAUGE, "store_damaged", "Whether writes fail again and again since what is stored is damaged", is_damaged),
    Measure(GAUGE, "store_open", "Whether the store is open", lambda it: _serves(it)),
    Measure(
        GAUGE, "write_under_way_seconds", "For how long the write has been under way that the store is in; 0: it is in none",
        writing_seconds,
    ),
    Measure(
        GAUGE, "read_under_way_seconds", "For how long the read has been under way that looks whether the store answers; 0: none",
        lambda it: it.looking.seconds,
    ),
    Measure(GAUGE, "connections", "Connections that are open", lambda it: it.traffic.connections),
    Measure(
        GAUGE, "certificate_left_seconds", "Until the certificate expires that is shown to clients; infinite where there is none",
        lambda it: _certificate_left(it),
    ),
    Measure(GAUGE, "body_bytes", "Request bodies in hand", lambda it: it.traffic.body_bytes),
    Measure(GAUGE, "waiting_requests", "Requests that wait for their topic's turn", lambda it: it.turns.waiting_requests),
    Measure(GAUGE, "waiting_bytes", "Bytes of these", lambda it: it.turns.waiting),
    Measure(GAUGE, "unread_bytes", "Answers that are written and not read yet", lambda it: it.traffic.unread_bytes),
)  # fmt: skip
"""Also while the store is not open."""

WHILE_OPEN: Sequence[Measure[Service]] = (
    Measure(GAUGE, "queue_submissions", "Requests that wait for the next write", lambda it: it.opening.writer.queued()[0]),
    Measure(GAUGE, "queue_bytes", "Bytes of these", lambda it: it.opening.writer.queued()[1]),
    Measure(GAUGE, "open_topics", "Topics that are open", lambda it: len(it.opening.topics.logs.opened)),
    Measure(GAUGE, "cache_bytes", "Memory held by recent messages", lambda it: it.opening.cache.size),
    Measure(
        GAUGE, "disk_free_bytes", "Bytes that can still be written to the disk a moment ago; infinite where nobody can tell",
        lambda it: it.room.free,
    ),
    Measure(GAUGE, "disk_min_free_bytes", "Below so many nothing more is taken in", lambda it: it.room.floor),
    Measure(
        GAUGE, "disk_full", "Whether nothing more is taken in until the disk has room again", lambda it: it.room.state == "full"
    ),
    Measure(GAUGE, "leases", "Leases that this instance holds on a shared store", lambda it: it.opening.leases.held),
)  # fmt: skip
"""Raises StorageUnavailable while it is not."""

OF_OPEN_TOPICS: Sequence[Measure[Overview]] = (
    Measure(
        GAUGE, "unsnapshotted_messages", "Messages of open topics that no snapshot has, which an opening would replay",
        lambda it: it.unsnapshotted,
    ),
    Measure(
        GAUGE, "snapshot_age_seconds", "For how long an open topic has had messages that no snapshot has, of all the longest",
        lambda it: it.snapshot_age,
    ),
    Measure(GAUGE, "subscriptions", "Subscriptions of the topics that are open", lambda it: it.subscriptions),
    Measure(
        GAUGE, "largest_lag", "Offsets that the subscription farthest behind, of the topics that are open, has before it",
        lambda it: it.lags[0][0] if it.lags else 0,
    ),
    Measure(
        GAUGE, "held_topics", "Open topics that hold messages back since a transaction is not decided", lambda it: it.held,
    ),
    Measure(
        GAUGE, "held_seconds",
        "For how long the oldest undecided message of the topics that are open has held back what is behind it",
        lambda it: it.held_seconds,
    ),
)  # fmt: skip

OF_TRANSACTIONS: Sequence[Measure[TransactionManager]] = (
    Measure(GAUGE, "transactions_in_progress", "Transactions in progress", lambda it: len(it.state.open)),
    Measure(
        GAUGE, "transactions_invalid", "Write pointers that no new transaction may ever see", lambda it: len(it.state.invalids)
    ),
)

OF_ATOMIC_COMMITS: Sequence[Measure[AtomicCommits]] = (
    Measure(GAUGE, "atomic_open", "Atomic commits and branches that have not ended", lambda it: len(it.ledger.open)),
)


def _serves(service: Service) -> bool:
    try:
        service.opening.leases.check_alive()
    except StorageUnavailable:
        return False
    return True


def _certificate_left(service: Service) -> float:
    ends_ms = service.traffic.edge().certificate_ends_ms
    return inf if ends_ms is None else (ends_ms - service.clock.now_ms()) / 1000
