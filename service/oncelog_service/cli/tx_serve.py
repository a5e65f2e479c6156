"""`oncelog tx-serve`: the transaction service alone, with those settings of `serve` that it has a use for."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from oncelog_service.cli.serve import run_until_stopped, setting_option, settings_from
from oncelog_service.cli.session import Json, as_command
from oncelog_service.config import TransactionServiceSettings

SETTINGS = (
    "host",
    "port",
    "store",
    "token",
    "max_request_bytes",
    "max_inflight_bytes",
    "max_wait_ms",
    "transaction_timeout_seconds",
    "max_transaction_timeout_seconds",
    "max_transaction_lifetime_seconds",
    "header_timeout_seconds",
    "body_timeout_seconds",
)


def register(app: typer.Typer) -> None:
    """Add the command, its options made from the fields of the settings."""
    options = [setting_option(name, TransactionServiceSettings.model_fields[name]) for name in SETTINGS]
    options.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=Json, default=False))
    as_command(app, "tx-serve", tx_serve, options, tx_serve.__doc__ or "")


def tx_serve(as_json: bool, **given: Any) -> None:
    """Run a transaction service alone until Ctrl-C or SIGTERM, for services that name it with --transactions-url."""
    # What the environment says to the services beside it must not make it ask another one, or itself.
    chosen = {"transactions_url": None, **{name: value for name, value in given.items() if value is not None}}
    run_until_stopped(settings_from(chosen, TransactionServiceSettings), as_json)
