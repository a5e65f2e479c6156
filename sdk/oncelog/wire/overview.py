"""What a service says of itself as a whole: its alarms, and the numbers of a first page with their recent past."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oncelog.wire.models import Resource

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""The most severe first."""


class Alarm(Resource):
    """Something that is not as it should be: what, since when, and what to do."""

    code: str
    """Its kind, as ``topic_held``; docs/operating.md lists them."""
    severity: Severity
    subject: str
    """What it is about, as people say it: ``topic default/orders``."""
    about: dict[str, str | int] = Field(default_factory=dict)
    """The names in it, one by one, for programs: ``namespace``, ``topic``, ``writePointer``, ``producer``, …"""
    since_ms: int | None = None
    """Since when it is so, or was first seen to be."""
    what: str
    """What is so, with its figures."""
    mend: str
    """What to do."""
    commands: list[str] = Field(default_factory=list)
    """The commands that do it or say more, with their names filled in."""
    docs: str
    """Page and section of the documentation: ``operating.md#a-full-disk``."""
    instance: str | None = None
    """URL of the instance that says so, where several share a store."""


class Alarms(Resource):
    """All alarms of a service, the most severe first."""

    now_ms: int
    """By the service's clock."""
    alarms: list[Alarm]
    topics_seen: int
    """Topics that are open, here and at the other instances: of one that nobody has used since the start nothing is known."""


class Rates(Resource):
    """What went through in a second, on the average since the sample before; None: there was none before."""

    messages_in: float | None = None
    """Stored, for good or under a write pointer."""
    bytes_in: float | None = None
    """Payloads, keys and properties."""
    messages_out: float | None = None
    """Handed to readers and consumers."""
    bytes_out: float | None = None
    """Of the answers that had them."""
    duplicates: float | None = None
    """Messages refused as duplicates."""


class Sample(Rates):
    """The service as it was at one moment."""

    number: int
    """One more than that of the sample before."""
    at_ms: int
    writes: float | None = None
    """Synced writes a second."""
    sync_p50_ms: float | None = None
    """How long these took; None: there was none."""
    sync_p99_ms: float | None = None
    connections: int = 0
    open_topics: int = 0
    transactions: int | None = None
    """In progress; None: another process serves them."""
    atomic_commits: int | None = None
    held_topics: int = 0
    largest_lag: int = 0
    disk_free_bytes: int | None = None
    """None: nobody can tell."""
    memory_bytes: int | None = None
    """Resident; None: the system does not say."""
    cpu: float | None = None
    """Processors that were busy with the service."""


class TopicActivity(Rates):
    """A topic that is open, and what goes through it."""

    namespace: str
    name: str
    lag: int = 0
    """Of the subscription that is farthest behind."""
    held: bool = False
    """Whether it holds messages back since a transaction is not decided."""


class Overview(Resource):
    """What a first page shows."""

    url: str
    store: str
    """Where the data lies, as its settings say it: without a password."""
    version: str
    status: Literal["ok", "failing", "full", "damaged", "stalled", "closed"]
    """The most severe of these that is so; ``stalled``: the store hangs; ``closed``: it is not open."""
    now_ms: int
    started_ms: int
    instances: int = 1
    """How many share the store, as far as this one knows."""
    every_ms: int
    """Between two samples."""
    sample: Sample | None
    """The newest; None: there is none yet."""
    history: list[Sample]
    """The samples behind ``after``, or all that are kept, oldest first; the newest is the last."""
    disk_min_free_bytes: int
    """Below so many nothing more is taken in; 0: there is no floor."""
    topics: list[TopicActivity]
    """The busiest ones, at most 20."""
    alarms: list[Alarm]
    """Of all instances, the most severe first."""
