"""What happens in a world: an event a line, and a digest over all of them."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable


class Trace:
    """Every event goes into the digest; the last ones, or all where somebody listens, are kept as text."""

    def __init__(self, say: Callable[[str], None] | None = None, keep: int = 60) -> None:
        """``say``: told each line."""
        self.clock: Callable[[], float] = lambda: 0.0
        self.turns: Callable[[], int] = lambda: 0
        self.counts: Counter[str] = Counter()
        """Kind of event → how many there were."""
        self.last: deque[str] = deque(maxlen=keep)
        self.told: Callable[[str], None] | None = None
        """Told the kind of the next event."""
        self._say = say
        self._digest = hashlib.sha256()

    def note(self, kind: str, *what: object, data: bytes = b"") -> None:
        """An event. ``data``: what belongs to it and is not shown."""
        self.counts[kind] += 1
        line = f"{self.clock():12.6f}  {kind:<10} {' '.join(map(str, what))}"
        self._digest.update(f"{self.turns()} {line}".encode())
        self._digest.update(data)
        self.last.append(line)
        told, self.told = self.told, None
        if told is not None:
            told(kind)
        if self._say is not None:
            self._say(line)

    @property
    def digest(self) -> str:
        """The same for the same events at the same times, in the same turns of the loop."""
        return self._digest.hexdigest()[:16]
