"""A service for people's own tests, with faults by name, and what holds a pipeline against the log.

The fixture ``oncelog_service`` of the pytest plugin, or ``with service() as oncelog_service:``. What needs the service (the extra
``testing``) is loaded when it is asked for; what looks at a log needs none, and works against any service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oncelog.testing.judge import Finding, NotExactlyOnce
from oncelog.testing.recorder import Recorder, check_effects, check_published

if TYPE_CHECKING:
    from oncelog_service.testing.faults import Faults
    from oncelog_service.testing.plan import Fault, FaultNotMet
    from oncelog_service.testing.service import OncelogService

__all__ = [
    "Fault",
    "FaultNotMet",
    "Faults",
    "Finding",
    "NotExactlyOnce",
    "OncelogService",
    "Recorder",
    "check_effects",
    "check_published",
    "service",
]

_NEEDS_SERVICE = {
    "Fault": "oncelog_service.testing.plan",
    "FaultNotMet": "oncelog_service.testing.plan",
    "Faults": "oncelog_service.testing.faults",
    "OncelogService": "oncelog_service.testing.service",
}


def service(**settings: Any) -> OncelogService:
    """A service in memory, for a ``with`` block: on a free port of 127.0.0.1, with faults to plan.

    ``settings``: of the service, by name, as `oncelog serve` takes them. Raises ValueError: one is none; ImportError: the
    extra ``testing`` is not installed.
    """
    made: OncelogService = __getattr__("OncelogService")(**settings)
    return made


def __getattr__(name: str) -> Any:
    """What needs the service is loaded only when it is used."""
    if name not in _NEEDS_SERVICE:
        raise AttributeError(f"module 'oncelog.testing' has no attribute {name!r}")
    try:
        return getattr(import_module(_NEEDS_SERVICE[name]), name)
    except ModuleNotFoundError as missing:
        raise ImportError(f"{name} needs the service: pip install 'oncelog[testing]'") from missing
