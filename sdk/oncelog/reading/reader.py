"""Reads a topic in order. The position lies with the caller: in `Checkpoint`, in a file, or nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from oncelog.api.api import Api
from oncelog.api.options import ReaderOptions
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.process import forks
from oncelog.process.procedures import drive
from oncelog.reading.stream import Stream
from oncelog.reading.twins import ReaderTwin
from oncelog.values.message import Message
from oncelog.values.start import Start as Start


class Reader(ReaderTwin[Api, V], Stream[V]):
    """Iterates over the messages of a topic, each once, in the order that every consumer sees.

    ``position`` is the id of the last message *delivered*; messages polled ahead do not count. Not thread-safe: one reader a
    thread; only :meth:`close` may be called from anywhere, also in a signal handler. A context manager.

        with Reader("flights") as reader:
            for message in reader:
                ...

    It delivers what is committed, and waits before the first message that is not decided; who is held up there for more than 5 s
    is told by a warning, once. With ``isolation="uncommitted"`` it delivers whatever is in the log, also what is not decided or
    was rolled back.

    With a ``transaction`` it delivers what that transaction sees, and ends before the first message whose transaction was
    undecided when it began: waiting there would be of no use, as it does not change for this transaction. A later one goes on
    from :attr:`position`.

    In a forked child it goes on behind what was delivered before the fork, with connections of its own, as its parent does: both
    deliver everything that comes.
    """

    if TYPE_CHECKING:  # how it is made stands in both's base; which values a codec brings, only type checkers ask

        @overload
        def __init__(self, topic: str, *, codec: Typed[V] = None, **options: Unpack[ReaderOptions]) -> None: ...

        @overload
        def __init__(self: Reader[str], topic: str, *, codec: Text, **options: Unpack[ReaderOptions]) -> None: ...

        @overload
        def __init__(self: Reader[Any], topic: str, *, codec: Untyped, **options: Unpack[ReaderOptions]) -> None: ...

        def __init__(self, *_: Any, **__: Any) -> None: ...

    def _made(self, start: Start, inclusive: bool, generation: int | None) -> None:
        try:
            drive(self._begin(start, inclusive, generation))
        except BaseException:
            self.close()
            raise
        forks.register(self)

    def seek(self, start: Start, *, inclusive: bool = False, generation: int | None = None) -> None:
        """Go on from somewhere else; what was polled ahead is dropped. ``start`` and ``generation`` as when the reader is made:
        also on a topic that was deleted and made anew. What is no start is refused, and nothing has moved then."""
        self._check()
        drive(self._begin(start, inclusive, generation))

    def read(self, limit: int = 1_000, timeout: float | None = None) -> list[Message[V]]:
        """At most ``limit`` messages: as soon as there is one, or none after ``timeout`` seconds (None waits for ever).

        In a transaction none at once where the next message is undecided.

        Raises:
            OncelogError: nothing was delivered, and reading again goes on where it stood. ReaderClosed.
        """
        return self._deliver(limit, timeout)

    def close(self) -> None:
        """End reading and let go of the connection. Idempotent.

        A thread that iterates, or what a signal handler that calls this has interrupted, gets no further message, also in the
        middle of waiting for one; a :meth:`read` that waits answers none.
        """
        self._closed = True
        self._errands.stop()
        drive(self._let_go())

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after_fork(self) -> None:
        """In the child go on behind what was delivered, whatever another thread was doing with it."""
        self._errands.after_fork()
        self._at.rewind()
