"""A participant and a client that write down what is called, and fail where they are told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from oncelog import Client
from oncelog.wire.models import TransactionStatus
from oncelog.wire.requests import PublishRequest, PublishResponse
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


class RecordedClient(Client):
    """``faults``: by the name of the call; raised before it is made. ``lost``: raised after it was made. One each time."""

    def __init__(self, url: str, calls: list[str] | None = None, **options: Any) -> None:
        super().__init__(url, **options)
        self.calls = [] if calls is None else calls
        self.faults: dict[str, list[BaseException]] = {}
        self.lost: dict[str, list[BaseException]] = {}
        self.requests: list[tuple[str, str, PublishRequest]] = []

    def start_transaction(self, *given: Any, **options: Any) -> Transaction:
        return self._called("start", lambda: Client.start_transaction(self, *given, **options))

    def can_commit(self, *given: Any, **options: Any) -> str:
        return self._called("can_commit", lambda: Client.can_commit(self, *given, **options))

    def commit_transaction(self, *given: Any, **options: Any) -> TransactionStatus:
        return self._called("commit", lambda: Client.commit_transaction(self, *given, **options))

    def abort_transaction(self, write_pointer: int) -> TransactionStatus:
        return self._called("abort", lambda: Client.abort_transaction(self, write_pointer))

    def invalidate_transaction(self, write_pointer: int) -> TransactionStatus:
        return self._called("invalidate", lambda: Client.invalidate_transaction(self, write_pointer))

    def checkpoint_transaction(self, write_pointer: int) -> Transaction:
        return self._called("checkpoint", lambda: Client.checkpoint_transaction(self, write_pointer))

    def transaction_status(self, write_pointer: int) -> TransactionStatus:
        return self._called("status", lambda: Client.transaction_status(self, write_pointer))

    def publish_transactional(self, topic: str, request: PublishRequest, namespace: str = "default") -> PublishResponse:
        self.requests.append(("publish", topic, request))
        return self._called("publish", lambda: Client.publish_transactional(self, topic, request, namespace))

    def store(self, topic: str, request: PublishRequest, namespace: str = "default") -> PublishResponse:
        self.requests.append(("store", topic, request))
        return self._called("store", lambda: Client.store(self, topic, request, namespace))

    def rollback(self, topic: str, response: PublishResponse, namespace: str = "default") -> None:
        return self._called("rollback", lambda: Client.rollback(self, topic, response, namespace))

    def _called(self, name: str, call: Callable[[], T]) -> T:
        self.calls.append(f"client.{name}")
        if self.faults.get(name):
            raise self.faults[name].pop(0)
        answer = call()
        if self.lost.get(name):
            raise self.lost[name].pop(0)
        return answer
