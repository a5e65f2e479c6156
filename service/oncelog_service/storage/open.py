"""The store chosen by URL."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from oncelog_service.storage.format import check_format
from oncelog_service.storage.incarnation import KEY as INCARNATION
from oncelog_service.storage.incarnation import behind_row, number_in
from oncelog_service.storage.port import Batch, InFiles, Store, StoreBehind, StoreDamaged, StoreError, Table, driver
from oncelog_service.storage.seals import SealedStore

if TYPE_CHECKING:
    from oncelog_service.storage.sql.written import Written

_IN_FILES = ("leveldb", "sqlite")
_POSTGRESQL = ("postgresql+psycopg", "postgresql")
_KNOWN = (
    "use leveldb:///absolute/path, leveldb://relative/path, sqlite:///absolute/path, sqlite://relative/path, "
    "postgresql+psycopg://user:password@host:port/database or memory://"
)


def store_opener(url: str) -> Callable[[], Store]:
    """Makes a function that opens the store at ``url``, now and again after a failure. Opens nothing yet, and loads no driver.

    Its rows are sealed (seals.py). Who opens it gets UnknownFormat where another version has to.

    ``leveldb:///absolute/path`` or ``leveldb://relative/path``; ``sqlite:`` in the same way (and with SQLAlchemy's four slashes);
    ``postgresql+psycopg://user:password@host:port/database``, also without ``+psycopg``, with libpq's settings as its query;
    ``memory://`` for tests: gone with the process.

    Raises:
        ValueError: the URL names no store that is known here.
    """
    opener = raw_opener(url)

    def opened() -> Store:
        store = SealedStore(opener())
        with _closed_on_failure(store):
            check_format(store)
        return store

    return opened


def default_store(path: Path) -> str:
    """Chooses the URL of the store at ``path`` where nobody named one: what lies there, else LevelDB, or SQLite without plyvel.

    Both kinds have the one name, LevelDB as a directory and SQLite as a file. So the file system itself keeps one of the other
    kind from being begun in the place of the first, or beside it, whichever Python comes later, or at the same time.
    """
    kind = _kind_at(path) or ("leveldb" if has_leveldb() else "sqlite")
    return f"{kind}://{quote(str(path.absolute()))}"


def load_driver(url: str) -> None:
    """Loads what the store at ``url`` needs, and opens nothing. Raises DriverMissing."""
    kind = url.partition(":")[0].partition("+")[0]
    with driver(kind):
        if kind == "leveldb":
            import plyvel  # noqa: F401
        elif kind != "memory":
            import sqlalchemy  # noqa: F401
        if kind == "postgresql":
            import psycopg  # noqa: F401


def has_leveldb() -> bool:
    """Tells whether plyvel is installed; whether it can be loaded is found out by doing it."""
    return find_spec("plyvel") is not None


def _kind_at(path: Path) -> str | None:
    if os.path.isdir(path):
        return "leveldb"
    # Of a database that is gone what it kept beside itself may be left: its kind refuses then, the other would begin anew.
    left = (path, *(path.with_name(path.name + end) for end in (".end", ".creating", "-wal")))
    return "sqlite" if any(map(os.path.exists, left)) else None


def raw_opener(url: str) -> Callable[[], Store]:
    """Makes a function that opens the store with its rows as they lie there, seals and all. Raises ValueError."""
    parts = _split(url)
    path = path_of(url)
    if parts is not None and path is not None:
        return _InFiles(_open_leveldb if parts.scheme == "leveldb" else _open_sqlite, path)
    if parts is not None and parts.scheme in _POSTGRESQL and parts.path.strip("/") and not parts.fragment:
        return _Shared(url)
    if parts is not None and parts.scheme == "memory" and not parts.netloc and not parts.path:
        from oncelog_service.storage.memory import Disk, MemoryStore

        disk = Disk()
        return lambda: MemoryStore(disk)
    raise ValueError(f"--store {shown(url)!r} names no store; {_KNOWN}")


class _InFiles:
    """Opens a store in files, and opens it again: then it is there, and not behind what this process has written to it.

    Where the disk has gone from under a service, a new store in its place would give the same offsets again. In one that was put
    back it is written down, for whoever opens it next.
    """

    def __init__(self, make: Callable[[Path, int], InFiles], path: Path) -> None:
        self._make, self._path = make, path
        self._last: InFiles | None = None
        self._incarnation: bytes | None = None
        """Its row, as it was then."""

    def __call__(self) -> Store:
        reached = 0 if self._last is None else self._last.number
        try:
            opened = self._make(self._path, reached)
        except StoreDamaged as damage:
            if not reached:
                raise
            opened = self._put_back(damage, reached)
        with _closed_on_failure(opened):
            self._incarnation = opened.get(Table.STORE_ID, INCARNATION)
        self._last = opened
        return opened

    def _put_back(self, damage: StoreDamaged, reached: int) -> InFiles:
        """Opens a store that is behind what this process has written, if it is another incarnation by now. Raises StoreBehind:
        it is not; StoreDamaged: it is not whole by what lies beside it either."""
        try:
            found = self._make(self._path, 1)
        except StoreError:
            raise damage from None
        with _closed_on_failure(found):
            is_further = number_in(found.get(Table.STORE_ID, INCARNATION)) > number_in(self._incarnation)
            if is_further or found.number >= reached:
                return found
            what = f"it ends at write {found.number}, and write {reached} was written to it"
            key, value = behind_row(f"a process on {socket.gethostname()}", what)
            batch = Batch()
            batch.put(Table.STORE_ID, key, value)
            if found.get(Table.STORE_ID, key) is None:
                SealedStore(found).write([batch])
            raise StoreBehind(f"{self._path}: {what}; see oncelog renew") from damage


@contextmanager
def _closed_on_failure(store: Store) -> Iterator[None]:
    """Closes the store where what it is asked for here fails: nobody else has it, and its lock would keep everybody out."""
    try:
        yield
    except BaseException:
        store.close()
        raise


class _Shared:
    """Opens a database that several share, and opens it again: what was written to it is remembered over that."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._written: Written | None = None

    def __call__(self) -> Store:
        with driver("postgresql"):
            from oncelog_service.storage.sql.postgresql import PostgresqlDatabase
            from oncelog_service.storage.sql.store import SqlStore
            from oncelog_service.storage.sql.written import Written
        if self._written is None:
            self._written = Written()
        return SqlStore(PostgresqlDatabase(self._url, shown(self._url), self._written))


def path_of(url: str) -> Path | None:
    """Returns the path of a store in files; None for any other."""
    parts = _split(url)
    if parts is None or parts.scheme not in _IN_FILES or parts.query or parts.fragment or not parts.netloc + parts.path:
        return None
    path = unquote(parts.netloc + parts.path)
    # Four slashes are SQLAlchemy's way to write an absolute path.
    return Path("/" + path.lstrip("/")) if path.startswith("//") else Path(path)


def shown(url: str) -> str:
    """Shows a URL as it may be printed and logged: without a password, wherever in it one may be."""
    parts = _split(url)
    if parts is None or "@" in parts.path + parts.query + parts.fragment:
        return url.partition(":")[0] + "://…"
    if not parts.scheme.startswith("postgres") and "@" not in parts.netloc:
        return url
    user, at, address = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{address}{parts.path}"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port if parts.scheme in _POSTGRESQL else None  # raises for what is none
    except ValueError:
        return None
    return parts


def _open_leveldb(path: Path, reached: int) -> InFiles:
    with driver("leveldb"):
        from oncelog_service.storage.files.leveldb import LevelDBStore

    return LevelDBStore(path, reached)


def _open_sqlite(path: Path, reached: int) -> InFiles:
    with driver("sqlite"):
        from oncelog_service.storage.sql.sqlite import SqliteDatabase
        from oncelog_service.storage.sql.store import SqlStore
    return SqlStore(SqliteDatabase(path, reached))
