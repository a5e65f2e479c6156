"""The only place that chooses: reads settings, picks the store and the clock, builds the service and serves it."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable

import uvicorn

from oncelog_service.clock import Clock, SystemClock
from oncelog_service.config import LOOPBACK, Settings
from oncelog_service.rest.asgi import build_app
from oncelog_service.rest.limits import guarded_protocol
from oncelog_service.rest.table import ROUTES, STATUS_ROUTES, TRANSACTION_ROUTES
from oncelog_service.service import Service
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Store

_log = logging.getLogger(__name__)

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


def check_exposure(settings: Settings) -> None:
    """Raises ValueError for an address that others can reach without a token: logs are not open to all by accident."""
    if settings.host not in LOOPBACK and settings.token is None:
        raise ValueError(f"listening on {settings.host} lets others in: set a token (--token or ONCELOG_TOKEN), or use 127.0.0.1")


async def serve(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Runs until SIGINT or SIGTERM, then stops cleanly. ``on_ready`` is told the URL once requests are answered.

    Raises:
        ValueError: check_exposure. StoreError: the store cannot be opened. OSError: the port is taken.
    """
    check_exposure(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)
    listener = _listen(settings)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    service = build_service(settings, url=settings.advertised_url or url)
    try:
        await service.start()
        server = _Server(_uvicorn_config(service, settings))
        server.before_shutdown = service.release
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        if server.started:
            on_ready(url)
        await task
    finally:
        listener.close()
        await service.stop()


def _uvicorn_config(service: Service, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(service, (*TRANSACTION_ROUTES, *STATUS_ROUTES) if settings.only_transactions else ROUTES),
        http=guarded_protocol(settings.header_timeout_seconds, settings.body_timeout_seconds),
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        limit_concurrency=4_096,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, stopped by a signal that does not kill the process a second time."""

    before_shutdown: Callable[[], None] | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.before_shutdown is not None:
            self.before_shutdown()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: object) -> None:
        self.should_exit = True


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named TCP, asyncio switches Nagle's algorithm off; left to the default, an answer in two packets waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((settings.host, settings.port))
    return listener
