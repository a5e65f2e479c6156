"""The twin of :mod:`oncelog.reading.reader` for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from oncelog.aio.stream import AsyncStream
from oncelog.api.options import AsyncReaderOptions
from oncelog.api.topics import AsyncApi
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.reading.twins import ReaderTwin
from oncelog.values.message import Message
from oncelog.values.start import Start, is_latest


class AsyncReader(ReaderTwin[AsyncApi, V], AsyncStream[V]):
    """The twin of :class:`oncelog.Reader` for asyncio: the same position, promises and errors. An asynchronous context manager,
    which opens it; one task at a time reads.

        async with AsyncReader("flights") as reader:
            async for message in reader:
                ...

    Cancelled at an await it has delivered nothing: reading again, or ``async for`` again, goes on where it stood. :meth:`close`
    ends the waiting of another task. It belongs to its event loop: on another one it raises RuntimeError, in a forked child
    :class:`~oncelog.errors.Forked`.
    """

    if TYPE_CHECKING:  # how it is made stands in both's base; which values a codec brings, only type checkers ask

        @overload
        def __init__(self, topic: str, *, codec: Typed[V] = None, **options: Unpack[AsyncReaderOptions]) -> None: ...

        @overload
        def __init__(self: AsyncReader[str], topic: str, *, codec: Text, **options: Unpack[AsyncReaderOptions]) -> None: ...

        @overload
        def __init__(self: AsyncReader[Any], topic: str, *, codec: Untyped, **options: Unpack[AsyncReaderOptions]) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def _made(self, start: Start, inclusive: bool, generation: int | None) -> None:
        self._start: tuple[Start, bool, int | None] = start, inclusive, generation
        if not is_latest(start):
            self._at.begin(*self._start)

    async def _open(self) -> None:
        if is_latest(self._start[0]):
            await self._begin(*self._start)

    async def seek(self, start: Start, *, inclusive: bool = False, generation: int | None = None) -> None:
        """Go on from somewhere else; what was polled ahead is dropped: as :meth:`oncelog.Reader.seek`."""
        self._check()
        await self._begin(start, inclusive, generation)

    async def read(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[V]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever).

        As :meth:`oncelog.Reader.read`.
        """
        return await self._deliver(limit, timeout)

    async def close(self) -> None:
        """End reading and let go of the connection. Idempotent. A task that waits gets no further message."""
        self._stop()
        await self._let_go()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
