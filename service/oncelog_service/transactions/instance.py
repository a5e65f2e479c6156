"""The name of this service among the participants of transactions: drawn once, and kept with the data it stands for."""

from __future__ import annotations

import re
from uuid import uuid4

from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table

_KEY = b""
_NAME = re.compile(rb"[0-9a-f]{32}")


def instance_of(store: Store) -> str:
    """The store's instance id; a new store gets one, synced before this returns. Raises StoreError."""
    name = store.get(Table.INSTANCE, _KEY)
    if name is None:
        name = uuid4().hex.encode()
        batch = Batch()
        batch.put(Table.INSTANCE, _KEY, name)
        store.write([batch])
    if not _NAME.fullmatch(name):
        raise StoreDamaged(f"{name[:100]!r} is not the id of an instance")
    return name.decode()
