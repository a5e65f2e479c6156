"""`oncelog serve`, and `oncelog tx-serve`, the transaction service alone: every setting an option.

What is not given comes from ONCELOG_… in the environment, from a config file, else it is the default.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import inspect
import json
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

import typer

from oncelog.errors import TopicDamaged
from oncelog_service import logs
from oncelog_service.cli.frame.codes import ERROR
from oncelog_service.cli.output import Output
from oncelog_service.cli.session import Json, as_command
from oncelog_service.cli.settings import setting_option, settings_from
from oncelog_service.config import Settings, TransactionServiceSettings
from oncelog_service.storage.open import path_of, shown
from oncelog_service.storage.port import StoreDamaged, StoreError

_M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""
_MAPPED_APART_BYTES = 2**20

ALONE = (
    "config",
    "host",
    "port",
    "store",
    "store_file",
    "allowed_hosts",
    "token",
    "token_file",
    "tls_certificate",
    "tls_key",
    "tls_client_ca",
    "max_request_bytes",
    "max_inflight_bytes",
    "max_unread_bytes",
    "max_connections",
    "max_connections_per_address",
    "max_requests_per_principal",
    "max_wait_ms",
    "transaction_timeout_seconds",
    "max_transaction_timeout_seconds",
    "max_transaction_lifetime_seconds",
    "drain_seconds",
    "log_level",
    "log_format",
    "log_requests",
    "slow_request_seconds",
    "telemetry",
    "header_timeout_seconds",
    "body_timeout_seconds",
)
"""The settings that a transaction service alone has a use for."""


IN_USE = "in use by another process"


def register(app: typer.Typer) -> None:
    """Add `serve` and `tx-serve`."""
    _register(app, "serve", serve, Settings, Settings.model_fields)
    _register(app, "tx-serve", tx_serve, TransactionServiceSettings, ALONE)


def _register(app: typer.Typer, name: str, run: Callable[..., None], kind: type[Settings], settings: Iterable[str]) -> None:
    """Add a command, its options made from the fields of the settings."""
    options = [setting_option(each, kind.model_fields[each]) for each in settings]
    options.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=Json, default=False))
    as_command(app, name, run, options, run.__doc__ or "")


def serve(as_json: bool, **given: Any) -> None:
    """Run a service until Ctrl-C or SIGTERM. Prints its URL and where its data lies; logs to stderr."""
    _run_until_stopped({name: value for name, value in given.items() if value is not None}, Settings, as_json)


def tx_serve(as_json: bool, **given: Any) -> None:
    """Run a transaction service alone until Ctrl-C or SIGTERM, for services that name it with --transactions-url."""
    # What the environment says to the services beside it must not make it ask another one, or itself.
    chosen = {"transactions_url": None, **{name: value for name, value in given.items() if value is not None}}
    _run_until_stopped(chosen, TransactionServiceSettings, as_json)


def _run_until_stopped(given: Mapping[str, Any], kind: type[Settings], as_json: bool) -> None:
    """Serve; a reason why it cannot begin is one sentence and exit code 1."""
    settings = settings_from(given, kind)
    logs.begin(settings.log_level, settings.log_format)
    # Until the server listens to signals itself, and again after it, SIGTERM is what Ctrl-C is: the store gets closed.
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell begins in the background ignores it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # never to who ignores it

    def on_ready(url: str) -> None:
        _leave_alone_what_is_loaded()
        _announce(url, settings, as_json)

    detail = _served(settings, given, on_ready)
    if detail is not None:
        Output(as_json).failure({"title": "Cannot serve", "code": "cannot_serve", "detail": detail}, f"error: {detail}")
        raise typer.Exit(ERROR)


def data_of(store: str) -> str:
    """Where a store lies, for people: the absolute path of its files, or its URL without the password."""
    path = path_of(store)
    return shown(store) if path is None else str(path.absolute())


def why_not_open(error: Exception, store: str) -> str:
    """One sentence on a store that could not be opened."""
    from oncelog_service.storage.port import RowDamaged

    where = data_of(store)
    if isinstance(error, StoreDamaged | RowDamaged | TopicDamaged):
        return f"the store {where} is damaged: {error}"
    if "/LOCK: " in str(error) or str(error).endswith(IN_USE):
        return f"the store {where} is {IN_USE}"
    return f"the store {where} cannot be opened: {str(error).removeprefix(f'{where} cannot be opened: ')}"


def _served(settings: Settings, given: Mapping[str, Any], on_ready: Callable[[str], None]) -> str | None:
    """Serve; None after a clean stop, else a sentence that says why it could not."""
    # Loaded here: no other command needs a web server.
    from oncelog_service.app import Exposed
    from oncelog_service.app import serve as run_service
    from oncelog_service.rest.certificates import BadCertificate
    from oncelog_service.storage.port import RowDamaged

    try:
        _run(run_service(settings, on_ready, given))
    except KeyboardInterrupt:
        return None
    except Exposed as error:
        raise typer.BadParameter(str(error), param_hint="--host") from None
    except BadCertificate as error:
        raise typer.BadParameter(str(error), param_hint="--tls-certificate") from None
    except OSError as error:
        if error.filename is not None:  # the file that is to keep the audit log
            return f"{error.filename} cannot be written: {error.strerror}"
        address = f"{settings.host}:{settings.port}"
        if error.errno == errno.EADDRINUSE:
            return f"{address} is taken by another process; choose another --port"
        return f"cannot listen on {address}: {error.strerror or error}"
    except (StoreError, RowDamaged, TopicDamaged) as error:
        return why_not_open(error, settings.store)
    return None


def _give_memory_back() -> None:
    """Has the C library map what is large apart from the rest, and unmap it when it is freed.

    glibc raises its bound for that with whatever is freed, up to 32 MiB; then each thread keeps some answers' worth of memory for
    itself, of which the bounds of what is held say nothing. Others have no such bound, and no such call.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_APART_BYTES)


def _run(main: Coroutine[Any, Any, None]) -> None:
    _give_memory_back()
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _leave_alone_what_is_loaded() -> None:
    """Has the garbage collector not look at it again.

    Those are 75,000 objects that live as long as the process; with them a full collection takes 30 to 90 ms, in which nobody is
    served.
    """
    gc.collect()
    gc.freeze()


def _announce(url: str, settings: Settings, as_json: bool) -> None:
    data = data_of(settings.store)
    line = f"oncelog serves {url}, data in {data}"
    if as_json:
        line = json.dumps({"url": url, "store": shown(settings.store), "data": data})
    try:
        print(line, flush=True)
    except OSError as error:
        logging.getLogger(__name__).warning("stdout cannot be written: %s", error)
