"""The store chosen by URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from oncelog_service.storage.port import Store


def store_opener(url: str) -> Callable[[], Store]:
    """What opens the store at ``url``, now and again after a failure. Opens nothing yet.

    ``leveldb:///absolute/path`` or ``leveldb://relative/path``; ``memory://`` for tests: gone with the process.

    Raises:
        ValueError: the URL names no store that is known here.
    """
    parts = urlsplit(url)
    if parts.scheme == "leveldb" and (parts.netloc or parts.path) and not parts.query and not parts.fragment:
        path = Path(unquote(parts.netloc + parts.path))
        return lambda: _open_leveldb(path)
    if parts.scheme == "memory" and not parts.netloc and not parts.path:
        from oncelog_service.storage.memory import Disk, MemoryStore

        disk = Disk()
        return lambda: MemoryStore(disk)
    raise ValueError(f"--store {url!r} names no store; use leveldb:///absolute/path, leveldb://relative/path or memory://")


def _open_leveldb(path: Path) -> Store:
    from oncelog_service.storage.leveldb import LevelDBStore

    return LevelDBStore(path)
