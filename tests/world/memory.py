"""What this process still holds in memory, found by walking it."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary


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


def containers(*packages: str) -> Iterator[tuple[str, object]]:
    """Every container that an object of a class of these packages holds in an attribute, with the attribute: `Class.name`.

    Whoever holds the object: what there is once all requests have been answered outlives them.
    """
    gc.collect()
    for each in gc.get_objects():
        kind = type(each)
        if isinstance(each, type) or not str(kind.__module__).startswith(packages):
            continue
        for name, value in _attributes(each):
            if isinstance(value, _CONTAINERS) and not name.startswith("__"):
                yield f"{kind.__qualname__}.{name}", value


def of_modules(*packages: str) -> Iterator[tuple[str, int]]:
    """Every container that a module or a class of these packages holds by a name, and how many things are in it."""
    for module in _modules(packages):
        kinds = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
        for holder in (module, *kinds):
            for name, value in list(vars(holder).items()):
                if isinstance(value, _CONTAINERS) and not name.startswith("__"):
                    yield f"{module.__name__}.{getattr(holder, '__qualname__', '')}.{name}", len(value)


def unbounded_caches(*packages: str) -> Iterator[tuple[str, object]]:
    """The functions of these packages that remember all that they were ever asked."""
    for module in _modules(packages):
        for name, value in list(vars(module).items()):
            if isinstance(value, _CACHED) and value.cache_parameters()["maxsize"] is None:
                yield name, value


_CACHED = type(cache(len))


def _modules(packages: tuple[str, ...]) -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith(packages)]


_CONTAINERS = (dict, set, list, deque, bytearray, WeakValueDictionary, WeakSet, WeakKeyDictionary)


def _attributes(holder: object) -> Iterator[tuple[str, object]]:
    yield from list(getattr(holder, "__dict__", {}).items())
    for kind in type(holder).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(holder, slot):
                yield slot, getattr(holder, slot)
