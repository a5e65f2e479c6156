"""The name of this service among the participants of transactions: drawn once, and kept with the data it stands for."""

from __future__ import annotations

import re
from uuid import uuid4

from oncelog_service.storage.port import Batch, Fence, Store, StoreDamaged, Table

_KEY = b""
_NAME = re.compile(rb"[0-9a-f]{32}")


def find_instance(store: Store) -> str | None:
    """The store's instance id, if it has one. Raises StoreError."""
    name = store.get(Table.INSTANCE, _KEY)
    if name is not None and not _NAME.fullmatch(name):
        raise StoreDamaged(f"{name[:100]!r} is not the id of an instance")
    return None if name is None else name.decode()


def instance_of(store: Store, fence: Fence | None = None) -> str:
    """The store's instance id; a new store gets one, synced before this returns. Raises StoreError."""
    name = find_instance(store)
    if name is None:
        name = uuid4().hex
        batch = Batch()
        if fence is not None:
            batch.fences.add(fence)
        batch.put(Table.INSTANCE, _KEY, name.encode())
        store.write([batch])
    return name
