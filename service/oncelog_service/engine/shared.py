"""The engines that run in this process, by their stores, and who uses them.

The invariants:

* A store has one engine, whatever path, link or name leads to it, and whichever threads and event loops ask.
* An engine that was begun for a client ends when the last one that uses it closes, is collected, or the process ends; until it
  has ended nobody begins another one over its store.
* An :class:`Engine` that somebody has started is used by all who name its store, and ended by that one alone, or by the
  process's end.
* One that has died is begun again by whoever needs it next.
* Nothing here waits where the collector may call: it may hold any of these locks.
"""

from __future__ import annotations

import _thread
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from oncelog.errors import OncelogError, StoreInUse
from oncelog.process import exits, forks
from oncelog.process.clock import REAL
from oncelog_service.engine.address import Address
from oncelog_service.engine.engine import Engine, EngineStopped, engine_made_for, engines_made
from oncelog_service.engine.failures import failure_of

_log = logging.getLogger("oncelog.engine")

EXIT_SECONDS = 10.0
"""How long a process that ends waits for its stores to be closed."""


class _Shared:
    """An engine that clients share."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.users = 0
        """Changed under the lock of all."""
        self.engine: Engine | None = None
        self._changing = threading.Lock()
        """Around its beginning and its end."""

    def open(self, seconds: float) -> None:
        """Has it run. Raises OncelogError; TimeoutError: it is still being opened."""
        with _taken(self._changing, seconds) as left:
            if self.engine is None:
                self.engine = Engine(str(self.address))
            try:
                if self.engine.ended(0):
                    self.engine.begin()
                self.engine.wait(left)
            except (TimeoutError, EngineStopped):
                raise
            except Exception as error:
                raise failure_of(error, self.address) from error

    def close(self, engines: Engines) -> None:
        """Ends it if no client uses it any more."""
        with self._changing:
            if engines.is_used(self):
                return
            engine, self.engine = self.engine, None
            if engine is not None:
                _stop(engine)
            engines.forget(self)


class Engines:
    """All of this process."""

    def __init__(self) -> None:
        self._begin()
        forks.register(self)
        exits.register_last(self.end)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[Address, _Shared] = {}

    def hold(self, url: str) -> Held:
        """Returns a client's share of the engine at a URL; nothing is begun yet. Raises ValueError: that is no such URL."""
        return Held(self, Address.of(url))

    def use(self, address: Address) -> _Shared:
        """Counts one more user."""
        with self._lock:
            shared = self._shared.setdefault(address, _Shared(address))
            shared.users += 1
        return shared

    def leave(self, shared: _Shared) -> None:
        """Counts one less, and ends what nobody uses. Waits for its end."""
        with self._lock:
            shared.users -= 1
            last = not shared.users
        if last:
            shared.close(self)

    def is_used(self, shared: _Shared) -> bool:
        """Tells whether anybody does."""
        with self._lock:
            return bool(shared.users)

    def forget(self, shared: _Shared) -> None:
        """It has ended; who has come meanwhile begins it again."""
        with self._lock:
            if not shared.users and self._shared.get(shared.address) is shared:
                del self._shared[shared.address]

    def end(self) -> str | None:
        """Ends all, as the process does. Returns what is to be said of those that did not within the time."""
        deadline = REAL.monotonic() + EXIT_SECONDS
        begun = [each.engine for each in list(self._shared.values())]
        engines = [each for each in (*begun, *engines_made()) if each is not None]
        for each in engines:
            each.ask_to_stop()
        late = [str(each.address) for each in engines if not each.ended(max(0.0, deadline - REAL.monotonic()))]
        if not late:
            return None
        return f"{', '.join(late)}: not closed within {EXIT_SECONDS:g} s; what was acknowledged is there all the same"

    def _after_fork(self) -> None:
        """In the child: all of them are the parent's."""
        self._begin()


engines = Engines()
"""Those of this process, which has them once, as it has its forks and its end."""


class Held:
    """A client's share of an engine. Thread-safe. What the SDK finds by name is this: see :mod:`oncelog.http.engines`."""

    def __init__(self, all_of_them: Engines, address: Address) -> None:
        self._engines = all_of_them
        self._address = address
        self._lock = threading.Lock()
        self._made: Engine | None = None
        self._shared: _Shared | None = None

    @property
    def is_open(self) -> bool:
        """Tells whether a connection can be had at once."""
        engine = self._engine
        return engine is not None and engine.runs

    def open(self, seconds: float) -> None:
        """Has the engine run. Raises OncelogError: it cannot; TimeoutError: it is still being opened; EngineStopped."""
        ends = REAL.monotonic() + seconds
        with _taken(self._lock, seconds) as left:
            if self._shared is None and self._made is None:
                self._made = engine_made_for(self._address)
            if self._made is None:
                self._made = self._open_shared(left)
            if self._made is not None:
                _await(self._made, max(0.0, ends - REAL.monotonic()))

    def _open_shared(self, seconds: float) -> Engine | None:
        """Opens the one that clients share; returns the one that somebody has started meanwhile."""
        if self._shared is None:
            self._shared = self._engines.use(self._address)
        try:
            self._shared.open(seconds)
        except OncelogError as error:
            shared, self._shared = self._shared, None
            self._engines.leave(shared)
            made = engine_made_for(self._address) if isinstance(error, StoreInUse) else None
            if made is None:
                raise
            return made
        return None

    def connect(self) -> object:
        """Returns the client's end of a new connection, a socket. Raises EngineStopped, Forked; OSError."""
        engine = self._engine
        if engine is None:
            raise EngineStopped(f"the engine of {self._address} does not run")
        return engine.connect()

    def close(self) -> None:
        """Gives the share back; the last one waits until the store is closed. Twice is as once."""
        with self._lock:
            shared, self._shared, self._made = self._shared, None, None
        if shared is not None:
            self._engines.leave(shared)

    def let_go(self) -> None:
        """As :meth:`close`, elsewhere: for the collector, which may have interrupted who holds any lock."""
        if self._shared is not None:
            with suppress(RuntimeError):  # the process exits, and ends all
                _thread.start_new_thread(self.close, ())

    @property
    def _engine(self) -> Engine | None:
        shared = self._shared
        return self._made if shared is None else shared.engine


@contextmanager
def _taken(lock: threading.Lock, seconds: float) -> Iterator[float]:
    """Holds a lock; yields the seconds that are left. Raises TimeoutError."""
    ends = REAL.monotonic() + seconds
    if not lock.acquire(timeout=max(0.0, seconds)):
        raise TimeoutError("the engine is still being opened")
    try:
        yield max(0.0, ends - REAL.monotonic())
    finally:
        lock.release()


def _await(made: Engine, seconds: float) -> None:
    """Returns when an engine that somebody has started answers. Raises as :meth:`Held.open`."""
    if made.runs:
        return
    if made.ended(0):
        raise EngineStopped(f"the engine of {made.address} does not run; whoever made it has ended it")
    try:
        made.wait(seconds)
    except (TimeoutError, EngineStopped):
        raise
    except Exception as error:
        raise failure_of(error, made.address) from error


def _stop(engine: Engine) -> None:
    try:
        engine.stop()
    except Exception:
        _log.exception("%s was not closed as it should be; what was acknowledged is there all the same", engine.address)
