"""The table of all addresses."""

from __future__ import annotations

from oncelog import errors
from oncelog.wire.codec import media_types_of
from oncelog.wire.media import JSON, NDJSON, ONCELOG_AVRO, THRIFT
from oncelog.wire.models import (
    AbortTransaction,
    Acknowledge,
    Acknowledged,
    AskOffsets,
    AskUnacknowledged,
    AtomicOutcome,
    BeginAtomic,
    CanCommit,
    Changes,
    Cluster,
    EndHeld,
    GroupProducer,
    HeldMessages,
    HeldOnTopic,
    InspectedGroup,
    InspectedPayload,
    InspectedRow,
    NamespacePolicies,
    OpenedProducer,
    OpenProducer,
    OpenSubscription,
    Producer,
    PruneInvalid,
    ReceiveMessages,
    SeekSubscription,
    Settlement,
    StartTransaction,
    Subscription,
    Topic,
    TopicOffsets,
    TopicStats,
    TransactionStatus,
    Verification,
    Why,
)
from oncelog_service.rest.handlers import (
    atomic,
    cluster,
    held,
    inspection,
    messages,
    producers,
    ranges,
    status,
    subscriptions,
    topics,
    transactions,
    verification,
)
from oncelog_service.rest.routes import (
    ATOMIC_COMMIT,
    ATOMIC_COMMITS,
    GROUP_PRODUCER,
    HAND_OVER,
    HELD,
    HELD_ON_TOPIC,
    PARTICIPANT,
    PRODUCER,
    STAGE,
    SUBSCRIPTION,
    TOPIC,
    TRANSACTION,
    TRANSACTIONS,
    Route,
)

_PROPERTIES = {JSON: {"type": "object", "additionalProperties": {"type": ["string", "integer", "boolean"]}}}
_NAMES = {JSON: {"type": "array", "items": {"type": "string"}}}
_NOTHING = {JSON: {"type": "null"}}
_NAMESPACE = "/v1/namespaces/{namespace}"


def _avro(name: str) -> dict[str, str]:
    return dict.fromkeys(media_types_of(name), name)


_BODY = (errors.InvalidRequest, errors.RequestTooLarge, errors.UnsupportedMediaType)
_STORE = (errors.StorageUnavailable, errors.StorageFailed)
_ON_TOPIC = (errors.TopicNotFound, errors.TopicDamaged)
_SERVED = (errors.TransactionsUnavailable, *_STORE)
_ENDED = (errors.TransactionNotFound, errors.TransactionNotInProgress)
_TRANSACTION = {JSON: transactions.StartedTransaction, THRIFT: {"type": "string", "format": "binary"}}

TRANSACTION_ROUTES = (
    Route(
        "POST", TRANSACTIONS, transactions.start, "Start a transaction",
        request={JSON: StartTransaction}, response=_TRANSACTION, errors=(*_BODY, errors.Overloaded, *_SERVED),
    ),
    Route(
        "GET", TRANSACTIONS, transactions.list_, "List transactions in progress, or invalid ones",
        response={JSON: {"type": "array", "items": TransactionStatus}}, errors=(errors.InvalidRequest, *_SERVED),
        query={
            "state": "in_progress (the default) or invalid",
            "after": "write pointers above this one",
            "limit": "at most so many, 1 to 2000",
        },
    ),
    Route(
        "POST", TRANSACTIONS + "/prune", transactions.prune, "Prune the list of invalid transactions",
        request={JSON: PruneInvalid}, response={JSON: {"type": "object", "properties": {"pruned": {"type": "integer"}}}},
        errors=_BODY + _SERVED,
    ),
    Route(
        "POST", TRANSACTIONS + "/states", transactions.states, "Ask for the states of many transactions",
        request={JSON: transactions.WritePointers}, errors=_BODY + _SERVED,
        response={JSON: {"type": "object", "additionalProperties": {"type": "string"}}},
    ),
    Route(
        "GET", TRANSACTIONS + "/unacknowledged", transactions.unacknowledged, "Wait for ended transactions",
        response={JSON: {"type": "array", "items": Settlement}}, errors=(errors.InvalidRequest, *_SERVED),
        query={"storeId": "whose participants", "wait": "ms to hold an empty answer"},
    ),
    Route(
        "POST", TRANSACTIONS + "/unacknowledged", transactions.ask_unacknowledged, "Wait for those that one instance serves",
        request={JSON: AskUnacknowledged}, response={JSON: {"type": "array", "items": Settlement}}, errors=_BODY + _SERVED,
    ),
    Route(
        "GET", TRANSACTION, transactions.show, "Show what became of a transaction",
        response={JSON: TransactionStatus}, errors=(errors.InvalidRequest, errors.TransactionNotFound, *_SERVED),
    ),
    Route(
        "POST", TRANSACTION + "/can-commit", transactions.can_commit, "Ask whether a transaction can commit",
        request={JSON: Changes}, response={JSON: CanCommit}, errors=(*_BODY, *_ENDED, errors.TransactionConflict, *_SERVED),
    ),
    Route(
        "POST", TRANSACTION + "/commit", transactions.commit, "Commit a transaction",
        request={JSON: Changes}, response={JSON: TransactionStatus},
        errors=(*_BODY, *_ENDED, errors.TransactionConflict, *_SERVED),
    ),
    Route(
        "POST", TRANSACTION + "/abort", transactions.abort, "Abort a transaction",
        request={JSON: AbortTransaction}, response={JSON: TransactionStatus},
        errors=(*_BODY, *_ENDED, errors.TransactionPrepared, *_SERVED),
    ),
    Route(
        "POST", TRANSACTION + "/invalidate", transactions.invalidate, "Give a transaction up",
        response={JSON: TransactionStatus}, errors=(errors.InvalidRequest, *_ENDED, *_SERVED),
    ),
    Route(
        "POST", TRANSACTION + "/checkpoint", transactions.checkpoint, "Get a further write pointer",
        response=_TRANSACTION, errors=(errors.InvalidRequest, *_ENDED, *_SERVED),
    ),
    Route(
        "POST", TRANSACTION + "/participants", transactions.enlist, "Enlist a participant",
        request={JSON: transactions.Participant}, errors=(*_BODY, errors.TransactionNotInProgress, *_SERVED),
        response={JSON: {"type": "object", "properties": {"enlisted": {"type": "boolean"}}}},
    ),
    Route(
        "DELETE", PARTICIPANT, transactions.acknowledge, "Say that a participant has acknowledged the end",
        response=_NOTHING, errors=(errors.InvalidRequest, *_SERVED),
    ),
)  # fmt: skip
"""The transaction service. Words before write pointers: the router takes the first address that fits."""

STATUS_ROUTES = (
    Route("GET", "/healthz", status.healthz, "Is the store open and read back", response={JSON: {"type": "object"}},
          errors=(errors.StorageUnavailable,)),
    Route("GET", "/metrics", status.metrics, "Prometheus metrics", response={"text/plain": {"type": "string"}}),
)  # fmt: skip
"""How the process is doing."""

CLUSTER_ROUTES = (
    Route(
        "GET", "/v1/cluster", cluster.show, "Show which instances are alive and who serves what",
        response={JSON: Cluster}, errors=(errors.NotSupported, errors.StorageUnavailable),
    ),
    Route(
        "POST", HAND_OVER, cluster.hand_over, "Have another instance serve a topic",
        request={JSON: cluster.HandOver}, response=_NOTHING, errors=(*_BODY, errors.NotSupported, *_STORE),
    ),
)  # fmt: skip
"""Several instances over one store."""

_EXPECTING = (errors.InvalidMessageId, errors.ExpectationsNotChecked)
_NUMBERED = (errors.ProducerFenced, errors.ProducerEnded, errors.SequenceGap, errors.SequenceReused, errors.ProducerInTransaction)
_JUDGED = (*_NUMBERED, errors.OffsetMismatch, errors.KeyInTransaction)
_PUBLISHING = (
    errors.TransactionalMismatch,
    errors.UnknownWritePointer,
    errors.TransactionNotInProgress,
    errors.StoredGroupPublished,
    errors.TransactionsUnavailable,
)

ATOMIC_ROUTES = (
    Route(
        "POST", ATOMIC_COMMITS, atomic.begin, "Begin an atomic commit over several topics, or a branch of one",
        request={JSON: BeginAtomic}, response={JSON: AtomicOutcome},
        errors=(*_BODY, errors.TransactionExists, errors.TransactionNotInProgress, *_STORE),
    ),
    Route(
        "GET", ATOMIC_COMMITS, atomic.list_, "List atomic commits that are in progress",
        response={JSON: {"type": "array", "items": AtomicOutcome}}, errors=(errors.InvalidRequest, *_STORE),
        query={
            "group": "of this group only",
            "after": "those that began behind the one of this id",
            "limit": "at most so many, 1 to 2000",
        },
    ),
    Route(
        "GET", ATOMIC_COMMIT, atomic.show, "Show what became of an atomic commit",
        response={JSON: AtomicOutcome}, errors=(errors.InvalidRequest, errors.TransactionNotFound, *_STORE),
    ),
    Route(
        "POST", ATOMIC_COMMIT + "/commit", atomic.commit, "Commit atomically over several topics",
        request=_avro("CommitRequest"), response={JSON: AtomicOutcome},
        errors=(
            *_BODY, *_EXPECTING, *_JUDGED, *_ENDED, errors.TransactionExists, errors.BranchGone,
            errors.TransactionalMismatch, *_ON_TOPIC, *_STORE,
        ),
    ),
    Route(
        "POST", ATOMIC_COMMIT + "/abort", atomic.abort, "Abort an atomic commit",
        response={JSON: AtomicOutcome}, errors=(errors.InvalidRequest, *_ENDED, *_STORE),
    ),
    Route(
        "PUT", STAGE, atomic.stage, "Stage messages for an atomic commit",
        request=_avro("PublishRequest"), response=_NOTHING,
        errors=(
            *_BODY, *_EXPECTING, errors.ProducerFenced, errors.ProducerEnded, errors.SequenceGap, *_ENDED, errors.ChunkReused,
            errors.TransactionalMismatch, *_ON_TOPIC, *_STORE,
        ),
    ),
    Route(
        "GET", GROUP_PRODUCER, atomic.producer, "Show the newest commit under a producer's name in a group",
        response={JSON: GroupProducer}, errors=(errors.InvalidRequest, errors.GroupProducerNotFound, *_STORE),
    ),
    Route(
        "DELETE", GROUP_PRODUCER, atomic.forget_producer, "Forget a producer of a group",
        response=_NOTHING, errors=(errors.InvalidRequest, errors.GroupProducerNotFound, errors.ProducerFenced, *_STORE),
        query={"incarnation": "only if its newest commit is of this one"},
    ),
)  # fmt: skip
"""Atomic commits over several topics."""

_PLACED = (errors.InvalidMessageId, errors.StaleMessageId, errors.OffsetOutOfRange)
_CONSUMING = (errors.ConsumerFenced, errors.SubscriptionNotFound)

SUBSCRIPTION_ROUTES = (
    Route(
        "POST", TOPIC + "/subscriptions", subscriptions.open_, "Open a subscription for a consumer",
        request={JSON: OpenSubscription}, response={JSON: Subscription}, errors=(*_BODY, *_PLACED, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "GET", TOPIC + "/subscriptions", subscriptions.list_, "List subscriptions",
        response={JSON: {"type": "array", "items": Subscription}}, errors=(errors.InvalidRequest, *_ON_TOPIC, *_STORE),
        query={"after": "names behind this one", "limit": "at most so many, 1 to 2000"},
    ),
    Route(
        "GET", SUBSCRIPTION, subscriptions.get, "Show a subscription",
        response={JSON: Subscription}, errors=(errors.InvalidRequest, errors.SubscriptionNotFound, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "POST", SUBSCRIPTION + "/receive", subscriptions.receive, "Receive the next messages of a subscription", reads=True,
        request={JSON: ReceiveMessages}, response={JSON: "ConsumeResponse", ONCELOG_AVRO: "ConsumeResponse"},
        errors=(*_BODY, errors.StaleMessageId, *_CONSUMING, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "POST", SUBSCRIPTION + "/ack", subscriptions.acknowledge, "Acknowledge messages of a subscription",
        request={JSON: Acknowledge}, response={JSON: Acknowledged},
        errors=(*_BODY, *_PLACED, *_CONSUMING, *_ON_TOPIC, *_SERVED),
    ),
    Route(
        "POST", SUBSCRIPTION + "/seek", subscriptions.seek, "Move a subscription anywhere",
        request={JSON: SeekSubscription}, response={JSON: Subscription},
        errors=(*_BODY, *_PLACED, *_CONSUMING, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "DELETE", SUBSCRIPTION, subscriptions.delete, "Delete a subscription",
        response=_NOTHING, errors=(errors.InvalidRequest, errors.SubscriptionNotFound, *_ON_TOPIC, *_STORE),
    ),
)  # fmt: skip
"""Durable consumers."""

HELD_ROUTES = (
    Route(
        "GET", HELD, held.everywhere, "List what topics hold back under undecided write pointers",
        response={JSON: {"type": "array", "items": HeldOnTopic}}, errors=(errors.InvalidRequest, *_SERVED),
        query={"limit": "at most so many, 1 to 2000", "here": "true: only of the instance that is asked"},
    ),
    Route(
        "GET", HELD_ON_TOPIC, held.on_topic, "List what a topic holds back under undecided write pointers",
        response={JSON: {"type": "array", "items": HeldMessages}}, errors=(errors.InvalidRequest, *_ON_TOPIC, *_STORE),
        query={"limit": "at most so many, 1 to 2000"},
    ),
    Route(
        "POST", HELD_ON_TOPIC + "/{writePointer}", held.end, "End another service's write pointer on a topic",
        request={JSON: EndHeld}, response=_NOTHING, errors=(*_BODY, *_ENDED, *_ON_TOPIC, *_SERVED),
    ),
)  # fmt: skip
"""What topics hold back until it is decided."""

_LIMITED = {"limit": "at most so many, 1 to 2000"}

INSPECTION_ROUTES = (
    Route(
        "GET", TOPIC + "/rows", inspection.rows, "Show rows of a topic's log as they lie there",
        response={JSON: {"type": "array", "items": InspectedRow}},
        errors=(errors.InvalidRequest, errors.OffsetOutOfRange, *_ON_TOPIC, *_STORE),
        query={"first": "offset to begin with", **_LIMITED},
    ),
    Route(
        "GET", TOPIC + "/groups", inspection.groups, "Show what is stored apart from a topic's log",
        response={JSON: {"type": "array", "items": InspectedGroup}}, errors=(errors.InvalidRequest, *_ON_TOPIC, *_STORE),
        query=_LIMITED,
    ),
    Route(
        "GET", TOPIC + "/payloads", inspection.payloads, "Show the payloads stored under a write pointer",
        response={JSON: {"type": "array", "items": InspectedPayload}}, errors=(errors.InvalidRequest, *_ON_TOPIC, *_STORE),
        query={"under": "write pointer; of an atomic commit: minus its number", **_LIMITED},
    ),
)  # fmt: skip
"""The tables of a topic."""

ROUTES = (
    Route("GET", "/v1/namespaces", topics.namespaces, "List namespaces", response=_NAMES),
    Route(
        "GET", _NAMESPACE + "/policies", topics.get_policies, "Show a namespace's policies",
        response={JSON: NamespacePolicies}, errors=(errors.InvalidRequest,),
    ),
    Route(
        "PUT", _NAMESPACE + "/policies", topics.set_policies, "Replace a namespace's policies",
        request={JSON: NamespacePolicies}, response=_NOTHING, errors=_BODY + _STORE,
    ),
    Route(
        "GET", _NAMESPACE + "/topics", topics.list_, "List topics",
        response=_NAMES, errors=(errors.InvalidRequest,),
    ),
    Route(
        "PUT", TOPIC, topics.create, "Create a topic",
        request=_PROPERTIES, response=_NOTHING, errors=(*_BODY, errors.TopicExists, *_STORE),
    ),
    Route(
        "GET", TOPIC, topics.get, "Show a topic",
        response={JSON: Topic}, errors=(errors.InvalidRequest, errors.TopicNotFound),
    ),
    Route(
        "DELETE", TOPIC, topics.delete, "Delete a topic",
        response=_NOTHING, errors=(errors.InvalidRequest, errors.TopicNotFound, *_STORE),
    ),
    Route(
        "PUT", TOPIC + "/properties", topics.update, "Replace a topic's properties",
        request=_PROPERTIES, response=_NOTHING, errors=(*_BODY, errors.TopicNotFound, *_STORE),
    ),
    Route(
        "GET", TOPIC + "/stats", topics.stats, "Show where a topic's log begins and ends",
        response={JSON: TopicStats}, errors=(errors.InvalidRequest, *_ON_TOPIC),
    ),
    Route(
        "POST", TOPIC + "/publish", messages.publish, "Publish messages",
        request=_avro("PublishRequest"), response=_avro("PublishResponse"),
        errors=(*_BODY, *_EXPECTING, *_JUDGED, *_PUBLISHING, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "POST", TOPIC + "/store", messages.store, "Store messages under a write pointer, unseen until it is published",
        request=_avro("PublishRequest"), response=_avro("PublishResponse"),
        errors=(*_BODY, *_NUMBERED, *_PUBLISHING, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "POST", TOPIC + "/rollback", messages.rollback, "Roll back what a transactional publish stored",
        request=_avro("PublishResponse"), response=_NOTHING,
        errors=(*_BODY, errors.StaleMessageId, errors.RollbackRefused, errors.TransactionNotInProgress, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "POST", TOPIC + "/poll", messages.poll, "Poll messages", reads=True,
        request=_avro("ConsumeRequest"), response=_avro("ConsumeResponse"),
        errors=(
            *_BODY, errors.InvalidTransaction, errors.InvalidMessageId, errors.StaleMessageId, errors.OffsetOutOfRange,
            errors.MessagesExpired, *_ON_TOPIC, *_STORE,
        ),
    ),
    Route(
        "POST", _NAMESPACE + "/offsets", ranges.offsets, "Ask up to where topics are stable, or wait until there is more",
        reads=True,
        request={JSON: AskOffsets}, response={JSON: {"type": "object", "additionalProperties": TopicOffsets}},
        errors=(*_BODY, *_ON_TOPIC, *_STORE),
    ),
    Route(
        "GET", TOPIC + "/columns", ranges.columns, "Read a stable range of offsets, column by column", reads=True,
        response={ONCELOG_AVRO: "MessageColumns"},
        errors=(
            errors.InvalidRequest, errors.StaleMessageId, errors.OffsetOutOfRange, errors.MessagesExpired, *_ON_TOPIC, *_STORE,
        ),
        query={
            "first": "offset of the first message",
            "upto": "offset behind the last one",
            "generation": "of the topic; refused when it is another",
            "limit": "at most so many messages; the service has a bound too",
            "maxBytes": "about so many bytes at most; the service has a bound too",
            "properties": "true: the messages' properties too",
            "refuseExpired": "true: refused where messages of the range have expired by the topic's ttl",
        },
    ),
    Route(
        "POST", TOPIC + "/verify", verification.verify, "Refold a log and compare it with the live maps", reads=True,
        response={NDJSON: Verification}, errors=(errors.InvalidRequest, *_ON_TOPIC),
    ),
    Route(
        "POST", TOPIC + "/producers", producers.open_, "Open a producer",
        request={JSON: OpenProducer}, response={JSON: OpenedProducer},
        errors=(
            *_BODY, errors.ProducerFenced, errors.ProducerEnded, errors.ProducerInTransaction, errors.TransactionsUnavailable,
            *_ON_TOPIC, *_STORE,
        ),
    ),
    Route(
        "GET", TOPIC + "/producers", producers.list_, "List producers",
        response={JSON: {"type": "array", "items": Producer}}, errors=(errors.InvalidRequest, *_ON_TOPIC),
        query={"after": "names behind this one", "limit": "at most so many, 1 to 2000"},
    ),
    Route(
        "GET", PRODUCER, producers.get, "Show a producer",
        response={JSON: Producer}, errors=(errors.InvalidRequest, errors.ProducerNotFound, *_ON_TOPIC),
    ),
    Route(
        "DELETE", PRODUCER, producers.delete, "Forget a producer, or end one",
        response=_NOTHING, errors=(errors.InvalidRequest, errors.ProducerFenced, errors.ProducerNotFound, *_ON_TOPIC, *_STORE),
        query={"epoch": "of its newest incarnation: its name, which the service assigned, ends"},
    ),
    Route(
        "GET", PRODUCER + "/why", producers.why, "Say why a sequence id was or would be dropped",
        response={JSON: Why}, errors=(errors.InvalidRequest, errors.ProducerEnded, *_ON_TOPIC),
        query={"sequenceId": "0 to 2^63-1"},
    ),
    *SUBSCRIPTION_ROUTES,
    *HELD_ROUTES,
    *INSPECTION_ROUTES,
    *TRANSACTION_ROUTES,
    *ATOMIC_ROUTES,
    *CLUSTER_ROUTES,
    *STATUS_ROUTES,
)  # fmt: skip
"""Everything the service answers, but for /openapi.json and /docs, which are made from this."""
