"""Randomness that a failure tells how to repeat."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded() -> Iterator[random.Random]:
    """A source of random numbers; what fails meanwhile names its seed, which the environment variable KILL_SEED brings back."""
    seed = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(10**9))
    try:
        yield random.Random(seed)
    except BaseException as error:
        error.add_note(f"KILL_SEED={seed}")
        raise
