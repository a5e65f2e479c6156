"""The incarnation of a store: 0 as it was made, and another number each time that it was restored from a backup.

What was acknowledged behind the backup is not known to a restored store, but clients know of it: they hold epochs, generations
and offsets that the store of before handed out behind the backup, and the restored one would hand out once more. So whatever is
compared for being of the same store is raised by the incarnation, and none of it is ever handed out by two incarnations:

* the generation of each topic, as clients are told it: positions of before are refused (`stale_message_id`);
* epochs, of producers and of consumers: those of before are fenced;
* ids of messages, write pointers and numbers of atomic commits: those of before are older.

An incarnation is the second in which the store was restored, so that two restored from the same backup differ too.
"""

from __future__ import annotations

from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table

_KEY = b"restored"
_EACH = 2**20
"""Generations of a topic, and epochs of a name, in each second that lies between two incarnations."""


def find_incarnation(store: Store) -> int:
    """Reads the incarnation. Raises StoreError."""
    data = store.get(Table.STORE_ID, _KEY)
    if data is None:
        return 0
    try:
        return int(data, 16)
    except ValueError as error:
        raise StoreDamaged(f"{data[:100]!r} is not the incarnation of a store") from error


def begin_incarnation(store: Store, now_ms: int) -> int:
    """Begins another one, durably, and returns it. Raises StoreError."""
    incarnation = max(now_ms // 1_000, find_incarnation(store)) + 1
    batch = Batch()
    batch.put(Table.STORE_ID, _KEY, b"%032x" % incarnation)
    store.write([batch])
    return incarnation


def raised(number: int, incarnation: int) -> int:
    """Raises a generation, or a floor of epochs, by the incarnation."""
    return number + incarnation * _EACH


def first_ms(incarnation: int) -> int:
    """Returns the time, ms since 1970, that no message of this incarnation is older than."""
    return incarnation * 1_000
