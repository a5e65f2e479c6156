"""What can go wrong with a request, by name: faults are planned before it comes, and say afterwards whether they struck."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypedDict, Unpack

from oncelog.errors import NotAllowed, NotFound, OncelogError
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.application import Application
from oncelog_service.rest.exchange import Admitted, Head
from oncelog_service.rest.table import CONSOLE_ROUTES, ROUTES
from oncelog_service.service import Service
from oncelog_service.testing.plan import Asked, Fault, Plan, Request, asked

Answering = Callable[[bytes], Awaitable[Answer]]
When = Literal["before", "after"]
"""Before the request is obeyed; or after it was, and before its answer leaves."""

_LOOKING: frozenset[Request] = frozenset(("stats", "offsets", "read_columns", "poll"))


class Nth(TypedDict, total=False):
    """Which requests of its kind a fault strikes."""

    namespace: str
    nth: int
    """The first that is struck, of those that come from now on: 1 (the default) is the next one."""
    times: int
    """How many are struck, one behind the other. By default one."""
    optional: bool
    """The test is to pass, too, where it strikes less."""


class Which(Nth, total=False):
    """Which requests of its kind a fault strikes, on any topic or on one."""

    topic: str | None
    """Those on this topic; else whatever their topic."""


class World(Protocol):
    """What faults do beside losing and repeating; on the event loop of the service."""

    def dies(self) -> None:
        """Begins to kill the service, which starts again at once. No answer of the one who calls this leaves."""

    def stands_still(self, seconds: float) -> None:
        """Stops the service for so long; it returns then."""

    async def time_passes(self, seconds: float) -> None:
        """Lets time pass."""

    async def clock_is_set(self, seconds: float) -> None:
        """Sets the clock by so much."""

    async def opens_elsewhere(self, topic: str, namespace: str, producer: str | None, subscription: str | None) -> None:
        """Opens a producer or a subscription, which fences who has it open. Raises NotFound: nobody has."""

    async def disk_fills(self) -> None:
        """Leaves no room on the disk."""


@dataclass(frozen=True)
class _Strike:
    """What a fault does to a request that it strikes."""

    before: Callable[[], Awaitable[None]] | None = None
    again: bool = False
    after: Callable[[], Awaitable[None]] | None = None
    loses: bool = False
    """Its answer does not leave."""


class Faults:
    """Plans faults for the requests that come from now on, and has them happen. Thread-safe.

    Each method names what goes wrong, then which requests it strikes: of which kind, and as :class:`Which` says (``topic=``,
    ``nth=``, ``times=``). It returns the fault, whose ``fired`` says how often it struck so far. One that has struck less than it
    was to when the test ends fails it (FaultNotMet), unless it is ``optional``.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._plan = Plan()
        self._strikes: dict[Fault, _Strike] = {}
        self._lookers = 0
        self._lock = threading.Lock()
        """Of the lookers."""

    # --- by name

    def lose_answer(self, request: Request = "publish", **which: Unpack[Which]) -> Fault:
        """The request is obeyed, and its connection is cut before the answer: whoever sent it does not know what came of it."""
        return self._planned("lose the answer to", request, _Strike(loses=True), which)

    def lose_request(self, request: Request = "publish", **which: Unpack[Which]) -> Fault:
        """The connection is cut before the request is obeyed: nothing is done, and whoever sent it cannot tell that."""
        return self._planned("lose", request, _Strike(before=_cut), which)

    def refuse(self, request: Request = "publish", error: OncelogError | None = None, **which: Unpack[Which]) -> Fault:
        """The request is not obeyed, and answered with this error; by default with NotAllowed, which nobody tries again: so a
        program ends at this request, as if it had been killed there."""
        refused = error or NotAllowed("refused by a fault that the test has planned")
        return self._planned(f"refuse ({refused.code})", request, _Strike(before=partial(_refuse, refused)), which)

    def deliver_twice(self, request: Request = "publish", **which: Unpack[Which]) -> Fault:
        """The same bytes are obeyed twice, as where a proxy tries again, and the second answer is the one that leaves."""
        return self._planned("deliver twice", request, _Strike(again=True), which)

    def kill(self, request: Request = "publish", *, when: When = "after", **which: Unpack[Which]) -> Fault:
        """The service is killed (SIGKILL), ``after`` the request was obeyed and before its answer left, or ``before`` both; and
        starts again with what was on disk."""
        return self._planned(f"kill the service {when}", request, self._at(when, self._dies), which)

    def stop_for(self, seconds: float, request: Request = "publish", **which: Unpack[Which]) -> Fault:
        """The service stands still for so long when the request comes, as under SIGSTOP: all wait, and clocks go on."""
        return self._planned(
            f"stop the service for {seconds:g} s at", request, self._at("before", partial(self._stands_still, seconds)), which
        )

    def pass_time(self, seconds: float, request: Request = "publish", *, when: When = "before", **which: Unpack[Which]) -> Fault:
        """So much time passes at once, for the service: leases, time-outs and ttls end."""
        act = partial(self._world.time_passes, seconds)
        return self._planned(f"let {seconds:g} s pass {when}", request, self._at(when, act), which)

    def step_clock(self, seconds: float, request: Request = "publish", *, when: When = "before", **which: Unpack[Which]) -> Fault:
        """The clock of the service's machine is set by so much, forward or, below 0, back; no time passes."""
        act = partial(self._world.clock_is_set, seconds)
        return self._planned(f"set the clock by {seconds:g} s {when}", request, self._at(when, act), which)

    def fence(
        self,
        topic: str,
        *,
        producer: str | None = None,
        subscription: str | None = None,
        request: Request | None = None,
        when: When = "before",
        **which: Unpack[Nth],
    ) -> Fault:
        """The producer, or the consumer of the subscription, is opened elsewhere: who has it open is fenced.

        ``request``: by default a publish on the topic, or a receive.
        """
        if (producer is None) == (subscription is None):
            raise ValueError("either a producer or a subscription is fenced")
        strikes: Which = {"topic": topic, **which}
        named = f"producer {producer!r}" if subscription is None else f"subscription {subscription!r}"
        act = partial(self._fences, topic, which.get("namespace", "default"), producer, subscription)
        kind: Request = request or ("publish" if subscription is None else "receive")
        return self._planned(f"fence {named} {when}", kind, self._at(when, act), strikes)

    def fill_disk(self, request: Request = "publish", *, when: When = "before", **which: Unpack[Which]) -> Fault:
        """The disk of the service is full, until it is freed: what adds rows is refused (DiskFull)."""
        return self._planned(f"fill the disk {when}", request, self._at(when, self._world.disk_fills), which)

    # --- afterwards

    @property
    def planned(self) -> list[Fault]:
        """All that were planned, in their order."""
        return list(self._plan.faults)

    def verify(self) -> None:
        """Raises FaultNotMet unless each has struck as often as it was to."""
        self._plan.verify()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Meanwhile the requests that a test looks at a log with meet no fault, and are not counted."""
        with self._lock:
            self._lookers += 1
        try:
            yield
        finally:
            with self._lock:
                self._lookers -= 1

    # --- as it happens

    def around(self, answer: Answering, head: Head) -> Answering:
        """What answers as ``answer`` does, where no fault strikes."""
        return partial(self._answer, answer, asked(head.method, head.path))

    async def _answer(self, answer: Answering, asked: Asked, body: bytes) -> Answer:
        if self._lookers and asked.request in _LOOKING:
            return await answer(body)
        met = self._plan.meet(asked)
        strikes = [self._strikes[each] for each in met]
        for fault, strike in zip(met, strikes, strict=True):
            await _act(fault, strike.before)
        for strike in strikes:
            if strike.again:
                with suppress(OncelogError):
                    await answer(body)
        loses = any(strike.loses for strike in strikes)
        found = None
        try:
            found = await answer(body)
        finally:
            for fault, strike in zip(met, strikes, strict=True):
                await _act(fault, strike.after)
            if loses:
                await _cut()
        return found

    def _planned(self, what: str, request: Request, strike: _Strike, which: Which) -> Fault:
        fault = Fault(what, request, **which)
        self._strikes[fault] = strike  # before it can be met
        self._plan.faults.append(fault)
        return fault

    def _at(self, when: When, act: Callable[[], Awaitable[None]]) -> _Strike:
        if when not in ("before", "after"):
            raise ValueError(f"when is 'before' or 'after', not {when!r}")
        return _Strike(before=act) if when == "before" else _Strike(after=act)

    async def _dies(self) -> None:
        self._world.dies()
        await asyncio.Future()  # cancelled with the connection, and all others

    async def _fences(self, topic: str, namespace: str, producer: str | None, subscription: str | None) -> None:
        try:
            await self._world.opens_elsewhere(topic, namespace, producer, subscription)
        except NotFound as nobody:
            raise _ToNothingError(str(nobody)) from nobody

    async def _stands_still(self, seconds: float) -> None:
        self._world.stands_still(seconds)


class _ToNothingError(Exception):
    """There was nothing that the fault could have struck."""


async def _act(fault: Fault, act: Callable[[], Awaitable[None]] | None) -> None:
    if act is not None:
        try:
            await act()
        except _ToNothingError as why:
            fault.came_to_nothing(str(why))


async def _refuse(error: OncelogError) -> None:
    raise error.with_traceback(None)  # it may be raised more than once


async def _cut() -> None:
    """Ends the connection: an answer that is cancelled does not leave, nor half of one (rest/protocol.py)."""
    raise asyncio.CancelledError


class FaultyApplication(Application):
    """Answers as any service does, but where a fault strikes."""

    def __init__(self, service: Service, faults: Faults) -> None:
        super().__init__(service, ROUTES, CONSOLE_ROUTES)
        self._faults = faults

    def admit(self, head: Head, address: object = None) -> Admitted:
        admitted = super().admit(head, address)
        return admitted._replace(answer=self._faults.around(admitted.answer, head), step=None)
