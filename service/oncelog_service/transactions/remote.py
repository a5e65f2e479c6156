"""Reaches a transaction service behind a URL: the port over the SDK's client.

After one call waited in vain, others are refused at once for a moment instead of each waiting as long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from oncelog.api.api import surrounded
from oncelog.api.calls import parse
from oncelog.api.transactions import TransactionCalls
from oncelog.errors import (
    ConnectionFailed,
    DiskFull,
    InvalidRequest,
    NotAllowed,
    OncelogError,
    Overloaded,
    QuotaExceeded,
    RequestTooLarge,
    TransactionConflict,
    TransactionNotFound,
    TransactionNotInProgress,
    TransactionPrepared,
    TransactionsUnavailable,
    Unauthorized,
)
from oncelog.http.credentials import shown
from oncelog.http.sockets import Network
from oncelog.process.procedures import Procedure
from oncelog.wire.models import AskUnacknowledged, Enlisted, PruneInvalid, Settlement, TransactionState, TransactionStatus
from oncelog.wire.transaction import Transaction, TransactionType
from oncelog_service.access.owners import EVERYBODYS, may_touch
from oncelog_service.clock import Clock, of_clients
from oncelog_service.transactions.port import MayAppear, Owned
from oncelog_service.transactions.wanted import EVERYTHING, Wanted

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""How long an answer may take. It holds a synced write; a publish waits for it."""
RETRY_SECONDS = 0.2
"""How long a call is tried again: enough for a connection that had been closed meanwhile, no more, since a publish waits."""
PAUSE_SECONDS = 0.5
"""How long no call tries again after one waited in vain."""
SLOW_SECONDS = 0.3
"""From how long on that was a wait. A connection that is refused is not: the next try finds it as soon as it is back."""
WAIT_SECONDS = 1.0
"""Longest wait in one call of :meth:`RemoteTransactions.unacknowledged`: a stop waits for the call under way."""
_AT_ONCE = 16
"""Calls under way; as many connections."""
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
    QuotaExceeded,
    DiskFull,
)
"""What the transaction service says of a request. Everything else says something of the service."""

_ROOT = "/v1/transactions"

T = TypeVar("T")


class _Calls(TransactionCalls):
    """The SDK's calls, and those that only a service makes."""

    _owner: Mapping[str, str] = {}

    def of(self, owner: str | None) -> _Calls:
        """The same calls, about what is ``owner``'s, a client of ours; None: whoever's. Only a service says so there."""
        calls = copy(self)
        calls._owner = {"owner": EVERYBODYS if owner is None else owner}
        return calls

    async def _call(self, method: str, path: str, *args: Any, params: dict[str, str] | None = None, **named: Any) -> bytes:
        return await super()._call(method, path, *args, params={**self._owner, **(params or {})}, **named)

    async def page(self, state: TransactionState, after: int, limit: int) -> list[TransactionStatus]:
        return parse(list[TransactionStatus], await self._get(_ROOT, {"state": state, "after": str(after), "limit": str(limit)}))

    async def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        asked = PruneInvalid(write_pointers=None if pointers is None else list(pointers), before_ms=before_ms)
        return parse(dict[str, int], await self._post(_ROOT + "/prune", asked.to_wire(), idempotent=True))["pruned"]

    async def enlist(self, pointer: int, participant: str) -> Owned | None:
        body = await self._post(f"{_ROOT}/{pointer}/participants", {"participant": participant}, idempotent=True)
        answer = parse(Enlisted, body)
        return Owned(answer.owner) if answer.enlisted else None

    async def acknowledge(self, pointer: int, participant: str) -> None:
        path = f"{_ROOT}/{pointer}/participants/{quote(participant, safe='')}"
        await self._delete(path, idempotent=True)

    async def unacknowledged(self, store_id: str, wait_seconds: float, wanted: Wanted) -> list[Settlement]:
        asked = AskUnacknowledged(
            store_id=store_id,
            wait=round(wait_seconds * 1000),
            member=wanted.member,
            alive=list(wanted.alive),
            also=sorted(wanted.also),
            without=sorted(wanted.without),
        )
        timeout = ANSWER_SECONDS + wait_seconds
        return parse(
            list[Settlement], await self._post(_ROOT + "/unacknowledged", asked.to_wire(), idempotent=True, timeout=timeout)
        )

    def carry(self, token: str | None) -> None:
        self._transport.carry(token)

    def close(self) -> None:
        self._transport.close()


class RemoteTransactions:
    """Implements the port (port.py) over HTTP. Belongs to one event loop."""

    def __init__(self, url: str, token: str | None, store_id: str, clock: Clock, network: Network | None = None) -> None:
        """``store_id``: whose participants are asked for; ``network``: else sockets. Raises ValueError for no http(s) URL."""
        calls = surrounded(_Calls, network=network, clock=of_clients(clock))
        self._calls = calls(url, token=token, timeout=ANSWER_SECONDS, retry=RETRY_SECONDS)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._closed = False
        self._store_id = store_id
        self._clock = clock
        self._ended: dict[int, None] = {}
        self._quiet_until = -1.0
        self.reachable = True
        """Whether the latest call was answered."""

    def carry(self, token: str | None) -> None:
        """Shows another token from the next call on. Raises ValueError: it cannot be one."""
        self._calls.carry(token)

    async def run(self) -> None:
        """Does nothing: the service behind the URL keeps house."""

    def release(self) -> None:
        """Takes nothing more. Calls under way end by themselves, in seconds."""
        self._closed = True

    async def synced(self) -> None:
        """Does nothing: what was answered is durable."""

    async def close(self, snapshot: bool = True) -> None:
        """Lets go of the connections. There is no snapshot to take."""
        self.release()
        self._calls.close()

    # --- the port

    async def start(self, kind: TransactionType, timeout_ms: int | None = None, owner: str | None = None) -> Transaction:
        timeout = None if timeout_ms is None else timeout_ms / 1000
        is_long = kind is TransactionType.LONG
        calls = self._calls.of(owner)
        return await self._ask(lambda: calls.start_transaction("long" if is_long else "short", timeout))

    async def can_commit(
        self,
        pointer: int,
        changes: Collection[bytes],
        resource: str | None = None,
        by: str | None = None,
        may: MayAppear | None = None,
    ) -> str:
        if resource is not None:
            await self._check_may(pointer, by, may)
        return await self._ask(lambda: self._calls.of(by).can_commit(pointer, changes, resource), by=by)

    async def commit(
        self, pointer: int, changes: Collection[bytes] = (), by: str | None = None, may: MayAppear | None = None
    ) -> None:
        await self._check_may(pointer, by, may)
        self._remember(await self._ask(lambda: self._calls.of(by).commit_transaction(pointer, changes), by=by))

    async def _check_may(self, pointer: int, by: str | None, may: MayAppear | None) -> None:
        """Raises what ``may`` does. The service there does not know our topics, nor who may write to them: so it is asked which
        hold something, and what comes under the pointer after that answer is judged as it comes."""
        if may is not None:
            status = await self.show(pointer)
            asked = may_touch(status.owner, by)  # else the move itself is refused, in its own words
            if asked and status.state == "in_progress" and status.resource is None:
                may(status.participants, (status.write_pointer, *status.checkpoints))

    async def abort(self, pointer: int, unless_prepared: bool = False, by: str | None = None) -> None:
        calls = self._calls.of(by)
        self._remember(await self._ask(lambda: calls.abort_transaction(pointer, unless_prepared=unless_prepared), by=by))

    async def invalidate(self, pointer: int, by: str | None = None) -> None:
        self._remember(await self._ask(lambda: self._calls.of(by).invalidate_transaction(pointer), by=by))

    async def checkpoint(self, pointer: int, by: str | None = None) -> Transaction:
        return await self._ask(lambda: self._calls.of(by).checkpoint_transaction(pointer), by=by)

    async def show(self, pointer: int, by: str | None = None) -> TransactionStatus:
        calls = self._calls.of(by)
        return self._remember(await self._ask(lambda: calls.transaction_status(pointer), definite=True, by=by))

    async def list(self, state: TransactionState, after: int, limit: int, by: str | None = None) -> Sequence[TransactionStatus]:
        return await self._ask(lambda: self._calls.of(by).page(state, after, limit), definite=True, by=by)

    async def prune(self, pointers: Collection[int] | None, before_ms: int | None) -> int:
        return await self._ask(lambda: self._calls.prune(pointers, before_ms))

    async def states(self, pointers: Collection[int], by: str | None = None) -> dict[int, TransactionState]:
        """See the port. A topic without unacknowledged messages asks for none, and must not wait for the answer."""
        if not pointers:
            return {}
        found = await self._ask(lambda: self._calls.of(by).transaction_states(pointers), definite=True, by=by)
        self._remember_all(pointer for pointer, state in found.items() if state != "in_progress")
        return found

    async def forgotten(self, pointer: int) -> bool:
        """See the port. One of an older version does not say, and has handed out no pointer that it is asked for."""
        try:
            await self.show(pointer)
        except TransactionNotFound as unknown:
            return bool(unknown.forgotten)
        return False

    async def root(self, pointer: int) -> int | None:
        """See the port. A pointer whose outcome is no longer kept there counts as foreign; it is too old to publish under."""
        try:
            status = await self.show(pointer)
        except TransactionNotFound:
            return None
        if status.state != "in_progress":
            raise TransactionNotInProgress(write_pointer=pointer, state=status.state)
        return status.write_pointer

    async def enlist(self, pointer: int, participant: str, by: str | None = None) -> Owned | None:
        """See the port. Unavailable is definite: nothing was published, and an idle participant acknowledges at once."""
        try:
            return await self._ask(lambda: self._calls.of(by).enlist(pointer, participant), definite=True, by=by)
        except TransactionNotInProgress:
            self._remember_all((pointer,))
            raise

    def ended(self, pointer: int) -> bool:
        """See the port: as far as this service has been notified, which may be a moment late."""
        return pointer in self._ended

    async def unacknowledged(
        self, wait_seconds: float, store_id: str | None = None, wanted: Wanted = EVERYTHING
    ) -> Sequence[Settlement]:
        """See the port; answers after a second at the latest."""
        wait, whose = min(wait_seconds, WAIT_SECONDS), self._store_id if store_id is None else store_id
        found = await self._ask(lambda: self._calls.unacknowledged(whose, wait, wanted), definite=True)
        self._remember_all(each.write_pointer for each in found)
        return found

    async def acknowledge(self, pointer: int, participant: str) -> None:
        await self._ask(lambda: self._calls.acknowledge(pointer, participant))

    # --- how it is asked

    async def _ask(self, call: Callable[[], Procedure[T]], definite: bool | None = None, by: str | None = None) -> T:
        """Returns what ``call`` answers. ``definite``: whether a failure is; None: as the client says. ``by``: for whom it is."""
        if self._closed:
            raise TransactionsUnavailable("the service is stopping")
        try:
            answer = await self._unless_quiet(call)
        except _ANSWERS:
            self.reachable = True
            raise
        except NotAllowed as refusal:
            if by is None or refusal.principal != by:
                self._unavailable(refusal, definite)  # it is this service that may not ask there
            self.reachable = True
            raise
        except OncelogError as error:
            self._unavailable(error, definite)
        self.reachable = True
        return answer

    async def _unless_quiet(self, call: Callable[[], Procedure[T]]) -> T:
        """Calls. Those that queued up behind one that waited in vain do not wait as long again."""
        async with self._places:
            began = self._clock.elapsed()
            if began < self._quiet_until:
                raise ConnectionFailed("it could not be reached a moment ago", definite=True)
            try:
                return await call()
            except ConnectionFailed:
                now = self._clock.elapsed()
                if now - began >= SLOW_SECONDS:
                    self._quiet_until = now + PAUSE_SECONDS
                raise

    def _unavailable(self, error: OncelogError, definite: bool | None) -> NoReturn:
        if self.reachable:
            why = error.detail
            if isinstance(error, Unauthorized):  # what that says is for clients
                why = "it asks for a token, and this service shows none or a wrong one; the setting is transactions_token"
            _log.warning("the transaction service %s is not available: %s", shown(self._calls.url), why)
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
