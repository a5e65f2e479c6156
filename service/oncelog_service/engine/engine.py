"""A whole service on a thread of this process, asked over pairs of sockets.

Each connection is a pair whose one end is given to the server's own HTTP: limits, draining, refusals, pipelining and what a
client tries again are those of a service behind a port. What is different:

* No environment is read and no config file: what the variables say is said to the services and clients of this machine.
* Nothing of the process is changed: no signal handler, no logging, no switch interval, no limit of descriptors, no umask.
* Whoever reaches the engine may do everything, also where the store has tokens: its files are open to this process anyway. One
  that listens, or is given a token, asks for tokens as every service does.
* It answers and closes its store while the interpreter exits, too: what it needs threads for then has begun before (threads.py).
* A forked child has nothing of it. No lock, file or connection of its parent's engine is used, closed or freed there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakSet, WeakValueDictionary

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from oncelog.errors import Forked
from oncelog.process import forks
from oncelog.process.clock import REAL
from oncelog.process.errands import aside
from oncelog_service.app import build_server, build_service, listen, warn_of_files
from oncelog_service.clock import Clock
from oncelog_service.config import Settings
from oncelog_service.engine.address import Address
from oncelog_service.rest.server import Server
from oncelog_service.service import Service
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store, StoreInUse
from oncelog_service.threads import Threads

T = TypeVar("T")

_THREADS = 32
"""Of an event loop's own pool: what asyncio gives a large machine."""
_READY = 4
"""Of them begun with it, for a process that exits. Closing a store takes one at a time."""


class EngineStopped(ConnectionError):
    """The engine does not run: it was not started, or has ended."""


class _Given(Settings):
    """Settings of which nothing comes from the environment or from a file."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: object, **__: object
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class Engine:
    """A service over one store, on a thread with an event loop of its own. Thread-safe; a context manager.

    While it runs, every client of this process that names its store, by :attr:`url`, uses it. One that was stopped, or abandoned,
    may be started again: over the same store, in memory too, and at the same port.
    """

    def __init__(
        self,
        store: str = "memory://",
        *,
        clock: Clock | None = None,
        open_store: Callable[[], Store] | None = None,
        listen: bool = False,
        **settings: Any,
    ) -> None:
        """``store``: its URL; ``settings``: those of `oncelog serve`, by name. Nothing is opened yet.

        ``clock`` and ``open_store`` take the place of the machine's clock and of what opens the store. ``listen``: whether it
        answers HTTP at a port of 127.0.0.1, too.

        Raises ValueError: a setting is none, or that is no store which one process owns.
        """
        self.address = Address.of(store)
        self._settings: Settings = _Given(store=self.address.store, **{"port": 0, **settings})
        self._clock = clock
        self._open_store = open_store or store_opener(self.address.store)
        self._listens = listen
        self._lock = threading.Lock()
        """Of starts and ends: one at a time."""
        self._run: _Run | None = None
        self._home, self._pid = forks.here(), os.getpid()
        forks.register(self)

    # --- its life

    def start(self) -> Self:
        """Opens the store and returns when requests are answered. Raises StoreError: it cannot be opened; OSError; RuntimeError:
        it runs already; Forked."""
        aside(partial(self._begin, made=True))
        try:
            aside(self.wait)
        except BaseException:
            self.ask_to_stop()  # Ctrl-C: nobody would end it
            self._withdraw()
            raise
        return self

    def begin(self) -> None:
        """Begins to open the store.

        Raises RuntimeError: it runs already, or no thread can be begun; StoreInUse: another engine of this process has it;
        OSError; Forked.
        """
        self._begin(made=False)

    def _begin(self, *, made: bool) -> None:
        """``made``: by somebody who has all that name its store use it."""
        self._check_here()
        with self._lock, _stores.changing:
            if not self.ended(0):
                raise RuntimeError("the engine runs already")
            other = _stores.begun.get(self.address)
            if other is not None and not other.ended(0):
                raise StoreInUse(f"{self.address} is in use by another engine of this process")
            self._run = _Run.begun(self)
            _stores.begun[self.address] = self
            if made:
                _stores.made[self.address] = self

    def wait(self, seconds: float | None = None) -> None:
        """Returns when requests are answered.

        Raises TimeoutError: not within so many seconds; EngineStopped: it answered once, and has ended; else as :meth:`start`.
        """
        run = self._running
        if not run.ready.wait(seconds):
            raise TimeoutError(f"{self.address} is still being opened")
        if run.server is None:
            run.thread.join(seconds)
            if run.thread.is_alive():
                raise TimeoutError(f"{self.address} is still being closed")
            if run.served or run.failure is None:
                raise run.stopped()
            raise run.failure

    def stop(self) -> None:
        """Answers what is under way, leaves snapshots, closes the store, and returns then. Twice is as once; in a forked child it
        does nothing.

        Raises what went wrong meanwhile: what was acknowledged is durable all the same.
        """
        self._withdraw()
        self._end(lambda run: run.stop)

    def abandon(self) -> None:
        """Ends as a process that is killed: connections are cut, what is queued is not written, no snapshot is left.

        What was acknowledged is on disk, as always. A write that is under way may be there, and is waited for. Twice is as once.
        """
        self._end(lambda run: run.abandon)

    def ask_to_stop(self) -> None:
        """As :meth:`stop`, without waiting."""
        if forks.here() == self._home and (run := self._run) is not None:
            run.call(run.stop)

    def ended(self, seconds: float) -> bool:
        """Tells whether it does not run, within so many seconds."""
        run = self._run
        if forks.here() == self._home and run is not None:
            run.thread.join(seconds)
            return not run.thread.is_alive()
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what it is asked

    def connect(self) -> socket.socket:
        """Returns the client's end of a new connection, which speaks HTTP/1.1. Raises EngineStopped, Forked; OSError: there are
        no more descriptors."""
        return self._running.connect()

    @property
    def url(self) -> str:
        """URL for clients: where it listens, else that of the store, by which clients of this process find it.

        Raises EngineStopped: it listens, and does not run.
        """
        return self.service.url if self._listens else str(self.address)

    @property
    def service(self) -> Service:
        """The service, which belongs to the engine's event loop: see :meth:`on_loop`. Raises EngineStopped, Forked."""
        service = self._running.service
        if service is None:
            raise self._running.stopped()
        return service

    @property
    def runs(self) -> bool:
        """Tells whether requests are answered."""
        run = self._run
        return forks.here() == self._home and run is not None and run.server is not None

    def on_loop(self, make: Callable[[Service], Coroutine[Any, Any, T]], seconds: float | None = None) -> T:
        """Runs a coroutine on the engine's event loop, where its service lives, and returns or raises what it does.

        ``seconds``: how long to wait for it. Raises TimeoutError: it took longer; EngineStopped, Forked.
        """
        service, run = self.service, self._running
        coroutine = make(service)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, run.loop)
        except RuntimeError:  # closed meanwhile
            coroutine.close()
            raise run.stopped() from None
        return future.result(seconds)

    def build_server(self, service: Service) -> Server:
        """Builds what answers HTTP; the one for tests has it meet faults."""
        return build_server(service)

    @property
    def _running(self) -> _Run:
        self._check_here()
        if self._run is None:
            raise EngineStopped("the engine does not run")
        return self._run

    def _check_here(self) -> None:
        if forks.here() != self._home:
            raise Forked(
                f"{self.address} is open in process {self._pid}, which this one was forked from, and one process owns a store: "
                "ask that one, or close its clients before the fork and make another one here"
            )

    def _withdraw(self) -> None:
        if _stores.made.get(self.address) is self:
            del _stores.made[self.address]

    def _end(self, how: Callable[[_Run], Callable[[], None]]) -> None:
        if forks.here() == self._home:
            aside(partial(self._end_run, how))

    def _end_run(self, how: Callable[[_Run], Callable[[], None]]) -> None:
        with self._lock:
            run = self._run
            if run is None:
                return
            run.call(how(run))
            run.thread.join()
            self._run = None
        if run.failure is not None and run.served:
            raise run.failure

    def _after_fork(self) -> None:
        """In the child: what the engine has is its parent's, and is kept as it is until this process ends.

        SQLite's destructor would take this for the last process that has the database open, and delete its write-ahead log;
        LevelDB's waits for a thread that does not exist here. Neither runs: what the frames of such threads refer to is never
        destroyed.
        """
        self._withdraw()
        if self._run is not None:
            self._run.let_go()


class _Stores:
    """Which engine has which store."""

    def __init__(self) -> None:
        self.changing = threading.Lock()
        """While one begins: a store has one."""
        self.made: WeakValueDictionary[Address, Engine] = WeakValueDictionary()
        """Those that somebody has started here, and not stopped."""
        self.begun: WeakValueDictionary[Address, Engine] = WeakValueDictionary()
        """The last one that was begun for a store, by whomever."""
        forks.register(self)

    def _after_fork(self) -> None:
        """In the child: a thread of the parent may have held it."""
        self.changing = threading.Lock()


_stores = _Stores()


def engine_made_for(address: Address) -> Engine | None:
    """Finds the engine that somebody has started for a store."""
    return _stores.made.get(address)


def engines_made() -> list[Engine]:
    """Lists all of this process that somebody has started and not stopped."""
    return list(_stores.made.values())


class _Run:
    """An engine from one start to its end. What is not said to be of its thread is of all."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.loop = _new_loop()
        self._threads = Threads(_THREADS, "oncelog-engine")
        self.loop.set_default_executor(self._threads)
        self.thread = threading.Thread(target=self._main, name="oncelog-engine", daemon=True)
        self.ready = threading.Event()
        """Set when requests are answered, or it has ended."""
        self.failure: BaseException | None = None
        self.served = False
        """Whether it ever answered."""
        self.service: Service | None = None
        self.server: Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._coming: set[socket.socket] = set()
        """Ends of connections that the event loop has not taken yet."""
        self._ends: WeakSet[socket.socket] = WeakSet()
        """All ends of its connections."""
        self._is_abandoned = False

    @classmethod
    def begun(cls, engine: Engine) -> Self:
        """Makes one and begins its threads. Raises RuntimeError, OSError: there are no more threads or descriptors, and none are
        left of it."""
        run = cls(engine)
        try:
            run._threads.make_ready(_READY)
            run.thread.start()
        except BaseException:
            run._threads.shutdown(wait=False)
            run.loop.close()
            raise
        return run

    def connect(self) -> socket.socket:
        """As :meth:`Engine.connect`."""
        if self.server is None:
            raise self.stopped()
        ours, theirs = socket.socketpair()
        self._ends.update((ours, theirs))
        self._coming.add(theirs)
        if not self.call(lambda: self._take(theirs)):
            self._coming.discard(theirs)
            ours.close()
            theirs.close()
            raise self.stopped()
        return ours

    def call(self, call: Callable[[], None]) -> bool:
        """Has it called on the event loop; tells whether there is one yet."""
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:  # closed
            return False
        return True

    def let_go(self) -> None:
        """In a forked child: has no end of a connection. While it had, its parent would not hear that the other end is closed.

        Their numbers stay taken, by what is nothing: whoever has them closes them in the end, and is to close nothing else.
        """
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for each in list(self._ends):
            if (number := each.fileno()) >= 0:
                os.dup2(nowhere, number, inheritable=False)
        os.close(nowhere)

    def stopped(self) -> EngineStopped:
        """Makes the error of who asks for what does not run."""
        why = "" if self.failure is None else f": {self.failure!r}"
        return EngineStopped(f"the engine of {self._engine.address} has ended{why}")

    # --- on its thread

    def stop(self) -> None:
        """Begins to stop."""
        if self.server is not None:
            self.server.stop()
        elif self._task is not None:
            self._task.cancel()

    def abandon(self) -> None:
        """Cuts all connections, and ends."""
        self._is_abandoned = True
        if self.server is not None:
            self.server.abandon()
        if self._task is not None:
            self._task.cancel()

    def _take(self, theirs: socket.socket) -> None:
        self._coming.discard(theirs)
        if self.server is None:
            theirs.close()
        else:
            self.server.take(theirs)

    def _main(self) -> None:
        loop = self.loop
        try:
            self._task = loop.create_task(self._serve())
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(self._task)
        except BaseException as error:
            self.failure = error
        finally:
            self.server = self.service = None
            with suppress(Exception):
                loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
                loop.run_until_complete(loop.shutdown_asyncgens())
            self._threads.shutdown()
            loop.close()
            for each in list(self._coming):
                each.close()
            self.ready.set()

    async def _serve(self) -> None:
        engine = self._engine
        settings, listener, url = engine._settings, None, None
        if engine._listens:
            listener = listen(settings)
            host, port = listener.getsockname()[:2]
            url = settings.url_of(host, port)
            engine._settings = settings.model_copy(update={"port": port})  # the same one next time
        service = build_service(settings, engine._clock, engine._open_store, url)
        service.access.trusts_all = listener is None and settings.token is None and settings.jwt_issuer is None
        try:
            await service.start()
            warn_of_files(settings.store)
            self.service, self.server = service, engine.build_server(service)
            await self.server.run(listener, self._is_ready, service.release, service.drain)
        finally:
            if listener is not None:
                listener.close()
            await (service.abandon() if self._is_abandoned else service.stop())

    def _is_ready(self) -> None:
        self.served = True
        self.ready.set()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Makes an event loop, of the kind that the service runs on."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
        loop.time = REAL.monotonic  # type: ignore[method-assign]  # its own asks a module whose time a test may have frozen
        return loop
    return uvloop.new_event_loop()


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
