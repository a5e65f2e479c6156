"""A follower: it reads the store's log as it grows, and serves from it without ever writing.

Any number of them take load off the leaders. A follower is behind by what it has not read yet, never wrong: what it has at an
offset is what every leader had there. Who has just written, and wants to read that, waits for the offset of the change
(:meth:`Follower.wait_for`).

It shows a batch of changes as a whole, or not yet: each change says how many of its batch follow (``REST``), and a follower holds
back what it has of a batch until the last one is there.

When the leader is gone a follower goes on as one (:meth:`Follower.lead`), at once, with what it has read. That needs nobody's
leave: if the old one is alive after all, each change still has one winner.

    python -m examples.key_value.follower inventory
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType

from oncelog import Client, Message, OncelogError, Reader

from .leader import REST, Incomplete, Leader, Value, change_in

_WAIT_SECONDS = 1.0


class Follower:
    """Serves what it has read of the store in a topic. Not thread-safe; a context manager."""

    def __init__(self, topic: str, *, url: str | None = None) -> None:
        """Begin with nothing, before the first change. Raises OncelogError: there is no such topic."""
        self._topic = topic
        self._url = url
        self._values: dict[str, str] = {}
        self._next = 0
        self._held: list[tuple[str, Value]] = []
        self._client = Client(url)
        try:
            self._reader = Reader(topic, client=self._client, codec="json")
        except BaseException:
            self._client.close()
            raise

    @property
    def values(self) -> Mapping[str, str]:
        """The store as it was at :attr:`next_offset`, which lies between two batches."""
        return MappingProxyType(self._values)

    @property
    def next_offset(self) -> int:
        """The offset behind everything that is applied."""
        return self._next

    def follow(self, timeout: float = 0) -> list[tuple[int, str, Value]]:
        """Read what there is, or wait for it; the changes that are applied now: offset, key and new value.

        Raises Incomplete: a change is missing. OncelogError.
        """
        applied = []
        for message in self._reader.read(1_000, timeout):
            applied += self._took(message)
        return applied

    def wait_for(self, offset: int, timeout: float = 10.0) -> bool:
        """Read until the change at ``offset`` is applied; False: it was not within ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while self._next <= offset and (left := end - time.monotonic()) > 0:
            self.follow(min(left, _WAIT_SECONDS))
        return self._next > offset

    def lead(self, name: str) -> Leader:
        """A leader that goes on with what this follower has read. Raises as a leader does."""
        return Leader(self._topic, name=name, url=self._url, begin=(self._next, self._values))

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _took(self, message: Message) -> list[tuple[int, str, Value]]:
        """The batch that this message completes; nothing before."""
        self._held.append(change_in(message, self._next + len(self._held)))
        if (message.properties or {}).get(REST, "0") != "0":
            return []
        batch, self._held = self._held, []
        applied = []
        for key, value in batch:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            applied.append((self._next, key, value))
            self._next += 1
        return applied


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic")
    parser.add_argument("--url", help="of the service; default ONCELOG_URL, or this machine's port 7070")
    parser.add_argument("--upto", type=int, help="end when the change at this offset is applied; else go on for ever")
    args = parser.parse_args()
    try:
        with Follower(args.topic, url=args.url) as follower:
            while args.upto is None or follower.next_offset <= args.upto:
                for offset, key, value in follower.follow(_WAIT_SECONDS):
                    print(offset, key, "-" if value is None else value, flush=True)
    except KeyboardInterrupt:
        return 130
    except (Incomplete, OncelogError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
