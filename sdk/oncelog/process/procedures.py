"""Procedures: what both twins do, written once as coroutines. A shell of threads drives them, one of asyncio awaits them.

Whatever a procedure awaits is done by hands that its shell brings: they send, receive, pause. Those of the threads' shell do it
before they return; so :func:`drive` runs a procedure to its end where it is called, without an event loop, and an
exception goes through it as through any function. Those of asyncio's suspend it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import update_wrapper
from inspect import isawaitable
from types import MethodType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from oncelog.process.frames import WITHIN, shorten

P = ParamSpec("P")
T = TypeVar("T")

Procedure = Coroutine[Any, Any, T]


def drive(procedure: Procedure[T]) -> T:
    """Run a procedure whose hands do not suspend, and return or raise what it does."""
    try:
        procedure.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    procedure.close()
    raise RuntimeError("this is awaited by an event loop; what takes part in it must be, too: use the asyncio twin")


def drive_all(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield what a procedure yields."""
    try:
        while True:
            try:
                item: T = drive(anext(items))  # type: ignore[arg-type]  # a coroutine in all but its type
            except StopAsyncIteration:
                return
            yield item
    except Exception as error:
        shorten(error)
        raise
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            drive(close())


@overload
def driven(procedure: Callable[Concatenate[Any, P], Procedure[T]], of: str = ...) -> Callable[Concatenate[Any, P], T]: ...


@overload
def driven(
    procedure: Callable[Concatenate[Any, P], AsyncIterator[T]], of: str = ...
) -> Callable[Concatenate[Any, P], Iterator[T]]: ...


def driven(procedure: Callable[..., Any], of: str = "") -> Callable[..., Any]:
    """Make the method that drives a procedure of the same object, or of what this has as ``of``. What yields is an iterator."""
    procedure = WITHIN.get(procedure, procedure)

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            begun = procedure(getattr(self, of) if of else self, *args, **kwargs)
            return drive_all(begun) if hasattr(begun, "__anext__") else drive(begun)
        except Exception as error:
            shorten(error, procedure, self)
            raise

    def within(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return procedure(getattr(self, of) if of else self, *args, **kwargs)

    update_wrapper(method, procedure)
    WITHIN[method] = within
    return method


async def answer_of(call: Callable[P, T | Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what blocks or what is awaited, of either twin, and return its answer. What would be driven is awaited here."""
    procedure = WITHIN.get(call.__func__) if type(call) is MethodType else None
    answer = call(*args, **kwargs) if procedure is None else procedure(call.__self__, *args, **kwargs)  # type: ignore[attr-defined]
    if isawaitable(answer):
        awaited: T = await answer
        return awaited
    return answer
