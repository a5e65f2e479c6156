"""A message as a reader hands it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from oncelog.errors import CodecError, InvalidMessageId, StaleMessageId
from oncelog.message_id import MessageId
from oncelog.wire.erasure import is_erased

if TYPE_CHECKING:
    from oncelog.codecs import Codec


T_co = TypeVar("T_co", covariant=True)


class Source(NamedTuple):
    """Where messages come from, and what decodes their values: one for all that a reader is given."""

    codec: Codec[Any] | None = None
    namespace: str | None = None
    topic: str | None = None
    """None: of a message that was made by hand."""
    generation: int | None = None
    """None: of a service that did not say."""
    reading: int | None = None
    """By which reading it was delivered: another one with each start and each seek, in the process of the reader."""


class Message(Generic[T_co]):
    """One message, whose value is a ``T_co``: immutable, picklable; compares by its content and place.

    It wraps the record as it came and decodes a field when that is asked for: a reader that only wants payloads pays for nothing
    else.
    """

    __slots__ = ("_record", "_source")
    _record: Mapping[str, Any]
    _source: Source

    def __init__(self, record: Mapping[str, Any], codec: Codec[Any] | None = None, source: Source | None = None) -> None:
        """``source``: where it comes from, and its codec; without one it is a message of no topic, as tests make them."""
        self._record = record
        self._source = Source(codec) if source is None else source

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        slots = state[1]  # a pickle of before messages knew their topic has a codec in the place of the source
        self._record, self._source = slots["_record"], slots["_source"] if "_source" in slots else Source(slots["_codec"])

    @property
    def payload(self) -> bytes:
        """The bytes that were published."""
        payload: bytes = self._record["payload"]
        return payload

    @property
    def value(self) -> T_co:
        """The payload decoded by the reader's codec; the bytes themselves where it has none.

        Raises CodecError, also for a message that was :attr:`erased` where there is a codec: it has no value any more.
        """
        codec = self._source.codec
        if codec is not None and self.erased:
            raise CodecError(f"the message at offset {self.offset} was erased: it has no value any more")
        value: Any = self.payload if codec is None else codec.decode(self.payload)
        decoded: T_co = value
        return decoded

    @property
    def namespace(self) -> str | None:
        """Namespace of its topic. None, as are topic and generation, of one that was made by hand."""
        return self._source.namespace

    @property
    def topic(self) -> str | None:
        """The topic that it was read from."""
        return self._source.topic

    @property
    def generation(self) -> int | None:
        """The topic's generation: another one is another topic of the same name."""
        return self._source.generation

    @property
    def message_id(self) -> MessageId:
        """Its id: where it lies in the order that every consumer sees."""
        return MessageId.from_bytes(self._record["id"])

    @property
    def offset(self) -> int:
        """Its dense number in the topic's generation: 0, 1, 2, …"""
        offset: int = self._record["offset"]
        return offset

    @property
    def publish_timestamp(self) -> int:
        """Milliseconds since 1970 at which the service accepted it."""
        return int.from_bytes(self._record["id"][:8], "big", signed=True)

    @property
    def key(self) -> bytes | None:
        """The key it was published with, or None. It is bytes, also where it was given as a str: that was sent as UTF-8."""
        key: bytes | None = self._record["key"]
        return key

    @property
    def properties(self) -> dict[str, str]:
        """The properties it was published with; empty when there were none. A copy.

        Of one that was :attr:`erased`: when that was, in ms, as ``oncelog.erased``. Who copies payload and properties makes
        an erased message of it.
        """
        return dict(self._record["properties"] or {})

    @property
    def erased(self) -> bool:
        """Whether it was erased, or is a copy of one that was: its payload is empty, and its properties are gone. All else is as
        it was published."""
        return is_erased(self.payload, self._record["properties"])

    @property
    def producer(self) -> str | None:
        """Name of the producer that published it, or None."""
        producer: str | None = self._record["producer"]
        return producer

    @property
    def sequence_id(self) -> int | None:
        """The producer's number for it; without a producer that of the transaction which it was sent through, or None."""
        sequence_id: int | None = self._record["sequenceId"]
        return sequence_id

    @property
    def ttl(self) -> int | None:
        """Its own time to live in seconds, or None when only the topic's applies."""
        ttl: int | None = self._record["ttl"]
        return ttl

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        # Its place: neither what decodes its value, nor which reading has delivered it.
        return self._source[1:4] == other._source[1:4] and self._record == other._record

    def __hash__(self) -> int:
        return hash(self._record["id"])

    def __repr__(self) -> str:
        key = "" if self.key is None else f"key={_short(_as_given(self.key))!r}, "
        return f"Message(offset={self.offset}, message_id={str(self.message_id)!r}, {key}payload={_short(self.payload)!r})"


def _short(shown: Any) -> Any:
    return shown if len(shown) <= 40 else shown[:37] + (b"..." if isinstance(shown, bytes) else "...")


def _as_given(key: bytes) -> bytes | str:
    """A key as text where it can be one."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key
    return text if text.isprintable() else key


def is_of(message: Message[Any], namespace: str | None, topic: str | None, generation: int | None) -> bool:
    """Whether a message is of a topic and its generation, as far as both are known: one that was made by hand may be of any."""
    if message.topic is not None and (message.namespace, message.topic) != (namespace, topic):
        return False
    return None in (generation, message.generation) or message.generation == generation


def reading_of(message: Message[Any]) -> int | None:
    """Return the number of the reading that has delivered a message."""
    return message._source.reading


def check_place(message: Message[Any], namespace: str, topic: str, generation: int | None, whose: str, ways: str = "") -> None:
    """Raises InvalidMessageId for a message of another topic, StaleMessageId for one of another generation: what is noted by it
    would stand anywhere in this one. ``whose`` position it would be, and what can be done about another generation."""
    if is_of(message, namespace, topic, generation):
        return
    here, there = f"{namespace}/{topic}", f"{message.namespace}/{message.topic}"
    if there != here:
        raise InvalidMessageId(f"{whose} is one in {here}, and this message is of {there}: its id says nothing there")
    raise StaleMessageId(
        f"{whose} is of generation {generation} of {here}, and this message of generation {message.generation}: the topic was "
        f"deleted and made anew, or its store restored{ways}",
        generation=generation,
    )
