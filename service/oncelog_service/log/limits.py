"""What one call on a topic may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.wire.requests import PublishRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one call may ask for, how often snapshots are taken, and what holds where a topic does not say."""

    max_messages: int = 10_000
    """Per publish request."""
    max_bare_messages: int | None = None
    """Per publish request that has payloads and nothing else of each; None: no more than of others."""
    default_poll_messages: int = 1_000
    max_poll_messages: int = 100_000
    max_poll_bytes: int = 8 * 2**20
    max_columns_messages: int = 50_000
    max_columns_bytes: int = 8 * 2**20
    """Of an answer column by column, in bytes of rows: it holds about as much as it is."""
    max_sized_bytes: int = 256 * 2**20
    """How far the messages that fit into a size are counted in one call."""
    max_wait_ms: int = 60_000
    snapshot_messages: int = 1_000
    snapshot_seconds: float = 120.0
    max_transaction_lifetime_ms: int = 90_000_000
    """Older write pointers of another transaction service are refused, and what is in the log under them is settled."""
    foreign_write_pointers: bool = False
    """Whether write pointers are taken that ours never handed out and that lie where it hands out none."""
    cdap_clients: bool = False
    """Whether CDAP's own clients are served."""
    assigned_producer_ms: int = 90_000_000
    """A name that the service assigned ends when it was not used for so long."""
    max_topics: int | None = None
    """Of one namespace; None: nobody has said."""
    max_producers: int = 200_000
    """Names of producers of one topic."""
    max_keys: int = 1_000_000
    """Of messages of one topic that checks expectations."""
    max_subscriptions: int = 10_000
    """Of one topic."""
    deduplication: bool = True
    """Whether topics deduplicate where neither they nor their namespace say."""
    check_expected_offsets: bool = False
    """Whether topics that do not say so themselves take conditional publishes."""

    def most_messages(self, request: PublishRequest) -> int:
        """How many this request may have."""
        if len(request.payloads) <= self.max_messages or self.max_bare_messages is None:
            return self.max_messages
        return self.max_bare_messages if request.is_bare else self.max_messages
