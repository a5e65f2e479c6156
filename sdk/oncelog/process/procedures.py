"""Procedures: what both twins do, written once as coroutines. A shell of threads drives them, one of asyncio awaits them.

Whatever a procedure awaits is done by hands that its shell brings: they send, receive, pause. Those of the threads' shell do it
before they return; so :func:`drive` runs a procedure to its end where it is called, without an event loop, and an
exception goes through it as through any function. Those of asyncio's suspend it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import update_wrapper
from inspect import isawaitable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

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


def driven(procedure: Callable[Concatenate[S, P], Procedure[T]]) -> Callable[Concatenate[S, P], T]:
    """Make the method that drives a procedure of the same object."""

    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(begun(procedure, self, self, *args, **kwargs))

    update_wrapper(method, procedure)
    return method


def begun(procedure: Callable[P, T], caller: object, /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call it for a method of ``caller``. Python's own error about the arguments calls that as users do."""
    try:
        return procedure(*args, **kwargs)
    except TypeError as error:
        said = str(error).removeprefix(procedure.__qualname__)
        if said == str(error):
            raise
        raise TypeError(f"{type(caller).__name__}.{procedure.__name__.removeprefix('_')}{said}") from None


def drive_all(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield what a procedure yields."""
    try:
        while True:
            try:
                item = drive(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            drive(close())


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def got(answer: T | Awaitable[T]) -> T:
    """Return the answer, of one that blocks or of one that is awaited."""
    if isawaitable(answer):
        awaited: T = await answer
        return awaited
    return answer


def called(name: str) -> Callable[[F], F]:
    """Have Python's own errors about a function's arguments call it as users do."""

    def call(function: F) -> F:
        function.__qualname__ = name
        return function

    return call
