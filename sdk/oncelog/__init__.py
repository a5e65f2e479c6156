"""oncelog: a log where every message lands once.

The SDK. ``from oncelog import Producer, Reader``; everything that needs more than HTTP and Avro is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from oncelog.transactions.atomic import AsyncAtomicBatch, AsyncAtomicBranch, AtomicBatch, AtomicBranch
from oncelog.transactions.participants import TransactionAware
from oncelog.transactions.transaction import AsyncTransactionContext, TransactionContext
from oncelog.values.expectation import UNCHECKED
from oncelog.values.message import Message
from oncelog.values.receipt import Receipt

if TYPE_CHECKING:
    from oncelog.sql.checkpoint import Checkpoint
    from oncelog.sql.outbox.outbox import Outbox
    from oncelog.sql.outbox.relay import OutboxRelay
    from oncelog.sql.participant import SqlParticipant

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

_NEEDS_SQL = {
    "Checkpoint": "oncelog.sql.checkpoint",
    "Outbox": "oncelog.sql.outbox.outbox",
    "OutboxRelay": "oncelog.sql.outbox.relay",
    "SqlParticipant": "oncelog.sql.participant",
}


def __getattr__(name: str) -> Any:
    """What needs SQLAlchemy (the extra `sql`) is loaded only when it is used."""
    if name not in _NEEDS_SQL:
        raise AttributeError(f"module 'oncelog' has no attribute {name!r}")
    try:
        return getattr(import_module(_NEEDS_SQL[name]), name)
    except ModuleNotFoundError as missing:
        raise ImportError(f"{name} needs SQLAlchemy: pip install 'oncelog[sql]'") from missing
