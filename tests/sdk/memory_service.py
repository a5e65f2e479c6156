"""A transaction service with topics in memory, behind the calls of a client: for tests of what is built on these calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal, TypeVar

from oncelog import Client
from oncelog.errors import TransactionConflict, TransactionNotInProgress
from oncelog.wire.models import TransactionState, TransactionStatus
from oncelog.wire.requests import STORED, PublishRequest, PublishResponse, ReceiptRun
from oncelog.wire.transaction import Transaction, TransactionType

T = TypeVar("T")


class MemoryService:
    """Its transactions and messages; tests of the calls hold the real one against the same rules."""

    def __init__(self, store_id: str = "memory") -> None:
        self.store_id = store_id
        self.transactions: dict[int, TransactionStatus] = {}
        self.changes: dict[int, list[bytes]] = {}
        self.ended: list[int] = []
        """In the order of their commits."""
        self.began: dict[int, int] = {}
        """How many had committed when it began."""
        self.owner: dict[int, int] = {}
        """write pointer → transaction."""
        self.log: list[tuple[str, int, bytes]] = []
        self.stored: list[tuple[str, int, bytes]] = []

    def visible(self, topic: str) -> list[bytes]:
        """What a transaction that begins now sees."""
        shown = {pointer for pointer, owner in self.owner.items() if self.transactions[owner].state == "committed"}
        return [payload for name, pointer, payload in self.log if name == topic and pointer in shown]


class MemoryClient(Client):
    """A client of it that writes down its calls. ``faults``: by the name of the call, raised before it is made, or, under
    ``"lost NAME"``, after it was made. Each list is used up from its beginning."""

    def __init__(self, service: MemoryService | None = None) -> None:
        super().__init__("http://127.0.0.1:9", retry=0)
        self.service = MemoryService() if service is None else service
        self.calls: list[str] = []
        self.faults: dict[str, list[BaseException]] = {}

    # --- the life of a transaction

    def start_transaction(
        self,
        type: Literal["short", "long"] = "short",  # noqa: A002
        timeout: float | None = None,
    ) -> Transaction:
        return self._called("start", lambda: self._start(type))

    def _start(self, kind: Literal["short", "long"]) -> Transaction:
        service, pointer = self.service, len(self.service.owner) + 1
        states = {owner: each.state for owner, each in service.transactions.items()}
        undecided = tuple(each for each, owner in service.owner.items() if states[owner] == "in_progress")
        excluded = tuple(each for each, owner in service.owner.items() if states[owner] in ("aborted", "invalid"))
        service.transactions[pointer] = TransactionStatus(write_pointer=pointer, state="in_progress", type=kind)
        service.owner[pointer], service.began[pointer] = pointer, len(service.ended)
        number = TransactionType.SHORT if kind == "short" else TransactionType.LONG
        return Transaction(pointer, pointer - 1, excluded, undecided, type=number, write_pointer=pointer)

    def checkpoint_transaction(self, write_pointer: int) -> Transaction:
        return self._called("checkpoint", lambda: self._checkpoint(write_pointer))

    def _checkpoint(self, transaction: int) -> Transaction:
        self._running(transaction)
        further = len(self.service.owner) + 1
        self.service.owner[further] = transaction
        return Transaction(transaction, transaction - 1, write_pointer=further, checkpoint_write_pointers=(further,))

    def can_commit(self, write_pointer: int, changes: Iterable[bytes], resource: str | None = None) -> str:
        return self._called("can_commit", lambda: self._can_commit(write_pointer, list(changes), resource))

    def _can_commit(self, pointer: int, changes: list[bytes], resource: str | None) -> str:
        status = self._running(pointer)
        for other in self.service.ended[self.service.began[pointer] :]:
            if set(changes) & set(self.service.changes.get(other, ())) and status.type == "short":
                raise TransactionConflict
        if status.type == "short":
            self.service.changes[pointer] = changes
        self._change(status, resource=resource, store_id=self.service.store_id)
        return self.service.store_id

    def commit_transaction(self, write_pointer: int, changes: Iterable[bytes] = ()) -> TransactionStatus:
        return self._called("commit", lambda: self._end(write_pointer, "committed"))

    def abort_transaction(self, write_pointer: int, *, unless_prepared: bool = False) -> TransactionStatus:
        assert not (unless_prepared and self.service.transactions[write_pointer].resource), "not of use yet"
        return self._called("abort", lambda: self._end(write_pointer, "aborted"))

    def invalidate_transaction(self, write_pointer: int) -> TransactionStatus:
        return self._called("invalidate", lambda: self._end(write_pointer, "invalid"))

    def _end(self, pointer: int, state: TransactionState) -> TransactionStatus:
        status = self.service.transactions[pointer]
        if status.state != state:
            self._running(pointer)
            status = self._change(status, state=state)
            self.service.ended += [pointer] * (state == "committed")
        return status

    def _change(self, status: TransactionStatus, **changes: object) -> TransactionStatus:
        changed = self.service.transactions[status.write_pointer] = status.model_copy(update=changes)
        return changed

    def _running(self, pointer: int) -> TransactionStatus:
        status = self.service.transactions[pointer]
        if status.state != "in_progress":
            raise TransactionNotInProgress(write_pointer=pointer, state=status.state)
        return status

    # --- what is known of them

    def transaction_status(self, write_pointer: int) -> TransactionStatus:
        return self._called("status", lambda: self.service.transactions[write_pointer])

    def transactions(self, state: Literal["in_progress", "invalid"] = "in_progress") -> Iterator[TransactionStatus]:
        return iter([each for each in self.service.transactions.values() if each.state == state])

    def transaction_states(self, write_pointers: Collection[int]) -> dict[int, TransactionState]:
        return {each: self.service.transactions[each].state for each in write_pointers if each in self.service.transactions}

    # --- messages

    def publish_transactional(self, topic: str, request: PublishRequest, namespace: str = "default") -> PublishResponse:
        return self._called("publish", lambda: self._take(topic, request, self.service.log))

    def store(self, topic: str, request: PublishRequest, namespace: str = "default") -> PublishResponse:
        return self._called("store", lambda: self._take(topic, request, self.service.stored))

    def _take(self, topic: str, request: PublishRequest, into: list[tuple[str, int, bytes]]) -> PublishResponse:
        pointer = request.write_pointer
        assert pointer is not None
        self._running(self.service.owner[pointer])
        if not request.payloads:
            into += [row for row in self.service.stored if row[:2] == (topic, pointer)]
        into += [(topic, pointer, payload) for payload in request.payloads]
        return PublishResponse([ReceiptRun(STORED, 1, each, None, None) for each in request.sequence_ids or ()])

    def _called(self, name: str, call: Callable[[], T]) -> T:
        self.calls.append(f"client.{name}")
        self._fail(name)
        answer = call()
        self._fail(f"lost {name}")
        return answer

    def _fail(self, name: str) -> None:
        if self.faults.get(name):
            raise self.faults[name].pop(0)


def faults_of(faults: dict[str, Any], name: str) -> dict[str, Any]:
    """Of ``{"a.commit_tx": …}`` those of participant ``name``, by the name of the method."""
    return {place.partition(".")[2]: fault for place, fault in faults.items() if place.partition(".")[0] == name}
