"""What the parts of one open topic share: where it lies, who writes it, what is known of it, and whether it still takes anything.

The topic's log builds this value first and its parts from it. Whatever changes while the topic is open stands here as well, so
that every part sees it as it is at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncelog.errors import StorageUnavailable
from oncelog_dedup import Deduplicator
from oncelog_service.clock import Clock
from oncelog_service.cluster.leases import LOST
from oncelog_service.group_commit import Writer
from oncelog_service.log.groups.pointers import WritePointers
from oncelog_service.log.key_index import KeyIndex
from oncelog_service.log.limits import Limits
from oncelog_service.log.stamps import Stamps
from oncelog_service.storage.keys import ROW_ID_SIZE
from oncelog_service.storage.port import Store
from oncelog_service.storage.rows import TopicRow
from oncelog_service.transactions.port import Transactions


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
    dedup: Deduplicator
    keys: KeyIndex | None
    """None where the topic does not check expectations."""
    pointers: WritePointers
    transactions: Transactions
    stamps: Stamps
    """They know the highest id and offset that were handed out."""
    earliest_offset: int
    """Retention has deleted what was before."""
    trimmed_id: bytes
    """Id of the last message that retention has deleted; empty for none."""
    closed: bool = False
    """Whether the topic takes nothing more."""

    @property
    def last_row_id(self) -> bytes:
        """Of the last row on disk; empty for none."""
        return (self.dedup.fold.position.last_message_id or b"")[:ROW_ID_SIZE]

    def check_open(self) -> None:
        """Raises StorageUnavailable once the topic takes nothing more, or somebody else may serve it."""
        if self.closed:
            raise StorageUnavailable("the topic was closed meanwhile; nothing was done, try again")
        if not self.writer.stands:
            raise StorageUnavailable(LOST)
