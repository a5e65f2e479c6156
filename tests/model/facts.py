"""What was asked and what was answered: all that a client of the service could know."""

from __future__ import annotations

from dataclasses import dataclass, field

from oncelog.wire.models import TransactionState
from oncelog.wire.requests import PublishRequest, PublishResponse
from oncelog.wire.transaction import POINTERS_PER_MS, Transaction


@dataclass(eq=False)
class Sent:
    """One request, which may be sent several times."""

    topic: str
    request: PublishRequest
    stored: bool
    """To the Payload Table."""
    sure: set[bytes] = field(default_factory=set)
    """Payloads that were answered as stored, or as duplicates of a message that was named. (A duplicate without an original
    may have been left out: something behind it is there.)"""
    possible: int = 0
    """So many of the times that it was sent may have stored it; several may be under way, and each takes back its own alone."""
    responses: list[PublishResponse] = field(default_factory=list)


@dataclass(eq=False)
class Begun:
    """A transaction."""

    transaction: Transaction
    began_ms: list[int]
    """Since when the service may measure how long it lives: its start, or the service's own since."""
    lifetimes_ms: list[int]
    """How long it may live: the time-out it asked for, or longer once it is prepared."""
    seen: dict[int, TransactionState] | None
    """State of every other pointer when its snapshot was taken; None: it began while others ended."""
    prepared: bool = False
    """For sure: nobody but its client aborts it."""
    pointers: list[int] = field(default_factory=list)
    possible: set[TransactionState] = field(default_factory=lambda: {"in_progress"})
    """What its state may be, after all that was asked and answered."""

    @property
    def may_expire_ms(self) -> int:
        """From here on it may have timed out."""
        return min(self.began_ms) + min(self.lifetimes_ms)

    @property
    def expires_ms(self) -> int:
        """From here on it has."""
        return max(self.began_ms) + max(self.lifetimes_ms)

    @property
    def root(self) -> int:
        return self.transaction.transaction_id

    @property
    def certainly_open(self) -> bool:
        return self.possible == {"in_progress"}

    def opened_anew(self, now_ms: int, surely: bool) -> None:
        """The service was, or may have been: then the transaction has its whole time anew."""
        self.began_ms = [now_ms] if surely else [*self.began_ms, now_ms]

    def asked_to_prepare(self, lifetime_ms: int, surely: bool) -> None:
        """It is prepared, or may be: then it lives so long."""
        self.prepared = self.prepared or surely
        self.lifetimes_ms = [lifetime_ms] if surely else [*self.lifetimes_ms, lifetime_ms]

    def answered(self, state: TransactionState) -> None:
        """The service said so: from now on it is so."""
        assert state in self.possible, f"transaction {self.root} is answered {state}, which cannot be: {self.possible}"
        self.possible = {state}


@dataclass(frozen=True)
class Range:
    """Rows of a pointer that were to be rolled back."""

    topic: str
    pointer: int
    first: bytes
    last: bytes

    def holds(self, topic: str, pointer: int, row_id: bytes) -> bool:
        return (topic, pointer) == (self.topic, self.pointer) and self.first <= row_id <= self.last


@dataclass
class Facts:
    """Everything that the clients of one simulation know."""

    sent: list[Sent] = field(default_factory=list)
    begun: dict[int, Begun] = field(default_factory=dict)
    """By id."""
    roots: dict[int, int] = field(default_factory=dict)
    """Of every pointer of our own."""
    foreign: list[int] = field(default_factory=list)
    placed: dict[tuple[str, bytes], tuple[int, str | None, int | None, bytes, int | None]] = field(default_factory=dict)
    """(topic, message id) → offset, producer, sequence id, payload, pointer: of what was acknowledged, or found."""
    kept: set[tuple[str, bytes]] = field(default_factory=set)
    """Messages that must count for ever: they were answered `duplicate` outside of transactions."""
    grouped: dict[tuple[str, int], tuple[bytes, int]] = field(default_factory=dict)
    """(topic, pointer) → row id and number of messages of published groups."""
    rolled_back: list[Range] = field(default_factory=list)
    perhaps_rolled_back: list[Range] = field(default_factory=list)
    opened: tuple[str, str, int | None] | None = None
    """Topic, producer, and the sequence id that it was opened behind just now."""
    looked: list[tuple[str, list[tuple[bytes, int, bytes]]]] = field(default_factory=list)
    """Topic, and what a transactional reader was given while others worked."""

    def expired(self, pointer: int, now_ms: int, lifetime_ms: int) -> bool:
        return now_ms - pointer // POINTERS_PER_MS > lifetime_ms

    def state(self, pointer: int) -> TransactionState | None:
        """What the state of a pointer of our own is when nothing is under way; None for a foreign one."""
        root = self.roots.get(pointer)
        if root is None:
            return None
        (state,) = self.begun[root].possible
        return state

    def states(self) -> dict[int, TransactionState]:
        """Of all pointers of our own that are known for sure."""
        possible = {pointer: self.begun[root].possible for pointer, root in self.roots.items()}
        return {pointer: next(iter(states)) for pointer, states in possible.items() if len(states) == 1}
