"""The name of this service among the participants of transactions: drawn once, and kept with the data that it names."""

from __future__ import annotations

import os
import re
from uuid import uuid4

from oncelog_service.storage.format import put_format
from oncelog_service.storage.port import Batch, Fence, Store, StoreDamaged, Table

_KEY = b""
_SECRET_KEY = b"secret"
_NAME = re.compile(rb"[0-9a-f]{32}")


def find_store_id(store: Store) -> str | None:
    """The store's id, if it has one. Raises StoreError."""
    name = store.get(Table.STORE_ID, _KEY)
    if name is not None and not _NAME.fullmatch(name):
        raise StoreDamaged(f"{name[:100]!r} is not the id of a store")
    return None if name is None else name.decode()


def store_id_of(store: Store, fence: Fence | None = None) -> str:
    """The store's id; a new store gets one, synced before this returns. Raises StoreError."""
    name = find_store_id(store)
    if name is None:
        name = uuid4().hex
        batch = Batch(fence)
        batch.put(Table.STORE_ID, _KEY, name.encode())
        put_format(batch)
        batch.put(Table.STORE_ID, _SECRET_KEY, os.urandom(32).hex().encode())
        store.write([batch])
    return name


def find_secret(store: Store) -> str | None:
    """What the instances over a store show each other, drawn with its id. Raises StoreError."""
    secret = store.get(Table.STORE_ID, _SECRET_KEY)
    return None if secret is None else secret.decode("latin-1")
