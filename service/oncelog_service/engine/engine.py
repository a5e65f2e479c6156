"""A whole service on a thread of this process, asked over pairs of sockets.

Each connection is a pair whose one end is given to the server's own HTTP: limits, draining, refusals, pipelining and what a
client tries again are those of a service behind a port. What is different:

* No environment is read and no config file: what the variables say is said to the services and clients of this machine.
* Nothing of the process is changed: no signal handler, no logging, no switch interval, no limit of descriptors, no umask.
* Who reaches the engine may do everything, also where the store has tokens: its files are open to this process anyway. One that
  listens, or that is given a token, asks for tokens as every service does.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from oncelog_service.app import build_server, build_service, listen
from oncelog_service.clock import Clock
from oncelog_service.config import Settings
from oncelog_service.rest.server import Server
from oncelog_service.service import Service
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store

T = TypeVar("T")


class EngineStopped(RuntimeError):
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

    One that was stopped, or abandoned, may be started again: over the same store, in memory too, and at the same port.
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
        """``store``: its URL, as for `oncelog serve`; ``settings``: further ones, by name. Nothing is opened yet.

        ``clock`` and ``open_store`` take the place of the machine's clock and of what opens the store. ``listen``: whether it
        answers HTTP at a port of 127.0.0.1, too.

        Raises ValueError: a setting is none.
        """
        self._settings = _Given(store=store, **{"port": 0, **settings})
        self._clock = clock
        self._open_store = open_store or store_opener(store)
        self._listens = listen
        self._lock = threading.Lock()
        """Of starts and ends: one at a time."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_abandoned = False
        self._failure: BaseException | None = None

    # --- its life

    def start(self) -> Self:
        """Opens the store and returns when requests are answered. Raises StoreError: it cannot be opened; OSError; RuntimeError:
        it runs already."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise RuntimeError("the engine runs already")
            self._is_abandoned, self._failure = False, None
            ready = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(ready,), name="oncelog-engine", daemon=True)
            self._thread.start()
            ready.wait()
            if self._failure is not None:
                self._thread.join()
                raise self._failure
        return self

    def stop(self) -> None:
        """Answers what is under way, leaves snapshots, closes the store, and returns then. Twice is as once.

        Raises what went wrong meanwhile: what was acknowledged is durable all the same.
        """
        self._end(lambda server, _: server.stop())

    def abandon(self) -> None:
        """Ends as a process that is killed: connections are cut, what is queued is not written, no snapshot is left.

        What was acknowledged is on disk, as always. A write that is under way may be there, and is waited for. Twice is as once.
        """
        self._end(self._abandon)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what it is asked

    def connect(self) -> socket.socket:
        """Returns the client's end of a new connection, which speaks HTTP/1.1. Raises EngineStopped."""
        ours, theirs = socket.socketpair()
        try:
            self._call(lambda: self._present.take(theirs))
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return ours

    @property
    def url(self) -> str:
        """URL that it listens at. Raises EngineStopped; ValueError: it does not listen."""
        if not self._listens:
            raise ValueError("the engine does not listen; say listen=True")
        return self.service.url

    @property
    def service(self) -> Service:
        """The service, which belongs to the engine's event loop: see :meth:`on_loop`. Raises EngineStopped."""
        if self._service is None:
            raise EngineStopped("the engine does not run")
        return self._service

    def on_loop(self, make: Callable[[Service], Coroutine[Any, Any, T]], seconds: float | None = None) -> T:
        """Runs a coroutine on the engine's event loop, where its service lives, and returns or raises what it does.

        ``seconds``: how long to wait for it. Raises TimeoutError: it took longer; EngineStopped.
        """
        service, loop = self.service, self._loop
        if loop is None or loop.is_closed():
            raise EngineStopped("the engine does not run")
        return asyncio.run_coroutine_threadsafe(make(service), loop).result(seconds)

    @property
    def _present(self) -> Server:
        if self._server is None:
            raise EngineStopped("the engine does not run")
        return self._server

    def _call(self, call: Callable[[], object]) -> None:
        loop = self._loop
        if loop is None:
            raise EngineStopped("the engine does not run")
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # closed
            raise EngineStopped("the engine does not run") from None

    def _end(self, how: Callable[[Server, asyncio.Task[None]], object]) -> None:
        with self._lock:
            thread = self._thread
            if thread is None:
                return
            server, task = self._server, self._task
            if server is not None and task is not None:
                with suppress(EngineStopped):
                    self._call(lambda: how(server, task))
            thread.join()
            self._thread = None
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _abandon(self, server: Server, task: asyncio.Task[None]) -> None:
        self._is_abandoned = True
        server.abandon()
        task.cancel()

    # --- on its thread

    def build_server(self, service: Service) -> Server:
        """Builds what answers HTTP; the one for tests has it meet faults."""
        return build_server(service)

    def _run(self, ready: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop) as runner:
                runner.run(self._serve(ready))
        except asyncio.CancelledError:
            pass  # it was abandoned
        except BaseException as error:
            self._failure = error
        finally:
            self._loop = self._server = self._service = self._task = None
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        listener = listen(self._settings) if self._listens else None
        url = None
        if listener is not None:
            url = self._settings.url_of(*listener.getsockname()[:2])
            self._settings = self._settings.model_copy(update={"port": listener.getsockname()[1]})  # the same one next time
        service = build_service(self._settings, self._clock, self._open_store, url)
        try:
            await service.start()
            self._service, self._server = service, self.build_server(service)
            await self._server.run(listener, ready.set, service.release, service.drain)
        finally:
            if listener is not None:
                listener.close()
            await (service.abandon() if self._is_abandoned else service.stop())


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop that the service runs on, too."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
