"""Holds what a consumer did against the log, and the log against what a producer was to send.

What is compared is the committed view of the topic: what a consumer is given. Against any service; of one for a test
(:func:`oncelog.testing.service`) it is asked with less to say.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from math import inf
from operator import index
from typing import Any, SupportsIndex

from oncelog.api.api import Api
from oncelog.message_id import SIZE, MessageId
from oncelog.process.frames import Face
from oncelog.testing.committed import Gone, committed
from oncelog.testing.judge import Item, NotExactlyOnce, Words, judge
from oncelog.values.message import Message, is_of
from oncelog.values.numbers import check_long
from oncelog.wire.media import DEFAULT_NAMESPACE

By = Callable[[Message[Any]], Any]
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


class Recorder(Face):
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

    What has expired or was trimmed may have had its effect before, once. A message, an id and an offset tell that it was
    there; what ``by`` makes of messages does not, and is of none then.

    Raises AssertionError also where the topic holds no committed message: nothing was checked then. TopicNotFound.
    """
    __tracebackhide__ = True
    if upto is not None:
        check_long("upto", upto)
    effects = [*effects]  # what comes while this looks is not judged
    messages = _some(client, topic, namespace, codec)
    end = inf if upto is None else upto
    view = _View(messages, by, per_key)
    told = [(effect, f"effect {at} ({view.named(effect)})") for at, effect in enumerate(effects, 1)]
    if any(view.lacks(effect) for effect, _ in told):
        gone = Gone(client, topic, namespace)
        for effect, _ in told:
            view.admit(effect, gone)
    items = [each._replace(due=offset < end and each.due) for offset, each in sorted(view.items, key=lambda each: each[0])]
    findings = judge(items, [Item(view.identity(effect), says) for effect, says in told], _EFFECTS, ordered=ordered)
    if findings:
        raise NotExactlyOnce(f"the effects of topic {topic!r}, {_held(messages)}, are not exactly once", findings)


def check_published(
    client: Api,
    topic: str,
    rows: Iterable[Any],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    by: By = lambda message: message.value,
    codec: object = None,
    ordered: bool = True,
) -> None:
    """Raises NotExactlyOnce unless each row is a committed message of the topic once, in their order, and nothing else is there.

    ``rows``: what there was to send, as ``by`` makes it of messages: their values, as ``codec`` decodes them, unless it is said.
    ``ordered``: False where several producers send them side by side. Raises AssertionError also where there are no rows;
    TopicNotFound.
    """
    __tracebackhide__ = True
    expected = [Item(_hashable(row), f"row {at} ({_short(row)})") for at, row in enumerate(rows)]
    if not expected:
        raise AssertionError("there are no rows that were to be sent: nothing was checked")
    messages = committed(client, topic, namespace, codec)
    wanted = {each.identity for each in expected}
    done = [_row(by(each), described(each), wanted) for each in messages]
    findings = judge(expected, done, _ROWS, ordered=ordered)
    if findings:
        raise NotExactlyOnce(f"topic {topic!r}, {_held(messages)}, does not hold the {len(expected)} rows exactly once", findings)


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


def _held(messages: Sequence[Message[Any]]) -> str:
    begin = f" from offset {messages[0].offset} on" if messages and messages[0].offset else ""
    return f"{len(messages)} messages{begin}"


class _View:
    """What effects are held against: the messages of the log, and those of which an effect tells that were there once."""

    def __init__(self, messages: Sequence[Message[Any]], by: By | None, per_key: bool) -> None:
        self._by = by
        self._per_key = per_key
        self._ids = {each.offset: bytes(each.message_id) for each in messages}
        self._known = set(self._ids.values())
        self._some = messages[0]
        self.items = [(each.offset, self._item(each)) for each in messages]
        """With their offsets."""

    def named(self, effect: Any) -> str:
        """An effect as people are told of it."""
        if not isinstance(effect, Message):
            return _short(effect)
        elsewhere = f" of {effect.namespace}/{effect.topic}, generation {effect.generation}" if self._is_foreign(effect) else ""
        return f"offset {effect.offset}{elsewhere}"

    def _is_foreign(self, effect: Any) -> bool:
        """Tells whether it is a message of another topic, or of another generation of this one, whatever its id is."""
        return isinstance(effect, Message) and not is_of(effect, self._some.namespace, self._some.topic, self._some.generation)

    def identity(self, effect: Any) -> Hashable:
        """By what an effect names its message."""
        if self._is_foreign(effect):
            return effect.namespace, effect.topic, effect.generation, bytes(effect.message_id)
        if self._by is None:
            named: Hashable = _identity(effect, self._ids)
            return named
        return _hashable(self._by(effect) if isinstance(effect, Message) else effect)

    def lacks(self, effect: Any) -> bool:
        """Tells whether an effect names a message that is not among these, and may have been."""
        if self._is_foreign(effect):
            return False
        if self._by is not None and not isinstance(effect, Message):
            return False  # it names none
        return _identity(effect, self._ids) not in self._known

    def admit(self, effect: Any, gone: Gone) -> None:
        """Takes in what an effect names where that has gone: its effect may have been before, once."""
        if not self.lacks(effect):
            return
        named = _identity(effect, self._ids)
        if isinstance(effect, Message):
            if gone.was_at(effect.offset) and gone.was_called(bytes(effect.message_id)):
                self._known.add(named)
                self.items.append((effect.offset, self._item(effect)._replace(due=False)))
        elif gone.was_at(named) if isinstance(named, int) else gone.was_called(named):
            self._known.add(named)
            self.items.append((-1, Item(named, f"{_short(effect)}, which has gone,", named, due=False)))

    def _item(self, message: Message[Any]) -> Item:
        identity = bytes(message.message_id) if self._by is None else _hashable(self._by(message))
        return Item(identity, described(message), message.key if self._per_key else None)


def _row(row: Any, place: str, wanted: Container[Hashable]) -> Item:
    """A row of the log; what is none of those wanted says what it is."""
    known = _hashable(row)
    return Item(known, place if known in wanted else f"{_short(row)} at {place}")


def _hashable(value: Any) -> Hashable:
    """What equals another one's where the values do, and can be looked up: what JSON has is made so."""
    if isinstance(value, dict):
        return "dict", frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{_short(value)} cannot be looked up: say by= for what it is known by, as by=lambda message: message.value['order']"
        ) from None
    found: Hashable = value
    return found


def _identity(effect: Any, ids: Mapping[int, bytes]) -> Any:
    """The id of the message that an effect names; an offset at which none of them is stays what it is."""
    if isinstance(effect, Message):
        return bytes(effect.message_id)
    if isinstance(effect, MessageId):
        return bytes(effect)
    if isinstance(effect, SupportsIndex) and not isinstance(effect, bool):
        offset = index(effect)
        return ids.get(offset, offset)
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
