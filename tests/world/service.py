"""Runs a service: in this process, or as a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import requests

from oncelog_service.app import build_server, build_service, listen
from oncelog_service.clock import Clock
from oncelog_service.config import Settings, TransactionServiceSettings
from oncelog_service.engine import Engine
from oncelog_service.rest.server import Server
from oncelog_service.service import Service
from oncelog_service.storage.port import Store
from tests.gate.guard import armed
from tests.gate.loop import Loop
from tests.gate.threads import until as wait_until
from tests.patience import PATIENCE, until

T = TypeVar("T")


class RunningService:
    """A service in this process, on a thread with its own event loop, answering real HTTP on a free port."""

    url: str
    service: Service
    loop: asyncio.AbstractEventLoop

    server: Server

    def stop(self) -> None:
        """Begin to stop; :func:`running_service` waits for the end."""
        with suppress(RuntimeError):  # it has stopped already
            self.loop.call_soon_threadsafe(self.server.stop)

    def arrived(self, requests: int) -> None:
        """Return when so many requests are being answered, and none of them waits for the event loop."""
        until(lambda: self.server.under_way >= requests, f"{requests} requests have arrived")
        for _ in range(50):
            self.on_loop(lambda _: asyncio.sleep(0))

    def on_loop(self, make: Callable[[Service], Coroutine[Any, Any, T]], seconds: float = PATIENCE) -> T:
        """Run a coroutine where the service lives and hand back its result."""
        if isinstance(self.loop, Loop):
            return self.loop.done(self.loop.create_task(make(self.service)), seconds)
        return asyncio.run_coroutine_threadsafe(make(self.service), self.loop).result(seconds)

    def settled(self) -> None:
        """Return when the service has told its topics of every transaction that has ended."""
        until(lambda: not self.on_loop(lambda service: service.opening.transactions.unacknowledged(0)))


@contextmanager
def running_service(
    store: str = "memory://",
    clock: Clock | None = None,
    open_store: Callable[[], Store] | None = None,
    alone: bool = False,
    **settings: Any,
) -> Iterator[RunningService]:
    """Start on a free port, stop cleanly at the end. ``alone``: the transaction service, and nothing else."""
    running = RunningService()
    ready = threading.Event()
    failure: list[BaseException] = []
    chosen = (TransactionServiceSettings if alone else Settings)(store=store, **{"port": 0, **settings})

    async def serve() -> None:
        running.loop = asyncio.get_running_loop()
        running.service = build_service(chosen, clock, open_store)
        listener = listen(chosen)
        await running.service.start()
        running.server = build_server(running.service)
        running.url = chosen.url_of("127.0.0.1", listener.getsockname()[1])
        await running.server.run(listener, ready.set, running.service.release, running.service.drain)
        await running.service.stop()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    if armed():
        yield from _in_place(running, serve, ready)
        return
    thread = threading.Thread(target=run, name="oncelog-test-service")
    thread.start()
    ready.wait(PATIENCE)
    if failure:
        raise failure[0]
    try:
        yield running
    finally:
        running.stop()
        running.stop()  # without a pause
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the service does not stop"
    if failure:
        raise failure[0]


def _in_place(
    running: RunningService, serve: Callable[[], Coroutine[Any, Any, None]], ready: threading.Event
) -> Iterator[RunningService]:
    """The same in the gate: it goes on while the test waits for it."""
    loop = Loop()
    serving = loop.create_task(serve())
    try:
        wait_until(lambda: ready.is_set() or serving.done())
        if serving.done():
            serving.result()
        try:
            yield running
        finally:
            running.stop()
            running.stop()
    finally:
        try:
            wait_until(serving.done, PATIENCE)
            assert serving.done(), "the service does not stop"
        finally:
            loop.end()
    serving.result()


@contextmanager
def running_engine() -> Iterator[RunningService]:
    """The same in an engine, without a port: its URL is that of its store, for the clients of this process."""
    with Engine() as engine:
        running, run = RunningService(), engine._running
        assert run.service is not None
        assert run.server is not None
        running.url, running.service, running.loop, running.server = engine.url, run.service, run.loop, run.server
        yield running


_KEPT: list[socket.socket] = []


def free_port() -> int:
    """A port nobody listens on, and that is given to nobody who asks for any, as long as this process lives.

    Whoever names it may listen there, with SO_REUSEADDR, as servers do.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    port: int = kept.getsockname()[1]
    return port


class ServiceProcess:
    """`oncelog serve` as a process of its own, always on the same port and data, to be killed and started again."""

    def __init__(self, data: Path, command: str = "serve", **settings: Any) -> None:
        """``command``: or "tx-serve"."""
        self._command = command
        self.port = free_port()
        self.url = f"http{'s' if 'tls_certificate' in settings else ''}://127.0.0.1:{self.port}"
        self.verify: str | bool = settings.get("ca", True)
        """The CA that signed its certificate, where it has one; it trusts the same one."""
        self.store = f"leveldb://{data}"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.files: int | None = None
        """How many files it may have open, if not as many as this process; set before the start."""
        self.log_to: Path | None = None
        """Where to write what it logs, if anywhere; set before the start."""

    def start(self, timeout: float = PATIENCE) -> None:
        """Start and return when /healthz answers 200."""
        environment = {**os.environ, **{f"ONCELOG_{name.upper()}": str(value) for name, value in self._settings.items()}}
        command = [sys.executable, "-m", "oncelog_service", self._command, "--port", str(self.port), "--store", self.store]
        if self.files is not None:
            command = ["sh", "-c", f'ulimit -n {self.files} && exec "$@"', "sh", *command]
        said = TemporaryFile() if self.log_to is None else open(self.log_to, "a+b")  # noqa: SIM115
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        with said:
            self._wait(time.monotonic() + timeout, said)

    def _wait(self, deadline: float, said: IO[bytes]) -> None:
        assert self._process is not None
        while True:
            try:
                if requests.get(self.url + "/healthz", timeout=10, verify=self.verify).status_code == 200:
                    return
            except requests.RequestException:
                pass
            if self._process.poll() is not None:
                said.seek(0)
                raise RuntimeError(f"the service ended with {self._process.returncode}: {said.read().decode()}")
            if time.monotonic() > deadline:
                raise TimeoutError("the service did not become healthy")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE)

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(PATIENCE)

    def __enter__(self) -> ServiceProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
