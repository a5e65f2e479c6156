"""A service inside somebody's process: the same store, protocol and promises, without a port."""

from oncelog_service.engine.engine import Engine, EngineStopped
from oncelog_service.engine.shared import engines

__all__ = ["Engine", "EngineStopped", "engines"]
