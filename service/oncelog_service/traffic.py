"""What is counted of connections and requests, for the metrics: whoever bounds or answers them counts, whoever is asked reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from oncelog_service.counting.histogram import SECONDS, Histogram

REASONS = (
    "connections",
    "address",
    "idle",
    "descriptors",
    "requests",
    "bodies",
    "slow_body",
    "waiting",
    "unread",
    "slow_reader",
    "tokens",
)
"""Why somebody was refused, or ended for others' sake."""


PUBLISH = ("POST", "/v1/namespaces/{namespace}/topics/{topic}/publish")
"""Method and address of what everybody asks about first."""
UNROUTED = ("", "(none)")
"""Of requests that no address has taken: nothing is there, or who asks was refused before that was looked at."""


class Times:
    """How long requests to one address took, by the status of their answers."""

    __slots__ = ("by_status",)

    def __init__(self) -> None:
        self.by_status: dict[int, Histogram] = {}

    def took(self, status: int, seconds: float) -> None:
        """Counts an answer."""
        found = self.by_status.get(status)
        if found is None:
            found = self.by_status[status] = Histogram(SECONDS)
        found.observe(seconds)


class Edge(NamedTuple):
    """What the server in front of the service knows."""

    certificate_ends_ms: int | None = None
    """None: it speaks no TLS, or that cannot be read."""
    descriptors: int = 2**20


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
    problems: Counter[str] = field(default_factory=Counter)
    """Answers that refuse, by the code of their problem."""
    broken_off: Counter[str] = field(default_factory=Counter)
    """Answers that ended before they were whole, as something failed under way, by its code."""
    unrouted: Times = field(default_factory=Times)
    """Of requests that no address has taken."""
    routes: dict[tuple[str, str], Times] = field(default_factory=dict)
    """Of the others, by method and address, as it stands in the table."""
    edge: Callable[[], Edge] = Edge
    """As it is now; the server says so once there is one."""

    @property
    def publishes(self) -> Histogram:
        """How long it took to answer publishes that were not refused."""
        return self.times_of(*PUBLISH).by_status.get(200) or Histogram(SECONDS)

    def times_of(self, method: str, path: str) -> Times:
        """Returns where an address of the table counts."""
        return self.routes.setdefault((method, path), Times())
