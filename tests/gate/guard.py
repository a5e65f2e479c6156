"""What the gate puts in place of the real world while one of its tests runs, and who is stopped on the way to it."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import queue
import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest import mock

from oncelog.process import errands, tending, turns
from oncelog.process.clock import REAL as REAL_CLOCK
from oncelog.process.clock import Clock
from oncelog.sql.outbox import apart
from oncelog_service import workers
from tests.gate import threads
from tests.gate.loop import Policy, Selector
from tests.gate.sockets import Poll, Socket, pair
from tests.gate.threads import until
from tests.gate.time import TIME

REALITY = {
    "os.exec": "a process is started",
    "os.fork": "the process forks",
    "os.forkpty": "the process forks",
    "os.kill": "a signal is sent",
    "os.killpg": "a signal is sent",
    "os.posix_spawn": "a process is started",
    "os.system": "a process is started",
    "signal.pthread_kill": "a signal is sent",
    "socket.bind": "a port is taken",
    "socket.connect": "a socket is connected",
    "socket.sendto": "a socket sends",
    "subprocess.Popen": "a process is started",
    "time.sleep": "something sleeps",
}
"""Event of the interpreter (sys.audit) → what happens."""


class Real(RuntimeError):
    """A test of the gate reaches for the real world."""


class _Guard:
    """Sees everything that the interpreter audits."""

    def __init__(self) -> None:
        self.armed = False
        self.seen: list[Real] = []
        sys.addaudithook(self._see)  # which nobody takes away

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if self.armed and event in REALITY:
            self.refuse(f"{REALITY[event]} ({event})")

    def refuse(self, what: str) -> NoReturn:
        error = Real(f"{what}: a test that is about the real world is marked pytest.mark.real")
        self.seen.append(error)
        raise error


_GUARD = _Guard()
_real_getaddrinfo = socket.getaddrinfo


def _getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
    """Stands for :func:`socket.getaddrinfo`: this machine is all that has a name."""
    numeric = options.get("flags", args[4] if len(args) > 4 else 0) | (0 if host == "localhost" else socket.AI_NUMERICHOST)
    return _real_getaddrinfo(host, *args[:4], flags=numeric, **{name: each for name, each in options.items() if name != "flags"})


def _places() -> Iterator[tuple[Any, str, Any]]:
    monotonic, wall = TIME.read, TIME.wall

    yield time, "monotonic", monotonic
    yield time, "perf_counter", monotonic
    yield time, "monotonic_ns", lambda: round(monotonic() * 1e9)
    yield time, "clock_gettime", lambda clock: wall() if clock == time.CLOCK_REALTIME else monotonic()
    yield time, "clock_gettime_ns", lambda clock: round((wall() if clock == time.CLOCK_REALTIME else monotonic()) * 1e9)
    yield time, "time", wall
    yield time, "time_ns", lambda: round(wall() * 1e9)
    yield threading, "_time", monotonic  # by which a semaphore, and a queue, ends its wait
    yield queue, "time", monotonic
    for at, name in enumerate(Clock._fields):  # the clock of a client has had those of the module since before
        yield Clock, name, property(lambda clock, at=at, name=name: getattr(time, name) if clock is REAL_CLOCK else clock[at])
    yield time, "sleep", lambda seconds: until(lambda: False, seconds) and None
    yield threading, "Lock", threads.Lock
    yield threading, "RLock", threads.RLock
    yield threading.Condition, "wait", threads.wait
    yield threading.Thread, "start", threads.start
    yield threading.Thread, "join", threads.join
    yield queue, "SimpleQueue", queue._PySimpleQueue  # type: ignore[attr-defined]
    for module in (errands, workers, tending):
        yield module, "SimpleQueue", queue._PySimpleQueue  # type: ignore[attr-defined]
    yield turns, "_acquired", threads.acquired
    yield apart, "start_new_thread", lambda call, arguments: threading.Thread(target=call, args=arguments).start()
    yield socket, "socket", Socket
    yield socket, "socketpair", pair
    yield socket, "getaddrinfo", _getaddrinfo
    yield select, "poll", Poll
    yield socketserver, "_ServerSelector", Selector


def armed() -> bool:
    """Whether a test of the gate runs."""
    return _GUARD.armed


@contextmanager
def gate() -> Iterator[None]:
    """While a test of the gate runs."""
    with ExitStack() as stack:
        policy = asyncio.get_event_loop_policy()
        stack.callback(asyncio.set_event_loop_policy, policy)
        asyncio.set_event_loop_policy(Policy())
        for owner, name, value in _places():
            stack.enter_context(mock.patch.object(owner, name, value))
        _GUARD.armed, _GUARD.seen, TIME.steps, TIME.failed = True, [], 0, []
        try:
            yield
        finally:
            _GUARD.armed = False
            threads.forget()


def hangs(*_: object) -> NoReturn:
    """End the process: what comes behind a test that hangs here would find its threads, and hang, too."""
    faulthandler.dump_traceback()
    os._exit(1)


def check() -> None:
    """Raise what was raised since the last time, wherever it has gone."""
    seen, _GUARD.seen, TIME.failed = [*_GUARD.seen, *TIME.failed], [], []
    if seen:
        raise seen[0]
