"""A dictionary in memory that takes part in transactions: for tests, and as the smallest example of a participant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from threading import RLock
from typing import Generic, TypeVar, cast

from oncelog.errors import TransactionClosed
from oncelog.process import forks
from oncelog.wire.transaction import Transaction

K = TypeVar("K")
V = TypeVar("V")

_GONE = object()
"""The value of a key that was deleted."""


class _Table(Generic[K]):
    """Every version of every value that somebody may still need, by the transaction that wrote it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = RLock()
        self.versions: dict[K, dict[int, object]] = {}
        self.committed: set[int] = set()
        self.running = 0
        forks.register(self)

    def _after_fork(self) -> None:
        forks.renew(self.lock)

    def write(self, pointer: int, values: dict[K, object]) -> None:
        for key, value in values.items():
            self.versions.setdefault(key, {})[pointer] = value

    def drop(self, pointer: int) -> None:
        for key in [key for key, versions in self.versions.items() if pointer in versions]:
            del self.versions[key][pointer]
            if not self.versions[key]:
                del self.versions[key]

    def read(self, key: K, visible: Callable[[int], bool]) -> object:
        """The newest version that is visible: of two that touch the same key, the one with the higher pointer began later."""
        versions = self.versions.get(key, {})
        newest = max((pointer for pointer in versions if visible(pointer)), default=None)
        return _GONE if newest is None else versions[newest]

    def collapse(self) -> None:
        """Once nobody holds an older view, only the newest committed versions are of use, and those not decided yet."""
        for key in list(self.versions):
            versions = self.versions[key]
            newest = max((pointer for pointer in versions if pointer in self.committed), default=0)
            kept = {p: v for p, v in versions.items() if p >= newest and (p, v) != (newest, _GONE)}
            if kept:
                self.versions[key] = kept
            else:
                del self.versions[key]
        self.committed &= {pointer for versions in self.versions.values() for pointer in versions}


class TransactionalDict(MutableMapping[K, V]):
    """A dict whose changes happen in transactions: all of a transaction's or none, seen by others once it is committed.

    Inside a transaction it shows what that transaction sees (its snapshot, and its own changes); outside, what is committed.
    Every key that is written or deleted is a change: of two transactions that overlap and change the same key, one commits.
    Thread-safe. One object takes part in one transaction at a time; :meth:`view` makes another one on the same data::

        accounts = TransactionalDict("accounts")
        with client.transaction(accounts) as tx:
            accounts["a"] = 5
            tx.send("changes", b"a is 5")
    """

    def __init__(self, name: str = "") -> None:
        """``name`` tells its keys from those of other dictionaries in the detection of conflicts."""
        self._table: _Table[K] = _Table(name)
        self._tx: Transaction | None = None
        self._changes: dict[K, object] = {}

    def view(self) -> TransactionalDict[K, V]:
        """Another participant on the same data."""
        other: TransactionalDict[K, V] = TransactionalDict()
        other._table = self._table
        return other

    # --- the mapping

    def __getitem__(self, key: K) -> V:
        with self._table.lock:
            value = self._changes[key] if key in self._changes else self._table.read(key, self._sees)
        if value is _GONE:
            raise KeyError(key)
        return cast(V, value)

    def __setitem__(self, key: K, value: V) -> None:
        self._change(key, value)

    def __delitem__(self, key: K) -> None:
        with self._table.lock:
            _ = self[key]
            self._change(key, _GONE)

    def __iter__(self) -> Iterator[K]:
        with self._table.lock:
            keys = {**self._table.versions, **self._changes}
            return iter([key for key in keys if key in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"TransactionalDict({dict(self)!r})"

    # --- the participant

    def start_tx(self, tx: Transaction) -> None:
        """A transaction begins. Raises TransactionClosed while another one is running."""
        with self._table.lock:
            if self._tx is not None:
                raise TransactionClosed(f"this dictionary takes part in transaction {self._tx.transaction_id}; use a view()")
            self._tx, self._changes = tx, {}
            self._table.running += 1

    def update_tx(self, tx: Transaction) -> None:
        """A checkpoint: nothing changes, as its versions all carry the transaction's id."""
        self._tx = tx

    def get_tx_changes(self) -> list[bytes]:
        """The keys that were written or deleted."""
        return [f"{self._table.name}\0{key!r}".encode() for key in self._changes]

    def commit_tx(self) -> None:
        """Put the new versions beside the old ones, where nobody sees them before the transaction is committed."""
        with self._table.lock:
            assert self._tx is not None
            self._table.write(self._tx.transaction_id, self._changes)

    def post_tx_commit(self) -> None:
        """Now everybody sees them."""
        with self._table.lock:
            assert self._tx is not None
            self._table.committed.add(self._tx.transaction_id)
            self._end()

    def rollback_tx(self) -> None:
        """Drop the changes."""
        with self._table.lock:
            if self._tx is not None:
                self._table.drop(self._tx.transaction_id)
                self._end()

    def in_doubt_tx(self, _: BaseException) -> None:
        """Nobody knows; what is only in memory is not worth waiting for."""
        self.rollback_tx()

    def _end(self) -> None:
        self._tx, self._changes = None, {}
        self._table.running -= 1
        if not self._table.running:
            self._table.collapse()

    def _change(self, key: K, value: object) -> None:
        with self._table.lock:
            if self._tx is None:
                raise TransactionClosed("a transactional dictionary is changed in a transaction only")
            self._changes[key] = value

    def _sees(self, pointer: int) -> bool:
        tx = self._tx
        if tx is None:
            return pointer in self._table.committed
        return pointer <= tx.read_pointer and pointer not in tx.undecided and pointer not in tx.excluded
