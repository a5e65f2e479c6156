# threads:
# """Reads a topic in order. The position lies with the caller: in `Checkpoint`, in a file, or nowhere."""
# asyncio:
"""Reads a topic in order, for asyncio. The twin for threads, :mod:`oncelog.reading.reader`, is made from this one."""
# both:

from __future__ import annotations

from typing import Any, Literal, overload

from oncelog.aio.stream import AsyncStream
from oncelog.api.calls import check_generation
from oncelog.api.topics import AsyncApi
from oncelog.codecs import Text, Typed, Untyped, V
from oncelog.http.trust import Certificate, Verify
from oncelog.reading.position import ReaderPosition
from oncelog.reading.twins import PAGE, BegunTransaction, ReaderTwin
from oncelog.values.start import Start, is_latest, start_position
from oncelog.wire.isolation import COMMITTED, UNCOMMITTED, Isolation
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.transaction import Transaction

# threads:
# from oncelog.process import forks
# from oncelog.process.procedures import drive


class AsyncReader(ReaderTwin[AsyncApi, V], AsyncStream[V]):
    # threads:
    # """Iterates over the messages of a topic, each once, in the order that every consumer sees.
    #
    # ``position`` is the id of the last message *delivered*; messages polled ahead do not count. Not thread-safe: one reader a
    # thread; only :meth:`close` may be called from anywhere, also in a signal handler. A context manager.
    #
    #     with Reader("flights") as reader:
    #         for message in reader:
    #             ...
    #
    # It delivers what is committed, and waits before the first message that is not decided; who is held up there for more than
    # 5 s is told by a warning, once. With ``isolation="uncommitted"`` it delivers whatever is in the log, also what is not
    # decided or was rolled back.
    #
    # With a ``transaction`` it delivers what that transaction sees, and ends before the first message whose transaction was
    # undecided when it began: waiting there would be of no use, as it does not change for this transaction. A later one goes on
    # from :attr:`position`.
    #
    # In a forked child it goes on behind what was delivered before the fork, with connections of its own, as its parent does:
    # both deliver everything that comes.
    # """
    # asyncio:
    """The twin of :class:`oncelog.Reader` for asyncio: the same position, promises and errors. An asynchronous context manager,
    which opens it; one task at a time reads.

        async with AsyncReader("flights") as reader:
            async for message in reader:
                ...

    Cancelled at an await it has delivered nothing: reading again, or ``async for`` again, goes on where it stood. :meth:`close`
    ends the waiting of another task. It belongs to its event loop: on another one it raises RuntimeError, in a forked child
    :class:`~oncelog.errors.Forked`.
    """

    # both:

    # overloads, made by `make faces`
    # fmt: off
    @overload
    def __init__(
        self, topic: str, *, start: Start = 'earliest', inclusive: bool = False, timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE, url: str | None = None, client: AsyncApi | None = None, verify: Verify = None,
        cert: Certificate = None, proxy: str | None = None, codec: Typed[V] = None, page_size: int = PAGE,
        transaction: BegunTransaction | Transaction | bytes | None = None, generation: int | None = None,
        on_expired: Literal['raise', 'skip'] = 'raise', isolation: Isolation = 'committed'
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncReader[str], topic: str, *, start: Start = 'earliest', inclusive: bool = False,
        timeout: float | None = None, namespace: str = DEFAULT_NAMESPACE, url: str | None = None,
        client: AsyncApi | None = None, verify: Verify = None, cert: Certificate = None, proxy: str | None = None,
        codec: Text, page_size: int = PAGE, transaction: BegunTransaction | Transaction | bytes | None = None,
        generation: int | None = None, on_expired: Literal['raise', 'skip'] = 'raise', isolation: Isolation = 'committed'
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncReader[Any], topic: str, *, start: Start = 'earliest', inclusive: bool = False,
        timeout: float | None = None, namespace: str = DEFAULT_NAMESPACE, url: str | None = None,
        client: AsyncApi | None = None, verify: Verify = None, cert: Certificate = None, proxy: str | None = None,
        codec: Untyped, page_size: int = PAGE, transaction: BegunTransaction | Transaction | bytes | None = None,
        generation: int | None = None, on_expired: Literal['raise', 'skip'] = 'raise', isolation: Isolation = 'committed'
    ) -> None: ...
    # fmt: on
    def __init__(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        inclusive: bool = False,
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        url: str | None = None,
        client: AsyncApi | None = None,
        verify: Verify = None,
        cert: Certificate = None,
        proxy: str | None = None,
        codec: Typed[V] | Text | Untyped = None,
        page_size: int = PAGE,
        transaction: BegunTransaction | Transaction | bytes | None = None,
        generation: int | None = None,
        on_expired: Literal["raise", "skip"] = "raise",
        isolation: Isolation = "committed",
    ) -> None:
        """Read a topic from ``start`` on.

        Args:
            topic: what it reads.
            start: ``earliest``; ``latest`` (what is published from now on, and what is not decided yet); a message id: after it,
                or with ``inclusive`` at it; an offset or an aware datetime: the first message at or after it.
            inclusive: whether the message whose id ``start`` is comes, too.
            timeout: seconds without a new message after which iteration ends, and ``read`` returns none; None never ends, 0
                ends at the end of the log.
            namespace: the topic's.
            url: the service's, for a client of its own; else as :class:`oncelog.Client` says.
            client: a :class:`oncelog.Client`, or for asyncio an :class:`oncelog.AsyncClient`; else it makes one of its own.
            verify, cert, proxy: for a client of its own, as :class:`oncelog.Client` takes them.
            codec: what ``Message.value`` decodes with: None for bytes, or what :func:`oncelog.codecs.codec_for` takes.
            page_size: messages of a page at most; the first page is about what is asked for.
            transaction: to read in: what :meth:`oncelog.Client.transaction` begins, a Transaction, or its Thrift bytes. Its own
                messages are seen once they are published, which a checkpoint brings about.
            generation: of the topic, that an offset was noted in (:attr:`generation`): another one is refused.
            on_expired: ``raise``: MessagesExpired where retention was faster than this reader, so that messages behind its
                position are gone (Kafka's ``auto.offset.reset=none``); ``skip``: go on with the first one that lives, and count
                them in :attr:`lost`. ``earliest`` and a datetime as ``start`` say themselves that what is gone is not asked for.
            isolation: ``committed``: what is committed, up to the first message that is not decided, where it waits;
                ``uncommitted``: everything in the log, also what is not decided or was rolled back. In a transaction it is what
                that sees.

        Raises:
            NotSupported: the service is of a version that cannot say what is committed. TopicNotFound, OffsetOutOfRange,
                StaleMessageId, MessagesExpired. All at the first read, at once for ``latest``.
        """
        if on_expired not in ("raise", "skip"):
            raise ValueError(f"on_expired is 'raise' or 'skip', not {on_expired!r}")
        if isolation not in (COMMITTED, UNCOMMITTED):
            raise ValueError(f"isolation is 'committed' or 'uncommitted', not {isolation!r}")
        start_position(start, inclusive)
        check_generation(generation)
        super().__init__(ReaderPosition(on_expired == "skip"), timeout, codec, page_size)
        self._is_committed = isolation == COMMITTED and transaction is None
        self._connect(topic, namespace, client, url, verify, cert, proxy)
        self._prepare()
        self._transaction = transaction.to_bytes() if isinstance(transaction, Transaction) else transaction
        self._made(start, inclusive, generation)

    # threads:
    # def _made(self, start: Start, inclusive: bool, generation: int | None) -> None:
    #     try:
    #         drive(self._begin(start, inclusive, generation))
    #     except BaseException:
    #         self.close()
    #         raise
    #     forks.register(self)
    #
    # def _after_fork(self) -> None:
    #     """In the child go on behind what was delivered, whatever another thread was doing with it."""
    #     self._errands.after_fork()
    #     self._at.rewind()
    # asyncio:
    def _made(self, start: Start, inclusive: bool, generation: int | None) -> None:
        self._start: tuple[Start, bool, int | None] = start, inclusive, generation
        if not is_latest(start):
            self._at.begin(*self._start)

    async def _open(self) -> None:
        if is_latest(self._start[0]):
            await self._begin(*self._start)

    # both:

    async def seek(self, start: Start, *, inclusive: bool = False, generation: int | None = None) -> None:
        """Go on from somewhere else; what was polled ahead is dropped. What is no start is refused, and nothing has moved then.

        Args:
            start: as when the reader is made: also on a topic that was deleted and made anew.
            inclusive: whether the message whose id ``start`` is comes, too.
            generation: of the topic, that an offset was noted in: another one is refused.
        """
        self._check()
        await self._begin(start, inclusive, generation)

    async def close(self) -> None:
        """End reading and let go of the connection. Idempotent.

        Whoever iterates gets no further message, also in the middle of waiting for one; a :meth:`read` that waits answers none.
        """
        self._stop()
        await self._let_go()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
