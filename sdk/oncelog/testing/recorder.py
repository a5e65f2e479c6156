"""Holds what a consumer did against the log, and the log against what a producer was to send.

What is compared is the committed view of the topic: what a consumer is given. Against any service; of one for a test
(:func:`oncelog.testing.service`) it is asked with less to say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from oncelog.api.api import Api
from oncelog.message_id import SIZE, MessageId
from oncelog.testing.committed import committed
from oncelog.testing.judge import Item, NotExactlyOnce, Words, judge
from oncelog.values.message import Message
from oncelog.wire.media import DEFAULT_NAMESPACE

By = Callable[[Message[Any]], Hashable]
"""What a message is known by, where it is neither its id nor its offset."""

_EFFECTS = Words(
    lost="{it} had no effect",
    doubled="{it} had its effect {times}: {done}",
    reordered="{it} had its effect behind that of {other}, which comes after it ({done})",
    unknown="{done} is of no committed message of the topic",
)
_ROWS = Words(
    lost="{it} is not in the log",
    doubled="{it} is in the log {times}: {done}",
    reordered="{it} lies behind {other}, which comes after it: {done}",
    unknown="{done} is none of the rows",
)


class Recorder:
    """Is told the effects of a topic's messages as a consumer has them, and held against the log then. Thread-safe.

    What it is told is a message, or what :meth:`check` takes. It can be called in place of what has the effect.
    """

    def __init__(
        self,
        client: Api,
        topic: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        by: By | None = None,
        codec: object = None,
        per_key: bool = True,
        ordered: bool = True,
    ) -> None:
        """See :func:`check_effects`."""
        self._client = client
        self._topic = topic
        self._options: Mapping[str, Any] = {
            "namespace": namespace, "by": by, "codec": codec, "per_key": per_key, "ordered": ordered,
        }  # fmt: skip
        self.effects: list[Any] = []
        """What it was told, in order."""
        self.verified = False
        """Whether it was held against the log since it was told the last one."""

    def saw(self, effect: Any) -> None:
        """Tell it that a message had its effect just now."""
        self.verified = False
        self.effects.append(effect)

    __call__ = saw

    def verify(self, *, upto: int | None = None) -> None:
        """Raises as :func:`check_effects`."""
        __tracebackhide__ = True
        self.verified = True
        check_effects(self._client, self._topic, self.effects, upto=upto, **self._options)


def check_effects(
    client: Api,
    topic: str,
    effects: Iterable[Any],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    by: By | None = None,
    codec: object = None,
    upto: int | None = None,
    per_key: bool = True,
    ordered: bool = True,
) -> None:
    """Raises NotExactlyOnce unless each committed message of the topic had its effect once, in order, and nothing else had one.

    ``effects``: in their order, each a message, a message id (as such, its 20 bytes or its text), or an offset; with ``by``,
    what that makes of messages: ``by=lambda message: message.value["order"]`` with a ``codec`` as readers take it. Where the
    log has several messages of the same, there are to be as many effects.

    ``upto``: only messages below this offset must have had theirs; ``per_key``: order counts among messages of one key, and among
    those without one, else among all; ``ordered``: False where the effects are in no order, as rows of a table.

    Raises AssertionError also where the topic holds no committed message: nothing was checked then. TopicNotFound.
    """
    __tracebackhide__ = True
    messages = _some(client, topic, namespace, codec)
    identify = by or _id_of
    end = inf if upto is None else upto
    items = [Item(identify(each), described(each), each.key if per_key else None, each.offset < end) for each in messages]
    ids = {each.offset: bytes(each.message_id) for each in messages}
    done = [
        Item(_identity(effect, ids) if by is None else by(effect) if isinstance(effect, Message) else effect, says)
        for effect, says in _told(effects)
    ]
    findings = judge(items, done, _EFFECTS, ordered=ordered)
    if findings:
        raise NotExactlyOnce(f"the effects of topic {topic!r}, {len(messages)} messages, are not exactly once", findings)


def check_published(
    client: Api,
    topic: str,
    rows: Iterable[Hashable],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    by: By = lambda message: message.payload,
    codec: object = None,
    ordered: bool = True,
) -> None:
    """Raises NotExactlyOnce unless each row is a committed message of the topic once, in their order, and nothing else is there.

    ``rows``: what there was to send, as ``by`` makes it of messages: their payloads, unless it is said. ``ordered``: False where
    several producers send them side by side. Raises AssertionError also where there are no rows. TopicNotFound.
    """
    __tracebackhide__ = True
    expected = [Item(row, f"row {at} ({_short(row)})") for at, row in enumerate(rows)]
    if not expected:
        raise AssertionError("there are no rows that were to be sent: nothing was checked")
    done = [Item(by(each), described(each)) for each in committed(client, topic, namespace, codec)]
    findings = judge(expected, done, _ROWS, ordered=ordered)
    if findings:
        raise NotExactlyOnce(f"topic {topic!r} does not hold the {len(expected)} rows exactly once", findings)


def described(message: Message[Any]) -> str:
    """A message as people are told of it."""
    numbered = "" if message.producer is None else f", producer {message.producer!r}"
    if message.sequence_id is not None:
        numbered += f", sequence id {message.sequence_id}"
    key = "" if message.key is None else f", key {_short(message.key)}"
    return f"offset {message.offset} (message {message.message_id}{numbered}{key})"


def _some(client: Api, topic: str, namespace: str, codec: object) -> Sequence[Message[Any]]:
    messages = committed(client, topic, namespace, codec)
    if not messages:
        raise AssertionError(f"topic {topic!r} holds no committed message: nothing was checked")
    return messages


def _told(effects: Iterable[Any]) -> Iterable[tuple[Any, str]]:
    for at, effect in enumerate(effects, 1):
        named = f"offset {effect.offset}" if isinstance(effect, Message) else _short(effect)
        yield effect, f"effect {at} ({named})"


def _id_of(message: Message[Any]) -> bytes:
    return bytes(message.message_id)


def _identity(effect: Any, ids: Mapping[int, bytes]) -> Hashable:
    """The id of the message that an effect names; what is no such message's stays what it is."""
    if isinstance(effect, Message):
        return _id_of(effect)
    if isinstance(effect, MessageId):
        return bytes(effect)
    if isinstance(effect, int) and not isinstance(effect, bool):
        return ids.get(effect, effect)
    if isinstance(effect, str):
        return bytes(MessageId.parse(effect))
    if isinstance(effect, bytes) and len(effect) == SIZE:
        return effect
    raise TypeError(
        f"an effect names its message by a Message, a MessageId (or its text, or its {SIZE} bytes) or an offset, which "
        f"{_short(effect)} is not; say by= for anything else"
    )


def _short(value: object) -> str:
    text = str(value) if isinstance(value, MessageId) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
