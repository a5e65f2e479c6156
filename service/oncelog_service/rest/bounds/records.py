"""How much of what a client sends under TLS is looked at in one turn of the event loop, and what it may send for nothing. Pure.

A record costs something whatever it holds: for a KeyUpdate of 27 bytes keys are derived, and it may ask for an answer. One read
of 256 kB of them took the loop 0.4 s, and a client without a credential sent one read after the other. So records are counted, by
the lengths that stand before them in clear, and not only bytes. The invariants:

* In one turn at most :data:`AT_ONCE` records of a connection are looked at.
* Records that bring nothing – updates of keys, warnings, empty ones – are paid for: by what the connection has brought, a page of
  memory each, beyond a few that everybody has. During the handshake all bring nothing, and a certificate may come in many.
"""

from __future__ import annotations

AT_ONCE = 64
"""Of 16 kB each 1 MiB, four times what is read at once: who sends large ones is not held up. Of KeyUpdates 2 ms."""
_FREE = 32
"""As many as OpenSSL takes of empty ones in a row."""
_FREE_OF_A_HANDSHAKE = 256
"""The largest chain of certificates that OpenSSL takes, 100 kB, in the pieces of the smallest clients, 512 bytes."""
_BYTES_FOR_ONE = 4_096
"""A client that changes its keys after each page is none that exists: TLS asks for it after millions of records."""
_HEAD = 5
"""Bytes before each record: what it is, the version, and its length in two."""


class Records:
    """The records that come on one connection."""

    __slots__ = ("_begun", "_left", "_spent", "is_up")

    def __init__(self) -> None:
        self.is_up = False
        """The handshake is done."""
        self._begun = b""
        """Of a record's head that has not come as a whole."""
        self._left = 0
        """Bytes of a record that are still to come behind its head."""
        self._spent = 0.0
        """Records that have brought nothing and are not paid for."""

    def cut(self, data: bytes) -> tuple[int, int]:
        """Returns how many bytes of what has come are looked at in this turn, and how many records end in them."""
        at = ended = 0
        size = len(data)
        while at < size and ended < AT_ONCE:
            if not self._left:
                head = self._begun + data[at : at + _HEAD - len(self._begun)]
                at += len(head) - len(self._begun)
                if len(head) < _HEAD:
                    self._begun = head
                    break
                self._begun, self._left = b"", int.from_bytes(head[3:], "big")
            step = min(self._left, size - at)
            self._left -= step
            at += step
            if not self._left:
                ended += 1
        return at, ended

    def count(self, ended: int, brought: int, size: int) -> bool:
        """Counts records that ended, those of them that brought something, and how much that was; returns whether these were too
        many for nothing."""
        self._spent = max(0.0, self._spent + ended - brought - size / _BYTES_FOR_ONE)
        return self._spent > (_FREE if self.is_up else _FREE_OF_A_HANDSHAKE)

    def begins_anew(self) -> None:
        """The handshake is done; what it took is forgotten."""
        self.is_up, self._spent = True, 0.0
