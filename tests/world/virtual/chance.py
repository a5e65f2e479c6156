"""All that the product draws by chance is drawn from the seed while a world runs."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from unittest import mock


@contextmanager
def seeded(source: Random) -> Iterator[None]:
    """What :mod:`random`, ``os.urandom`` and :mod:`secrets` draw comes from this source."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(os, "urandom", source.randbytes))  # uuid4 draws from it, too
        stack.enter_context(mock.patch.object(random, "_urandom", source.randbytes))
        before = random.getstate()
        random.seed(source.random())
        stack.callback(random.setstate, before)
        if gc.isenabled():
            gc.disable()  # it would run what is left of a killed process at a moment of its own
            stack.callback(gc.enable)
        yield
