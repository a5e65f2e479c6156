"""A key-value store whose only storage is one topic, after the example in KIP-27. This file is all of it; copy it.

The log is the truth: each message is one change, its key the key and its value the new value (null: deleted). A *leader* reads
the log from its beginning to the end into a dictionary, and serves from that. To change something it decides on what it has read,
and appends with ``expected_offset``, the offset behind everything it has applied. So a change is stored only if nothing was
written since: what it was decided on is what is there. Several changes that belong together are one batch of consecutive offsets,
on one condition: all of them are stored, or none is. If another leader has written, the service refuses (``OffsetMismatch``):
this one has been **fenced**. It reads what it has missed, decides again on that, and takes part again; or it leaves, as you like.

Hence any number of leaders may be up at once, by mistake or not, without a lock, a lease or an election: all changes have one
order, and each was decided on exactly those before it. Leaders that come and go cost only the tries that lose.

Whoever only reads is a *follower* (``follower.py``), and becomes a leader when it is to.

What this leaves to you: the dictionary has to fit in memory, and a start reads the whole log. Beyond a few million changes store
the dictionary and the offset behind it somewhere, now and then, and begin from there (``begin``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from oncelog import Client, Message, Producer, Reader
from oncelog.errors import OffsetMismatch

TOPIC_PROPERTIES = {"check.expected.offsets": "true", "ttl": str(2**31 - 1)}
"""Expected offsets are checked, and nothing expires: a store that forgot its oldest changes would be another store."""
REQUEST = "request"
"""The property of a message that says which request brought it about."""
REST = "rest"
"""The property of a message that says how many changes of its batch follow it; left out where there are none."""

Value = str | None
"""None: there is no such key."""


class Change(NamedTuple):
    """What a request has changed; it is on disk."""

    offset: int
    """Its place among all changes, from 0."""
    key: str
    before: Value
    after: Value


class Fenced(Exception):
    """Another leader has written, and this one does not rejoin by itself. Nothing was changed; its dictionary has caught up."""


class ValueDiffers(Exception):
    """A compare-and-set found another value, which was there when it was asked. Nothing was changed."""

    def __init__(self, key: str, expected: Value, actual: Value) -> None:
        super().__init__(f"{key!r} is {actual!r}, not {expected!r}")
        self.key = key
        self.expected = expected
        self.actual = actual


class Incomplete(Exception):
    """Messages are missing at the topic's beginning, or are no changes: it does not hold a whole store."""


class Leader:
    """Serves the store in a topic; one of many, perhaps. Not thread-safe; a context manager.

        with Leader("inventory", name="host-1") as leader:
            leader.put("apples", "3")
            leader.compare_and_set("apples", "3", "2")
        leader.update_many(lambda values: {"apples": None, "pears": values["apples"]})

    Every change is linearizable: it takes effect once, between the call and its return. So is :meth:`get`, and so is the refusal
    of a compare-and-set.

    An ``OncelogError`` that is not ``definite`` leaves open whether the change was stored, and the leader takes no more of them.
    Make a new one under the same name: that rules out that the change is stored later, and it reads whether it was. A change that
    carries the client's ``request`` can be recognised in the log then.
    """

    def __init__(
        self,
        topic: str,
        *,
        name: str,
        url: str | None = None,
        rejoins: bool = True,
        begin: tuple[int, Mapping[str, str]] = (0, MappingProxyType({})),
    ) -> None:
        """Create the topic if need be, and read all of it that lies behind ``begin``.

        Args:
            name: of this leader, the same after a restart; others have other names. It makes the SDK's retries safe: an append
                whose answer was lost is answered as a duplicate when it is repeated, not as a mismatch with itself.
            rejoins: False to raise Fenced where another leader has written.
            begin: an offset, and the dictionary as it was there: of a follower, or one that was stored.

        Raises:
            Incomplete: the topic holds something else. OncelogError: as producers and readers do.
        """
        self.fenced = 0
        """How often another leader had written before it."""
        self._rejoins = rejoins
        self._next, self._values = begin[0], dict(begin[1])
        self._client = Client(url)
        try:
            self._client.create_topic(topic, TOPIC_PROPERTIES, exist_ok=True)
            # Opened before the log is read: what an earlier process of this name has under way is in the log now, or never.
            self._producer = Producer[Value](topic, name=name, client=self._client, codec="json")
            self._reader = Reader(topic, client=self._client, codec="json", timeout=0)
            self.catch_up()
        except BaseException:
            self._client.close()
            raise

    @property
    def next_offset(self) -> int:
        """The offset behind everything it has applied: where the next change goes, if no other leader writes."""
        return self._next

    @property
    def values(self) -> Mapping[str, str]:
        """What the log said up to :attr:`next_offset`: at once, and perhaps out of date if there is another leader."""
        return MappingProxyType(self._values)

    def get(self, key: str) -> Value:
        """The value there is now. Asks the log whether there is anything new; :attr:`values` does not."""
        self.catch_up()
        return self._values.get(key)

    def put(self, key: str, value: str, *, request: str | None = None) -> Change:
        """Set a value, whatever it was. Raises as :meth:`update` does."""
        return self.update(key, lambda _: value, request=request)

    def delete(self, key: str, *, request: str | None = None) -> Change:
        """Have no such key; ``before`` says whether there was one. Raises as :meth:`update` does."""
        return self.update(key, lambda _: None, request=request)

    def compare_and_set(self, key: str, expected: Value, value: Value, *, request: str | None = None) -> Change:
        """Set a value if the present one is ``expected``. Raises ValueDiffers, and as :meth:`update` does."""

        def compared(actual: Value) -> Value:
            if actual != expected:
                raise ValueDiffers(key, expected, actual)
            return value

        return self.update(key, compared, request=request)

    def update(self, key: str, decide: Callable[[Value], Value], *, request: str | None = None) -> Change:
        """Replace a value by what ``decide`` makes of it.

        ``decide`` is called again with the newer value each time that another leader was faster, and must have no effects. If it
        raises, nothing is changed, and that was decided on a value that was there during this call.

        Raises:
            Fenced: unless this leader rejoins. OncelogError: see above.
        """
        return self.update_many(lambda values: {key: decide(values.get(key))}, request=request)[0]

    def update_many(
        self, decide: Callable[[Mapping[str, str]], Mapping[str, Value]], *, request: str | None = None
    ) -> list[Change]:
        """Change several keys at once: to what ``decide`` makes of the whole dictionary. All of them, or none; in one batch.

        As for :meth:`update`, ``decide`` may be called again and must have no effects. Raises as :meth:`update` does.
        """
        while True:
            try:
                wanted = list(decide(self.values).items())
            except Exception:
                # To refuse is to answer, too; and the dictionary may be behind.
                if self.catch_up() == 0:
                    raise
                self._was_fenced()
                continue
            try:
                # The condition is that of the first one: each that follows has the offset behind the one before.
                self._producer.send_batch(
                    [after for _, after in wanted],
                    keys=[key for key, _ in wanted],
                    properties=[_properties(request, len(wanted) - place) for place in range(1, len(wanted) + 1)],
                    expected_offset=self._next,
                )
            except OffsetMismatch:
                self.catch_up()
                self._was_fenced()
                continue
            return [self._changed(key, after) for key, after in wanted]

    def _changed(self, key: str, after: Value) -> Change:
        change = Change(self._next, key, self._values.get(key), after)
        self._apply(key, after)
        return change

    def catch_up(self) -> int:
        """Read and apply what is in the log by now. How many changes others have made; 0 means that it is up to date."""
        begin = self._next
        self._reader.seek(begin)
        for message in self._reader:
            self._apply(*change_in(message, self._next))
        return self._next - begin

    def close(self) -> None:
        """Let go of the connection. No other leader waits for it: one that is killed has left as well."""
        try:
            self._producer.close()
        finally:
            self._client.close()

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _was_fenced(self) -> None:
        self.fenced += 1
        if not self._rejoins:
            raise Fenced(f"another leader has written; this one has read up to offset {self._next}")

    def _apply(self, key: str, value: Value) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        self._next += 1


def _properties(request: str | None, rest: int) -> dict[str, str] | None:
    found = ({} if request is None else {REQUEST: request}) | ({REST: str(rest)} if rest else {})
    return found or None


def change_in(message: Message, expected_offset: int) -> tuple[str, Value]:
    """Key and new value. A change left out, or one that cannot be understood, would make every later answer wrong."""
    if message.offset != expected_offset:
        raise Incomplete(f"the change at offset {expected_offset} is missing; the next one is at {message.offset}")
    value = message.value
    if message.key is None or not isinstance(value, str | None):
        raise Incomplete(f"the message at offset {message.offset} is no change of a key")
    return message.key.decode(), value
