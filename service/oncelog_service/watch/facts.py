"""What alarms are judged by: a picture of the service at one moment. Plain values, so that a test can make any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Thresholds(NamedTuple):
    """From where on something is worth an alarm: what operators set."""

    lag_messages: int = 1_000
    lag_ms: int = 300_000
    held_ms: int = 60_000


class Held(NamedTuple):
    """A topic that holds messages back under a write pointer that is not decided."""

    namespace: str
    topic: str
    pointer: int
    since_ms: int
    """When the first of them was published."""
    behind: int
    """Offsets from the first of them on: nobody is given any of these."""
    producers: tuple[str, ...] = ()
    subscriptions: int = 0
    """Of the topic: they stop there."""
    state: str | None = None
    """What the transaction service says; None: it does not know the pointer, or cannot be asked."""
    owner: str | None = None
    expires_ms: int | None = None
    """When it will time out by itself; None of one in progress: it could not be asked what it is."""
    resource: str | None = None
    """The database that decides it."""


class Lagging(NamedTuple):
    """A subscription with messages before it that it could be given."""

    namespace: str
    topic: str
    name: str
    lag: int
    """Up to where the topic is stable: what a transaction holds back is no fault of its consumer."""
    oldest_ms: int | None
    """When the first of them was published; None: it cannot be read."""
    cursor: int = 0


class Refused(NamedTuple):
    """Refusals of one kind, of one and the same thing, that followed on each other within minutes."""

    code: str
    first_ms: int
    last_ms: int
    times: int
    namespace: str = ""
    topic: str = ""
    name: str = ""
    """Of the producer, or the subscription; of a quota: which one."""
    refused: str = ""
    """The epoch, or incarnation, that was refused."""
    newest: str = ""
    """The newest one."""
    detail: str = ""
    who: str = ""
    """The principal that was refused last."""


class Replay(NamedTuple):
    """A topic whose newest snapshot is far behind."""

    namespace: str
    topic: str
    messages: int
    """That a restart would replay."""


class Expiring(NamedTuple):
    """A token that has an end."""

    id: str
    name: str
    created_ms: int
    expires_ms: int


class Member(NamedTuple):
    """Another instance over the same store."""

    id: str
    url: str
    alive: bool
    leases: int = 0
    apart_ms: int | None = None
    """How far its clock is ahead of ours; None: it was not asked, or has not answered."""
    answers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One moment of a service."""

    now_ms: int
    open: bool = True
    """Whether the store is."""
    reason: str = ""
    """Why it is not."""
    damaged: bool = False
    failures: int = 0
    stalled_ms: int = 0
    """For how long the store has hung; 0: it does not."""
    disk_state: str = "ok"
    disk_free: float = float("inf")
    disk_floor: int = 0
    disk_refused: int = 0
    held: tuple[Held, ...] = ()
    lagging: tuple[Lagging, ...] = ()
    refused: tuple[Refused, ...] = ()
    shed: Mapping[str, int] = field(default_factory=dict)
    """What was refused, or ended for others' sake, within the last minutes: how often, by reason (traffic.py)."""
    replays: tuple[Replay, ...] = ()
    transactions_url: str | None = None
    transactions_reachable: bool = True
    failing: tuple[str, ...] = ()
    """Background tasks that met an unforeseen error within the last minute."""
    clock_behind_ms: int = 0
    """How far the machine's clock is behind the newest time that was handed out: it was set back."""
    ahead: tuple[str, str, int] | None = None
    """(namespace, topic, ms): the topic whose newest message is farthest ahead of the clock."""
    members: tuple[Member, ...] = ()
    """The other instances; of those that are not alive, what they left."""
    certificate: str = ""
    """Its file."""
    certificate_ends_ms: int | None = None
    tokens: tuple[Expiring, ...] = ()
    restored_ms: int | None = None
    """When the store was put back to an earlier state."""
    host: str = "127.0.0.1"
    is_local: bool = True
    speaks_tls: bool = False
    asks_for_credentials: bool = False
    behind_a_proxy: bool = False
    """Whether there are further names by which it is asked for."""
    descriptors: int = 2**20
    """That the process may have."""
    connections_wanted: int = 0
