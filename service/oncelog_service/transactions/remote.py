"""The transaction service behind a URL: the port over the SDK's client, on threads of its own.

On threads of its own, because one that hangs must hold up nobody else: the event loop's common threads read the store for
every poll. After one waited in vain, calls are refused at once for a moment instead of each waiting as long.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter

from oncelog.api.calls import parse
from oncelog.api.transactions import TransactionCalls
from oncelog.errors import (
    ConnectionFailed,
    InvalidRequest,
    OncelogError,
    Overloaded,
    RequestTooLarge,
    TransactionConflict,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionPrepared,
    TransactionsUnavailable,
)
from oncelog.wire.media import JSON
from oncelog.wire.models import AskUnsettled, PruneInvalid, Settlement, TransactionState, TransactionStatus
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.clock import Clock
from oncelog_service.transactions.wanted import EVERYTHING, Wanted

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long an answer may take. It holds a synced write; a publish waits for it."""
RETRY_SECONDS = 0.2
"""How long a call is tried again: enough for a connection that had been closed meanwhile, no more, since a publish waits."""
PAUSE_SECONDS = 0.5
"""How long, after somebody waited for it in vain, nobody tries again."""
SLOW_SECONDS = 0.3
"""From how long on that was a wait. A connection that is refused is not: whoever tries again finds it as soon as it is back."""
WAIT_SECONDS = 1.0
"""Longest wait in one call of :meth:`RemoteTransactions.unsettled`: a stop waits for the call under way."""
_THREADS = 16
_REMEMBERED = 100_000
"""Pointers known to have ended; as many as transactions end within seconds."""
_ANSWERS = (
    InvalidRequest,
    RequestTooLarge,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionPrepared,
    TransactionConflict,
    Overloaded,
)
"""What the transaction service says of a request. Everything else says something of the service."""

_ROOT = "/v1/transactions"
_ENLISTED: TypeAdapter[dict[str, bool]] = TypeAdapter(dict[str, bool])
_STATUSES: TypeAdapter[list[TransactionStatus]] = TypeAdapter(list[TransactionStatus])
_SETTLEMENTS: TypeAdapter[list[Settlement]] = TypeAdapter(list[Settlement])
_COUNT: TypeAdapter[dict[str, int]] = TypeAdapter(dict[str, int])

T = TypeVar("T")


class _Calls(TransactionCalls):
    """The client's calls, and those that only a service makes."""

    def page(self, state: TransactionState, after: int, limit: int) -> list[TransactionStatus]:
        return parse(_STATUSES, self._get(_ROOT, {"state": state, "after": str(after), "limit": str(limit)}))

    def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        asked = PruneInvalid(write_pointers=None if pointers is None else list(pointers), before_ms=before_ms)
        return parse(_COUNT, self._post(_ROOT + "/prune", asked.to_wire(), idempotent=True))["pruned"]

    def enlist(self, pointer: int, participant: str) -> bool:
        body = self._post(f"{_ROOT}/{pointer}/participants", {"participant": participant}, idempotent=True)
        return parse(_ENLISTED, body)["enlisted"]

    def settled(self, pointer: int, participant: str) -> None:
        path = f"{_ROOT}/{pointer}/participants/{quote(participant, safe='')}"
        self._trying(lambda: self._transport.call("DELETE", path), idempotent=True)

    def unsettled(self, instance: str, wait_seconds: float, wanted: Wanted) -> list[Settlement]:
        asked = AskUnsettled(
            instance=instance,
            wait=round(wait_seconds * 1000),
            member=wanted.member,
            alive=list(wanted.alive),
            also=sorted(wanted.also),
            without=sorted(wanted.without),
        )
        data = json.dumps(asked.to_wire()).encode()
        timeout = ANSWER_SECONDS + wait_seconds
        body = self._trying(
            lambda: self._transport.call("POST", _ROOT + "/unsettled", data, JSON, timeout=timeout), idempotent=True
        )
        return parse(_SETTLEMENTS, body)

    def close(self) -> None:
        self._transport.close()


class RemoteTransactions:
    """The port (port.py) over HTTP. Belongs to one event loop."""

    def __init__(self, url: str, token: str | None, instance: str, clock: Clock) -> None:
        """``instance``: whose participants are asked for. Raises ValueError for what is no http(s) URL."""
        self._calls = _Calls(url, token=token, timeout=ANSWER_SECONDS, retry=RETRY_SECONDS)
        self._threads = ThreadPoolExecutor(_THREADS, "oncelog-transactions")
        self._instance = instance
        self._clock = clock
        self._ended: dict[int, None] = {}
        self._quiet_until = -1.0
        self.reachable = True
        """Whether the latest call was answered."""

    async def run(self) -> None:
        """Nothing is to be kept in order here."""

    def release(self) -> None:
        """Take nothing more. Calls under way end by themselves, in seconds."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def synced(self) -> None:
        """What was answered is."""

    async def close(self, snapshot: bool = True) -> None:
        """Let go of the connections. There is no snapshot to take."""
        self.release()
        self._calls.close()

    # --- the port

    async def start(self, kind: TransactionType, timeout_ms: int | None = None) -> Transaction:
        """As the port says."""
        timeout = None if timeout_ms is None else timeout_ms / 1000
        is_long = kind is TransactionType.LONG
        return await self._ask(lambda: self._calls.start_transaction("long" if is_long else "short", timeout))

    async def can_commit(self, pointer: int, changes: Collection[bytes], resource: str | None = None) -> str:
        """As the port says."""
        return await self._ask(lambda: self._calls.can_commit(pointer, changes, resource))

    async def commit(self, pointer: int, changes: Collection[bytes] = ()) -> None:
        """As the port says."""
        self._remember(await self._ask(lambda: self._calls.commit_transaction(pointer, changes)))

    async def abort(self, pointer: int, unless_prepared: bool = False) -> None:
        """As the port says."""
        self._remember(await self._ask(lambda: self._calls.abort_transaction(pointer, unless_prepared=unless_prepared)))

    async def invalidate(self, pointer: int) -> None:
        """As the port says."""
        self._remember(await self._ask(lambda: self._calls.invalidate_transaction(pointer)))

    async def checkpoint(self, pointer: int) -> Transaction:
        """As the port says."""
        return await self._ask(lambda: self._calls.checkpoint_transaction(pointer))

    async def show(self, pointer: int) -> TransactionStatus:
        """As the port says."""
        return self._remember(await self._ask(lambda: self._calls.transaction_status(pointer), definite=True))

    async def list(self, state: TransactionState, after: int, limit: int) -> Sequence[TransactionStatus]:
        """As the port says."""
        return await self._ask(lambda: self._calls.page(state, after, limit), definite=True)

    async def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        """As the port says."""
        return await self._ask(lambda: self._calls.prune(pointers, before_ms))

    async def states(self, pointers: Collection[int]) -> dict[int, TransactionState]:
        """As the port says. A topic without unsettled messages asks for none, and must not wait for the answer."""
        if not pointers:
            return {}
        found = await self._ask(lambda: self._calls.transaction_states(pointers), definite=True)
        self._remember_all(pointer for pointer, state in found.items() if state != "in_progress")
        return found

    async def root(self, pointer: int) -> int | None:
        """As the port says. A pointer whose outcome is no longer kept there counts as foreign; it is too old to publish under."""
        try:
            status = await self.show(pointer)
        except TransactionNotFound:
            return None
        if status.state != "in_progress":
            raise TransactionNotInProgress(write_pointer=pointer, state=status.state)
        return status.write_pointer

    async def enlist(self, pointer: int, participant: str) -> bool:
        """As the port says. Unavailable is always definite: nothing was published, and an idle participant settles at once."""
        try:
            return await self._ask(lambda: self._calls.enlist(pointer, participant), definite=True)
        except TransactionNotInProgress:
            self._remember_all((pointer,))
            raise

    def ended(self, pointer: int) -> bool:
        """As the port says: what this service has been told of, which may be a moment late."""
        return pointer in self._ended

    async def unsettled(
        self, wait_seconds: float, instance: str | None = None, wanted: Wanted = EVERYTHING
    ) -> Sequence[Settlement]:
        """As the port says; answers after a second at the latest."""
        wait, whose = min(wait_seconds, WAIT_SECONDS), self._instance if instance is None else instance
        found = await self._ask(lambda: self._calls.unsettled(whose, wait, wanted), definite=True)
        self._remember_all(each.write_pointer for each in found)
        return found

    async def settled(self, pointer: int, participant: str) -> None:
        """As the port says."""
        await self._ask(lambda: self._calls.settled(pointer, participant))

    # --- how it is asked

    async def _ask(self, call: Callable[[], T], definite: bool | None = None) -> T:
        """What ``call`` answers. ``definite``: whether a failure is; None: as the client says."""
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._unless_quiet, call)
        except _ANSWERS:
            self.reachable = True
            raise
        except OncelogError as error:
            self._unavailable(error, definite)
        except RuntimeError as error:  # the threads were shut down
            raise TransactionsUnavailable("the service is stopping") from error
        self.reachable = True
        return answer

    def _unless_quiet(self, call: Callable[[], T]) -> T:
        """On a thread. Those that queued up behind one that waited in vain do not wait as long again."""
        began = self._clock.monotonic()
        if began < self._quiet_until:
            raise ConnectionFailed("it could not be reached a moment ago", definite=True)
        try:
            return call()
        except ConnectionFailed:
            now = self._clock.monotonic()
            if now - began >= SLOW_SECONDS:
                self._quiet_until = now + PAUSE_SECONDS
            raise

    def _unavailable(self, error: OncelogError, definite: bool | None) -> NoReturn:
        if self.reachable:
            _log.warning("the transaction service %s is not available: %s", self._calls.url, error.detail)
        self.reachable = False
        raise TransactionsUnavailable(
            f"the transaction service is not available ({error.code}); what is not transactional goes on",
            definite=error.definite if definite is None else definite,
        ) from error

    def _remember(self, status: TransactionStatus) -> TransactionStatus:
        if status.state != "in_progress":
            self._remember_all((status.write_pointer, *status.checkpoints))
        return status

    def _remember_all(self, pointers: Iterable[int]) -> None:
        self._ended.update(dict.fromkeys(pointers))
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
