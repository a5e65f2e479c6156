"""A service in memory for one test, on a machine that can be killed, stopped and filled, and a clock that can be moved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Self
from uuid import uuid4

from oncelog import Client
from oncelog.errors import OncelogError
from oncelog.testing.recorder import Recorder, check_effects, check_published
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import OpenSubscription
from oncelog_service.app import server_of
from oncelog_service.engine import Engine
from oncelog_service.rest.server import Server
from oncelog_service.service import Service
from oncelog_service.settlement import SettlementTask
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.testing.clock import MovedClock
from oncelog_service.testing.faults import Faults, FaultyApplication
from oncelog_service.transactions.manager import TransactionManager


class _FaultyEngine(Engine):
    """An engine whose requests meet faults."""

    faults: Faults

    def build_server(self, service: Service) -> Server:
        return server_of(FaultyApplication(service, self.faults), service)


class OncelogService:
    """A whole service over a store in memory, at a port of 127.0.0.1; a context manager. Thread-safe.

    ``faults`` plans what goes wrong with requests; the methods here do it now. What it says has happened when they return. At the
    end of the block a fault that struck less than it was to, and a recorder that finds something, raise AssertionError.
    """

    def __init__(self, **settings: Any) -> None:
        """``settings``: of the service, by name, as `oncelog serve` takes them. Raises ValueError: one is none, or its store."""
        if "store" in settings:
            raise ValueError("the store of a service for tests is in memory: leave store= out")
        self._token: str | None = settings.get("token")
        self.faults = Faults(self)
        self._disk = Disk()
        self._clock = MovedClock()
        self._engine = _FaultyEngine(clock=self._clock, open_store=lambda: MemoryStore(self._disk), listen=True, **settings)
        self._engine.faults = self.faults
        self._lives = threading.RLock()
        """Of starts and kills: one at a time."""
        self._ended = False
        self._killing: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._goes_on = threading.Event()
        self._is_dying = False
        """Whether it is being killed or closed: nothing stands still then."""
        self._standing = threading.Lock()
        """Of what stands still: that it may, and that it goes on."""
        self._recorders: list[Recorder] = []
        self._client: Client | None = None
        self.url = ""
        """Where it listens, http://127.0.0.1:…, the same after it was killed. Empty before it has started."""
        self.store_url = str(self._engine.address)
        """By which clients of this process reach it without a port, as they would open a store; faults strike there, too."""

    # --- its life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None:
                self.verify()
            else:
                self.explain(error)
        finally:
            self.close()

    def start(self) -> None:
        """Starts it, also after :meth:`kill` with ``restart=False``. Raises RuntimeError: it runs."""
        with self._lives:
            self._clock.begin_anew()
            self._is_dying = False
            self._engine.start()
            self.url = self._engine.url

    def kill(self, *, restart: bool = True) -> None:
        """Kills it as SIGKILL does: connections are cut, what was acknowledged is on disk, what was not written is gone.

        It has started again when this returns, at the same port; without ``restart`` it is down until :meth:`start`.
        """
        with self._lives:
            if self._ended:
                return
            self._stops_no_more()
            self._engine.abandon()
            if restart:
                self.start()

    def close(self) -> None:
        """Ends it, and whatever its client waits for. Idempotent."""
        self.go_on()
        if self._client is not None:
            self._client.close()
        with self._lives:
            self._ended = True
            self._stops_no_more()
            self._engine.abandon()
            self._engine.stop()  # by its store's URL it is not found any more
        for thread in self._killing:
            thread.join()
        if self._failures:
            raise self._failures.pop()

    # --- what goes wrong now

    def stop_for(self, seconds: float) -> None:
        """Stops it as SIGSTOP does, for so long or until :meth:`go_on`: requests wait, and clocks go on. It stands when this
        returns, which is at once."""
        standing = threading.Event()

        def stand() -> None:
            stops = self._stops()
            standing.set()
            if stops:
                self._goes_on.wait(seconds)

        async def soon(_: Service) -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, stand)  # behind what tells the caller that this has returned

        self._engine.on_loop(soon)
        standing.wait()

    def go_on(self) -> None:
        """Ends what :meth:`stop_for` began. Idempotent."""
        self._goes_on.set()

    def pass_time(self, seconds: float) -> None:
        """Lets so much time pass at once, for the service: transactions time out, messages expire, retention has its round."""
        self._do(lambda: self.time_passes(seconds))

    def step_clock(self, seconds: float) -> None:
        """Sets the clock of its machine by so much, forward or, below 0, back. No time passes.

        The service answers no earlier time than it has; after a :meth:`kill` it knows only the clock.
        """
        self._do(lambda: self.clock_is_set(seconds))

    def fence(
        self,
        topic: str,
        *,
        producer: str | None = None,
        subscription: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Opens the producer, or the consumer of the subscription, elsewhere: who has it open is fenced.

        Raises TopicNotFound; ProducerNotFound, SubscriptionNotFound: there is nobody to fence.
        """
        if (producer is None) == (subscription is None):
            raise ValueError("either a producer or a subscription is fenced")
        self._do(lambda: self.opens_elsewhere(topic, namespace, producer, subscription))

    def fill_disk(self) -> None:
        """Leaves no room on its disk: what adds rows is refused (DiskFull), until :meth:`free_disk`."""
        self._do(self.disk_fills)

    def free_disk(self) -> None:
        """Makes room on its disk again."""
        self._disk.free = None
        self._do(self._looks_at_the_disk)

    # --- what a test looks with

    @property
    def client(self) -> Client:
        """A client of it, which is closed with it."""
        if self._client is None:
            self._client = Client(self.url, token=self._token)
        return self._client

    def recorder(self, topic: str, **options: Any) -> Recorder:
        """Begins to record what a consumer of the topic does; ``options`` as of :func:`check_effects`.

        What was recorded is held against the log by its ``verify()``, and by the end of the test if that has not been called.
        """
        recorder = _Recorder(self, topic, **options)
        self._recorders.append(recorder)
        return recorder

    def check_effects(self, topic: str, effects: Iterable[Any], **options: Any) -> None:
        """Raises NotExactlyOnce unless each committed message of the topic had its effect once; see
        :func:`oncelog.testing.check_effects`."""
        __tracebackhide__ = True
        with self.looking():
            check_effects(self.client, topic, effects, **options)

    def check_published(self, topic: str, rows: Iterable[Any], **options: Any) -> None:
        """Raises NotExactlyOnce unless each row is a committed message of the topic once; see
        :func:`oncelog.testing.check_published`."""
        __tracebackhide__ = True
        with self.looking():
            check_published(self.client, topic, rows, **options)

    def verify(self) -> None:
        """Raises FaultNotMet, or NotExactlyOnce for what was recorded and not held against the log since.

        The end of the block, and that of a test with the fixture, does this.
        """
        __tracebackhide__ = True
        self.faults.verify()
        for each in self._recorders:
            if not each.verified:
                each.verify()

    def explain(self, error: BaseException) -> None:
        """Adds to an error of the test which faults were planned, and which struck."""
        if self.faults.planned:
            error.add_note("faults that were planned:\n" + "\n".join(f"  {each}" for each in self.faults.planned))

    @contextmanager
    def looking(self) -> Iterator[None]:
        """While this looks at a topic: the requests with which it does meet no fault."""
        self._do(self._settles)
        with self.faults.looking():
            yield

    # --- what faults do, on the event loop of the service

    def dies(self) -> None:
        """As :class:`~oncelog_service.testing.faults.World` says, as all that follow."""
        thread = threading.Thread(target=self._killed, name="oncelog-kill")
        self._killing.append(thread)
        thread.start()

    def stands_still(self, seconds: float) -> None:
        if self._stops():
            self._goes_on.wait(seconds)

    async def time_passes(self, seconds: float) -> None:
        self._clock.pass_by(seconds)
        service = self._engine.service
        with suppress(OncelogError):  # the store is being reopened: what is due is found then
            if isinstance(service.opening.transactions, TransactionManager):
                await service.opening.transactions.expire_due()
            await service.opening.atomic.upkeep.once()
            await service.opening.retention().once()

    async def clock_is_set(self, seconds: float) -> None:
        self._clock.set_by(seconds)

    async def opens_elsewhere(self, topic: str, namespace: str, producer: str | None, subscription: str | None) -> None:
        log = await self._engine.service.opening.topics.logs.open(namespace, topic)
        if producer is not None:
            log.producers.show(producer)
            await log.producers.open(producer, uuid4().hex, "allow")
        if subscription is not None:
            await log.subscriptions.show(subscription)
            await log.subscriptions.open(OpenSubscription(name=subscription, nonce=uuid4().hex))

    async def disk_fills(self) -> None:
        if not self._engine.service.room.floor:
            raise ValueError("a service whose min_free_bytes is 0 takes in whatever comes, until a write fails")
        self._disk.free = lambda: 0
        await self._looks_at_the_disk()

    async def _settles(self) -> None:
        """Tells topics of every transaction that has ended, which the service does by itself a moment later."""
        service = self._engine.service
        with suppress(OncelogError):
            await SettlementTask(service.opening.topics.participants, service.opening.transactions, self._clock).once()

    async def _looks_at_the_disk(self) -> None:
        room = self._engine.service.room
        room.looked(inf if self._disk.free is None else self._disk.free(), room.admitted)

    # ---

    def _stops(self) -> bool:
        """Whether it may stand still, from now on until :meth:`go_on`."""
        with self._standing:
            if not self._is_dying:
                self._goes_on.clear()
            return not self._is_dying

    def _stops_no_more(self) -> None:
        with self._standing:
            self._is_dying = True
            self._goes_on.set()

    def _do(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._engine.on_loop(lambda _: act())

    def _killed(self) -> None:
        try:
            self.kill()
        except BaseException as error:  # told at the end
            self._failures.append(error)


class _Recorder(Recorder):
    """Holds against the log with requests that meet no fault."""

    def __init__(self, service: OncelogService, topic: str, **options: Any) -> None:
        super().__init__(service.client, topic, **options)
        self._service = service

    def verify(self, *, upto: int | None = None) -> None:
        __tracebackhide__ = True
        with self._service.looking():
            super().verify(upto=upto)
