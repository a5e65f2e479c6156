"""Participants that write down what is called, and fail where it is planted."""

from __future__ import annotations

from typing import Any, TypeVar

from oncelog.wire.transaction import Transaction

T = TypeVar("T")
Fault = BaseException | bool
"""What is raised, or returned."""


class Recorded:
    """A TransactionAware. ``fails``: by the name of the method."""

    def __init__(self, name: str, calls: list[str], changes: tuple[bytes, ...] = (), **fails: Fault) -> None:
        self.name = name
        self.calls = calls
        self.changes = changes
        self.fails = fails

    def start_tx(self, tx: Transaction) -> None:
        self._called("start_tx")

    def update_tx(self, tx: Transaction) -> None:
        self._called("update_tx")

    def get_tx_changes(self) -> tuple[bytes, ...]:
        self._called("get_tx_changes")
        return self.changes

    def commit_tx(self) -> bool | None:
        return self._called("commit_tx")

    def post_tx_commit(self) -> None:
        self._called("post_tx_commit")

    def rollback_tx(self) -> bool | None:
        return self._called("rollback_tx")

    def in_doubt_tx(self, _: BaseException) -> None:
        self._called("in_doubt_tx")

    def _called(self, method: str) -> bool | None:
        self.calls.append(f"{self.name}.{method}")
        fault = self.fails.get(method)
        if isinstance(fault, BaseException):
            raise fault
        return fault


class Deciding(Recorded):
    """One that decides, as a database does."""

    resource = "a database"

    def prepared_tx(self, _: Any, __: str) -> None:
        self._called("prepared_tx")

    def decide(self) -> None:
        self._called("decide")

    def recover_once(self, _: Any) -> None:
        self._called("recover_once")
