"""What one process counts as long as it lives: over all openings of its store, and whatever it serves at a time.

Whoever does something counts it here, on the event loop; whoever is asked reads it. Nothing here ever falls.
"""

from __future__ import annotations

from collections import Counter

from oncelog_service.counting.histogram import SECONDS, SUBMISSIONS, Histogram
from oncelog_service.counting.topics import TopicsCounted

MOST_TOPICS = 100


class Counts:
    """Belongs to one event loop."""

    def __init__(self, most_topics: int = MOST_TOPICS) -> None:
        """``most_topics``: how many are counted each by itself."""
        self.topics = TopicsCounted(most_topics)
        self.page = Histogram(SECONDS)
        """Seconds to put one page together for a poll or a consumer, whatever it waited for messages."""
        self.sync = Histogram(SECONDS)
        """Seconds of one write of the store, synced."""
        self.group = Histogram(SUBMISSIONS)
        """Submissions that shared one."""
        self.replayed = 0
        """Messages that were replayed when topics were opened."""
        self.transactions: Counter[type] = Counter()
        """What happened to transactions that were served here: edits (transactions/edits.py) by their kind."""
        self.timed_out = 0
        """Transactions that lived too long."""
        self.atomic_committed = 0
        """Atomic commits, duplicates not counted."""
        self.atomic_aborted = 0
        """Those that were aborted, duplicates included."""
