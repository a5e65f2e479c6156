"""Resources as pydantic models: what the service answers in JSON about topics and producers, and what the SDK hands out.

Never per message. Field names are camelCase on the wire, as in the TMS page, and snake_case in Python.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic.alias_generators import to_camel

from oncelog.message_id import MessageId
from oncelog.wire.names import (
    check_atomic_id,
    check_group,
    check_namespace,
    check_participant,
    check_producer,
    check_subscription,
    check_topic,
)

MAX_QUOTA = 10**12
"""Messages, or bytes, a second."""

NamespaceName = Annotated[str, AfterValidator(check_namespace)]
TopicName = Annotated[str, AfterValidator(check_topic)]
ProducerName = Annotated[str, AfterValidator(check_producer)]
SubscriptionName = Annotated[str, AfterValidator(check_subscription)]
GroupName = Annotated[str, AfterValidator(check_group)]
AtomicId = Annotated[str, AfterValidator(check_atomic_id)]
ParticipantName = Annotated[str, AfterValidator(check_participant)]
InstanceId = Annotated[str, Field(min_length=1, max_length=100)]
"""Of a store, or of an instance of the service."""

Gaps = Literal["allow", "refuse"]


def _as_message_id(value: object) -> MessageId:
    if isinstance(value, MessageId):
        return value
    if isinstance(value, str):
        return MessageId.parse(value)
    raise ValueError("a message id is text of 40 hex digits")


MessageIdText = Annotated[MessageId, PlainValidator(_as_message_id), PlainSerializer(str, return_type=str)]


class Resource(BaseModel):
    """Base of all: strict, immutable, camelCase on the wire."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", strict=True)

    def to_wire(self) -> dict[str, object]:
        """The JSON object that travels."""
        return self.model_dump(by_alias=True, mode="json")


class Request(Resource):
    """Base of what the service is sent: a field that it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class Topic(Resource):
    """A topic as the TMS page answers it: property values are strings."""

    name: str
    properties: dict[str, str]


class TopicStats(Resource):
    """Tells where a topic's log begins and ends, and what is in the hands of the service right now."""

    name: str
    generation: int
    earliest_offset: int
    """Offset of the oldest message that is still stored."""
    upcoming_offset: int
    """Offset that the next message gets."""
    last_message_id: MessageIdText | None
    deduplication: bool
    """What topic, namespace and service together say."""
    producers: int
    """How many producers have published."""
    snapshot_offset: int | None
    """A restart now would replay the messages from here on."""
    replayed: int
    """How many messages were replayed when the topic was opened."""
    cached_messages: int
    bytes: int = 0
    """Of the messages in the log, as a poll answers them: payload, key, properties, producer, ids and offset."""
    max_bytes: int | None = None
    """What they may take; null: there is no limit."""
    held_messages: int = 0
    """Messages of transactions that are not decided; consumers, Spark, snapshots and retention stop before the first of them."""
    held_write_pointers: int = 0
    """How many write pointers these are under."""


class ListedTopic(Resource):
    """Tells what is known of a topic without opening it."""

    name: str
    generation: int
    open: bool
    """Whether the instance that was asked has it open: then all of it is known."""
    deduplication: bool
    earliest_offset: int | None = None
    """None: not known without opening it."""
    upcoming_offset: int | None = None
    """The same."""
    bytes: int | None = None
    """Of the messages in the log, as in :class:`TopicStats`."""
    producers: int | None = None
    subscriptions: int | None = None
    held_messages: int | None = None
    """As in :class:`TopicStats`."""
    largest_lag: int | None = None
    """Of its subscriptions."""
    damage: str | None = None
    """Why nothing can be said of it."""


class OpenProducer(Request):
    """A request that opens a producer. ``name`` null: the service assigns one."""

    name: ProducerName | None = None
    nonce: str = Field(min_length=1, max_length=100)
    """Drawn by the client; a repeated open with the same nonce answers the same epoch and fences nobody."""
    gaps: Gaps = "allow"


class OpenedProducer(Resource):
    """An opened producer: its incarnation, and how far it has come."""

    name: str
    epoch: int
    last_sequence_id: int | None
    last_message_id: MessageIdText | None


class Producer(Resource):
    """A producer on a topic, as the live maps have it."""

    name: str
    epoch: int | None
    """None when it was never opened, only named in publishes."""
    gaps: Gaps
    last_pushed: int | None
    last_persisted: int | None
    last_message_id: MessageIdText | None
    last_offset: int | None
    last_published_ms: int | None = None
    """When the message of ``last_persisted`` was published."""
    assigned: bool = False
    """Whether the service gave the name, which ends with its producer."""


class StartPosition(Request):
    """A place in a topic: exactly one of ``at``, ``offset``, ``message_id``, ``timestamp``."""

    at: Literal["earliest", "latest"] | None = None
    """``latest``: behind all that a consumer can have seen by now."""
    offset: int | None = Field(default=None, ge=0)
    """The message with this offset is the next one."""
    message_id: MessageIdText | None = None
    """The message behind this one is the next, or with ``inclusive`` this one."""
    inclusive: bool = False
    timestamp: int | None = Field(default=None, ge=0)
    """The first message that was published at this time, ms, or later is the next one."""


class OpenSubscription(Request):
    """A request that opens a subscription for a consumer."""

    name: SubscriptionName
    nonce: str = Field(min_length=1, max_length=100)
    """Drawn by the consumer; a repeated open with the same nonce answers the same epoch and fences nobody."""
    start: StartPosition = StartPosition(at="earliest")
    """Where a new subscription begins; one that is there goes on where it stands."""


class SeekSubscription(Request):
    """A request that moves a subscription."""

    to: StartPosition
    nonce: str = Field(min_length=1, max_length=100)
    """As when it is opened: repeated, it moves nothing again."""
    epoch: int | None = None
    """Of the consumer that seeks; null: an operator does, whoever consumes."""
    generation: int | None = None
    """Of the topic; refused when it is another."""


class ReceiveMessages(Request):
    """A consumer's request for messages."""

    epoch: int
    generation: int | None = None
    """Of the topic, as the open answered it; refused when it is another."""
    after: MessageIdText | None = None
    """The last message that it was given; null: from the cursor on."""
    limit: int | None = Field(default=None, gt=0)
    wait: int = Field(default=0, ge=0)
    """Milliseconds to hold an empty answer."""


class Acknowledge(Request):
    """An acknowledgement.

    A consumer is done with everything up to and including one message, named by its offset or by its id.
    """

    epoch: int
    generation: int | None = None
    """As in :class:`ReceiveMessages`; an offset cannot do without it."""
    offset: int | None = Field(default=None, ge=0)
    message_id: MessageIdText | None = None


class Acknowledged(Resource):
    """Tells where the cursor stands now, on disk."""

    cursor: int


class Subscription(Resource):
    """A subscription: how far it has come, and what is before it."""

    name: str
    generation: int
    """Of the topic; offsets and epochs are of one generation."""
    epoch: int
    """The number of its newest consumer; of an open or a seek: the number that this one was given."""
    cursor: int
    """Every message below this offset is acknowledged."""
    lag: int
    """Offsets between the cursor and the end of the log that are still there, undecided and rolled back messages included."""
    lost: int
    """Offsets at and behind the cursor that have expired before they were acknowledged."""
    upcoming_offset: int
    stable_offset: int
    """Consumers are given messages up to here; what follows waits for a transaction that is not decided."""
    held_by: int | None = None
    """The write pointer whose message stands at ``stable_offset`` undecided; None: nothing is held back."""
    held_since_ms: int | None = None
    """Since when."""
    oldest_ms: int | None = None
    """When the oldest message that is not acknowledged, and still there, was published; None: the ``lag`` is 0."""
    heard_ms: int | None = None
    """When the newest consumer last asked for messages or acknowledged some; None: not since the topic was opened here."""


class SubscriptionOnTopic(Subscription):
    """A subscription, with its topic."""

    namespace: str
    topic: str


class Why(Resource):
    """Explains why a sequence id of a producer was or would be dropped."""

    producer: str
    sequence_id: int
    verdict: Literal["new", "in_flight", "duplicate", "not_judged"]
    """What a message with this sequence id would be judged now; ``not_judged`` with deduplication off."""
    reason: str
    message_id: MessageIdText | None
    """Of the stored message with exactly this sequence id, where one was found."""
    offset: int | None


class NamespacePolicies(Request):
    """Policies: they hold for the topics of a namespace that do not say otherwise. Null inherits the service's setting."""

    deduplication: bool | None = None
    max_messages_per_second: int | None = Field(default=None, ge=1, le=MAX_QUOTA)
    """Of each topic; null: as many as come."""
    max_bytes_per_second: int | None = Field(default=None, ge=1, le=MAX_QUOTA)
    max_bytes: int | None = Field(default=None, ge=1, le=MAX_QUOTA)
    """That each topic's messages may take; null: there is no limit."""
    max_bytes_policy: Literal["refuse", "trim"] | None = None
    """What a topic does that is full; null: it refuses."""


class CreateToken(Request):
    """A token to be made: for whom, with what grants, and until when."""

    name: str
    grants: list[str]
    """As ``read:orders/*``, ``write:default/load-*:loader-*``, ``manage:*/*``, ``observe``, ``operate``, ``admin``,
    ``service``."""
    expires_in_ms: int | None = None
    """Null: it does not expire."""


class Token(Resource):
    """A token as its service knows it: not the secret, which is told once."""

    id: str
    name: str
    grants: list[str]
    created_ms: int
    expires_ms: int | None


class CreatedToken(Token):
    """A token that has just been made."""

    secret: str | None
    """What requests are to carry, told now and never again; null: the name is a client certificate's."""


TransactionState = Literal["in_progress", "committed", "aborted", "invalid"]


class TransactionStatus(Resource):
    """A transaction as its service knows it. Of one that has ended, only ``write_pointer`` and ``state`` are kept for long."""

    write_pointer: int
    state: TransactionState
    """``invalid``: timed out, abandoned or invalidated; as ``aborted``, it will never be seen."""
    type: Literal["short", "long"] | None = None
    started_ms: int | None = None
    expires_ms: int | None = None
    """When it will time out; null when it has ended."""
    resource: str | None = None
    """The database whose commit decides it, once it is prepared; whoever recovers that database ends the transaction."""
    store_id: str | None = None
    """Of the store that it is in, while it is in progress: other services may hand out the same write pointers."""
    checkpoints: list[int] = Field(default_factory=list)
    """Its further write pointers, oldest first."""
    participants: list[str] = Field(default_factory=list)
    """The topics that hold messages of it which are not settled yet."""
    owner: str | None = None
    """The principal that began it; null: the service knew of none then."""


class StartTransaction(Request):
    """A request that starts a transaction."""

    type: Literal["short", "long"] = "short"
    timeout_ms: int | None = Field(default=None, gt=0)
    """Of a short one, else the service's setting. A long one lives until the maximum lifetime is over."""


class Changes(Request):
    """The keys that a transaction changed, for can-commit and commit."""

    changes: list[str] = Field(default_factory=list)
    """Keys as bytes, each byte a character U+0000 to U+00FF (Avro's JSON encoding)."""
    resource: str | None = Field(default=None, min_length=1, max_length=249)
    """Only for can-commit: the database whose commit decides the transaction. From then on it does not time out before its
    maximum lifetime is over, so that whoever recovers that database can still end it."""


class CanCommit(Resource):
    """The answer that a transaction can commit."""

    store_id: str
    """Of the store that it is in. With the write pointer it names the transaction to a database that decides."""


class AbortTransaction(Request):
    """A request that aborts a transaction."""

    unless_prepared: bool = False
    """Leave one to its database that is prepared, and one invalid that is: asked by who is not its client."""


class PruneInvalid(Request):
    """A request to forget invalid transactions: those named, or all that started before a time."""

    write_pointers: list[int] | None = None
    before_ms: int | None = None


class Enlisted(Resource):
    """The answer to a participant that is about to hold messages of a transaction."""

    enlisted: bool
    """False: its write pointer was never handed out here."""
    owner: str | None = None
    """The principal whose transaction it is."""


class Settlement(Resource):
    """A transaction that has ended, and a participant that has not been told yet."""

    write_pointer: int
    state: TransactionState
    participant: str


class AskUnacknowledged(Request):
    """Which participants of ended transactions an instance of the service wants to be told of."""

    store_id: str = Field(min_length=1, max_length=100)
    """Of this store."""
    wait: int = Field(default=0, ge=0)
    """Milliseconds to hold an empty answer."""
    member: InstanceId | None = None
    """The id of the instance that asks among those that share the store; null: all participants of the store."""
    alive: list[InstanceId] = Field(default_factory=list)
    """The ids of all of them: a topic belongs to one of them, by its name."""
    also: list[ParticipantName] = Field(default_factory=list)
    """Participants that the instance serves although they belong elsewhere."""
    without: list[ParticipantName] = Field(default_factory=list)
    """Participants that it does not want now."""


class HeldMessages(Resource):
    """Messages that a topic holds back under one write pointer, since nobody knows yet how its transaction ends."""

    write_pointer: int
    since_ms: int
    """When the first of them was published."""
    first_offset: int
    """Of the first of them. Consumers, Spark, snapshots and retention go up to the lowest one on the topic."""
    messages: int
    producers: list[str]
    """The named producers among those who published them."""
    state: TransactionState | None = None
    """What the transaction service says of it; None: it does not know this pointer, which is another service's or was handed out
    in a time that it was put back behind; or it cannot be asked now."""


class HeldOnTopic(HeldMessages):
    """Messages that are held back, with their topic."""

    namespace: str
    topic: str


RowState = Literal["in_progress", "committed", "rolled_back", "invalid", "unknown"]
"""What became of the transaction of a row. ``unknown``: our transaction service does not know it, and it has not ended here."""


class InspectedRow(Resource):
    """A row of a topic's log, as it lies there."""

    message_id: MessageIdText
    offset: int
    """Of its first message."""
    messages: int
    """1; of a row that stands for a stored group or an atomic commit: how many it makes appear."""
    group: bool
    producer: str | None
    sequence_id: int | None
    key: str | None
    ttl: int | None
    write_pointer: int | None
    rolled_back: bool
    """Whether the row is rolled back."""
    state: RowState | None = None
    """None: it is of no transaction."""
    payload_bytes: int
    payload: str
    """The beginning of it; what is no UTF-8 as escapes."""


class InspectedGroup(Resource):
    """The messages that are stored apart from the log under one write pointer."""

    write_pointer: int | None
    """None: an atomic commit has staged it."""
    atomic_number: int | None
    state: RowState | None = None
    messages: int
    published: MessageIdText | None
    """The row that makes it appear; null while it does not."""
    expired: bool
    """It expired before it was published, and never can be."""
    producer: str | None
    """Who published it, if that was a named producer."""


class InspectedPayload(Resource):
    """A payload that is stored apart from the log."""

    payload_id: str
    index: int
    producer: str | None
    sequence_id: int | None
    payload_bytes: int
    payload: str
    """The beginning of it; what is no UTF-8 as escapes."""


class EndHeld(Request):
    """An operator's request that ends, on one topic, a write pointer that our transaction service does not know."""

    committed: bool
    """Whether its messages count from now on; otherwise they are rolled back."""


class TrimTopic(Request):
    """An operator's request that everything before an offset or a time be gone: exactly one of them."""

    before_offset: int | None = Field(default=None, ge=0)
    """The offset of the first message that stays."""
    before_time: int | None = Field(default=None, ge=0)
    """Milliseconds; messages that were published at this time or later stay."""
    generation: int | None = None
    """Of the topic; refused when it is another."""


class Trimmed(Resource):
    """Tells where a topic's log begins, now that it was trimmed, on disk."""

    generation: int
    earliest_offset: int
    """Of the first message that is there, or will be."""


class EraseMessage(Request):
    """An operator's request that one message's payload and properties be gone: named by its offset or by its id."""

    offset: int | None = Field(default=None, ge=0)
    message_id: MessageIdText | None = None
    generation: int | None = None
    """Of the topic; refused when it is another."""


class ErasedMessage(Resource):
    """A message that was erased: its place, which stays."""

    generation: int
    offset: int
    message_id: MessageIdText
    erased_ms: int
    """When it was erased first, ms since 1970."""


class TopicAsked(Request):
    """A question about one topic's offsets."""

    after: int | None = Field(default=None, ge=0)
    """The answer may wait until the stable end lies above this."""
    timestamp: int | None = Field(default=None, ge=0)
    """Milliseconds: which offset belongs to this time?"""
    max_bytes: int | None = Field(default=None, gt=0)
    """Up to where do the messages from ``after`` on fit into so many bytes?"""


class AskOffsets(Request):
    """Topics of a namespace, by name, and how many milliseconds to wait for something new on one of them."""

    topics: dict[TopicName, TopicAsked]
    wait: int = Field(default=0, ge=0)


class TopicOffsets(Resource):
    """The offsets of a topic that can be read, and read again the same."""

    generation: int
    """Of the topic: another one after it was deleted and created anew, whose offsets are others."""
    earliest: int
    """Offset of the oldest message that is still stored."""
    stable: int
    """Behind the last message before which every transaction is decided. What lies below never changes: nothing is inserted."""
    at_timestamp: int | None = None
    """Offset of the first message published at that time or later; ``stable`` where there is none yet."""
    within: int | None = None
    """Behind the last message that fits into ``max_bytes``; at least one does."""


class Verification(Resource):
    """The outcome of refolding a topic's log and comparing it with the live maps. ``ok`` only if ``problems`` is empty."""

    namespace: str
    topic: str
    generation: int
    messages: int
    """Rows read, each with its checksum, its dense offset and its rising id checked."""
    rolled_back: int | None = None
    """How many of them were rolled back, and are given to no reader but of everything; None: the service is of before."""
    producers: int
    duplicates: int
    """Sequence ids found twice, or out of order, although deduplication was on."""
    ok: bool
    problems: list[str]


# --- several instances over one store ---------------------------------------------------------------------------------


class ClusterInstance(Resource):
    """An instance of the service that is alive."""

    id: str
    url: str
    expires_in_ms: int
    """When it is taken for dead if it is not heard of before, by the database's clock."""


class ClusterLease(Resource):
    """Tells which instance serves what."""

    resource: str
    """``topic``, ``transactions`` or ``atomic``."""
    namespace: str | None = None
    topic: str | None = None
    epoch: int
    """Rises with every change of hands."""
    instance: str
    url: str | None = None
    """None: that instance is not alive any more, and nobody has taken this over yet."""

    @property
    def name(self) -> str:
        """Of the topic, ``namespace/topic``, or the resource."""
        return self.resource if self.topic is None else f"{self.namespace}/{self.topic}"


class Cluster(Resource):
    """The instances over one store."""

    instance: str
    """Id of the one that answered."""
    instances: list[ClusterInstance]
    leases: list[ClusterLease]


# --- atomic commits -----------------------------------------------------------------------------------------------------

AtomicState = Literal["in_progress", "committed", "duplicate", "aborted"]


class BeginAtomic(Request):
    """A request that begins an atomic commit, or a branch of one."""

    id: AtomicId | None = None
    """Chosen by the client, so that a repeated begin begins nothing twice; null: the service assigns one."""
    group: GroupName
    """Transactions of one group appear in the same order on all topics."""
    timeout_ms: int | None = Field(default=None, gt=0)
    """It is aborted when it is not committed by then."""
    of: AtomicId | None = None
    """Of a branch: the id of the transaction whose commit may name it; that one need not have begun."""


class Backup(Resource):
    """A backup of a store, whole and on disk."""

    number: int
    """Among the backups of its directory; the newest has the highest."""
    directory: str
    """On the service's machine."""
    store_id: str
    position: int
    """Of the newest write that is in it."""
    taken_ms: int
    files: int
    bytes: int
    new_bytes: int
    """Those that no backup before it in the directory had brought."""


class AtomicTopic(Resource):
    """The messages that an atomic commit put on one topic: ``messages`` in a row, from ``first_offset`` on."""

    namespace: str
    topic: str
    generation: int
    messages: int
    first_offset: int | None
    """None where it put nothing."""
    first_message_id: MessageIdText | None


class AtomicOutcome(Resource):
    """An atomic commit, and what became of it. What is answered is durable."""

    id: str
    group: str
    state: AtomicState
    """``duplicate``: its (producer, sequence id) had been committed before, by ``original``; nothing of it was stored."""
    began_ms: int | None = None
    expires_ms: int | None = None
    """When it is aborted; null once it has ended."""
    of: str | None = None
    """Of a branch: the transaction that it is for, or became part of."""
    branches: list[str] = Field(default_factory=list)
    """Those that the commit named, in their order."""
    topics: list[AtomicTopic] = Field(default_factory=list)
    messages: int | None = None
    """Over all topics; of a duplicate: of its original."""
    producer: str | None = None
    sequence_id: int | None = None
    incarnation: str | None = None
    checksum: str | None = None
    """As the commit carried it; of a duplicate: as its original did."""
    original: str | None = None
    """Of a duplicate: the transaction that committed the sequence id, where it is known."""
    reason: str | None = None
    """Why it was aborted: an error's code, ``timed_out``, ``asked`` or ``not_named``."""
    detail: str | None = None
    owner: str | None = None
    """The principal that began it; null: the service knew of none then."""

    @property
    def committed(self) -> bool:
        """Whether its messages are in the log: through it, or through its original."""
        return self.state in ("committed", "duplicate")


class GroupTopic(Resource):
    """A topic that atomic commits under a producer's name went to."""

    namespace: str
    topic: str
    generation: int
    """That they went to."""
    current_generation: int | None
    """Of the topic now; None: there is none."""


class GroupProducer(Resource):
    """The newest atomic commit under a producer's name in a group."""

    group: str
    producer: str
    sequence_id: int
    incarnation: str | None
    transaction: str
    messages: int
    checksum: str | None
    owner: str | None = None
    """The principal whose commit it is: no other one commits under this name; null: anybody does."""
    topics: list[GroupTopic] = Field(default_factory=list)
    """Where commits under the name went, as far as that is known. What went to another generation of a topic than that of now is
    gone, and its repeat is refused (`commit_gone`)."""
