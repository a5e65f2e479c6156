"""What the shells around a producer's core share, of threads and of asyncio.

What awaits is a procedure (:mod:`oncelog.process.procedures`): its hands are the client's calls, and the shell's own.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from contextlib import AbstractContextManager, suppress
from logging import INFO, WARNING, getLogger
from typing import Any, NamedTuple

from oncelog.api.api import AnyApi, clock_of, outage_of
from oncelog.errors import InitialSequenceIdTaken, OncelogError
from oncelog.process import exits, forks
from oncelog.process.logs import log
from oncelog.process.procedures import answer_of
from oncelog.process.tracing import Place, switch
from oncelog.producing.batching import Batch
from oncelog.producing.core import Action, Complete, Core, Opened, Policy, Publish, Wait
from oncelog.producing.cutting import Bounds
from oncelog.producing.outcome import Outcome, Outcomes
from oncelog.values.receipt import Receipt, Receipts
from oncelog.wire.models import Gaps
from oncelog.wire.requests import PublishRequest, ReceiptRun

_log = getLogger("oncelog.producer")

END_SECONDS = 5.0
"""Until the service has answered that an assigned name ends. If it does not, the name ends by itself."""
RENEW_SECONDS = 3_600.0
"""A producer without a name that was idle for so long enters a transaction under another name: its own may have ended."""


class Address(NamedTuple):
    """Where a producer publishes, and how it was to be opened."""

    client: AnyApi
    topic: str
    namespace: str
    name: str | None
    """As the caller gave it; None: the service assigns one."""
    gaps: Gaps
    initial: int | None
    """The sequence id of the first message, if the caller gave one."""

    async def open(self) -> Opened:
        """Open the producer: a new epoch, under a name of its own where it was given none.

        Raises InitialSequenceIdTaken; what the service answers.
        """
        opened = await answer_of(self.client.open_producer, self.topic, self.name, gaps=self.gaps, namespace=self.namespace)
        initial, last = self.initial, opened.last_sequence_id
        if initial is not None and last is not None and initial <= last:
            raise InitialSequenceIdTaken(
                f"producer {opened.name!r} has already published sequence id {last}; "
                f"the initial one must be above it, not {initial}",
                initial=initial,
                last_sequence_id=last,
            )
        return Opened(opened.name, opened.epoch, last, opened.last_message_id)


class Shell:
    """Does what a :class:`~oncelog.producing.core.Core` says."""

    core: Core

    def __init__(self, address: Address, policy: Policy, lock: AbstractContextManager[Any]) -> None:
        """``lock``: is held for single steps of the core."""
        self._address = address
        self._clock = clock_of(address.client)
        self._outage = outage_of(address.client)
        self._policy = policy
        self._lock = lock

    def _begin(self) -> None:
        self._has_ended = False
        self._home = forks.here()
        self._note_use()

    def _note_use(self) -> None:
        self._used_at = self._clock.monotonic(), self._clock.time()

    def _idle_seconds(self) -> float:
        """Of two clocks: the one stands still while the machine sleeps, the other may be set."""
        monotonic, wall = self._used_at
        return max(self._clock.monotonic() - monotonic, self._clock.time() - wall)

    def is_elsewhere(self) -> bool:
        """Tell whether it was opened before a fork, and not since."""
        return forks.here() != self._home

    def __del__(self) -> None:
        if hasattr(self, "_used_at") and not self.core.is_closed:
            exits.unclosed(self, self._home)

    def __str__(self) -> str:
        return f"producer {self.core.name!r} of {self._address.namespace}/{self._address.topic}"

    # --- what each twin has of its own

    def _check(self) -> None:
        """Raises where the caller may not wait here."""
        raise NotImplementedError

    def flush(self, timeout: float | None = None) -> Awaitable[None] | None:
        """Return when everything queued so far has its result; raise the first failure that no caller has heard of."""
        raise NotImplementedError

    def _notify(self) -> None:
        """Have those who wait look at the core again."""
        raise NotImplementedError

    def _nap(self, seconds: float) -> object:
        """Return when so many seconds are over, or nothing is to be waited for."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Have it send nothing more."""
        raise NotImplementedError

    # --- what the core says

    def _parts(self, batch: Batch) -> list[Batch]:
        """Cut what one call sends into as few requests as can be; one if it is ``whole``."""
        messages, most = self._policy.bounds
        bounds = Bounds(min(messages, self._policy.max_pending), min(most, self._policy.max_pending_bytes))
        return [batch] if batch.whole else [part for rising in batch.rising() for part in rising.parts(bounds)]

    async def _do(self, action: Action) -> None:
        if isinstance(action, Complete):
            self._complete(action)
        elif isinstance(action, Publish):
            began = self._clock.monotonic()
            try:
                runs = await self._publish(action.request)
            except OncelogError as error:
                with self._lock:
                    wait = self.core.failed(error, self._clock.monotonic(), random.random())
                self._say(error, wait)
                away = None if wait is None else self._outage.failed(error, began, self._clock.monotonic())
                if away is not None:
                    text = "%s: the service has been away for %.0f s, and the request is sent again: %s: %s"
                    log(_log, WARNING, text, str(self), away, error.code, str(error))
            else:
                self._outage.heard()
                with self._lock:
                    self.core.answered(runs, self._clock.monotonic())
                self._note_use()
        elif isinstance(action, Wait):
            await answer_of(self._nap, action.seconds)
        else:
            try:
                opened = await self._address.open()
            except OncelogError as error:
                with self._lock:
                    self.core.not_opened(error)
                self._say(error, None)
            else:
                self._rename(opened)

    async def _publish(self, request: PublishRequest) -> list[ReceiptRun]:
        client, topic, namespace, *_ = self._address
        tracing = switch.tracing
        if tracing is None:
            return await answer_of(client.publish, topic, request, namespace)
        with tracing.request(Place(namespace, topic, client.url), request.properties or (), len(request.payloads)):
            return await answer_of(client.publish, topic, request, namespace)

    def _say(self, error: OncelogError, wait: float | None) -> None:
        """Log that a request failed. Nothing waits for a handler: it may wait for what is sent here."""
        who, said = str(self), str(error)  # a handler may keep what it is given: not the producer, nor where it has failed
        if wait is not None:
            log(_log, INFO, "%s: a request failed and is sent again in %.2f s: %s: %s", who, wait, error.code, said)
        elif self.core.stopped is error:
            log(_log, WARNING, "%s has stopped, nothing more is sent: %s: %s", who, error.code, said)
        else:
            log(_log, INFO, "%s: messages are refused: %s: %s", who, error.code, said)

    def _rename(self, opened: Opened) -> None:
        with self._lock:
            self.core.opened(opened)
            self._has_ended = False
            self._note_use()

    def _complete(self, result: Complete) -> None:
        core = self.core  # a callback may fork: then there is another one here, and this is the parent's
        part = result.part
        if result.error is not None and part.shared.is_untold(part.begin, len(part)):
            core.untold(result.error)
        _complete(result)
        with self._lock:
            core.completed()
            self._notify()

    def disregard(self, outcome: Outcome | Outcomes, error: BaseException) -> None:
        """Its caller hears of ``error`` instead, and of no failure of a message, come or to come: flush tells."""
        with self._lock:  # which also who adds a message to what is awaited holds
            failure = outcome.disregard()
            if failure is not None and failure is not error.__cause__:
                self.core.untold(failure)

    # --- the end

    async def end_name(self, timeout: float | None) -> None:
        """End an assigned name, if all its messages have a definite result: nobody will ask what became of them, and no late copy
        of one is stored any more."""
        core, (client, topic, namespace, *_) = self.core, self._address
        seconds = END_SECONDS if timeout is None else min(timeout, END_SECONDS)
        with self._lock:
            stays = not self._policy.is_assigned or core.stopped is not None or core.enlisted is not None
            if stays or self._has_ended or core.pending or self.is_elsewhere():
                return
            self._has_ended = True
        if seconds > 0:
            with suppress(OncelogError):
                await answer_of(client.end_producer, topic, core.name, core.epoch, namespace, timeout=seconds)

    def _give_up(self) -> str:
        """Complete everything without a receipt; return how much that is, in words."""
        with self._lock:
            ids, results = self.core.give_up(self._clock.monotonic())
            self._abandon()
            self._notify()
        for each in results:
            _complete(each)
        self.core.take_failure()  # the caller who gave up hears of it now
        return f"{self}: {len(ids)} messages have no outcome and are given up" + (
            f", sequence ids {ids[0]} to {ids[-1]}" if ids else ""
        )

    # --- in a transaction

    async def enlist(self, transaction: int | str) -> None:
        """Flush, then take messages of this transaction only, until it ends.

        Raises as :meth:`flush` does, ProducerInTransaction, ProducerStopped, ProducerClosed.
        """
        self._check()
        with self._lock:
            if not self.core.is_usable():
                raise self.core.unusable()
            self.core.enlist(transaction)
        try:
            await answer_of(self.flush)
            if self._policy.is_assigned and self._idle_seconds() > RENEW_SECONDS:
                self._rename(await self._address.open())  # every message has its result
        except BaseException:
            self.core.enlisted = None
            raise
        with self._lock:
            self.core.enlist(transaction)  # what was refused meanwhile has given its number back

    async def has_stored(self, sequence_id: int) -> bool:
        """Ask whether the topic has this or a higher sequence id of the producer. Raises OncelogError."""
        client, topic, namespace, *_ = self._address
        last = (await answer_of(client.producer, topic, self.core.name, namespace)).last_persisted
        return last is not None and sequence_id <= last

    def number(self, sequence_id: int | None) -> int:
        """As :meth:`oncelog.producing.core.Core.number`, and so are those below."""
        with self._lock:
            return self.core.number(sequence_id)

    def release(self, last: Receipt | None) -> None:
        with self._lock:
            self._note_use()
            self.core.release(last)

    def roll_back(self) -> None:
        with self._lock:
            self.core.roll_back()

    def stop(self, error: BaseException) -> None:
        with self._lock:
            self.core.stop(error)


def _complete(result: Complete) -> None:
    part = result.part
    part.shared.complete(part.begin, len(part), Receipts(result.runs), result.error)
