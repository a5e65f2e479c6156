"""How many descriptors this process may have, and has."""

from __future__ import annotations

import os
from contextlib import suppress

try:
    import resource
except ImportError:  # Windows counts no descriptors
    resource = None  # type: ignore[assignment]

_UNLIMITED = 2**20
_ENOUGH = 10_240
"""What is asked for where the hard limit is not granted: macOS grants no more than its kernel has per process."""


def raise_limit() -> None:
    """Raises the soft limit to the hard one, as far as the system lets it."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _ENOUGH):
        if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or soft < wanted):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return


def limit() -> int:
    """How many it may have."""
    if resource is None:
        return _UNLIMITED
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def used() -> int:
    """How many it has; 0 where the system does not say."""
    for each in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return len(os.listdir(each))
    return 0
