"""What the parts of one open topic share: where it lies, who writes it, what is known of it, and whether it still takes anything.

The topic's log is built from this value, and so is each of its parts. Whatever changes while the topic is open is here as
well, so that every part sees it as it is at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field

from oncelog.errors import StaleMessageId, StorageUnavailable
from oncelog.wire.transaction import POINTERS_PER_MS
from oncelog_dedup import Deduplicator, Fold
from oncelog_service.bounds.holding import Counted, check_gone
from oncelog_service.bounds.quotas import Quota
from oncelog_service.bounds.size import Size
from oncelog_service.clock import Clock
from oncelog_service.cluster.leases import LOST
from oncelog_service.counting.topics import Tally, TopicCounts
from oncelog_service.group_commit import Writer
from oncelog_service.log.arrivals import Arrivals
from oncelog_service.log.cache import TopicCache
from oncelog_service.log.groups.pointers import WritePointers
from oncelog_service.log.groups.stored import Groups
from oncelog_service.log.judgements import Judgements
from oncelog_service.log.key_index import KeyIndex
from oncelog_service.log.limits import Limits
from oncelog_service.log.names.generations import Generations
from oncelog_service.log.numbers import Numbers
from oncelog_service.log.stamps import Stamps
from oncelog_service.properties import Rules
from oncelog_service.storage.incarnation import FIRST, Incarnation, raised
from oncelog_service.storage.keys import ROW_ID_SIZE, is_beyond, split_row_id, timestamp_prefix
from oncelog_service.storage.port import Store
from oncelog_service.storage.records import EndedRow, ProducerRow, SubscriptionRow, TopicRow
from oncelog_service.transactions.port import Transactions

_RESET = "; a Checkpoint goes there by reset()"
"""Behind where to start from: a position that a Checkpoint keeps comes again until it was moved."""


@dataclass(slots=True)
class Recovered:
    """All that memory holds of a topic when it is opened."""

    fold: Fold
    producers: dict[str, ProducerRow]
    earliest_offset: int
    snapshots: list[int | None]
    """The upcoming offset of the snapshot in each slot; None where there is no valid one."""
    replayed: int
    keys: KeyIndex | None = None
    """Where the topic checks expectations."""
    key_snapshots: list[int | None] | None = None
    subscriptions: dict[str, SubscriptionRow] = field(default_factory=dict)
    trimmed_id: bytes = b""
    """Of the last message that retention has deleted; empty for none."""
    hidden_below: int = 0
    hidden_before: bytes = b""
    lost: Sequence[tuple[bytes, int]] = ()
    """Spans of ids that were handed out in a time that the store does not know of: (id of the last message before, empty for
    none; ms of the first one behind)."""
    ended_by_hand: dict[int, EndedRow] = field(default_factory=dict)
    """By write pointer, how an operator has ended it."""
    judgements: Judgements = ()
    size: Size = field(default_factory=Size)


@dataclass(slots=True, eq=False, kw_only=True)
class OpenTopic:
    """One topic while it is open. It belongs to the event loop that owns the topic."""

    prefix: bytes
    """It begins every key of this generation."""
    row: TopicRow
    """It is replaced when the topic's properties change."""
    store: Store
    writer: Writer
    clock: Clock
    limits: Limits
    transactions: Transactions
    participant: str
    """How the transaction service calls this generation."""
    incarnation: Incarnation = FIRST
    """Of the store."""
    rules_of: Callable[[TopicRow], Rules]
    """What holds for a topic with this row, as topic, namespace and service say at this moment."""
    cache: TopicCache
    counts: TopicCounts = field(default_factory=lambda: TopicCounts(Tally()))
    """What happens on it, as long as it has a name."""
    rolled_back_by_hand: set[bytes] = field(default_factory=set)
    """Keys of the pointers that an operator has rolled back on any topic of the store."""
    recovered: InitVar[Recovered]

    rules: Rules = field(init=False)
    """What :attr:`rules_of` says; whoever changes what that goes by calls :meth:`follow`."""
    dedup: Deduplicator = field(init=False)
    keys: KeyIndex | None = field(init=False)
    """None where the topic does not check expectations."""
    producers: dict[str, ProducerRow] = field(init=False)
    """The rows of the producers, on disk or on their way there."""
    earliest_offset: int = field(init=False)
    """Retention has deleted what was before."""
    trimmed_id: bytes = field(init=False)
    """Id of the last message that retention has deleted; empty for none."""
    hidden_below: int = field(init=False)
    """Messages with offsets below this one were trimmed, deleted or not."""
    hidden_before: bytes = field(init=False)
    """The place that this is; empty for none."""
    lost: Sequence[tuple[bytes, int]] = field(init=False)
    """As in :class:`Recovered`."""
    size: Size = field(init=False)
    _counted: Counted = field(init=False)
    """Its producers."""
    stamps: Stamps = field(init=False)
    """They know the highest id and offset that were handed out."""
    quota: Quota = field(default_factory=lambda: Quota("the topic"))
    pointers: WritePointers = field(init=False)
    groups: Groups = field(init=False)
    generations: Generations = field(init=False)
    numbers: dict[int, Numbers] = field(default_factory=dict)
    """By write pointer: sequence ids of messages without a producer. What was rolled back stays until its ids come again."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """Woken when there are more messages, or the topic is closed."""
    stable_arrivals: Arrivals = field(default_factory=Arrivals)
    """Woken when more may be settled, or the topic is closed."""
    grown: Callable[[], None] = lambda: None
    """To be called when more is in the log, or more of it is settled."""
    watchers: list[set[str]] = field(default_factory=list)
    """Producers that step back or are forgotten are added to each of these, while a verification compares the log with memory."""
    closed: bool = False
    """Whether the topic takes nothing more."""

    def __post_init__(self, recovered: Recovered) -> None:
        self.rules = self.rules_of(self.row)
        self.dedup = Deduplicator(recovered.fold)
        self.keys = recovered.keys
        self.producers = recovered.producers
        self.earliest_offset = recovered.earliest_offset
        self.trimmed_id = recovered.trimmed_id
        self.hidden_below, self.hidden_before = recovered.hidden_below, recovered.hidden_before
        self.lost = recovered.lost
        self.size = recovered.size
        floor = max(self.row.created, self.row.expired_before, self.incarnation.messages_ms)
        self._counted = Counted(len(self.producers) + self.dedup.producers_at_most)
        self.stamps = Stamps(floor, recovered.fold.upcoming_offset, self.last_row_id or None)
        self.pointers = WritePointers(
            self.transactions,
            self.participant,
            self.clock,
            self.limits.max_transaction_lifetime_ms,
            self.limits.foreign_write_pointers,
            recovered.ended_by_hand,
        )
        self.groups = Groups(self.prefix, self.store, self.keys is not None)
        self.generations = Generations(self.prefix, self.row, self.incarnation, self.store)

    @property
    def generation(self) -> int:
        """The generation as clients are told it; in keys it is the row's."""
        return raised(self.row.generation, self.incarnation)

    @property
    def begin_offset(self) -> int:
        """Where the log begins for readers: for them what was trimmed is gone before it is deleted."""
        return max(self.earliest_offset, self.hidden_below)

    def follow(self, row: TopicRow | None = None) -> None:
        """Go by the rules that hold now. ``row``: its new one, if that is what has changed."""
        self.row = row or self.row
        self.rules = self.rules_of(self.row)

    @property
    def last_row_id(self) -> bytes:
        """Of the last row on disk; empty for none."""
        return (self.dedup.fold.position.last_message_id or b"")[:ROW_ID_SIZE]

    def transactions_of(self, producer: str) -> set[int]:
        """Write pointers under which the producer has messages that are not settled, published or stored."""
        return {*self.dedup.fold.pointers_of(producer), *self.groups.pointers_of(producer)}

    def is_before(self, pointer: int) -> bool:
        """Whether a pointer was handed out before the store was put back to an earlier state: what is unsettled under it may have
        been undone since, and the transaction service need not remember that any more."""
        return pointer // POINTERS_PER_MS < self.incarnation.pointers_ms

    @property
    def any_transactions(self) -> bool:
        """Whether any producer can have messages under a write pointer that are not settled."""
        return self.dedup.fold.has_unsettled or self.groups.any

    def check_open(self) -> None:
        """Raises StorageUnavailable once the topic takes nothing more, or another process may serve it."""
        if self.closed:
            raise StorageUnavailable("the topic was closed meanwhile; nothing was done, try again")
        if not self.writer.is_valid:
            raise StorageUnavailable(LOST)

    def has_producer(self, name: str) -> bool:
        """Whether the topic has a producer of this name: one that was opened or has published, and was not forgotten."""
        row = self.producers.get(name)
        return (row is not None and row.is_open) or self.dedup.last_pushed(name) is not None

    def check_producers(self, names: Iterable[str]) -> None:
        """Raises QuotaExceeded where these would be more producers than the topic may have; in the step that makes them known."""
        new = {name for name in names if not self.has_producer(name)}
        if new:
            limit = self.limits.max_producers
            check_gone("producers", len(self.producers), len(new - self.producers.keys()), limit, "the topic")
            self._counted.check("producers", len(new), limit, "the topic", self.dedup.fold.gone, self._count_producers)

    def _count_producers(self) -> int:
        there = self.dedup.producers()
        there.update(name for name, row in self.producers.items() if row.is_open)
        return len(there)

    def check_generation(self, asked: int | None) -> None:
        """Raises StaleMessageId for a position in another generation of the topic."""
        present = self.generation
        if asked is not None and asked != present:
            raise StaleMessageId(
                f"the position is one in generation {asked} of the topic, which was deleted, or whose store was restored from a "
                f"backup; this is generation {present}, whose messages are others: start from the oldest, or from a message "
                f"id{_RESET}",
                generation=present,
            )

    def check_message_id(self, message_id: bytes) -> None:
        """Raises StaleMessageId for an id that is older than this generation of the topic, or was handed out in a lost time."""
        if self._is_older(message_id):
            raise StaleMessageId(
                f"message id {message_id.hex()} is older than generation {self.generation} of the topic; start from the "
                f"oldest{_RESET}",
                generation=self.generation,
            )
        if (lost := self._lost_span(message_id)) is not None:
            raise _lost(message_id, lost[0], self.generation)

    def moment_of(self, message_id: bytes) -> int | None:
        """The first millisecond of all that is behind an id that :meth:`check_message_id` refuses; None: it is a place here."""
        if self._is_older(message_id):
            return self.row.created
        lost = self._lost_span(message_id)
        return None if lost is None else lost[1]

    def _is_older(self, message_id: bytes) -> bool:
        if is_beyond(message_id) or not (self.row.generation > 1 or self.incarnation.number):
            return False
        return split_row_id(message_id)[0] < self.row.created

    def _lost_span(self, message_id: bytes) -> tuple[bytes, int] | None:
        row_id = message_id[:ROW_ID_SIZE]
        spans = (each for each in self.lost if each[0][:ROW_ID_SIZE] < row_id < timestamp_prefix(each[1]))
        return next(spans, None)

    def dismiss(self) -> None:
        """Have all who wait for messages answer with what there is."""
        self.arrivals.dismiss()
        self.stable_arrivals.dismiss()

    def close(self) -> None:
        """Take nothing more, and tell all who wait to try again."""
        self.closed = True
        self.arrivals.wake()
        self.stable_arrivals.wake()


def _lost(message_id: bytes, before: bytes, generation: int) -> StaleMessageId:
    """The refusal of a position behind a message that is lost."""
    begin = f"message id {before.hex()}, the last one before" if before else "the oldest message"
    return StaleMessageId(
        f"message id {message_id.hex()} is that of a message which is lost: the store was put back to a state of before, and "
        "what is sent again has another id. Look at what was done by messages behind that state, undo it or count it as done, "
        f"and start from {begin}{_RESET}",
        generation=generation,
        last_message_id=before.hex() or None,
    )
