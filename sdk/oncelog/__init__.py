"""oncelog: a log where every message lands once.

The SDK. ``from oncelog import Producer, Reader``; each name is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncelog import errors
    from oncelog.aio.consumer import AsyncConsumer
    from oncelog.aio.producer import AsyncProducer
    from oncelog.aio.reader import AsyncReader
    from oncelog.client import AsyncClient, Client
    from oncelog.errors import OncelogError
    from oncelog.message_id import MessageId
    from oncelog.producing.producer import Producer
    from oncelog.reading.consumer import Consumer
    from oncelog.reading.reader import Reader
    from oncelog.sql.checkpoint import Checkpoint
    from oncelog.sql.outbox.outbox import Outbox
    from oncelog.sql.outbox.relay import OutboxRelay
    from oncelog.sql.participant import SqlParticipant
    from oncelog.transactions.atomic import AsyncAtomicBatch, AsyncAtomicBranch, AtomicBatch, AtomicBranch
    from oncelog.transactions.participants import TransactionAware
    from oncelog.transactions.transaction import AsyncTransactionContext, TransactionContext
    from oncelog.values.expectation import UNCHECKED
    from oncelog.values.message import Message
    from oncelog.values.receipt import Receipt

__version__ = "0.1.0"

__all__ = [
    "UNCHECKED",
    "AsyncAtomicBatch",
    "AsyncAtomicBranch",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncReader",
    "AsyncTransactionContext",
    "AtomicBatch",
    "AtomicBranch",
    "Checkpoint",
    "Client",
    "Consumer",
    "Message",
    "MessageId",
    "OncelogError",
    "Outbox",
    "OutboxRelay",
    "Producer",
    "Reader",
    "Receipt",
    "SqlParticipant",
    "TransactionAware",
    "TransactionContext",
    "errors",
]

_HOMES = {
    "UNCHECKED": "values.expectation",
    "AsyncAtomicBatch": "transactions.atomic",
    "AsyncAtomicBranch": "transactions.atomic",
    "AsyncClient": "client",
    "AsyncConsumer": "aio.consumer",
    "AsyncProducer": "aio.producer",
    "AsyncReader": "aio.reader",
    "AsyncTransactionContext": "transactions.transaction",
    "AtomicBatch": "transactions.atomic",
    "AtomicBranch": "transactions.atomic",
    "Checkpoint": "sql.checkpoint",
    "Client": "client",
    "Consumer": "reading.consumer",
    "Message": "values.message",
    "MessageId": "message_id",
    "OncelogError": "errors",
    "Outbox": "sql.outbox.outbox",
    "OutboxRelay": "sql.outbox.relay",
    "Producer": "producing.producer",
    "Reader": "reading.reader",
    "Receipt": "values.receipt",
    "SqlParticipant": "sql.participant",
    "TransactionAware": "transactions.participants",
    "TransactionContext": "transactions.transaction",
}
"""Each public name's module, which is loaded when the name is asked for: all of them take 0.2 s, and no program needs all."""


def __getattr__(name: str) -> Any:
    """A public name, loaded now. Raises ImportError where that needs an extra (`sql`) that is not installed."""
    if name == "errors":
        return import_module("oncelog.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'oncelog' has no attribute {name!r}")
    home = _HOMES[name]
    try:
        found = getattr(import_module(f"oncelog.{home}"), name)
    except ModuleNotFoundError as missing:
        if not home.startswith("sql."):
            raise
        raise ImportError(f"{name} needs SQLAlchemy: pip install 'oncelog[sql]'") from missing
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
