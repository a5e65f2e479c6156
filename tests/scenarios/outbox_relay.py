"""A relay that kills itself at a chosen moment: ``python -m tests.scenarios.outbox_relay DATABASE URL NAME POINT``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sqlalchemy import create_engine

from oncelog import Client, Outbox, OutboxRelay
from oncelog.sql.outbox_lease import OutboxDatabase
from oncelog.sql.outbox_publishing import Publishing

POINTS = {
    "before the numbers are committed": (OutboxDatabase, "_put", "after", 2),
    "after rows were numbered": (OutboxDatabase, "step", "after", 2),
    "before a request": (Publishing, "_send", "before", 3),
    "after a request": (Publishing, "_send", "after", 3),
    "before the rows are deleted": (OutboxDatabase, "_delete", "before", 3),
    "before the deletion is committed": (OutboxDatabase, "_delete", "after", 3),
}
"""Class, method, when, and at which call of it."""


def die_at(point: str) -> None:
    """From now on."""
    owner, name, when, nth = POINTS[point]
    original: Any = getattr(owner, name)
    calls = 0

    def dying(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = original(*arguments, **named)
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    setattr(owner, name, dying)


def _main(database: str, url: str, name: str, point: str) -> None:
    die_at(point)
    OutboxRelay(Outbox(name), create_engine(database), client=Client(url), rows=5, takeover_seconds=0.5).run_once()


if __name__ == "__main__":
    _main(*sys.argv[1:])
