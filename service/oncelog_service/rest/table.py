"""The table of all addresses."""

from __future__ import annotations

from oncelog import errors
from oncelog.wire.codec import media_types_of
from oncelog.wire.media import JSON, NDJSON, ONCELOG_AVRO, THRIFT
from oncelog.wire.models import Backup, TopicOffsets, Verification
from oncelog_service.access.grants import Right
from oncelog_service.rest.handlers import (
    atomic,
    backups,
    cluster,
    console,
    held,
    inspection,
    messages,
    producers,
    ranges,
    status,
    subscriptions,
    tokens,
    topics,
    transactions,
    verification,
)
from oncelog_service.rest.routes import (
    ATOMIC_COMMIT,
    ATOMIC_COMMITS,
    CONSOLE,
    GROUP_PRODUCER,
    HAND_OVER,
    HELD,
    HELD_ON_TOPIC,
    NAMESPACE,
    PARTICIPANT,
    PRODUCER,
    STAGE,
    SUBSCRIPTION,
    SUBSCRIPTIONS,
    TOKEN,
    TOKENS,
    TOPIC,
    TRANSACTION,
    TRANSACTIONS,
    Route,
)


def _avro(name: str) -> dict[str, str]:
    return dict.fromkeys(media_types_of(name), name)


_LIMIT = {"limit": "at most so many, 1 to 2000"}
_OF_A_GENERATION = {"generation": "of the topic; refused when it is another"}
_NAMED = {"after": "names behind this one", **_LIMIT}
_PROPERTIES = {JSON: dict[str, str | int | bool]}
_FOR = {
    transactions.OWNER: "whose the transaction is, empty: whoever's; from services, for their clients, with the right service"
}
_TRANSACTION = {JSON: transactions.StartedTransaction, THRIFT: bytes}

_TAKE_PART = (Right.READ, Right.WRITE, Right.SERVICE)
"""Of who begins a transaction: a snapshot is for who reads, a write pointer for who writes; services ask for their clients."""
_ENDED = (errors.TransactionNotFound, errors.TransactionNotInProgress)
_CONFLICT = (*_ENDED, errors.TransactionConflict)

TRANSACTION_ROUTES = (
    Route(
        "POST", TRANSACTIONS, transactions.start, "Start a transaction",
        (errors.Overloaded, errors.QuotaExceeded, errors.DiskFull),
        query=_FOR, gives=_TRANSACTION, right=None, one_of=_TAKE_PART,
    ),
    Route(
        "GET", TRANSACTIONS, transactions.list_, "List transactions in progress, or invalid ones",
        query={"state": "in_progress (the default) or invalid", "after": "write pointers above this one", **_LIMIT, **_FOR},
        right=None,
    ),
    Route(
        "POST", TRANSACTIONS + "/prune", transactions.prune, "Prune the list of invalid transactions",
        right=Right.OPERATE, audited=True,
    ),
    Route(
        "POST", TRANSACTIONS + "/states", transactions.states, "Ask for the states of many transactions", query=_FOR, right=None,
    ),
    Route(
        "GET", TRANSACTIONS + "/unacknowledged", transactions.unacknowledged, "Wait for ended transactions",
        query={"storeId": "whose participants", "wait": "ms to hold an empty answer"},
        right=Right.SERVICE, waits=True,
    ),
    Route(
        "POST", TRANSACTIONS + "/unacknowledged", transactions.ask_unacknowledged, "Wait for those that one instance serves",
        right=Right.SERVICE, waits=True,
    ),
    Route(
        "GET", TRANSACTION, transactions.show, "Show what became of a transaction", (errors.TransactionNotFound,), query=_FOR,
        right=None,
    ),
    Route(
        "POST", TRANSACTION + "/can-commit", transactions.can_commit, "Ask whether a transaction can commit",
        (*_CONFLICT, errors.Overloaded, errors.QuotaExceeded),
        query=_FOR, right=None, one_of=_TAKE_PART,
    ),
    Route(
        "POST", TRANSACTION + "/commit", transactions.commit, "Commit a transaction",
        (*_CONFLICT, errors.Overloaded, errors.QuotaExceeded),
        query=_FOR, right=None,
    ),
    Route(
        "POST", TRANSACTION + "/abort", transactions.abort, "Abort a transaction", (*_ENDED, errors.TransactionPrepared),
        query=_FOR, right=None,
    ),
    Route("POST", TRANSACTION + "/invalidate", transactions.invalidate, "Give a transaction up", _ENDED, query=_FOR, right=None),
    Route(
        "POST", TRANSACTION + "/checkpoint", transactions.checkpoint, "Get a further write pointer",
        (*_ENDED, errors.Overloaded, errors.QuotaExceeded, errors.DiskFull),
        query=_FOR, gives=_TRANSACTION, right=None, one_of=_TAKE_PART,
    ),
    Route(
        "POST", TRANSACTION + "/participants", transactions.enlist, "Enlist a participant", (errors.TransactionNotInProgress,),
        query=_FOR, right=Right.SERVICE,
    ),
    Route(
        "DELETE", PARTICIPANT, transactions.acknowledge, "Say that a participant has acknowledged the end",
        right=Right.SERVICE,
    ),
)  # fmt: skip
"""The transaction service. Words before write pointers: the router takes the first address that fits."""

TOKEN_ROUTES = (
    Route("POST", TOKENS, tokens.create, "Make a token", right=Right.ADMIN, audited=True),
    Route("GET", TOKENS, tokens.list_, "List tokens", right=Right.ADMIN),
    Route("DELETE", TOKEN, tokens.revoke, "End a token", (errors.TokenNotFound,), right=Right.ADMIN, audited=True),
)
"""Who may do what."""

STATUS_ROUTES = (
    Route("GET", "/healthz", status.healthz, "Is the store open and read back", (errors.StorageUnavailable,), right=None),
    Route("GET", "/livez", status.livez, "Does the process answer", right=None),
    Route("GET", "/readyz", status.readyz, "Are requests to be sent here", (errors.StorageUnavailable,), right=None),
    Route("GET", "/metrics", status.metrics, "Prometheus metrics", gives={"text/plain": str}, right=Right.OBSERVE),
    Route(
        "GET", "/v1/alarms", status.alarms, "Say what is wrong, and what to do",
        query={"here": "true: only of the instance that is asked"}, reads=True, right=Right.OBSERVE,
    ),
    Route(
        "GET", "/v1/overview", status.overview, "Show how the service is doing, and how it did",
        query={"after": "number of a sample: only those behind it", "wait": "ms to wait for one"},
        reads=True, right=Right.OBSERVE,
    ),
)  # fmt: skip
"""How the process is doing."""

CONSOLE_ROUTES = (
    Route("GET", CONSOLE, console.show, "Show the console", gives={"text/html": str}, right=None),
    Route("GET", CONSOLE + "/{file}", console.show, "Show a file of the console", gives={"text/html": str}, right=None),
)
"""A page for people; no part of what /openapi.json describes."""

_EXPECTING = (errors.InvalidMessageId, errors.ExpectationsNotChecked)
_NUMBERED = (errors.ProducerFenced, errors.ProducerEnded, errors.SequenceGap, errors.SequenceReused, errors.ProducerInTransaction)
_JUDGED = (*_NUMBERED, errors.OffsetMismatch, errors.KeyInTransaction)
_PUBLISHING = (
    errors.TransactionalMismatch,
    errors.UnknownWritePointer,
    errors.TransactionNotInProgress,
    errors.StoredGroupPublished,
    errors.TransactionsUnavailable,
    errors.DiskFull,
    errors.QuotaExceeded,
)

_ATOMIC_ROUTES = (
    Route(
        "POST", ATOMIC_COMMITS, atomic.begin, "Begin an atomic commit over several topics, or a branch of one",
        (errors.TransactionExists, errors.TransactionNotInProgress, errors.QuotaExceeded, errors.DiskFull),
        right=Right.WRITE,
    ),
    Route(
        "GET", ATOMIC_COMMITS, atomic.list_, "List atomic commits that are in progress",
        query={"group": "of this group only", "after": "those that began behind the one of this id", **_LIMIT},
        right=None,
    ),
    Route("GET", ATOMIC_COMMIT, atomic.show, "Show what became of an atomic commit", (errors.TransactionNotFound,), right=None),
    Route(
        "DELETE", ATOMIC_COMMIT, atomic.free, "Free the id of an atomic commit", (errors.TransactionNotFound,),
        right=Right.OPERATE, audited=True,
    ),
    Route(
        "POST", ATOMIC_COMMIT + "/commit", atomic.commit, "Commit atomically over several topics",
        (
            *_EXPECTING, *_JUDGED, *_ENDED, errors.TransactionExists, errors.BranchGone, errors.TransactionalMismatch,
            errors.TopicNotFound, errors.TopicDamaged, errors.DiskFull, errors.QuotaExceeded, errors.CommitGone,
        ),
        takes=_avro("CommitRequest"),
        query={"gaps": "`refuse`: its number comes right behind the newest one, if that came with this word; else `allow`"},
        right=Right.WRITE,
    ),
    Route("POST", ATOMIC_COMMIT + "/abort", atomic.abort, "Abort an atomic commit", _ENDED, right=None),
    Route(
        "PUT", STAGE, atomic.stage, "Stage messages for an atomic commit",
        (
            *_EXPECTING, errors.ProducerFenced, errors.ProducerEnded, errors.SequenceGap, *_ENDED, errors.ChunkReused,
            errors.TransactionalMismatch, errors.DiskFull, errors.QuotaExceeded,
        ),
        takes=_avro("PublishRequest"),
        right=Right.WRITE,
    ),
    Route(
        "GET", GROUP_PRODUCER, atomic.producer, "Show the newest commit under a producer's name in a group",
        (errors.GroupProducerNotFound,),
        right=None,
    ),
    Route(
        "DELETE", GROUP_PRODUCER, atomic.forget_producer, "Forget a producer of a group",
        (errors.GroupProducerNotFound, errors.ProducerFenced),
        query={"incarnation": "only if its newest commit is of this one"},
        right=None, audited=True,
    ),
)  # fmt: skip

_PLACED = (errors.InvalidMessageId, errors.StaleMessageId, errors.OffsetOutOfRange)
_CONSUMING = (errors.ConsumerFenced, errors.SubscriptionNotFound)
_READING = (errors.StaleMessageId, errors.OffsetOutOfRange, errors.MessagesExpired)

_SUBSCRIPTION_ROUTES = (
    Route(
        "POST", TOPIC + "/subscriptions", subscriptions.open_, "Open a subscription for a consumer",
        (*_PLACED, errors.DiskFull, errors.QuotaExceeded),
        right=Right.READ,
    ),
    Route(
        "GET", SUBSCRIPTIONS, subscriptions.everywhere, "List the subscriptions of all topics",
        query={"after": "those behind this one: namespace/topic/name", **_LIMIT}, reads=True, right=None,
    ),
    Route("GET", TOPIC + "/subscriptions", subscriptions.list_, "List subscriptions", query=_NAMED, right=Right.DESCRIBE),
    Route("GET", SUBSCRIPTION, subscriptions.get, "Show a subscription", (errors.SubscriptionNotFound,), right=Right.DESCRIBE),
    Route(
        "POST", SUBSCRIPTION + "/receive", subscriptions.receive, "Receive the next messages of a subscription",
        (errors.StaleMessageId, *_CONSUMING),
        gives={JSON: "ConsumeResponse", ONCELOG_AVRO: "ConsumeResponse"}, reads=True,
        right=Right.READ,
    ),
    Route(
        "POST", SUBSCRIPTION + "/ack", subscriptions.acknowledge, "Acknowledge messages of a subscription",
        (*_PLACED, *_CONSUMING, errors.TransactionsUnavailable),
        right=Right.READ,
    ),
    Route(
        "POST", SUBSCRIPTION + "/seek", subscriptions.seek, "Move a subscription anywhere", (*_PLACED, *_CONSUMING),
        right=Right.READ, audited=True,
    ),
    Route(
        "DELETE", SUBSCRIPTION, subscriptions.delete, "Delete a subscription",
        (errors.SubscriptionNotFound, errors.StaleMessageId), query=_OF_A_GENERATION,
        right=Right.READ, audited=True,
    ),
)  # fmt: skip

_INSPECTION_ROUTES = (
    Route(
        "GET", HELD, held.everywhere, "List what topics hold back under undecided write pointers",
        (errors.TransactionsUnavailable,), query={**_LIMIT, "here": "true: only of the instance that is asked"},
        right=Right.OPERATE,
    ),
    Route(
        "GET", HELD_ON_TOPIC, held.on_topic, "List what a topic holds back under undecided write pointers", query=_LIMIT,
        right=Right.OPERATE,
    ),
    Route(
        "POST", HELD_ON_TOPIC + "/{writePointer}", held.end, "End another service's write pointer on a topic",
        (*_ENDED, errors.TransactionsUnavailable),
        right=Right.OPERATE, audited=True,
    ),
    Route(
        "GET", TOPIC + "/rows", inspection.rows, "Show rows of a topic's log as they lie there", (errors.OffsetOutOfRange,),
        query={"first": "offset to begin with", **_LIMIT},
        right=(Right.READ, Right.OPERATE),
    ),
    Route(
        "GET", TOPIC + "/groups", inspection.groups, "Show what is stored apart from a topic's log", query=_LIMIT,
        right=(Right.READ, Right.OPERATE),
    ),
    Route(
        "GET", TOPIC + "/payloads", inspection.payloads, "Show the payloads stored under a write pointer",
        query={"under": "write pointer; of an atomic commit: minus its number", **_LIMIT},
        right=(Right.READ, Right.OPERATE),
    ),
)  # fmt: skip
"""The tables of a topic, and what it holds back until it is decided."""

_MESSAGE_ROUTES = (
    Route(
        "POST", TOPIC + "/publish", messages.publish, "Publish messages", (*_EXPECTING, *_JUDGED, *_PUBLISHING),
        takes=_avro("PublishRequest"), gives=_avro("PublishResponse"),
        right=Right.WRITE, step=messages.PublishStep,
    ),
    Route(
        "POST", TOPIC + "/store", messages.store, "Store messages under a write pointer, unseen until it is published",
        (*_NUMBERED, *_PUBLISHING), takes=_avro("PublishRequest"), gives=_avro("PublishResponse"),
        right=Right.WRITE,
    ),
    Route(
        "POST", TOPIC + "/rollback", messages.rollback, "Roll back what a transactional publish stored",
        (errors.StaleMessageId, errors.RollbackRefused, errors.TransactionNotInProgress, errors.TransactionsUnavailable),
        takes=_avro("PublishResponse"),
        right=Right.WRITE,
    ),
    Route(
        "POST", TOPIC + "/poll", messages.poll, "Poll messages", (errors.InvalidTransaction, errors.InvalidMessageId, *_READING),
        query={"isolation": "committed: only what is committed, up to the first message that is not decided; or uncommitted"},
        takes=_avro("ConsumeRequest"), gives=_avro("ConsumeResponse"), reads=True,
        right=Right.READ,
    ),
    Route(
        "POST", NAMESPACE + "/offsets", ranges.offsets, "Ask up to where topics are stable, or wait until there is more",
        (errors.TopicNotFound, errors.TopicDamaged), gives={JSON: dict[str, TopicOffsets]}, reads=True,
        right=None,
    ),
    Route(
        "GET", TOPIC + "/columns", ranges.columns, "Read a stable range of offsets, column by column", _READING,
        query={
            "first": "offset of the first message",
            "upto": "offset behind the last one",
            "generation": "of the topic; refused when it is another",
            "limit": "at most so many messages; the service has a bound too",
            "maxBytes": "about so many bytes at most; the service has a bound too",
            "properties": "true: the messages' properties too",
            "refuseExpired": "true: refused where messages of the range have expired by the topic's ttl",
        },
        gives={ONCELOG_AVRO: "MessageColumns"}, reads=True,
        right=Right.READ,
    ),
    Route(
        "POST", TOPIC + "/verify", verification.verify, "Refold a log and compare it with the live maps",
        gives={NDJSON: Verification}, reads=True,
        right=Right.OPERATE,
    ),
)  # fmt: skip

ROUTES = (
    Route("GET", "/v1/namespaces", topics.namespaces, "List namespaces", right=None),
    Route("GET", NAMESPACE + "/policies", topics.get_policies, "Show a namespace's policies", right=Right.DESCRIBE),
    Route(
        "PUT", NAMESPACE + "/policies", topics.set_policies, "Replace a namespace's policies",
        right=Right.MANAGE, audited=True,
    ),
    Route("GET", NAMESPACE + "/topics", topics.list_, "List topics", right=None),
    Route(
        "GET", NAMESPACE + "/stats", topics.list_stats, "Show what is known of topics without opening them", query=_NAMED,
        right=None,
    ),
    Route(
        "PUT", TOPIC, topics.create, "Create a topic",
        (errors.TopicExists, errors.TopicDamaged, errors.QuotaExceeded, errors.DiskFull),
        takes=_PROPERTIES,
        right=Right.MANAGE, audited=True,
    ),
    Route("GET", TOPIC, topics.get, "Show a topic", right=Right.DESCRIBE),
    Route(
        "DELETE", TOPIC, topics.delete, "Delete a topic", (errors.StaleMessageId,), query=_OF_A_GENERATION,
        right=Right.MANAGE, audited=True,
    ),
    Route(
        "PUT", TOPIC + "/properties", topics.update, "Replace a topic's properties", (errors.PropertiesChanged,),
        query={"expected": "a JSON object of the properties as they were seen; refused when they are others"}, takes=_PROPERTIES,
        right=Right.MANAGE, audited=True,
    ),
    Route(
        "POST", TOPIC + "/trim", topics.trim, "Trim a topic", (errors.StaleMessageId, errors.OffsetOutOfRange),
        right=Right.MANAGE, audited=True,
    ),
    Route(
        "POST", TOPIC + "/erase", topics.erase, "Erase what one message says",
        (*_PLACED, errors.MessagesExpired, errors.MessageInTransaction, errors.TransactionsUnavailable),
        right=Right.MANAGE, audited=True,
    ),
    Route("GET", TOPIC + "/stats", topics.stats, "Show where a topic's log begins and ends", right=Right.DESCRIBE),
    *_MESSAGE_ROUTES,
    Route(
        "POST", TOPIC + "/producers", producers.open_, "Open a producer",
        (
            errors.ProducerFenced, errors.ProducerEnded, errors.ProducerInTransaction, errors.TransactionsUnavailable,
            errors.QuotaExceeded, errors.DiskFull,
        ),
        right=Right.WRITE,
    ),
    Route("GET", TOPIC + "/producers", producers.list_, "List producers", query=_NAMED, right=Right.DESCRIBE),
    Route("GET", PRODUCER, producers.get, "Show a producer", (errors.ProducerNotFound,), right=Right.DESCRIBE),
    Route(
        "DELETE", PRODUCER, producers.delete, "Forget a producer, or end one",
        (errors.ProducerFenced, errors.ProducerNotFound, errors.StaleMessageId),
        query={"epoch": "of its newest incarnation: its name, which the service assigned, ends", **_OF_A_GENERATION},
        right=None, audited=True,
    ),
    Route(
        "GET", PRODUCER + "/why", producers.why, "Say why a sequence id was or would be dropped", (errors.ProducerEnded,),
        query={"sequenceId": "0 to 2^63-1"},
        right=Right.DESCRIBE,
    ),
    *_SUBSCRIPTION_ROUTES,
    *_INSPECTION_ROUTES,
    *TRANSACTION_ROUTES,
    *_ATOMIC_ROUTES,
    Route(
        "GET", "/v1/cluster", cluster.show, "Show which instances are alive and who serves what", (errors.NotSupported,),
        query={"after": "leases behind `transactions`, `atomic`, or a `namespace/topic`", **_LIMIT}, right=Right.OBSERVE,
    ),
    Route(
        "POST", HAND_OVER, cluster.hand_over, "Have another instance serve a topic", (errors.NotSupported,),
        right=Right.OPERATE, audited=True,
    ),
    Route(
        "POST", "/v1/backup", backups.take_, "Back the store up while it is served",
        (errors.NotSupported, errors.BackupFailed, errors.DiskFull),
        gives={NDJSON: Backup}, reads=True, right=Right.OPERATE, audited=True,
    ),
    *TOKEN_ROUTES,
    *STATUS_ROUTES,
)  # fmt: skip
"""Everything the service answers, but for pages: /openapi.json and /docs, which are made from this, and the console."""
