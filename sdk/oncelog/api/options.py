"""What producers, readers, consumers and messages may be given, for type checkers, each list in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar

from oncelog.message_id import MessageId
from oncelog.values.expectation import UNCHECKED, Unchecked
from oncelog.wire.media import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from oncelog.api.api import Api
    from oncelog.api.topics import AsyncApi
    from oncelog.http.trust import Certificate, Verify
    from oncelog.values.start import Start
    from oncelog.wire.models import Gaps
    from oncelog.wire.transaction import Transaction

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = {"expected_key_offset": UNCHECKED, "namespace": DEFAULT_NAMESPACE}
"""Of the options whose default is not None."""


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


class _Producer(TypedDict, total=False):
    name: str | None
    initial_sequence_id: int | None
    gaps: Gaps
    stop_on_refusal: bool
    batch_max_messages: int
    batch_max_bytes: int
    linger: float
    max_pending: int
    max_pending_bytes: int
    delivery_timeout: float
    exit_timeout: float


class ProducerOptions(ConnectionOptions, _Producer, total=False):
    """What a Producer may be given beside topic and codec."""


class AsyncProducerOptions(AsyncConnectionOptions, _Producer, total=False):
    """What an AsyncProducer may be given beside topic and codec."""


class _Message(TypedDict, total=False):
    key: bytes | str | None
    """What it is about; a str is sent as UTF-8."""
    properties: Mapping[str, str] | None
    """Further things to say of it, by name."""
    ttl: int | None
    """Seconds that it lives; shorter than the topic's."""


class OutboxOptions(_Message, total=False):
    """What a message in an outbox may be given beside its value."""

    namespace: str


class _Numbered(TypedDict, total=False):
    sequence_id: int | None
    """Rises from message to message of a producer; without it the SDK numbers."""


class MessageOptions(_Numbered, _Message, total=False):
    """What a message may be given beside its value."""


class SendOptions(MessageOptions, total=False):
    """What a message may be given, and what it expects where it gets its offset."""

    expected_offset: int | None
    """That it gets."""
    expected_last_id: MessageId | None
    """That the newest message of the topic has; ``MessageId.NONE`` says that none was ever published."""
    expected_key_offset: int | Unchecked | None
    """That the newest message with the same key has; None says that no message has it yet."""


Isolation = Literal["committed", "uncommitted"]
"""What a reader is given: what is committed, or everything in the log."""


class _Stream(TypedDict, total=False):
    start: Start
    inclusive: bool
    timeout: float | None
    page_size: int


class _Reader(_Stream, total=False):
    transaction: BegunTransaction | Transaction | bytes | None
    generation: int | None
    on_expired: Literal["raise", "skip"]
    isolation: Isolation


class ReaderOptions(ConnectionOptions, _Reader, total=False):
    """What a Reader may be given beside topic and codec."""


class AsyncReaderOptions(AsyncConnectionOptions, _Reader, total=False):
    """What an AsyncReader may be given beside topic and codec."""


class _Consumer(_Stream, total=False):
    ack_interval: float


class ConsumerOptions(ConnectionOptions, _Consumer, total=False):
    """What a Consumer may be given beside topic, subscription and codec."""


class AsyncConsumerOptions(AsyncConnectionOptions, _Consumer, total=False):
    """What an AsyncConsumer may be given beside topic, subscription and codec."""


def shows(kind: type[Any]) -> Callable[[F], F]:
    """Have :func:`inspect.signature` show the keywords of a TypedDict that a function takes by ``**``."""

    def show(function: F) -> F:
        shown = signature(function)
        rest = [each for each in shown.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        more = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=annotation.__forward_arg__)
            for name, annotation in kind.__annotations__.items()
        ]
        function.__signature__ = shown.replace(parameters=[*rest, *more])  # type: ignore[attr-defined]
        return function

    return show


def check_takes(options: Mapping[str, Any], kind: type[Any], function: str) -> None:
    """Raises TypeError for a keyword that is none of the TypedDict's."""
    for name in options:
        if name not in kind.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
