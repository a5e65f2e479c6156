"""Where act two's process halts to be killed, in the real order of a transaction's calls.

    messages published ─▶ database commits ─▶ transaction commits at the service
                  published             decided            committing

Nothing is faked: the participant is the SDK's own, and reports before and after the commit of its database. Where it has
reported ``published`` or ``decided`` it waits for SIGKILL; ``committing`` goes on at once, so that the kill meets the commit at
the service wherever that happens to be.
"""

from __future__ import annotations

import json
import signal

from sqlalchemy.orm import Session

from oncelog import SqlParticipant
from oncelog.wire.transaction import Transaction


class StoppingParticipant(SqlParticipant):
    """A SqlParticipant that reports, and halts, in one of its transactions."""

    def __init__(self, database: Session, resource: str, place: str, transaction: int) -> None:
        """``transaction``: which one of this participant, from 1."""
        super().__init__(database, resource)
        self._place = place
        self._left = transaction

    def start_tx(self, tx: Transaction) -> None:
        super().start_tx(tx)
        self._write_pointer = tx.write_pointer
        self._left -= 1

    def decide(self) -> None:
        self._reached("published")
        super().decide()
        self._reached("decided")
        self._reached("committing")

    def _reached(self, place: str) -> None:
        if self._left == 0 and place == self._place:
            print(json.dumps({"place": place, "writePointer": self._write_pointer}), flush=True)
            while place != "committing":
                signal.pause()
