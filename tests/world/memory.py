"""What this process still holds in memory, found by walking it."""

from __future__ import annotations

import gc
from collections.abc import Iterator


def texts_as_long_as(least: int) -> Iterator[str]:
    """How each text or bytes object of this length or more begins that something holds, whoever does.

    Texts, and dicts and tuples of nothing but texts and numbers, are not among what the collector lists: they are reached from
    what it does. Of a dict whose keys are texts it passes over these.
    """
    gc.collect()
    met: set[int] = set()
    for each in gc.get_objects():
        ahead = [each]
        while ahead:
            holder = ahead.pop()
            for held in (*gc.get_referents(holder), *(holder if isinstance(holder, dict) else ())):
                if isinstance(held, str | bytes | bytearray):
                    if len(held) >= least and id(held) not in met:
                        met.add(id(held))
                        yield held[:40] if isinstance(held, str) else bytes(held[:40]).decode("latin-1")
                elif isinstance(held, dict | tuple) and not gc.is_tracked(held) and id(held) not in met:
                    met.add(id(held))
                    ahead.append(held)
