"""What one task attempt stages: a branch, filled by a thread while the next rows are made ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from oncelog.errors import OncelogError, TransactionNotFound, TransactionNotInProgress
from oncelog.spark.options import logger
from oncelog.spark.writing.refusals import explained

if TYPE_CHECKING:
    from oncelog.api.api import Api
    from oncelog.spark.writing.write_options import WriteOptions
    from oncelog.wire.requests import PublishRequest

UNDER_WAY = 2
"""Chunks that are ready or on their way while the next one is made: one is sent, one waits for it."""
QUIET_SECONDS = 2.0
"""How long it is tried to drop what would be dropped in time anyway."""


class Branch:
    """Is begun with the first chunk."""

    def __init__(self, options: WriteOptions, branch: str, commit: str) -> None:
        """``commit``: id of the atomic commit that it is for."""
        self._options = options
        self._client = options.connection.client()
        self._branch = branch
        self._commit = commit
        self._begun = False
        self._failure: OncelogError | None = None
        self._chunks: dict[str, int] = {}
        self._under_way: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, "oncelog-stage")

    @classmethod
    @contextmanager
    def filled(cls, options: WriteOptions, branch: str, commit: str) -> Iterator[Branch]:
        """A branch: when the block ends, all of it is durable; when it raises, it is dropped. Raises OncelogError."""
        made = cls(options, branch, commit)
        try:
            yield made
            while made._under_way:
                made._under_way.popleft().result()
        except BaseException:
            made._drop()
            raise
        finally:
            made._thread.shutdown(cancel_futures=True)

    def send(self, topic: str, request: PublishRequest) -> None:
        """Have it staged behind what was sent before. Raises OncelogError: an earlier one was refused, or did not arrive."""
        while len(self._under_way) >= UNDER_WAY:
            self._under_way.popleft().result()
        self._under_way.append(self._thread.submit(self._stage, topic, request))

    def _stage(self, topic: str, request: PublishRequest) -> None:
        if self._failure is not None:
            raise self._failure  # what comes behind a hole would be refused for that
        try:
            if not self._begun:
                self._begun = True  # perhaps, also where this fails
                options = self._options
                self._client.begin_atomic(options.group, id=self._branch, timeout=options.staging_timeout, of=self._commit)
            chunk = self._chunks.get(topic, 0)
            self._client.stage(self._branch, topic, chunk, request, self._options.connection.namespace)
            self._chunks[topic] = chunk + 1
        except OncelogError as error:
            self._failure = explained(error, self._options, topic, request)
            raise self._failure from error

    def _drop(self) -> None:
        for each in self._under_way:
            each.cancel()
        self._thread.shutdown()
        if self._begun:
            abort_quietly(self._options, [self._branch])


def abort_quietly(
    options: WriteOptions, branches: Iterable[str], prefix: str | None = None, upto_batch: int | None = None
) -> None:
    """Drop branches: these, and those whose ids begin with ``prefix``, up to ``upto_batch``, the number behind it.

    What is committed, or is going to be, is left alone: the service refuses. What it does not hear of
    now goes when its time is up.
    """
    client = replace(options.connection, retry_seconds=min(QUIET_SECONDS, options.connection.retry_seconds)).client()
    try:
        for branch in branches:
            _abort(client, branch)
        if prefix is not None:
            for branch in [each.id for each in client.atomic_transactions(options.group) if each.id.startswith(prefix)]:
                number = branch.removeprefix(prefix).partition(".")[0]
                if upto_batch is None or (number.isdigit() and int(number) <= upto_batch):
                    _abort(client, branch)
    except OncelogError as error:
        logger.info("what is staged and not committed will be dropped when its time is up: %s", error)


def _abort(client: Api, branch: str) -> None:
    with suppress(TransactionNotInProgress, TransactionNotFound):  # it is committed, or gone
        client.abort_atomic(branch)
