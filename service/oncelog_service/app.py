"""The only place that chooses: reads settings, picks the store, the clock and the workers, builds the service and serves it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncelog.http.sockets import Network
from oncelog_service.clock import Clock, SystemClock
from oncelog_service.config import Settings, open_file
from oncelog_service.process.reloading import Reloading, Running
from oncelog_service.process.supervisor import Supervisor
from oncelog_service.rest.application import Application
from oncelog_service.rest.bounds.descriptors import raise_limit
from oncelog_service.rest.certificates import Certificates
from oncelog_service.rest.server import Server
from oncelog_service.rest.table import CONSOLE_ROUTES, ROUTES, STATUS_ROUTES, TOKEN_ROUTES, TRANSACTION_ROUTES
from oncelog_service.service import Service
from oncelog_service.storage.files.directory import open_to_others, private
from oncelog_service.storage.open import has_leveldb, path_of, store_opener
from oncelog_service.storage.port import Store
from oncelog_service.workers import ThreadWorkers, Workers

if TYPE_CHECKING:
    from oncelog_service.telemetry.exporting import Telemetry

_log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0002
"""How long the event loop may keep the interpreter from the writer thread. Python's 5 ms would be added to a sync of 1 ms.

A thread asks for it only when it has waited for so long without a break, and the loop lets go of it in each turn, and has it
back at once: beside somebody's requests that are each refused in 0.2 ms, with 1 ms here, a publish took a second."""


def build_service(
    settings: Settings,
    clock: Clock | None = None,
    open_store: Callable[[], Store] | None = None,
    url: str | None = None,
    workers: Workers | None = None,
    network: Network | None = None,
) -> Service:
    """Builds a service from its settings; tests hand in a clock, a store, workers or a network of their own. ``url``: where it
    listens."""
    opener = open_store or store_opener(settings.store)
    return Service(settings, opener, clock or SystemClock(), workers or ThreadWorkers(), url, network)


class Exposed(ValueError):
    """Others would be let in, or nobody."""


def check_exposure(settings: Settings, tokens: int = 0) -> None:
    """Raises Exposed for an address that others can reach, where nobody has a token: logs are not open to all by accident.

    ``tokens``: how many the store has, those of certificates too.
    """
    if not settings.is_locked or settings.token is not None or settings.jwt_issuer is not None or tokens:
        return
    if settings.tls_client_ca is not None:
        raise Exposed(
            "clients are asked for a certificate and none is granted anything: do that first (oncelog token create cert:NAME … "
            "--store …), or set a token (--token or ONCELOG_TOKEN)"
        )
    raise Exposed(
        f"listening on {settings.host} lets others in: make a token first (oncelog token create … --store …), set one "
        "(--token or ONCELOG_TOKEN), or use 127.0.0.1"
    )


def readers_warning(settings: Settings) -> str | None:
    """What is said where others can read along."""
    if settings.is_local or settings.speaks_tls:
        return None
    return (
        f"listening on {settings.host} without TLS: tokens, messages and answers can be read and changed wherever they pass. "
        "Name a certificate (--tls-certificate), or let nobody reach this port but a proxy that speaks TLS, and say so by its "
        "URL (--advertised-url https://…)"
    )


def _warn(settings: Settings) -> None:
    if settings.store.startswith("sqlite:") and "store" not in settings.model_fields_set and not has_leveldb():
        _log.info("the store is on SQLite, as plyvel, for LevelDB, is not installed here; it stays on it (docs/moving.md)")
    readers = readers_warning(settings)
    if readers is not None:
        _log.warning("%s", readers)
    if settings.exposed_file is not None:
        _log.warning("%s", open_file(settings.exposed_file))


async def serve(settings: Settings, on_ready: Callable[[str], None], given: Mapping[str, Any]) -> None:
    """Runs until SIGINT or SIGTERM, then stops cleanly. ``on_ready`` is told the URL once requests are answered; ``given``: the
    options, with which the settings are read again on SIGHUP.

    Raises:
        Exposed: others could reach it, and there is no token. BadCertificate: its files are of no use. StoreError: the store
        cannot be opened. OSError: the port is taken.
    """
    Certificates.of(settings)
    _warn(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)
    raise_limit()
    listener = listen(settings)
    url = settings.url_of(*listener.getsockname()[:2])
    service = build_service(settings, url=settings.advertised_url or url)
    telemetry = begin_telemetry(settings)
    # From the beginning to the end: what is told nothing else by it, the system ends at once, in the middle of a start or a stop.
    told_to_read = asyncio.Event()
    with private(), _told_by_signals({signal.SIGHUP: told_to_read.set}):
        try:
            await service.start()
            warn_of_files(settings.store)
            check_exposure(settings, len(service.access.tokens))
            server = build_server(service, telemetry)
            beside = () if telemetry is None else (telemetry.run(service, service.background),)
            await _run(service, server, listener, lambda: on_ready(url), given, told_to_read, beside)
        finally:
            listener.close()
            if telemetry is not None:
                await telemetry.end(service)
            await service.stop()


async def _run(
    service: Service,
    server: Server,
    listener: socket.socket,
    on_ready: Callable[[], None],
    given: Mapping[str, Any],
    told_to_read: asyncio.Event,
    besides: Iterable[Coroutine[Any, Any, None]],
) -> None:
    """``besides``: what is to run while it serves."""
    supervisor = Supervisor()
    reloading = Reloading(Running(service, server), given, supervisor, told_to_read)

    def ready() -> None:
        on_ready()
        supervisor.ready(f"serves {service.url}")

    def drain() -> None:
        supervisor.stopping("finishes what is under way")
        service.drain()

    background = service.background
    beside = background.keep("telling the supervisor", supervisor.keep_alive), reloading.run(background)
    tasks = [asyncio.ensure_future(each) for each in (*beside, *besides)]
    try:
        with _told_by_signals({signal.SIGINT: server.stop, signal.SIGTERM: server.stop}):
            await server.run(listener, ready, service.release, drain)
    finally:
        for task in tasks:
            task.cancel()


def warn_of_files(store: str) -> None:
    """Warns where others than this user may look into the store."""
    path = path_of(store)
    found = None if path is None else open_to_others(path)
    if found is not None:
        mend = f"chmod -R go= {found}" if found.is_dir() else f"chmod go= {path}*"
        _log.warning("others on this machine may look into %s, where the messages lie; close it: %s", found, mend)


def begin_telemetry(settings: Settings) -> Telemetry | None:
    """Returns what sends spans and metrics; None where none are to be sent, and then nothing of it is loaded."""
    if not settings.telemetry:
        return None
    from oncelog_service.telemetry.exporting import Telemetry

    return Telemetry()


def build_server(service: Service, telemetry: Telemetry | None = None) -> Server:
    """Builds what answers HTTP for a service. Raises BadCertificate."""
    spans = None if telemetry is None else telemetry.spans
    if service.settings.only_transactions:
        application = Application(service, (*TRANSACTION_ROUTES, *TOKEN_ROUTES, *STATUS_ROUTES), spans=spans)
    else:
        application = Application(service, ROUTES, CONSOLE_ROUTES, spans)
    return server_of(application, service)


def server_of(application: Application, service: Service) -> Server:
    """Builds what answers HTTP as an application does. Raises BadCertificate."""
    about = service.settings, service.background, service.clock, service.traffic
    return Server(application, *about, application.watch, service.unpacking, service.shares)


@contextmanager
def _told_by_signals(told: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Has signals do this: on the event loop, which may be asleep, and nothing else is done."""
    loop = asyncio.get_running_loop()
    before = {each: signal.signal(each, lambda number, _: loop.call_soon_threadsafe(told[number])) for each in told}
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
