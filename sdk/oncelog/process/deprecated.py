"""Names that go: they work on, and say at the caller's line what replaces them (docs/stability.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers and editors mark what it is put on
    from typing_extensions import deprecated as deprecated
else:
    import warnings
    from collections.abc import Callable
    from functools import wraps
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

    def deprecated(instead: str) -> Callable[[F], F]:
        """Have each call of a function warn by this sentence (PEP 702, which Python itself has from 3.13 on)."""

        def mark(function: F) -> F:
            @wraps(function)
            def warning(*args: Any, **kwargs: Any) -> Any:
                warnings.warn(instead, DeprecationWarning, stacklevel=2)
                return function(*args, **kwargs)

            warning.__deprecated__ = instead
            return warning

        return mark
