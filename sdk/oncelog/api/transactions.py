"""The calls that transactions are made of, one method a call. :class:`oncelog.TransactionContext` is what one wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from datetime import datetime
from typing import Literal

from oncelog.api.calls import as_request, decoded, parse, topic_path
from oncelog.api.publishing import PublishCalls
from oncelog.errors import InvalidResponse
from oncelog.process.deprecated import deprecated
from oncelog.values.numbers import check_long, milliseconds
from oncelog.wire.media import DEFAULT_NAMESPACE, THRIFT
from oncelog.wire.models import (
    AbortTransaction,
    CanCommit,
    Changes,
    EndHeld,
    HeldMessages,
    HeldOnTopic,
    PruneInvalid,
    Resource,
    StartTransaction,
    TransactionState,
    TransactionStatus,
)
from oncelog.wire.transaction import Transaction

BUFFER_BYTES = 4 << 20
"""Of messages that a transaction holds in memory, beyond which it stores them on the service."""


class _Pruned(Resource):
    pruned: int


class TransactionCalls(PublishCalls):
    """The transaction service."""

    # --- the life of a transaction

    async def start_transaction(
        self,
        type: Literal["short", "long"] = "short",  # noqa: A002  # the field's word
        timeout: float | None = None,
    ) -> Transaction:
        """Begin a transaction; ``timeout``: seconds until a short one is given up, else the service's setting.

        Tried again only when it certainly was not begun: one that was begun twice would hold up readers until it times out.
        Raises InvalidRequest for a time-out that the service does not allow.
        """
        wanted = as_request(StartTransaction, "a transaction", type=type, timeout_ms=milliseconds("timeout", timeout))
        return _begun(await self._post(_ROOT, wanted, idempotent=False, accept=THRIFT))

    async def can_commit(self, write_pointer: int, changes: Iterable[bytes], resource: str | None = None) -> str:
        """Hand in what the transaction changed; conflicts with what others committed meanwhile are found here.

        ``resource`` names the database whose own commit decides the transaction; it is *prepared* then and times out at the
        maximum lifetime only. Answers the id of the store that the transaction is in: with the write pointer, its name in that
        database. Raises TransactionConflict, TransactionNotInProgress, TransactionNotFound.
        """
        body = await self._post(_path(write_pointer, "can-commit"), _changes(changes, resource), idempotent=True)
        return parse(CanCommit, body).store_id

    async def commit_transaction(self, write_pointer: int, changes: Iterable[bytes] = ()) -> TransactionStatus:
        """Commit; idempotent. ``changes`` as for :meth:`can_commit`, where that was not called.

        Raises TransactionConflict, TransactionNotInProgress (it was aborted or is invalid), TransactionNotFound. Where the error
        is not definite, :meth:`transaction_status` knows.
        """
        changed = list(changes)
        body = _changes(changed, None) if changed else None
        return parse(TransactionStatus, await self._post(_path(write_pointer, "commit"), body, idempotent=True))

    async def abort_transaction(self, write_pointer: int, *, unless_prepared: bool = False) -> TransactionStatus:
        """Undo: the service rolls its messages back. Idempotent.

        With ``unless_prepared`` one that a database decides is left to it, and one that is invalid stays so: for everybody but
        the client of the transaction. Asking for its state first would not do, since it may be prepared in between.

        Raises TransactionNotInProgress, TransactionNotFound, TransactionPrepared.
        """
        body = AbortTransaction(unless_prepared=True).to_wire() if unless_prepared else None
        return parse(TransactionStatus, await self._post(_path(write_pointer, "abort"), body, idempotent=True))

    async def invalidate_transaction(self, write_pointer: int) -> TransactionStatus:
        """Give up: nothing of it is ever seen, and its pointer stays in the list of invalid ones until it is pruned.

        For a transaction whose participants could not all undo what they did. Idempotent; raises as
        :meth:`abort_transaction` does.
        """
        return parse(TransactionStatus, await self._post(_path(write_pointer, "invalidate"), idempotent=True))

    async def checkpoint_transaction(self, write_pointer: int) -> Transaction:
        """A further write pointer for what comes next. ``write_pointer``: the transaction's id.

        Two tries may make two pointers; the unused one does no harm. Raises TransactionNotInProgress, TransactionNotFound.
        """
        return _begun(await self._post(_path(write_pointer, "checkpoint"), idempotent=True, accept=THRIFT))

    # --- what is known about them

    async def transaction_status(self, write_pointer: int) -> TransactionStatus:
        """Tell what became of a transaction, by its id or a checkpoint's pointer. Raises TransactionNotFound."""
        return parse(TransactionStatus, await self._get(_path(write_pointer)))

    def transactions(self, state: Literal["in_progress", "invalid"] = "in_progress") -> AsyncIterator[TransactionStatus]:
        """Every transaction in progress, or every invalid one, oldest first, fetched page by page."""
        return self._listed(list[TransactionStatus], _ROOT, lambda each: each.write_pointer, {"state": state})

    async def transaction_states(self, write_pointers: Collection[int]) -> dict[int, TransactionState]:
        """The state of each of them that the service still knows."""
        for write_pointer in write_pointers:
            check_long("write_pointer", write_pointer, 1)
        return parse(
            dict[int, TransactionState],
            await self._post(_ROOT + "/states", {"writePointers": list(write_pointers)}, idempotent=True),
        )

    async def held(self, limit: int = 1_000) -> list[HeldOnTopic]:
        """List what the open topics hold back under write pointers that are not decided, the oldest messages first."""
        check_long("limit", limit, 1)
        return parse(list[HeldOnTopic], await self._get("/v1/held", {"limit": str(limit)}))

    async def held_on(self, topic: str, namespace: str = DEFAULT_NAMESPACE, limit: int = 1_000) -> list[HeldMessages]:
        """List what one topic holds back: the first entry is what its consumers stop at. Raises TopicNotFound."""
        check_long("limit", limit, 1)
        return parse(list[HeldMessages], await self._get(topic_path(namespace, topic) + "/held", {"limit": str(limit)}))

    async def settle_topic(self, topic: str, write_pointer: int, *, committed: bool, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Tell a topic how a write pointer has ended that no transaction service knows: its messages count, or are rolled back.

        Raises TransactionNotFound: nothing is held back under it. TransactionNotInProgress: the transaction service knows it.
        """
        check_long("write_pointer", write_pointer, 1)
        body = EndHeld(committed=committed).to_wire()
        await self._post(f"{topic_path(namespace, topic)}/held/{write_pointer}", body, idempotent=False)

    end_held = deprecated("AsyncClient.end_held is called AsyncClient.settle_topic now")(settle_topic)

    async def prune_transactions(self, write_pointers: Collection[int] | None = None, before: datetime | None = None) -> int:
        """Forget invalid transactions: those named, or all that were started before a time. How many they were.

        Those whose messages are not rolled back everywhere yet stay. Raises ValueError for a time without a time zone.
        """
        if before is not None and before.tzinfo is None:
            raise ValueError(f"before {before} has no time zone; use datetime.now(UTC) or .astimezone()")
        for write_pointer in write_pointers or ():
            check_long("write_pointer", write_pointer, 1)
        wanted = PruneInvalid(
            write_pointers=None if write_pointers is None else list(write_pointers),
            before_ms=None if before is None else int(before.timestamp() * 1000),
        )
        return parse(_Pruned, await self._post(_ROOT + "/prune", wanted.to_wire(), idempotent=True)).pruned


_ROOT = "/v1/transactions"


def _begun(answer: bytes) -> Transaction:
    transaction = decoded(Transaction.from_bytes, answer)
    if transaction.transaction_id <= 0 or transaction.write_pointer <= 0:
        raise InvalidResponse(f"the answer has a transaction {transaction.transaction_id}, {transaction.write_pointer}")
    return transaction


def _path(write_pointer: int, *action: str) -> str:
    check_long("write_pointer", write_pointer, 1)
    return "/".join((_ROOT, str(write_pointer), *action))


def _changes(changes: Iterable[bytes], resource: str | None) -> dict[str, object]:
    keys = [change.decode("latin-1") for change in changes]
    return as_request(Changes, "the changes of a transaction", changes=keys, resource=resource)
