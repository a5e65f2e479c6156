"""What is counted of connections, for the metrics: whoever bounds them counts, whoever is asked reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

REASONS = ("connections", "address", "idle", "descriptors", "requests", "bodies", "slow_body", "unread", "slow_reader")
"""Why somebody was refused, or ended for others' sake."""


@dataclass(slots=True)
class Traffic:
    """Of one process, as long as it lives."""

    connections: int = 0
    """Open, those that are being refused not among them."""
    refused: Counter[str] = field(default_factory=Counter)
    """Connections and requests that were refused, or ended for others' sake, by reason."""
    body_bytes: int = 0
    """Of request bodies in hand."""
    unread_bytes: int = 0
    """Of answers that were written and not read yet, as it was when last looked at."""
