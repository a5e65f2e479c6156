"""Who belongs to a command that was started in a session of its own: driver, JVM, daemons, workers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def living(session: int) -> list[int]:
    """Their process ids; of those that have ended and nobody has waited for yet, none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state not in "ZX":
                    found.append(int(entry.name))
    return found
