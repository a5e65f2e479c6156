"""The format of a store as a whole: one number, in a row that every version finds, whatever else it changes.

Rows have versions of their own, and one that is not known passes for damage: right for a row, and wrong for a store that a newer
version has gone on with. So the number is looked at first, whoever opens the store, before anything is written. It is raised by
what a version that knows nothing of it would misread; the row itself keeps its place, its form and its seal in all formats.
"""

from __future__ import annotations

from oncelog_service.storage.port import Batch, Store, StoreDamaged, StoreError, Table

FORMAT = 1
"""Of what this version writes."""
OLDEST = 1
"""Of what it still reads."""
KEY = b"format"
"""Of its row in STORE_ID."""


class UnknownFormat(StoreError):
    """The store is that of another version, and nothing was changed."""


def put_format(batch: Batch) -> None:
    """Says in which format a new store is."""
    batch.put(Table.STORE_ID, KEY, b"%08x" % FORMAT)


def check_format(store: Store) -> None:
    """Raises UnknownFormat: this version must not touch it; StoreError. A new store has none yet."""
    data = store.get(Table.STORE_ID, KEY)
    if data is None:
        return
    try:
        found = int(data, 16)
    except ValueError as error:
        raise StoreDamaged(f"{data[:100]!r} is not the format of a store") from error
    if found > FORMAT:
        raise UnknownFormat(
            f"its format is {found}, that of a newer oncelog, and this one knows no newer than {FORMAT}; nothing was changed. "
            "Run the version that served it last, or a newer one; to go back, restore a backup of before (docs/upgrading.md)"
        )
    if found < OLDEST:
        raise UnknownFormat(
            f"its format is {found}, that of an older oncelog, and this one reads none below {OLDEST}; nothing was changed. "
            "Start a version between the two once, which brings it up to date (docs/upgrading.md says which)"
        )
