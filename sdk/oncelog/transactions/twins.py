"""What transactions and atomic commits take from either twin: its clients, its producers, its locks."""

from __future__ import annotations

from typing import Any

from oncelog.aio.producer import AsyncProducer
from oncelog.api.api import AnyApi
from oncelog.api.topics import AsyncApi
from oncelog.process.turns import AsyncTurn, Turn
from oncelog.producing.producer import Producer

PRODUCERS = (Producer, AsyncProducer)
AnyProducer = Producer[Any] | AsyncProducer[Any]
"""A producer of the twin that the transaction is of."""


def check_twin(client: AnyApi, producer: AnyProducer) -> None:
    """Raises TypeError for a producer of the other twin: one would block the event loop, the other has none."""
    if isinstance(producer, AsyncProducer) is not isinstance(client, AsyncApi):
        raise TypeError("what an AsyncClient begins takes an AsyncProducer, and what a Client begins a Producer")


def turn_of(client: AnyApi, what: str) -> Turn | AsyncTurn:
    """Make a lock around ``what``, in words, for callers of this client."""
    return AsyncTurn(what) if isinstance(client, AsyncApi) else Turn(what)
