"""The shell around a producer's core on an event loop: one task that sends, the futures of messages, the loop's end.

Between two awaits nothing comes in between, so the core is called without a lock. The task does what the core says until there is
nothing more to do, and ends then; whoever puts something in begins it anew. It belongs to the producer alone: a sender that is
cancelled takes nothing with it, since its message is the core's as soon as it has a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import Context

from oncelog.errors import OncelogError
from oncelog.process import exits
from oncelog.process.turns import Loop
from oncelog.producing.batching import Batch
from oncelog.producing.core import Complete, Core, Opened, Policy
from oncelog.producing.outcome import Outcomes
from oncelog.producing.shell import Address, Shell
from oncelog.values.outgoing import Outgoing
from oncelog.values.receipt import Receipt, Receipts


class Awaited(Outcomes):
    """What becomes of messages, with the futures of those that somebody awaits."""

    __slots__ = ("futures",)

    def __init__(self, count: int = 0) -> None:
        super().__init__(count)
        self.futures: dict[int, asyncio.Future[Receipt]] = {}

    def is_untold(self, begin: int, count: int) -> bool:
        """Tell whether one that has no result yet belongs to a message whose sender does not wait for it, or no longer."""
        gone = any(self.futures[at].cancelled() for at in range(begin, begin + count) if at in self.futures)
        return gone or super().is_untold(begin, count)

    def complete(self, begin: int, count: int, receipts: Receipts, error: OncelogError | None = None) -> None:
        """Give the messages from ``begin`` on their receipts, or all of them the error; what is complete stays as it is."""
        self._note(begin, begin + count, receipts, error)
        for at in range(begin, begin + count):
            future = self.futures.pop(at, None)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(receipts[at - begin])
            else:
                future.set_exception(error)
                future.exception()  # nobody has to ask: flush and close tell what was not heard of


class AsyncSender(Shell):
    """Sends in a task of its own."""

    def __init__(self, address: Address, policy: Policy, opened: Opened, loop: Loop) -> None:
        super().__init__(address, policy, nullcontext())  # between two awaits nothing comes in between
        self.core = Core(policy, opened, address.initial, lambda: Batch(Awaited()))
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        """Of those who wait for something to change: room, a batch that is done, something to do."""
        self._is_given_up = False
        self._is_told = False
        """Whether what is lost was named."""
        self._napping: asyncio.Future[None] | None = None
        self._begin()
        exits.register(self)

    # --- messages

    async def put(self, message: Outgoing, is_awaited: bool) -> asyncio.Future[Receipt]:
        """Queue one message, when there is room. ``is_awaited``: its caller waits for it."""
        core = self.core
        await self._room(message.size)
        if core.queue and not core.open.rows:
            await asyncio.sleep(0)  # once a batch: else a loop that never waits would leave no turn to anybody
            await self._room(message.size)
        while (at := core.put(message, batch := core.open)) is None:
            core.end_batch(self._clock.monotonic())
        # From the number on nothing awaits: who is cancelled now has a message on its way, and before it none.
        future = batch.shared.futures[at] = asyncio.get_running_loop().create_future()
        if is_awaited:
            batch.shared.awaited = {*batch.shared.awaited, at}
            core.hurry(self._clock.monotonic())
            self._wake()
        elif not core.lingers():
            core.linger(self._clock.monotonic())
            self._wake()
        return future

    async def put_batch(self, batch: Batch) -> Awaited:
        """Queue messages, as columns, in as few requests as can be; one if it is ``whole``. Its caller waits for them."""
        outcomes = batch.shared = Awaited(len(batch))
        try:
            for part in self._parts(batch):
                await self._room(part.size, len(part))
                while not self.core.put_batch(part, self._clock.monotonic()):
                    pass
                self._wake()
        except BaseException as error:
            self.disregard(outcomes, error)
            raise
        return outcomes

    async def result(self, outcomes: Awaited) -> Receipts:
        """Return the receipts of messages that one call has sent."""
        try:
            await self._until(outcomes.done)
        except BaseException as error:
            self.disregard(outcomes, error)
            raise
        return outcomes.receipts()

    async def receipt(self, future: asyncio.Future[Receipt]) -> Receipt:
        """Return the receipt of a message that its caller waits for."""
        try:
            return await future
        except asyncio.CancelledError:
            # Late, when its result had come: then nobody else hears of a failure.
            if not future.cancelled() and isinstance(error := future.exception(), OncelogError):
                self.core.untold(error)
            raise

    async def _room(self, size: int, count: int = 1) -> None:
        core = self.core
        self._loop.check()
        if not core.has_room(size, count):
            core.end_batch(self._clock.monotonic())  # what lingers would take room until its time is up
            self._wake()
            await self._until(lambda: core.has_room(size, count) or core.stopped is not None or core.is_closed)

    # --- the end

    def end_batch(self) -> Batch | None:
        """Return the last batch that is on its way; every message so far is in it or in one before it."""
        last = self.core.end_batch(self._clock.monotonic())
        self._wake()
        return last

    async def flush(self, timeout: float | None = None) -> None:
        """Return when everything queued so far has its result; raise the first failure that no caller has heard of."""
        self._loop.check()
        last = None if self._is_given_up else self.end_batch()
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: last is None or last.done or self._is_given_up)
        except TimeoutError:
            if last is not None and not last.done:
                raise TimeoutError(f"{self.core.pending} messages have no result yet") from None
        failure = self.core.take_failure()
        if failure is None and last is not None and not last.done:  # another task has closed it, and waits no longer
            failure = self.core.unusable()
        if failure is not None:
            raise failure

    async def close(self, timeout: float | None) -> None:
        """Flush, end an assigned name. Raises as :meth:`flush` does; TimeoutError says what was given up."""
        self._loop.check()
        self.core.close()
        self._notify()
        try:
            await self.flush(timeout)
        except TimeoutError:
            raise TimeoutError(self._give_up()) from None
        except OncelogError:
            await self.end_name(timeout)
            raise
        await self.end_name(timeout)

    def _check(self) -> None:
        self._loop.check()

    def _abandon(self) -> None:
        self._is_given_up = True
        if self._task is not None:
            self._task.cancel()

    def _begin_exit(self) -> None:
        """Nothing: no event loop runs any more."""

    def _end_exit(self, passed: float) -> str | None:
        return self._lost("the interpreter exits")

    def _lost(self, why: str) -> str | None:
        """What will not be sent any more, in words."""
        core = self.core
        if self._is_given_up or self._is_told or self.is_elsewhere() or not core.pending:
            return None
        self._is_told = True
        return f"{self}: {core.pending} messages have no outcome: {why}; await flush() or close() before"

    def __del__(self) -> None:
        if hasattr(self, "_used_at") and (lost := self._lost("its event loop was closed")) is not None:
            exits.say(lost)
        else:
            super().__del__()

    # --- the task

    def _wake(self) -> None:
        """Have the task look at the core again."""
        if self._napping is not None and not self._napping.done():
            self._napping.set_result(None)
        if self._task is None and not self._is_given_up and (self.core.queue or self.core.due is not None):
            # It is nobody's part: not of what the one was doing, a trace for example, who happened to begin it.
            name = f"oncelog-producer-{self.core.name}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name, context=Context())
            self._task.add_done_callback(self._ended)

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    async def _run(self) -> None:
        core = self.core
        while True:
            lingers = core.tick(self._clock.monotonic())
            action = core.next(self._clock.monotonic())
            if action is not None:
                await self._do(action)
            elif lingers is not None:
                await self._nap(lingers)
            else:
                self._task = None  # nothing awaits between the look that found nothing to do and this
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The task has ended; before it was done if it was cancelled, as an event loop does with all when it ends."""
        if self._task is not task:
            return
        self._task = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not self._is_given_up:
            self._break_off(error)
        self._notify()

    async def _nap(self, seconds: float) -> None:
        """Return when so many seconds are over, or there is something to do."""
        self._napping = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._napping

    def _break_off(self, error: BaseException) -> None:
        """Stop, and give everything that has no result yet the error; say how much that is."""
        core = self.core
        lost = self._lost(f"sending was interrupted by {error!r}")
        core.end_batch(self._clock.monotonic())
        core.interrupted(error)
        while isinstance(result := core.next(self._clock.monotonic()), Complete):
            self._complete(result)
        if lost is not None:
            exits.say(lost)
