"""oncelog: a log where every message lands once.

The SDK. ``from oncelog import Producer, Reader``; everything that needs more than HTTP and Avro is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.client import Client
from oncelog.errors import OncelogError
from oncelog.message import Message
from oncelog.message_id import MessageId
from oncelog.producer import Producer
from oncelog.reader import Reader
from oncelog.receipt import Receipt

if TYPE_CHECKING:
    from oncelog.checkpoint import Checkpoint

__version__ = "0.1.0"

__all__ = ["Checkpoint", "Client", "Message", "MessageId", "OncelogError", "Producer", "Reader", "Receipt", "errors"]


def __getattr__(name: str) -> Any:
    """`Checkpoint` needs SQLAlchemy (the extra `sql`), so it is loaded only when it is used."""
    if name == "Checkpoint":
        try:
            from oncelog.checkpoint import Checkpoint
        except ModuleNotFoundError as missing:
            raise ImportError("Checkpoint needs SQLAlchemy: pip install 'oncelog[sql]'") from missing
        return Checkpoint
    raise AttributeError(f"module 'oncelog' has no attribute {name!r}")
