"""The tracebacks that users see: their own lines, one of ours, and the sentence that says what is wrong.

Of a mistake in a call, and of what the service refuses, the frames of the SDK below the method that was called say nothing to who
called it. So that method takes them out of the traceback (psycopg's way). What goes wrong by a fault of the SDK's own keeps them.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from functools import wraps
from inspect import getattr_static, isasyncgenfunction, iscoroutinefunction, isfunction, isgeneratorfunction
from opcode import opmap
from types import TracebackType
from typing import Any

from oncelog.errors import OncelogError
from oncelog.process.forks import MadeHere

_OURS = ("oncelog.", "oncelog_service.", "oncelog_dedup.", "pydantic.")
"""Of the modules whose frames are the SDK's to its users: also those of a store in this process."""
_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = sysconfig.get_path("purelib")
_RAISE = opmap["RAISE_VARARGS"]
_SPECIAL = ("__init__", "__enter__", "__exit__", "__aenter__", "__aexit__")
WITHIN: dict[Callable[..., Any], Callable[..., Any]] = {}
"""A face's method → what is called instead by who is a procedure itself. Not an attribute: what stands in for a method, as an
override does or a mock, has all of its attributes, and is called."""


class Face(MadeHere):
    """What users call. The errors that its methods raise have no more frames of the SDK than that of the method."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__module__.startswith(_OURS):
            return  # a user's own
        for name in dir(cls):
            each = getattr_static(cls, name)
            is_called = name in _SPECIAL or not name.startswith("_")
            if is_called and isfunction(each) and not _does_it_already(each):
                setattr(cls, name, _short(each))


def _does_it_already(function: Callable[..., Any]) -> bool:
    # By itself: what is called for each message, or loses what it returns where Ctrl-C comes behind it. Or made of one that does.
    is_short = shorten.__name__ in function.__code__.co_names or hasattr(function, "__deprecated__")
    return is_short or isgeneratorfunction(function) or isasyncgenfunction(function)


def _short(function: Callable[..., Any]) -> Callable[..., Any]:
    if iscoroutinefunction(function):

        @wraps(function)
        async def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                return await function(self, *args, **kwargs)
            except Exception as error:
                shorten(error, function, self)
                raise
    else:

        @wraps(function)
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                return function(self, *args, **kwargs)
            except Exception as error:
                shorten(error, function, self)
                raise

    WITHIN[method] = function
    return method


def shorten(error: Exception, function: Callable[..., Any] | None = None, of: object = None) -> None:
    """Take the frames of the SDK below the one that has caught it out of an error's traceback, and out of those of its causes.

    ``function``: what was called for a method of this object. Python's own error about its arguments calls it as users do.
    """
    if function is not None and isinstance(error, TypeError) and (said := str(error)).startswith(f"{function.__qualname__}("):
        public = type(of).__name__
        if function.__name__ != "__init__":
            public += f".{function.__name__.removeprefix('_')}"
        error.args = (public + said.removeprefix(function.__qualname__),)
    each: BaseException | None = error
    seen = set[int]()
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if (top := each.__traceback__) is not None and _is_judged(each, top):
            if each is error:
                top.tb_next = _others(top.tb_next)
            else:
                each.__traceback__ = _others(top)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _is_judged(error: BaseException, top: TracebackType) -> bool:
    """Tell whether it was raised on purpose: of what Python raises by itself, somebody has to find the line."""
    if isinstance(error, OncelogError | OSError):
        return True
    while top.tb_next is not None:
        top = top.tb_next
    code = top.tb_frame.f_code
    is_raised = code.co_code[top.tb_lasti] == _RAISE or shorten.__name__ in code.co_names  # or was shortened by another face
    return isinstance(error, TypeError | ValueError | RuntimeError) and is_raised and _is_ours(top)


def _others(top: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of the SDK and of the standard library."""
    while top is not None and _is_ours(top):
        top = top.tb_next
    if top is not None:
        top.tb_next = _others(top.tb_next)
    return top


def _is_ours(entry: TracebackType) -> bool:
    frame = entry.tb_frame
    path = frame.f_code.co_filename
    in_library = path.startswith(("<frozen", _LIBRARY)) and not path.startswith(_INSTALLED)
    return in_library or str(frame.f_globals.get("__name__")).startswith(_OURS)
