"""What operators have rolled back on topics, by hand, while the transaction service did not know it.

A transaction of which one topic has rolled back a part cannot commit as a whole any more, whether that topic is open or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from oncelog.errors import TransactionConflict
from oncelog_service.reading import read
from oncelog_service.storage.keys import generation_key, pointer_key, topic_key
from oncelog_service.storage.port import RowDamaged, Store, Table
from oncelog_service.storage.records import EndedRow, decode_record


class RolledBack:
    """The write pointers whose messages an operator has rolled back, of all topics of the store."""

    def __init__(self, store: Store) -> None:
        """Reads the store."""
        self._store = store
        self.keys = _read(store)
        """Where the store has them. Topics that are open here note in it what is said of them."""

    async def reread(self) -> None:
        """Read them as other processes have set them. Raises StorageUnavailable, TopicDamaged."""
        known = self.keys.copy()
        found = await read(_read, self._store)
        self.keys -= known - found  # forgotten, as what is noted here meanwhile is not
        self.keys |= found

    def check(self, namespace: str, topic: str, generation: int, pointers: Iterable[int]) -> None:
        """Raises TransactionConflict: the transaction of these pointers cannot commit as a whole any more."""
        prefix = generation_key(topic_key(namespace, topic), generation)
        for pointer in pointers:
            if pointer_key(prefix, pointer) in self.keys:
                raise TransactionConflict(
                    f"an operator has rolled back on topic {namespace}/{topic} what was published under write pointer {pointer}, "
                    "while the transaction service did not know it; roll back and try the whole transaction again",
                    write_pointer=pointer,
                )


def _read(store: Store) -> set[bytes]:
    with closing(store.scan(Table.ENDED, b"", b"\xff")) as rows:
        return {key for key, data in rows if _is_rolled_back(data)}


def _is_rolled_back(data: bytes) -> bool:
    try:
        return not decode_record(EndedRow, data).committed
    except RowDamaged:
        return True  # its topic is not opened: nothing commits there
