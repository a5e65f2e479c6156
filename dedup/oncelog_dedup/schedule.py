"""When a snapshot is due. It is given the time and never asks for it.

Two rules. It is *wanted* after ``every_messages`` messages or after ``every_seconds`` seconds with at least one message. It is
*affordable* when the messages since the last snapshot are at least as many as the producers it will hold: then snapshots write
at most one map entry per message, however many producers there are. With 100,000 producers a snapshot every 1,000 messages
would write 100 entries per message; replay after a crash is bounded by the same number instead.

Deleting messages needs two snapshots that hold them. Those are affordable when they have at most as many entries as they let be
deleted messages, or as many as hardly cost anything.
"""

from __future__ import annotations

DEFAULT_EVERY_MESSAGES = 1_000
"""As Pulsar's brokerDeduplicationEntriesInterval."""
DEFAULT_EVERY_SECONDS = 120.0
"""As Pulsar's brokerDeduplicationSnapshotIntervalSeconds."""

FEW_ENTRIES = 16
"""Snapshots of so few producers are always affordable: they are about as large as a message."""


def frees_enough(snapshots: int, entries: int, messages: int) -> bool:
    """Whether so many ``snapshots``, of ``entries`` each, are affordable for the ``messages`` that can be deleted only then."""
    return entries <= FEW_ENTRIES or snapshots * entries <= messages


class SnapshotSchedule:
    """Counts messages since the last snapshot and says when the next one is due."""

    __slots__ = ("_every_messages", "_every_seconds", "_messages", "_since")

    def __init__(
        self,
        now: float,
        every_messages: int = DEFAULT_EVERY_MESSAGES,
        every_seconds: float = DEFAULT_EVERY_SECONDS,
        already: int = 0,
    ) -> None:
        """``now`` in seconds on any clock that does not go back; ``already``: messages replayed since the last snapshot."""
        if every_messages < 1 or every_seconds <= 0:
            raise ValueError("a snapshot interval is at least one message and longer than no time")
        self._every_messages = every_messages
        self._every_seconds = every_seconds
        self._messages = already
        self._since = now

    def count(self, messages: int) -> None:
        """Note that so many more messages were persisted."""
        self._messages += messages

    def due(self, now: float, producers: int, held_back: int = 0) -> bool:
        """Whether to write a snapshot of ``producers`` entries now, which could not hold the last ``held_back`` messages."""
        held = self._messages - held_back
        if held <= 0 or held < producers:
            return False
        return held >= self._every_messages or now - self._since >= self._every_seconds

    def may_be_due(self, now: float) -> bool:
        """Whether :meth:`due` can say so at this moment, whatever it is told: that is to be found out only then."""
        return self._messages >= self._every_messages or now - self._since >= self._every_seconds

    def done(self, now: float, covered: int | None = None) -> None:
        """Note that a snapshot covering ``covered`` of the counted messages (default: all) was written."""
        self._messages = 0 if covered is None else max(0, self._messages - covered)
        self._since = now

    @property
    def messages(self) -> int:
        """Messages persisted since the last snapshot: what a restart now would replay."""
        return self._messages
