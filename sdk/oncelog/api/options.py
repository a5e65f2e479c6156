"""What producers, readers, consumers and messages may be given, for type checkers, each list in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

if TYPE_CHECKING:
    from oncelog.api.api import Api
    from oncelog.api.topics import AsyncApi
    from oncelog.http.trust import Certificate, Verify
    from oncelog.values.start import Start
    from oncelog.wire.transaction import Transaction


class BegunTransaction(Protocol):
    """A transaction that has begun, as a reader sees it: an :class:`oncelog.TransactionContext`."""

    @property
    def transaction(self) -> Transaction:
        """What it sees; a checkpoint changes it."""
        ...


class _Connection(TypedDict, total=False):
    """How the service is reached."""

    namespace: str
    url: str | None
    verify: Verify
    cert: Certificate
    proxy: str | None


class ConnectionOptions(_Connection, total=False):
    """How the service is reached, by one of the twins."""

    client: Api | None


class AsyncConnectionOptions(_Connection, total=False):
    """How the service is reached, by the twin for asyncio."""

    client: AsyncApi | None


Isolation = Literal["committed", "uncommitted"]
"""What a reader is given: what is committed, or everything in the log."""


class _Stream(TypedDict, total=False):
    start: Start
    inclusive: bool
    timeout: float | None
    page_size: int


class _Consumer(_Stream, total=False):
    ack_interval: float


class ConsumerOptions(ConnectionOptions, _Consumer, total=False):
    """What a Consumer may be given beside topic, subscription and codec."""


class AsyncConsumerOptions(AsyncConnectionOptions, _Consumer, total=False):
    """What an AsyncConsumer may be given beside topic, subscription and codec."""
