"""How many examples a property is tried with whose examples are dear."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> settings:
    """So many in the gate, which is to be fewer than it has of others; at night (``make test-slow``) as many as of all."""
    return settings(max_examples=count) if settings().derandomize else settings()
