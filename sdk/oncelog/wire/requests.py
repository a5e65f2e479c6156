"""What travels, as plain values: requests and receipts between the codec and whoever acts on them.

No pydantic here: these are made for every request of the hot path and hold columns, not objects per message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oncelog.wire.erasure import is_erased
from oncelog.wire.isolation import Held

STORED = "stored"
DUPLICATE = "duplicate"


@dataclass(slots=True)
class PublishRequest:
    """Messages to store, as columns: entry i of every column belongs to message i; None is "none for all".

    With a write pointer and no messages, a publish makes what was stored under that pointer appear.
    """

    payloads: Sequence[bytes]
    producer: str | None = None
    epoch: int | None = None
    sequence_ids: Sequence[int] | None = None
    """The producer's; without one, under a write pointer, the transaction's own."""
    keys: Sequence[bytes | None] | None = None
    properties: Sequence[Mapping[str, str] | None] | None = None
    ttls: Sequence[int | None] | None = None
    """Seconds."""
    write_pointer: int | None = None
    expected_offset: int | None = None
    """Of the first message; each one behind it follows on."""
    expected_last_message_id: bytes | None = None
    """Id of the newest message of the topic, 20 bytes; 20 zero bytes: none was ever published."""
    expected_key_offsets: Mapping[str, int | None] | None = None
    """Key, each byte one character U+0000 to U+00FF → offset of the newest message with this key; None: there is none yet."""
    tails: Sequence[bytes] | None = field(default=None, compare=False, repr=False)
    """Key, properties and ttl of each message as they are answered and stored, if that was made together with the request."""
    counted: int | None = field(default=None, compare=False, repr=False)
    """:attr:`size`, if it was counted together with the request, which does not change any more: 100,000 payloads take 10 ms."""

    @property
    def conditional(self) -> bool:
        """Whether it carries any expectation."""
        return (
            self.expected_offset is not None or self.expected_last_message_id is not None or self.expected_key_offsets is not None
        )

    @property
    def is_bare(self) -> bool:
        """Whether its messages have payloads, perhaps a write pointer, and nothing else: as TMS has them."""
        columns = self.producer, self.sequence_ids, self.keys, self.properties, self.ttls
        return not self.conditional and all(each is None for each in columns)

    @property
    def size(self) -> int:
        """Bytes of what its messages carry: payloads, keys and properties."""
        if self.counted is not None:
            return self.counted
        size = sum(map(len, self.payloads))
        if self.tails is not None:
            return size + sum(map(len, self.tails))
        if self.keys is not None:
            size += sum(len(key) for key in self.keys if key is not None)
        if self.properties is not None:
            texts = (text for each in self.properties if each for pair in each.items() for text in pair)
            size += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        return size

    def is_erased(self, index: int) -> bool:
        """Whether one of its messages is the copy of an erased one."""
        return self.properties is not None and is_erased(self.payloads[index], self.properties[index])


class Part(NamedTuple):
    """The messages that an atomic commit carries for one topic."""

    namespace: str
    topic: str
    request: PublishRequest


TOPIC_WEIGHT = 100
"""Messages that take as long to commit as a topic does, which is 0.15 ms."""
MAX_CARRIED = 12_500
"""What one request may commit, its messages and the weight of its topics: 20 ms, in which nobody else is served."""


@dataclass(slots=True)
class CommitRequest:
    """An atomic commit: of what was staged under the transaction's own id, of ``parts``, and of other branches, in this order."""

    group: str | None = None
    """Needed where the transaction was not begun: then the commit begins it."""
    parts: Sequence[Part] = ()
    """At most one for each topic; they appear with this commit or never, once, however often it is repeated."""
    branches: Sequence[str] = ()
    producer: str | None = None
    sequence_id: int | None = None
    """With ``producer``: the commit is deduplicated as a whole, within its group."""
    incarnation: str | None = None
    """Another one under the same producer name is refused."""
    checksum: str | None = None
    """Kept with the outcome and answered to a duplicate, for its sender to compare."""
    refuses_gaps: bool = field(default=False, compare=False)
    """With ``producer``: it comes right behind the newest one, or is refused, if that said the same of itself. It travels in the
    address, where a service that does not know it passes over it."""
    fingerprint: str | None = field(default=None, compare=False, repr=False)
    """That of what it carries, if it was made before, beside the event loop."""

    @property
    def carries(self) -> bool:
        """Whether it has anything itself: messages, branches, or a number. Else it commits what is staged under the id."""
        return bool(self.parts or self.branches or self.producer is not None)


class ReceiptRun(NamedTuple):
    """Tells what became of ``count`` messages in a row; sequence id, offset and seq_id rise by one from each to the next."""

    status: str
    count: int  # type: ignore[assignment]  # tuple.count, which nobody needs here
    sequence_id: int | None
    message_id: bytes | None
    offset: int | None


@dataclass(slots=True)
class PublishResponse:
    """The answer to a publish. The four start/end fields are TMS's; all 0 when nothing was stored.

    With a write pointer it is what undoes the publish: sent back to ``/rollback`` as it came. A repeated publish of a named
    producer answers the same fields as the first one.
    """

    receipts: list[ReceiptRun]
    write_pointer: int | None = None
    start_timestamp: int = 0
    start_sequence_id: int = 0
    end_timestamp: int = 0
    end_sequence_id: int = 0


class Rollback(NamedTuple):
    """A request for a rollback: the messages of a write pointer in a range of rows, both ends included."""

    write_pointer: int
    start: tuple[int, int]
    """Publish timestamp in ms and seq_id."""
    end: tuple[int, int]


class Polled(NamedTuple):
    """The answer to a poll: messages, and what is said about them."""

    messages: Sequence[Mapping[str, Any]]
    position: bytes | None
    """Id of the last row looked at: go on exclusively after it."""
    generation: int | None = None
    """Of the topic."""
    upcoming: int | None = None
    """Where nothing was looked at since the end of the log was reached: the offset of the next message."""
    now_ms: int | None = None
    """By the service's clock."""
    ttl_ms: int | None = None
    """Of the topic."""
    isolation: str | None = None
    """What was read (:mod:`oncelog.wire.isolation`); None: the service is of a version that does not say it."""
    held: Held | None = None
    """What ended a page without messages, of those that are committed."""


@dataclass(slots=True)
class ConsumeRequest:
    """A poll.

    Where to read from and how much. ``start_from``: 20 bytes of a message id, a timestamp in ms, or None for the oldest.
    """

    start_from: bytes | int | None = None
    start_offset: int | None = None
    inclusive: bool = True
    limit: int | None = None
    wait: int | None = None
    """Milliseconds."""
    transaction: bytes | None = None
    generation: int | None = None
    """Of the topic, that the start was found in: another one is refused."""
    refuse_expired: bool = False
    """A start behind which messages have expired by the topic's ttl is refused."""
    isolation: str | None = field(default=None, metadata={"in": "address"})
    """COMMITTED or UNCOMMITTED (:mod:`oncelog.wire.isolation`); None is the latter, where there is no transaction."""
