"""The small tables: each row is a JSON object with a `version`. Snapshots are drawn in oncelog_dedup/snapshot.py.

::

    TOPIC      {"version": 1, "generation": int, "created": ms, "last_timestamp": ms, "expired_before": ms,
                "epoch_floor": int, "deleted": bool, "properties": {str: str}}
    NAMESPACE  {"version": 1, "policies": {str: bool | int | str | null}}
    PRODUCER   {"version": 1, "epoch": int | null, "opens": [[nonce, epoch], ...], "gaps": "allow" | "refuse",
                "forgotten_below": offset, "assigned_ms": ms | null}
    TRIM       {"version": 1, "earliest_offset": int, "last_id": hex | null, "hidden_below": int, "hidden_before": hex | null,
                "bytes_below": int, "missing": [[offset, bytes], ...]}
    EXPIRY     {"version": 1, "judgements": [[ms, hex of a row id or more], ...]}
    GROUP      {"version": 1, "row_id": hex | null, "producer": str | null}
    CHUNK      {"version": 1, "first_index": int, "messages": int, "digest": hex, "producer": str | null, "epoch": int | null,
                "expected_offset": int | null, "expected_last_message_id": hex | null,
                "expected_key_offsets": {key: int | null} | null, "key_indexes": {key: int}}
    JOURNAL_META    {"version": 1, "partitions": int, "numbers": int, "begins": [int, ...]}
    SUBSCRIPTION    {"version": 1, "epoch": int, "opens": [[nonce, epoch], ...], "cursor": offset | null}
    GROUP_PRODUCER  {"version": 1, "sequence_id": int, "incarnation": str | null, "transaction": str, "messages": int,
                     "checksum": str | null, "owner": str | null}
    GROUP_NOTE      {"version": 1, "sequence_id": int, "transaction": str, "gaps": "allow" | "refuse", "earlier": as topics,
                     "topics": [[namespace, topic, generation, sequence id | null], ...]}
    LOST            {"version": 1, "spans": [[hex of a message id, or empty, ms], ...]}
    ENDED           {"version": 1, "committed": bool, "upto": offset}
    BEHIND          {"version": 1, "by": str, "what": str, "at_ms": ms}
    INCARNATION     {"version": 1, "number": int, "messages_ms": ms, "pointers_ms": ms, "numbers_ms": ms, "began_ms": ms}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from pydantic_core import from_json, to_json

from oncelog_service.storage.port import RowDamaged

VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicRow:
    """Keeps what is known of a topic's name, also after its deletion: generations and timestamps must go on rising."""

    generation: int
    created: int
    """Milliseconds; no message id of this generation is older, every id of an earlier generation is."""
    properties: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    last_timestamp: int = 0
    """Of a deleted generation: no message id of it is younger."""
    expired_before: int = 0
    """Milliseconds; what was published before this had expired when the ttl was changed, and stays so under a longer one."""
    epoch_floor: int = 0
    """No epoch of an older generation, of a producer or of a consumer, was above it; those of this one are."""


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """Policies of a namespace."""

    policies: dict[str, bool | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """A producer on one generation of a topic. It stays when the producer is forgotten: a fenced epoch stays fenced for ever."""

    epoch: int | None = None
    opens: list[tuple[str, int]] = field(default_factory=list)
    """(nonce, epoch) of the latest opens, oldest first: they distinguish a repeated open from a new one, also behind a forget."""
    gaps: str = "allow"
    forgotten_below: int = 0
    assigned_ms: int | None = None
    """Of a name that the service assigned: when it was opened last. Its row goes when it ends."""

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not forgotten since, by which another epoch begins."""
        return bool(self.opens) and self.opens[-1][1] == self.epoch


@dataclass(frozen=True, slots=True)
class TrimRow:
    """Says where the log begins, now that older messages are deleted; without the row it begins at 0."""

    earliest_offset: int
    last_id: str | None = None
    """Hex, of the last message that was deleted."""
    hidden_below: int = 0
    """What an operator trimmed: messages with offsets below this one are gone for every reader, whether deleted or not."""
    hidden_before: str | None = None
    """Hex of the place that this is: a row id, or in a stored group a message id. None: nobody has trimmed the topic."""
    bytes_below: int = 0
    """``upto_bytes`` of the last run all of which is deleted or trimmed (bounds/size.py)."""
    missing: list[list[int]] = field(default_factory=list)
    """(offset behind a run, bytes), rising, of those runs behind that which have fewer bytes than their ``upto_bytes`` say."""


@dataclass(frozen=True, slots=True)
class ExpiryRow:
    """Says when, and up to which rows, a topic's messages were judged and some found to have expired."""

    judgements: list[list[int | str]]
    """(ms, hex of what sorts after the rows that were judged), the milliseconds falling."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A stored group that was published, or expired before it could be: nothing can be added, nor published twice."""

    row_id: str | None
    """Hex, of the row that stands for it; None: it expired."""
    producer: str | None = None
    """Who published it, if that was a named producer: it distinguishes its retry from another's second attempt."""


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A chunk of what an atomic commit has staged on a topic, and what its messages expect of that."""

    first_index: int
    """Of its first message within what the transaction has staged there."""
    messages: int
    digest: str
    """Of the request that brought it: it distinguishes a repeated chunk from another one."""
    producer: str | None = None
    epoch: int | None = None
    expected_offset: int | None = None
    expected_last_message_id: str | None = None
    """Hex."""
    expected_key_offsets: dict[str, int | None] | None = None
    key_indexes: dict[str, int] = field(default_factory=dict)
    """Of those keys that the transaction itself had staged before: the index of the newest message."""

    @property
    def conditional(self) -> bool:
        """Whether its messages expect anything."""
        return (
            self.expected_offset is not None or self.expected_last_message_id is not None or self.expected_key_offsets is not None
        )


@dataclass(frozen=True, slots=True)
class JournalMetaRow:
    """Keeps what the journal must not forget when its older records are deleted."""

    partitions: int
    numbers: int
    """No number above this one was handed out; they are reserved in blocks."""
    begins: list[int]
    """Position of the first record of each partition."""


@dataclass(frozen=True, slots=True)
class GroupProducerRow:
    """The newest atomic commit under a producer's name."""

    sequence_id: int
    incarnation: str | None
    transaction: str
    """Its id."""
    messages: int
    checksum: str | None
    owner: str | None = None
    """The principal whose commit it is; no other one commits under the name."""


@dataclass(frozen=True, slots=True)
class GroupNoteRow:
    """What is known of a group's producer besides. It is no part of that row, so that versions which know of no notes read it."""

    sequence_id: int
    transaction: str
    """The commit that it is about. Of a row that is about another one it says nothing: a version without notes wrote that."""
    topics: list[list[Any]]
    """[namespace, topic, generation, since]: where the newest commit that wrote anything did. ``since``: the first sequence id
    that went to this generation, if an earlier one is known to have gone to an older one."""
    earlier: list[list[Any]]
    """The same of topics that commits before it wrote to, and it did not; those that were written to last are behind."""
    gaps: str = "allow"
    """``refuse``: the commit was to come right behind the one before it."""


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """A subscription on one generation of a topic. Its row stays when it is deleted: a fenced epoch stays fenced for ever."""

    epoch: int
    opens: list[tuple[str, int]] = field(default_factory=list)
    """(nonce, epoch) of the latest opens and seeks, oldest first: they distinguish a repeated one from a new one."""
    cursor: int | None = None
    """Every message below this offset is acknowledged; None: the subscription is deleted."""


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Says that a store is a copy, or is to become one."""

    of: str
    """The name among participants of the store that it was copied from, 32 hex digits."""
    source: str
    """Where that store lay; for people."""
    finished: bool


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token, without its secret."""

    name: str
    """Of the principal."""
    grants: list[str]
    digest: str
    """SHA-256 of the secret, in hex; empty: there is none."""
    created_ms: int
    expires_ms: int | None


@dataclass(frozen=True, slots=True)
class LostRow:
    """Of a topic whose store was put back in time: ids between these two were handed out, and are not known."""

    spans: list[list[int | str]]
    """(hex of the last message id that was known, empty for none; ms of the first one that is handed out again), rising."""


@dataclass(frozen=True, slots=True)
class EndedRow:
    """Says how an operator has ended a write pointer on a topic; no transaction service says it."""

    committed: bool
    upto: int
    """Offset behind its last message here. Once the snapshots are past it, they say the same."""


@dataclass(frozen=True, slots=True)
class IncarnationRow:
    """The incarnation of a store that was put back in time (incarnation.py)."""

    number: int
    messages_ms: int
    pointers_ms: int
    numbers_ms: int
    began_ms: int


@dataclass(frozen=True, slots=True)
class BehindRow:
    """Says that a store has gone back in time; nobody serves it until another incarnation has begun."""

    by: str
    """Who has found that."""
    what: str
    """How it is known; a sentence for people."""
    at_ms: int


Record: TypeAlias = (
    TopicRow
    | NamespaceRow
    | ProducerRow
    | TrimRow
    | ExpiryRow
    | GroupRow
    | ChunkRow
    | JournalMetaRow
    | GroupProducerRow
    | GroupNoteRow
    | SubscriptionRow
    | CopyRow
    | TokenRow
    | IncarnationRow
    | LostRow
    | EndedRow
    | BehindRow
)
R = TypeVar("R", bound=Record)


def encode_record(record: Record) -> bytes:
    """Encodes a record as a JSON object with a version, its members sorted."""
    fields: dict[str, object] = {"version": VERSION}
    for name in record.__slots__:
        value = getattr(record, name)
        fields[name] = dict(sorted(value.items())) if type(value) is dict else value
    return to_json(dict(sorted(fields.items())))


def decode_record(kind: type[R], data: bytes) -> R:
    """Reads a record back. Raises RowDamaged for anything but what :func:`encode_record` writes."""
    try:
        values: dict[str, Any] = from_json(data)
        if values.pop("version") != VERSION:
            raise ValueError("unknown version")
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RowDamaged(f"not a {kind.__name__}: {data[:100]!r}") from error
