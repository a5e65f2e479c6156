"""Messages that become readable on all their topics or on none, for readers that know nothing of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NoReturn, Self
from uuid import uuid4

from oncelog.api.api import AnyApi
from oncelog.api.retry import may_retry
from oncelog.api.transactions import BUFFER_BYTES
from oncelog.errors import (
    InvalidRequest,
    OncelogError,
    SequenceIdNotRising,
    TransactionClosed,
    TransactionInDoubt,
    TransactionNotFound,
    TransactionNotInProgress,
)
from oncelog.message_id import MessageId
from oncelog.process.frames import Face
from oncelog.process.procedures import Procedure, answer_of, drive, driven
from oncelog.process.tracing import Place, switch
from oncelog.producing.core import DELIVERY_SECONDS
from oncelog.producing.cutting import REQUEST
from oncelog.producing.twins import codec_of
from oncelog.transactions.chunks import Origin, TopicChunks
from oncelog.transactions.enlisted_producers import EnlistedProducers
from oncelog.transactions.twins import PRODUCERS, AnyProducer, turn_of
from oncelog.values.arguments import check_kind
from oncelog.values.expectation import UNCHECKED, Unchecked
from oncelog.values.numbers import check_count, check_long, check_seconds, milliseconds
from oncelog.values.outgoing import CARRIES, Outgoing, carrying, outgoing
from oncelog.wire.media import DEFAULT_NAMESPACE
from oncelog.wire.models import AtomicOutcome
from oncelog.wire.names import ATOMIC_ID_PATTERN, no_text
from oncelog.wire.requests import MAX_CARRIED, TOPIC_WEIGHT, CommitRequest

State = Literal["in_progress", "staged", "committed", "refused", "aborted", "in_doubt"]


class _Messages(Face):
    """Gathers messages, for an atomic commit or a branch of one, and stages what exceeds the buffer."""

    def __init__(
        self,
        client: AnyApi,
        group: str,
        id: str | None,  # noqa: A002  # the field's word
        timeout: float | None,
        namespace: str,
        buffer_bytes: int,
        of: str | None = None,
    ) -> None:
        milliseconds("timeout", timeout)
        check_count("buffer_bytes", buffer_bytes, 0)
        self.id = _checked(uuid4().hex if id is None else id, "id")
        """What its outcome is asked for by; drawn by the SDK unless it was given."""
        self.group = _checked(group, "group")
        """Transactions of one group appear in the same order on all topics."""
        self._client = client
        self._timeout = timeout
        self._namespace = namespace
        self._buffer_bytes = buffer_bytes
        self._of = of
        self._lock = turn_of(client, f"the atomic commit {self.id}")
        self._topics: dict[tuple[str, str], TopicChunks] = {}
        self._producers = EnlistedProducers(client)
        self._last_named: dict[tuple[str, str, str], int] = {}
        self._size = 0
        self._messages = 0
        self._entered = False
        self._begun = False
        self._may_be_repeated = id is not None
        """Another process may have committed under the id, before it was killed."""
        self._committed_before = False
        self._failure: BaseException | None = None
        self._state: State = "in_progress"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, group={self.group!r}, state={self._state!r})"

    @property
    def buffered_bytes(self) -> int:
        """The bytes of messages that are held in memory now."""
        return self._size

    async def _send(
        self,
        topic: str,
        value: Any,
        *,
        namespace: str | None = None,
        producer: AnyProducer | str | None = None,
        sequence_id: int | None = None,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        ttl: int | None = None,
        expected_offset: int | None = None,
        expected_last_id: MessageId | None = None,
        expected_key_offset: int | Unchecked | None = UNCHECKED,
    ) -> None:
        """Adds one message. The messages of a topic keep their order, and are side by side in its log.

        What it expects, and its sequence id, are judged at the commit, behind the messages sent before it; if one of them does
        not hold, nothing is committed.

        Args:
            topic: where it is to be.
            value: bytes, or what the codec of ``producer`` turns into bytes.
            namespace: the topic's; else the one that this was begun with.
            producer: under whose name and numbers the message is deduplicated. An open one of this topic: what it was given
                before is sent first, and until the end it takes no messages but through this. Or a name, with ``sequence_id``.
            sequence_id: rises from message to message of a producer; without it the SDK numbers.
            key: what the message is about; a str is sent as UTF-8.
            properties: further things to say of it, by name.
            ttl: seconds that it lives, at most the topic's.
            expected_offset: the offset that it gets.
            expected_last_id: the id of the newest message of the topic; ``MessageId.NONE`` says that none was ever published.
            expected_key_offset: the offset of the newest message with the same key; None says that no message has it yet.

        Raises:
            TransactionClosed: its block was not entered, or it has ended, or one of its messages failed before.
            OncelogError: staging what exceeds the buffer failed; it cannot be committed any more.
        """
        message = outgoing(
            value,
            codec_of(producer) if isinstance(producer, PRODUCERS) else None,
            sequence_id,
            key,
            properties,
            ttl,
            expected_offset=expected_offset,
            expected_last_id=expected_last_id,
            expected_key_offset=expected_key_offset,
        )
        space = self._namespace if namespace is None else namespace
        tracing = switch.tracing
        if tracing is None:
            return await self._add(topic, message, space, producer)
        with tracing.send(Place(space, topic, self._client.url), [message.properties], 1) as span:
            return await self._add(topic, carrying(message, span.context, CARRIES), space, producer)

    async def _add(self, topic: str, message: Outgoing, space: str, producer: AnyProducer | str | None) -> None:
        with await self._lock.come():
            self._require_entered()
            self._require_running()
            number = await self._number(space, topic, producer, message.sequence_id)
            # Not before: only then it is sure to keep its name until the end.
            origin = Origin(producer.name, producer.epoch) if isinstance(producer, PRODUCERS) else Origin(producer)
            chunks = self._topics.setdefault((space, topic), TopicChunks(space, topic))
            chunks.add(message._replace(sequence_id=number), origin)
            self._size += message.size
            self._messages += 1
            await self._spill(self._buffer_bytes)

    async def _abort(self) -> None:
        """Drops everything; nothing of it will ever be seen.

        Raises:
            TransactionClosed: it has ended. OncelogError: the service did not answer; it is dropped when its time is up.
        """
        with await self._lock.come():
            self._require("in_progress")
            await self._abort_staged()

    async def _leave(self, error: BaseException | None) -> None:
        """What the end of the block does."""
        if self._state != "in_progress":
            return  # ended in the block
        if error is None:
            await self._finish()
            return
        if self._lock.elsewhere:
            return  # a forked child leaves the block: it is the parent's to end
        with await self._lock.come():
            await self._abort_because(error)

    def _finish(self) -> Procedure[object]:
        """What the end of a block does that raises nothing."""
        raise NotImplementedError

    # --- on its way

    def _require(self, state: State) -> None:
        if self._state != state:
            raise TransactionClosed(f"{self.id} is {self._state.replace('_', ' ')}; begin another one")

    def _require_entered(self) -> None:
        """Outside of the block nobody would commit what is sent."""
        if not self._entered:
            raise TransactionClosed(f"{self.id} has not started; send in its with block, at whose end it is done")

    def _require_running(self) -> None:
        self._require("in_progress")
        if self._failure is not None:
            raise TransactionClosed(f"an earlier message of {self.id} failed; it can only be aborted") from self._failure

    async def _number(self, namespace: str, topic: str, producer: AnyProducer | str | None, given: int | None) -> int | None:
        if producer is None:
            if given is not None:
                raise ValueError("a sequence id is a producer's; give the producer too")
            return None
        check_kind("producer", producer, (str, *PRODUCERS), "an open Producer, or the name of one")
        if isinstance(producer, PRODUCERS):
            return await self._producers.number(self.id, namespace, topic, producer, given)
        if given is None:
            raise ValueError(f"the messages of {producer!r} are numbered here; give a sequence_id, or the open Producer")
        last = self._last_named.get((namespace, topic, producer))
        if last is not None and given <= last:
            raise SequenceIdNotRising(f"sequence id {given} does not follow {last}; nothing was sent", last=last, received=given)
        self._last_named[namespace, topic, producer] = given
        return given

    async def _spill(self, to_bytes: int) -> None:
        """Stages the largest topics until what is left fits."""
        while self._size > to_bytes or self._messages > REQUEST.messages:
            by_size = self._size > to_bytes
            await self._stage(max(self._topics.values(), key=lambda each: each.size if by_size else each.messages))

    async def _narrow(self) -> None:
        """Stages topics until one request may bring the rest of them, those with the most messages first."""
        left = sorted((each for each in self._topics.values() if each.messages), key=lambda each: each.messages)
        while self._messages + TOPIC_WEIGHT * len(left) > MAX_CARRIED:
            await self._stage(left.pop())

    async def _stage(self, topic: TopicChunks, but_last: bool = False) -> None:
        """Stages the topic's chunks. A failure is the end: what is staged then is not what was sent."""
        try:
            for chunk, request in topic.take(but_last):
                await self._begin()
                if not self._committed_before:
                    await answer_of(self._client.stage, self.id, topic.topic, chunk, request, topic.namespace)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._size = sum(each.size for each in self._topics.values())
            self._messages = sum(each.messages for each in self._topics.values())

    async def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True  # perhaps, also where this fails
        outcome = await answer_of(self._client.begin_atomic, self.group, id=self.id, timeout=self._timeout, of=self._of)
        # An id that the caller has chosen may have been committed by a process that died before it heard of it.
        self._committed_before = outcome.committed
        if outcome.state == "aborted":
            raise TransactionNotInProgress(
                f"{self.id} was aborted: {outcome.detail}", transaction=self.id, state=outcome.state, reason=outcome.reason
            )

    async def _abort_staged(self) -> None:
        self._end("aborted")
        self._producers.roll_back()
        if self._begun:
            with suppress(TransactionNotFound):  # its begin did not get through
                await answer_of(self._client.abort_atomic, self.id)

    async def _abort_because(self, error: BaseException) -> None:
        """Drops everything; what goes wrong with that is noted."""
        try:
            await self._abort_staged()
        except OncelogError as other:
            error.add_note(f"the service was not reached to abort {self.id}, and does so when its time is up: {other}")

    def _end(self, state: State) -> None:
        self._state = state
        self._topics.clear()
        self._size = self._messages = 0


class _Batch(_Messages):
    """The procedures of an atomic commit."""

    def __init__(
        self,
        client: AnyApi,
        group: str,
        *,
        id: str | None = None,  # noqa: A002
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        branches: Iterable[str] = (),
        producer: str | None = None,
        sequence_id: int | None = None,
        incarnation: str | None = None,
        checksum: str | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        delivery_timeout: float = DELIVERY_SECONDS,
    ) -> None:
        """
        Args:
            group: transactions of one group appear in the same order on all topics.
            id: the same one again commits nothing twice; else the SDK draws one.
            timeout: seconds until what is staged is aborted, if it is not committed by then; else the service's setting.
            branches: ids of those that are committed with it, behind its own messages, in this order. Read at the commit, so
                that a list may be filled in the block.
            producer, sequence_id: the commit is deduplicated as a whole within its group: at or below the last sequence id of
                this name it is answered as a duplicate, and nothing of it is stored.
            incarnation: of the producer; a commit under another one is refused.
            checksum: kept with the outcome and answered to a duplicate, to compare.
            buffer_bytes: of messages held in memory.
            delivery_timeout: seconds that the commit is tried again before it is in doubt.

        Raises:
            InvalidRequest; ValueError for a number that cannot be.
        """
        super().__init__(client, group, id, timeout, namespace, buffer_bytes)
        check_seconds("delivery_timeout", delivery_timeout)
        if sequence_id is not None:
            check_long("sequence_id", sequence_id)
        if (producer is None) != (sequence_id is None):
            raise InvalidRequest("producer and sequence_id go together: a commit has both or neither")
        self._branches = branches
        self._asks = CommitRequest(
            self.group, producer=producer, sequence_id=sequence_id, incarnation=incarnation, checksum=checksum
        )
        self._delivery_timeout = delivery_timeout
        self._outcome: AtomicOutcome | None = None

    @property
    def outcome(self) -> AtomicOutcome | None:
        """The outcome of the commit; None before it, and where there is none. Its state is ``committed``, or
        ``duplicate`` where the sequence id had been committed before."""
        return self._outcome

    async def _commit(self) -> AtomicOutcome:
        """Commits, as the end of the block does.

        Raises:
            OncelogError: refused, and certainly not committed: OffsetMismatch, SequenceReused, ProducerFenced, TopicNotFound, …
            BranchGone, and what passes by itself: the same; under the same id it can be committed again until its time is up.
            TransactionInDoubt: whether it is committed is not known; :meth:`oncelog.Client.atomic_outcome` will tell.
            TransactionClosed: it has ended, or one of its messages failed; then it is aborted.
        """
        with await self._lock.come():
            self._require("in_progress")
            try:
                request = await self._stage_most()
                self._state = "in_doubt"  # before it is sent: an interruption decides nothing, wherever it comes from now on
                self._outcome = await self._ask(request)
                await self._committed(self._outcome)
                return self._outcome
            except BaseException as error:
                await self._failed(error)
                raise

    async def _committed(self, outcome: AtomicOutcome) -> None:
        """Ends it as committed; the producers go on."""
        self._end("committed")
        if outcome.state == "duplicate":
            self._producers.roll_back()
        else:
            if self._may_be_repeated:
                await self._producers.roll_back_unused()
            self._producers.note_all()
            self._producers.commit()

    async def _failed(self, error: BaseException) -> None:
        """Ends it as its state says, not as where the error arose: an interruption comes also when it is committed."""
        if self._state == "in_progress":
            await self._abort_because(error)
        elif self._state == "in_doubt" and isinstance(error, OncelogError) and error.definite:
            self._end("refused")
            self._producers.roll_back()
        else:
            self._end("in_doubt" if self._outcome is None else "committed")
            self._producers.in_doubt(error)

    _finish = _commit

    async def _stage_most(self) -> CommitRequest:
        """Stages what does not fit into the request, which it returns: nothing is committed before that is sent."""
        self._require_running()
        for topic in self._topics.values():
            await self._stage(topic, but_last=True)
        await self._spill(REQUEST.bytes)
        await self._narrow()
        parts = [part for topic in self._topics.values() if (part := topic.rest()) is not None]
        return replace(self._asks, parts=parts, branches=list(self._branches))

    async def _ask(self, request: CommitRequest) -> AtomicOutcome:
        try:
            return await answer_of(self._client.commit_atomic, self.id, request, retry=self._delivery_timeout)
        except OncelogError as error:
            if error.definite:
                raise
            if may_retry(error, idempotent=True):
                self._raise_in_doubt(error)
            return await self._find_outcome(error, request)

    async def _find_outcome(self, error: OncelogError, request: CommitRequest) -> AtomicOutcome:
        """Has the commit aborted, or hears of it: its last try was refused, but an earlier one may get through yet."""
        try:
            outcome = await answer_of(self._client.begin_atomic, self.group, id=self.id)
            if outcome.state == "in_progress":
                outcome = await self._abort_or_outcome()
        except OncelogError:
            self._raise_in_doubt(error)
        if outcome.committed and not (outcome.of and request.carries):  # else another one has named it, without what that carries
            return outcome
        error.definite = True
        raise error

    async def _abort_or_outcome(self) -> AtomicOutcome:
        try:
            return await answer_of(self._client.abort_atomic, self.id)
        except TransactionNotInProgress:
            return await answer_of(self._client.atomic_outcome, self.id)

    def _raise_in_doubt(self, cause: OncelogError) -> NoReturn:
        detail = f"whether {self.id} is committed is not known: {cause}; ask for its outcome before doing it again"
        raise TransactionInDoubt(detail, transaction=self.id) from cause


class _Branch(_Messages):
    """The procedures of a branch."""

    def __init__(
        self,
        client: AnyApi,
        of: str,
        group: str,
        *,
        id: str | None = None,  # noqa: A002
        timeout: float | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """``of``: the id of the transaction whose commit may name it; the other arguments are those of :class:`AtomicBatch`."""
        super().__init__(client, group, id, timeout, namespace, buffer_bytes, _checked(of, "of"))

    async def _stage_all(self) -> None:
        """Stages everything, as the end of the block does. Raises as :meth:`send` does; then it is aborted."""
        with await self._lock.come():
            self._require("in_progress")
            try:
                self._require_running()
                await self._begin()
                for topic in self._topics.values():
                    await self._stage(topic)
            except BaseException as error:
                await self._abort_because(error)
                raise
            self._end("staged")

    _finish = _stage_all

    async def _number(self, namespace: str, topic: str, producer: AnyProducer | str | None, given: int | None) -> int | None:
        if isinstance(producer, PRODUCERS):
            raise ValueError("what becomes of a branch, its producer does not learn: name it, and give the sequence ids")
        return await super()._number(namespace, topic, producer, given)


class _Blocks(_Messages):
    send = driven(_Messages._send)
    abort = driven(_Messages._abort)

    def __enter__(self) -> Self:
        self._entered = True
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        drive(self._leave(error))


class _Awaits(_Messages):
    send = _Messages._send
    abort = _Messages._abort

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        await self._leave(error)


class AtomicBatch(_Batch, _Blocks):
    """Messages for several topics that are committed together; a context manager. ``client.atomic(…)`` makes one.

        with client.atomic(group="orders") as batch:
            batch.send("orders", b"order 17 is paid")
            batch.send("audit", b"17: paid")
        print(batch.outcome.state)

    When the block ends, all of it is committed by one request, in one step: every topic gets its messages or none does, and no
    reader sees any before. What exceeds ``buffer_bytes`` is staged on the service on the way. When the block raises, everything
    is dropped. Thread-safe.
    """

    commit = driven(_Batch._commit)


class AsyncAtomicBatch(_Batch, _Awaits):
    """The twin of :class:`oncelog.AtomicBatch` for asyncio; an asynchronous context manager.

        async with client.atomic(group="orders") as batch:            # an AsyncClient
            await batch.send("orders", b"order 17 is paid")

    A task that is cancelled in the block, or at any await before the commit is sent, drops everything; behind that the commit is
    in doubt, and ``client.atomic_outcome`` tells.
    """

    commit = _Batch._commit


class AtomicBranch(_Branch, _Blocks):
    """Messages that are staged for another process's atomic commit; a context manager. ``client.atomic_branch(of)`` makes one.

        with client.atomic_branch(of=batch_id, group="orders") as branch:
            branch.send("orders", b"order 18")
        report(branch.id)                             # to the one that commits: client.atomic(id=batch_id, branches=[…])

    When the block ends, everything is staged. It is seen when a commit names the branch, where that commit is; one that is not
    named is dropped. So a piece of work may be done twice, in two branches, and only one of them counts. Thread-safe.
    """

    stage = driven(_Branch._stage_all)


class AsyncAtomicBranch(_Branch, _Awaits):
    """The twin of :class:`oncelog.AtomicBranch` for asyncio; an asynchronous context manager."""

    stage = _Branch._stage_all


def _checked(name: str, what: str) -> str:
    if not isinstance(name, str):
        raise no_text(name, what)
    if not ATOMIC_ID_PATTERN.fullmatch(name):
        raise InvalidRequest(f"{what} is 1 to 249 of the characters A-Z a-z 0-9 _ . : @ = -, but not . or .., not {name[:100]!r}")
    return name
