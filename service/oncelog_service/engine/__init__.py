"""A service inside somebody's process: the same store, protocol and promises, without a port."""

from oncelog_service.engine.engine import Engine

__all__ = ["Engine"]
