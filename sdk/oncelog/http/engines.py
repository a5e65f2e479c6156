"""A store instead of a service's URL: ``memory://``, ``leveldb:///path``, ``sqlite:///path``. An engine in this process opens it.

The engine is the service, which the SDK knows by one name, found when the first call needs it: who only talks to a service has
none of that installed. Its connections speak the HTTP of any other; nothing else of the SDK knows the difference.

The invariants: a client has its share of an engine from its first call until it is closed, or collected, and one in a forked
child has none. What takes a lock on the way there runs where no signal handler interrupts it: handlers call and close, too.
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import threading
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from oncelog.errors import ClientClosed, Forked, StoreNotOpened
from oncelog.process import forks
from oncelog.process.errands import aside

BASE = "http://localhost"
"""How requests to an engine begin: its own name, which no header and no text shows."""
_STORE = re.compile(r"memory://[A-Za-z0-9._-]*/?|(leveldb|sqlite)://[^?#]+", re.IGNORECASE)
_SCHEME = re.compile("(memory|leveldb|sqlite):", re.IGNORECASE)
_SERVICE = "oncelog_service.engine"


def names_a_store(url: str) -> bool:
    """Tell whether a URL names a store, and no service. Raises ValueError: it is to, and does not."""
    if _SCHEME.match(url) is None:
        return False
    if _STORE.fullmatch(url) is None:
        raise ValueError(f"not the URL of a store: {url!r}; use memory://, memory://name, leveldb:///path or sqlite:///path")
    return True


class InProcess:
    """The share that one client has in an engine. Thread-safe."""

    def __init__(self, url: str) -> None:
        """Nothing is opened yet."""
        self._url, self._store = url, _from_here(url)
        self._home, self._pid = forks.here(), os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._held: Any = None

    @property
    def is_open(self) -> bool:
        """Whether a connection can be had at once."""
        self._check_here()
        return self._held is not None and bool(self._held.is_open)

    def open(self, seconds: float) -> None:
        """Open the store, or wait for who does.

        Raises StoreNotOpened, StoreInUse; Forked; ClientClosed; OSError, of which TimeoutError: it takes longer.
        """
        self._check_here()
        aside(partial(self._open, seconds))

    def _open(self, seconds: float) -> None:
        with self._lock:
            if self._closed:
                raise ClientClosed
            if self._held is None:
                self._held = _engines().hold(self._store)
            held = self._held
        try:
            held.open(seconds)
        finally:
            if self._closed:  # meanwhile, by another thread: what it could not give back yet
                held.let_go()
        if self._closed:
            raise ClientClosed

    def connect(self) -> socket.socket:
        """The client's end of a new connection. Raises OSError, Forked, ClientClosed."""
        self._check_here()
        held = self._held
        if held is None:
            raise ClientClosed
        connected: socket.socket = held.connect()
        return connected

    def close(self) -> None:
        """Give the share back. The last one that does waits until the store is closed. Twice is as once."""
        if forks.here() == self._home:
            aside(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            held, self._held = self._held, None
        if held is not None:
            held.close()

    def let_go(self) -> None:
        """As :meth:`close`, without waiting: for the collector, which may have interrupted who holds any lock."""
        self._closed = True
        held = self._held
        if forks.here() == self._home and held is not None:
            held.let_go()

    def _check_here(self) -> None:
        if forks.here() != self._home:
            raise Forked(
                f"{self._url} is opened by process {self._pid}, which this one was forked from, and one process owns a store: "
                "close the client before the fork, and make another one here"
            )


def _from_here(url: str) -> str:
    """The URL of the same store, wherever this process goes meanwhile."""
    scheme, _, path = url.partition("://")
    if scheme.lower() == "memory" or path.startswith("/"):
        return url
    with suppress(FileNotFoundError):  # there is no such place, and what comes of that is said when the store is opened
        return f"{scheme}://{quote(os.getcwd())}/{path}"
    return url


def _engines() -> Any:
    """The engines of this process. Raises StoreNotOpened: what they need is not installed, or this process ends."""
    try:
        return importlib.import_module(_SERVICE).engines
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("oncelog."):
            raise
        raise StoreNotOpened(
            f'a store in this process needs the service, and {missing.name} is not installed: pip install "oncelog[service]"'
        ) from missing
    except RuntimeError as late:
        if "shutdown" not in str(late):
            raise
        raise StoreNotOpened(
            f"a store cannot be opened while the process ends ({late}): open it before, by a first call"
        ) from late
