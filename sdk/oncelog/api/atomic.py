"""The calls that atomic commits are made of, one method a call. :meth:`oncelog.Client.atomic` is what one wants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

from oncelog.api.calls import as_request, parse, quoted, topic_path
from oncelog.api.publishing import advise
from oncelog.api.transactions import TransactionCalls
from oncelog.errors import RequestTooLarge, TransactionNotInProgress
from oncelog.http.silence import Again
from oncelog.process.procedures import Procedure
from oncelog.values.numbers import check_long, check_timeout, milliseconds
from oncelog.wire.codec import encode_commit_request, encode_publish_request
from oncelog.wire.media import DEFAULT_NAMESPACE, ONCELOG_AVRO
from oncelog.wire.models import AtomicOutcome, BeginAtomic, GroupProducer
from oncelog.wire.requests import CommitRequest, PublishRequest

DEFAULT_GROUP = "default"


class AtomicCalls(TransactionCalls):
    """Atomic commits: messages become readable on all their topics or on none, for readers that know nothing of transactions."""

    # --- the life of one

    async def begin_atomic(
        self,
        group: str = DEFAULT_GROUP,
        *,
        id: str | None = None,  # noqa: A002  # the field's word
        timeout: float | None = None,
        of: str | None = None,
    ) -> AtomicOutcome:
        """Begin a transaction, or a branch ``of`` another one; the same id again begins nothing twice.

        ``id``: else the SDK draws one; ``timeout``: seconds until it is aborted, else the service's setting. Raises
        TransactionExists (it was begun differently), TransactionNotInProgress (the one it is for has ended), InvalidRequest.
        """
        timeout_ms = milliseconds("timeout", timeout)
        id = uuid4().hex if id is None else id  # noqa: A001
        wanted = as_request(BeginAtomic, "an atomic commit", id=id, group=group, timeout_ms=timeout_ms, of=of)
        return parse(AtomicOutcome, await self._post(_ROOT, wanted, idempotent=True))

    async def stage(
        self,
        id: str,  # noqa: A002
        topic: str,
        chunk: int,
        request: PublishRequest,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        """Put messages where no reader finds them, as chunk 0, 1, 2, … of what the transaction has for this topic.

        The same chunk again is stored once. Raises TransactionNotFound, TransactionNotInProgress, TopicNotFound, ChunkReused.
        """
        check_long("chunk", chunk)
        path = f"{topic_path(namespace, topic)}/stage/{quoted(id)}/{chunk}"
        body = encode_publish_request(request)
        try:
            await self._call("PUT", path, body, ONCELOG_AVRO, idempotent=True)
        except RequestTooLarge as error:
            advise(error, body, len(request.payloads))
            raise

    async def commit_atomic(self, id: str, request: CommitRequest, *, retry: float | None = None) -> AtomicOutcome:  # noqa: A002
        """Make it appear on all topics or on none: what was staged, the request's parts, its branches. Idempotent.

        ``retry``: seconds that it is tried again, else the client's. Raises what was refused (OffsetMismatch, SequenceReused,
        ProducerFenced, …: then it is aborted), BranchGone, TransactionNotFound; CommitGone: its number is taken by a commit to a
        topic that was deleted and made anew; TransactionNotInProgress: it was aborted, or committed with something else than this
        request; its cause is what the try before met, as another's transaction that it waited for. Where the error is not
        definite, :meth:`atomic_outcome` knows.
        """
        check_timeout(retry, name="retry")
        path, body = _path(id, "commit"), encode_commit_request(request)
        params = {"gaps": "refuse"} if request.refuses_gaps else None
        waits = Again() if (self._retry if retry is None else retry) else None

        def once() -> Procedure[bytes]:
            return self._transport.ask("POST", path, body, ONCELOG_AVRO, params, waits)

        tries = self._tries(idempotent=True, seconds=retry)
        try:
            return parse(AtomicOutcome, await self._trying(once, idempotent=True, tries=tries))
        except TransactionNotInProgress as error:
            waited_for = tries.last_failure
            if waited_for is None:
                raise
            detail = f"{error.detail}; the try before met this: {waited_for.detail}"
            values = {name: getattr(error, name) for name in error.values}
            raise TransactionNotInProgress(detail, definite=error.definite, **values) from waited_for

    async def abort_atomic(self, id: str) -> AtomicOutcome:  # noqa: A002
        """Drop everything that is staged; idempotent. Raises TransactionNotInProgress, TransactionNotFound."""
        return parse(AtomicOutcome, await self._post(_path(id, "abort"), idempotent=True))

    async def free_atomic(self, id: str) -> None:  # noqa: A002
        """Free an id that somebody else has taken: one in progress is aborted, and what became of it forgotten.

        Its messages stay, and the same commit again is another one. For who operates. Raises TransactionNotFound.
        """
        await self._delete(_path(id))

    # --- what is known about them

    async def atomic_outcome(self, id: str) -> AtomicOutcome:  # noqa: A002
        """Tell what became of it.

        What is answered is durable. Raises TransactionNotFound: it never began, or that is forgotten.
        """
        return parse(AtomicOutcome, await self._get(_path(id)))

    def atomic_transactions(self, group: str | None = None) -> AsyncIterator[AtomicOutcome]:
        """Every one in progress, oldest first, fetched page by page."""
        return self._listed(
            list[AtomicOutcome], _ROOT, lambda each: each.id, None if group is None else {"group": group}, rising=False
        )

    async def group_producer(self, group: str, name: str) -> GroupProducer:
        """The newest commit of a group under a producer's name. Raises GroupProducerNotFound."""
        return parse(GroupProducer, await self._get(_producer_path(group, name)))

    async def forget_group_producer(self, group: str, name: str, *, incarnation: str | None = None) -> None:
        """Forget it: then any sequence id is taken, one that was committed too.

        ``incarnation``: only if its newest commit is of this one. Raises GroupProducerNotFound; ProducerFenced: it is of another.
        """
        await self._delete(_producer_path(group, name), None if incarnation is None else {"incarnation": incarnation})


_ROOT = "/v1/atomic"


def _path(transaction: str, *action: str) -> str:
    return "/".join((_ROOT, quoted(transaction), *action))


def _producer_path(group: str, name: str) -> str:
    return f"{_ROOT}/groups/{quoted(group)}/producers/{quoted(name)}"
