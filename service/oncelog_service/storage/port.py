"""The storage port, in the service's own words.

As small as ordered byte tables allow: what HBase and LevelDB have in common in the TMS design. One adapter a file; one
contract test (tests/storage/test_contract.py) runs on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol


class Table(Enum):
    """Names a table. Its value is the one-byte prefix that keeps tables apart where a store has a single key space.

    Messages sort before everything else, and the newest message of a log behind its others. So what one write changes, messages
    and rows that are written again and again, does not lie around all older messages: LevelDB merges files whose keys overlap,
    and merged each new one with most of the log while a row before the messages was in it.
    """

    MESSAGE = b"M"
    PAYLOAD = b"P"
    TOPIC = b"t"
    NAMESPACE = b"n"
    PRODUCER = b"r"
    SNAPSHOT = b"s"
    TRIM = b"l"
    GROUP = b"g"
    TRANSACTION_EDIT = b"e"
    TRANSACTION_SNAPSHOT = b"x"
    OUTCOME = b"o"
    STORE_ID = b"i"
    KEY_SNAPSHOT = b"y"
    CHUNK = b"k"
    JOURNAL = b"j"
    JOURNAL_META = b"b"
    ATOMIC_ID = b"a"
    ATOMIC_OUTCOME = b"c"
    GROUP_PRODUCER = b"d"
    GROUP_NOTE = b"p"
    SUBSCRIPTION = b"u"
    COPY = b"q"
    EXPIRY = b"h"
    TOKEN = b"w"
    LOST = b"v"
    ENDED = b"z"

    # Hashed for every row of a batch; the members are singletons.
    __hash__ = object.__hash__


Rows = Generator[tuple[bytes, bytes], None, None]
"""(key, value) pairs; ``close()`` lets go of what the scan holds."""


class StoreError(Exception):
    """The store failed. After one failed write nothing may be written until it was closed, opened and read back.

    LevelDB after a failed write of its log acknowledged 348 of 420 later synced writes that were gone after a restart.
    """


class StoreInUse(StoreError):
    """Another process, or another opening in this one, has it."""


class StoreBehind(StoreError):
    """The store has gone back in time: it is older than what this process has written to it, as it says itself from now on."""


class StoreDamaged(StoreError):
    """Rows do not match their checksums; reading them again will not help."""


class RowDamaged(ValueError):
    """The bytes are not a row that this version wrote: cut, flipped, or of another layout."""


class DriverMissing(StoreError):
    """What this kind of store needs is not installed, or cannot be loaded. Nothing was opened, and nothing made."""


_DRIVERS = {
    "leveldb": "a store on LevelDB needs plyvel: {}; or take SQLite (--store sqlite:///…): oncelog copy moves a store there, "
    "with a Python that has plyvel",
    "sqlite": "a store on SQLite needs SQLAlchemy: {}",
    "postgresql": "a store on PostgreSQL needs SQLAlchemy and psycopg: {}",
}
"""What is said where the driver of a kind of store is missing. The only place that says it."""
_EXTRAS = {"leveldb": "leveldb", "sqlite": "service", "postgresql": "service,postgresql"}


@contextmanager
def driver(kind: str) -> Iterator[None]:
    """Imports of a driver, within; raises DriverMissing, one sentence that says what to do, where that cannot be done."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("oncelog"):
            raise  # a fault of ours
        broken = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise DriverMissing(_DRIVERS[kind].format(f'pip install "oncelog[{_EXTRAS[kind]}]"{broken}')) from error


class StoreClosed(StoreError):
    """The store was closed, or failed before; this call did nothing."""


class Fence(NamedTuple):
    """A lease that must be valid for a write to happen: a process that takes the resource over raises the epoch."""

    resource: bytes
    """What is served by one process at a time: a topic, the transaction service, atomic commits."""
    epoch: int


class StoreFenced(StoreError):
    """Other processes have leases that the write needed. Nothing was written, and the store goes on."""

    def __init__(self, lost: frozenset[Fence]) -> None:
        super().__init__(f"taken over by another process: {', '.join(sorted(repr(each.resource) for each in lost))}")
        self.lost = lost


class Instance(NamedTuple):
    """A process that serves a part of a store that several processes share, or that changes it by itself for a moment."""

    id: str
    url: str
    """Of the second kind: a sentence that names it."""
    expires_in_ms: int
    """By the store's clock, as of the call."""

    @property
    def is_service(self) -> bool:
        """Tells whether it answers requests: topics are placed there, and clients sent."""
        return self.url.startswith("http")


class LeaseHolder(NamedTuple):
    """A lease, and the instance that has it."""

    resource: bytes
    epoch: int
    instance: str


class Dead(StoreError):
    """The others take this instance for dead: it has to begin anew, under another id."""


class LeaseTable(Protocol):
    """Instances and leases of a store that several processes share. Each call is one transaction and blocks.

    Only the store's clock counts. An instance is alive as long as its row has not expired. Another one that finds it expired and
    wants a lease of it deletes the row, so that it cannot be renewed any more: it is dead for all, itself included. A lease
    changes hands by a new epoch. A write that is fenced is either before the change, and seen by the new holder, or refused.
    """

    def join(self, id: str, url: str, ttl_ms: int) -> None:  # noqa: A002
        """Makes an instance alive. An earlier one at the same address is dead: two cannot listen there. Raises StoreError."""
        ...

    def renew(self, id: str, ttl_ms: int) -> Sequence[Instance]:  # noqa: A002
        """Keeps an instance alive, and returns all that are. Raises Dead; StoreError: it may be either."""
        ...

    def leave(self, id: str) -> None:  # noqa: A002
        """Ends an instance: every lease of it can be taken at once. Raises StoreError."""
        ...

    def take(self, id: str, resource: bytes) -> Fence | Instance:  # noqa: A002
        """Takes a lease: returns the fence to write under from now on, or the instance that has it. Raises Dead, StoreError."""
        ...

    def give_up(self, id: str, fence: Fence, to: str | None = None) -> None:  # noqa: A002
        """Gives a lease up, in favour of the instance ``to``. Nothing happens if it is lost already. Raises StoreError."""
        ...

    def holder(self, resource: bytes) -> Instance | None:
        """Returns the instance that has a lease and is alive. Raises StoreError."""
        ...

    def instances(self) -> Sequence[Instance]:
        """Returns all instances that are alive. Raises StoreError."""
        ...

    def held(self, after: bytes = b"", limit: int | None = None) -> Mapping[bytes, LeaseHolder]:
        """Returns every lease that an instance has, alive or not, sorted; the first ``limit`` behind one. Raises StoreError."""
        ...

    def raise_all(self, epoch: int) -> None:
        """Raises every lease above an epoch, also those of resources that were never taken: no fence of before is valid. Who has
        one keeps it, and has to take it again. Raises StoreError."""
        ...


class StagedFile(NamedTuple):
    """A file of a store as it was at one moment."""

    name: str
    """Within the store."""
    path: Path
    """Where it can be read as long as it is staged."""
    size: int
    """So many bytes of it count; the store may be adding to it."""
    is_fixed: bool
    """Whether it never changes, so that one with the same name, size, time and inode is the same."""


class Staged(NamedTuple):
    """The files of a store as they were between two writes."""

    kind: str
    """As in the store's URL: ``leveldb``, ``sqlite``."""
    number: int
    """Of the newest write that is in them."""
    files: Sequence[StagedFile]


class Laid(Protocol):
    """Rows of one log, which are made when they are written."""

    @property
    def table(self) -> Table:
        """The table that they are of."""
        ...

    @property
    def prefix(self) -> bytes:
        """What begins all their keys."""
        ...

    @property
    def size(self) -> int:
        """About how many bytes they take; they need not be made for that."""
        ...

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        """Returns (how the key ends, value) of each; always the same from the first call on. Raises nothing."""
        ...


class _Rows(NamedTuple):
    table: Table
    prefix: bytes
    each: Sequence[tuple[bytes, bytes]]

    @property
    def size(self) -> int:
        return sum(len(self.prefix) + len(end) + len(value) for end, value in self.each)

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        return self.each


class _Later(NamedTuple):
    table: Table
    prefix: bytes
    size: int
    make: Callable[[], Iterable[tuple[bytes, bytes]]]

    def rows(self) -> Iterable[tuple[bytes, bytes]]:
        return self.make()


class Batch:
    """Changes that become durable together or not at all. Collects; touches nothing."""

    __slots__ = ("deletes", "fences", "laid", "puts", "rewritten")

    def __init__(self, fence: Fence | None = None) -> None:
        self.fences: set[Fence] = set() if fence is None else {fence}
        """The leases that must be valid; a store that is one process's has none."""
        self.laid: list[Laid] = []
        self.puts: list[tuple[Table, bytes, bytes]] = []
        self.deletes: list[tuple[Table, bytes]] = []
        self.rewritten: list[tuple[Table, bytes]] = []
        """Of :attr:`puts`, messages that are there already: what they were takes room until the store is asked for it."""

    @property
    def size(self) -> int:
        """About how many bytes it takes to write it."""
        puts = sum(len(key) + len(value) for _, key, value in self.puts)
        return puts + sum(len(key) for _, key in self.deletes) + sum(each.size for each in self.laid)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Sets one row."""
        self.puts.append((table, key, value))

    def rewrite(self, table: Table, key: bytes, value: bytes) -> None:
        """Sets one row of a log that is there already, as large as it was."""
        self.puts.append((table, key, value))
        self.rewritten.append((table, key))

    def put_laid(self, laid: Laid) -> None:
        """Sets rows that are new, as a rule, and are made when they are written: messages."""
        self.laid.append(laid)

    def put_later(self, table: Table, prefix: bytes, size: int, make: Callable[[], Iterable[tuple[bytes, bytes]]]) -> None:
        """Sets rows as :meth:`put_rows` does, of about so many bytes. ``make`` is called by the write, and by another one of the
        same batch; it returns the same each time, and raises nothing."""
        self.laid.append(_Later(table, prefix, size, make))

    def put_rows(self, table: Table, prefix: bytes, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Sets many rows that are new, as a rule; ``rows``: how the key ends behind ``prefix``, and the value."""
        self.laid.append(_Rows(table, prefix, rows))

    def delete(self, table: Table, key: bytes) -> None:
        """Removes one row, present or not."""
        self.deletes.append((table, key))


class Store(Protocol):
    """Ordered byte tables.

    Keys sort bytewise. Reads may run on any thread, writes on one at a time. Every method raises StoreClosed once the store
    is closed or a write has failed; reads raise StoreDamaged rather than leave something out.
    """

    def get(self, table: Table, key: bytes) -> bytes | None:
        """Returns the row's value, or None."""
        ...

    def scan(self, table: Table, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        """Yields the rows with ``start <= key < stop``, rising (falling with ``reverse``), as of its first step. Close it when
        leaving early."""
        ...

    def write(self, batches: Sequence[Batch]) -> None:
        """Applies the batches in their order, as one atomic change, and returns when it is synced to disk.

        The fences of the batches are checked in the same change.

        Raises:
            StoreFenced: nothing was written, since a fence is not valid; the store goes on.
            StoreError: it may or may not be on disk. The store refuses everything from here on, until opened anew.
        """
        ...

    def write_at_once(self, batches: Sequence[Batch]) -> bool:
        """As :meth:`write`, if that needs no waiting for anybody but the disk: True. Else nothing was written. Always so of a
        store that lies behind a network, or that several processes write to."""
        ...

    def behind(self) -> float:
        """Returns how many seconds the store needs to catch up with the newest write; else it stops a later one for longer.

        Asked behind each write, on its thread.
        """
        ...

    def scrub(self, table: Table, key: bytes, *, written: bool) -> None:
        """Sees to it that nothing is left of earlier values of a row, as far as that is in the store's hands.

        It is called twice, before the row is written anew and after that (``written``); the first call makes ready what the
        second one takes away. It may take long, runs beside reads and writes, and may be repeated.

        Raises StoreError: something may be left.
        """
        ...

    def look(self) -> None:
        """Reads a little from where the rows lie, and not from memory, as far as it can be told to. One that hangs hangs in this,
        and in nothing else that is done at once: a step of a scan may pass over gigabytes of deleted rows. Blocks. Raises
        StoreError."""
        ...

    def free_bytes(self) -> int | None:
        """Returns how many bytes can still be written, as far as the disk goes; None: nobody here can tell. Blocks.

        Raises StoreError.
        """
        ...

    def size_bytes(self) -> int:
        """Returns how many bytes the store takes on disk, with what was deleted and is not given back yet.

        Blocks. Raises StoreError.
        """
        ...

    def reclaim(self, thorough: bool, only_much: bool = False) -> None:
        """Gives the disk back what messages and payloads still take that were deleted or rewritten, where that would not happen
        by itself as long as nothing is written. ``thorough``: also what was before this opening; ``only_much``: of
        deleted messages, where they are so much that reading is held up. Called again and again, it does
        nothing when nothing was deleted or rewritten since. Blocks, maybe for long; a close waits for a part of it. Raises
        StoreError."""
        ...

    def check_written(self) -> None:
        """Raises StoreBehind where what this process has written to a store that several share is not there any more: then it
        says so in the store, and no process holds a lease or is alive. Blocks. Raises StoreError."""
        ...

    def lease_table(self) -> LeaseTable | None:
        """Returns the table of leases of a store that several processes share; None: one process has it."""
        ...

    def staged(self, least_free: int = 0) -> AbstractContextManager[Staged] | None:
        """Holds the files of the store as they are between two writes, on any thread, while others read and write; None: it does
        not lie in files. What is copied for it leaves ``least_free`` bytes of the disk free. The context raises StoreError and
        OSError as it begins."""
        ...

    def close(self) -> None:
        """Closes the files. Scans that are under way end with StoreClosed; it waits for that. Idempotent."""
        ...


class InFiles(Store, Protocol):
    """A store whose writes are counted (files/end_file.py)."""

    @property
    def number(self) -> int:
        """The number of the newest write; still known when the store is closed."""
        ...
