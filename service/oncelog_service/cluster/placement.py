"""Which instance a resource should be served by. Pure: all who know the same instances give the same answer.

Rendezvous hashing: when an instance comes or goes, only what it takes over or leaves behind moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def preferred(resource: bytes, instances: Iterable[str]) -> str | None:
    """Chooses, by id, the instance that should serve a resource; None where there is none."""
    return max(
        instances, key=lambda each: (blake2b(resource, key=each.encode()[:64], digest_size=8).digest(), each), default=None
    )
