"""What producers, readers and consumers may be given beside the codec, for type checkers: that alone says what the values are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

if TYPE_CHECKING:
    from oncelog.api.api import Api
    from oncelog.http.trust import Certificate, Verify
    from oncelog.values.start import Start
    from oncelog.wire.models import Gaps
    from oncelog.wire.transaction import Transaction

Untyped = Literal["json"] | dict[str, Any] | list[Any] | Path
"""Codecs that say nothing about the type of their values: JSON, and schemas of Avro."""


class BegunTransaction(Protocol):
    """A transaction that has begun, as a reader sees it: an :class:`oncelog.TransactionContext`."""

    @property
    def transaction(self) -> Transaction:
        """What it sees; a checkpoint changes it."""
        ...


class ConnectionOptions(TypedDict, total=False):
    """How the service is reached."""

    namespace: str
    url: str | None
    client: Api | None
    verify: Verify
    cert: Certificate
    proxy: str | None


class ProducerOptions(ConnectionOptions, total=False):
    """Of a Producer."""

    name: str | None
    initial_sequence_id: int | None
    gaps: Gaps
    batch_max_messages: int
    batch_max_bytes: int
    linger: float
    max_pending: int
    max_pending_bytes: int
    delivery_timeout: float
    exit_timeout: float


class StreamOptions(ConnectionOptions, total=False):
    """Of whatever delivers messages."""

    start: Start
    inclusive: bool
    timeout: float | None
    page_size: int


class ReaderOptions(StreamOptions, total=False):
    """Of a Reader."""

    transaction: BegunTransaction | Transaction | bytes | None


class ConsumerOptions(StreamOptions, total=False):
    """Of a Consumer."""

    ack_interval: float
