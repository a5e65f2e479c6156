"""The only place that chooses: reads settings, picks the store and the clock, builds the service and serves it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oncelog_service.clock import Clock, SystemClock
from oncelog_service.config import Settings
from oncelog_service.rest.application import Application
from oncelog_service.rest.server import Server
from oncelog_service.rest.table import ROUTES, STATUS_ROUTES, TRANSACTION_ROUTES
from oncelog_service.service import Service
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store

_SWITCH_SECONDS = 0.001
"""How long the event loop may keep the interpreter from the writer thread. Python's 5 ms would be added to a sync of 1 ms."""


def build_service(
    settings: Settings,
    clock: Clock | None = None,
    open_store: Callable[[], Store] | None = None,
    url: str | None = None,
) -> Service:
    """Builds a service from its settings; tests hand in a clock or a store of their own. ``url``: where it listens."""
    return Service(settings, open_store or store_opener(settings.store), clock or SystemClock(), url)


class Exposed(ValueError):
    """Others would be let in, or nobody."""


def check_exposure(settings: Settings, tokens: int = 0) -> None:
    """Raises Exposed for an address that others can reach, where nobody has a token: logs are not open to all by accident.

    ``tokens``: how many the store has.
    """
    if not settings.is_local and settings.token is None and not tokens:
        raise Exposed(
            f"listening on {settings.host} lets others in: make a token first (oncelog token create … --store …), set one "
            "(--token or ONCELOG_TOKEN), or use 127.0.0.1"
        )


async def serve(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Runs until SIGINT or SIGTERM, then stops cleanly. ``on_ready`` is told the URL once requests are answered.

    Raises:
        Exposed: others could reach it, and there is no token. StoreError: the store cannot be opened. OSError: the port is taken.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    service = build_service(settings, url=settings.advertised_url or url)
    try:
        await service.start()
        check_exposure(settings, len(service.access.tokens))
        server = build_server(service)
        with _told_by_signals(server.stop):
            await server.run(listener, lambda: on_ready(url), service.release)
    finally:
        listener.close()
        await service.stop()


def build_server(service: Service) -> Server:
    """Builds what answers HTTP for a service."""
    routes = (*TRANSACTION_ROUTES, *STATUS_ROUTES) if service.settings.only_transactions else ROUTES
    return Server(Application(service, routes), service.settings)


@contextmanager
def _told_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call ``stop`` on the event loop, which may be asleep, and nothing else."""
    loop = asyncio.get_running_loop()
    before = {each: signal.signal(each, lambda *_: loop.call_soon_threadsafe(stop)) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def listen(settings: Settings) -> socket.socket:
    """Takes the port. Raises OSError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named TCP, asyncio switches Nagle's algorithm off; left to the default, an answer in two packets waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((settings.host, settings.port))
    return listener
