"""What a task does: the messages of one range of offsets, page by page, the next one fetched while Spark takes this one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING, TypeVar

from oncelog.errors import DataLost, InvalidResponse, OffsetOutOfRange, OncelogError, StaleMessageId, TopicNotFound
from oncelog.spark.options import warn
from oncelog.spark.reading.columns import record_batch
from oncelog.spark.reading.offsets import Loss, Range, loss_at
from oncelog.wire.columns import MessageColumns
from oncelog.wire.models import TopicAsked

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.api.api import Api
    from oncelog.spark.reading.read_options import ReadOptions

T = TypeVar("T")

_UNSETTLED_WAIT = 1.0
"""Seconds of one wait until what was stable is so again."""


def batches(options: ReadOptions, wanted: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of ``wanted`` in order. Raises DataLost where some are gone and failOnDataLoss is on; OncelogError."""
    for page in ahead(pages(options, wanted)):
        if page.messages:
            yield record_batch(wanted.topic, page, schema)


def pages(options: ReadOptions, wanted: Range) -> Iterator[MessageColumns]:
    """The same as the service answers it."""
    client, namespace, left = options.connection.client(), options.connection.namespace, wanted
    while left.first < left.upto:
        page = refusal = None
        try:
            page = client.read_columns(
                left.topic, left.first, left.upto, namespace, generation=left.generation, properties=options.include_headers
            )
        except (OffsetOutOfRange, StaleMessageId, TopicNotFound) as error:
            refusal = error
        if page is None or _begin(page) > left.first:
            # Nothing was there: deleted, expired and passed over, or rolled back, which is no loss.
            first = _behind_what_is_lost(client, options, left, refusal)
            if page is None:
                left = left._replace(first=first)
                continue
        if not left.first < page.next <= left.upto:
            raise InvalidResponse(
                f"asked for offsets {left.first} to {left.upto - 1} of {left.topic}, told to go on at {page.next}"
            )
        yield page
        # Something was read: what is gone from here on was to be read, even where the range began at "the oldest there is".
        left = left._replace(first=page.next, oldest=False)


def _begin(page: MessageColumns) -> int:
    return page.offsets[0].first if page.offsets else page.next


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items; the next one is made on a thread while the consumer has this one."""
    rest, end = iter(items), object()
    pool = ThreadPoolExecutor(1, "oncelog-read-ahead")
    try:
        following = pool.submit(next, rest, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, rest, end)
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a reader that has enough (LIMIT) does not wait for what is under way


def report(losses: Iterable[Loss], fail: bool) -> None:
    """Say what is lost: DataLost is raised, or, without ``failOnDataLoss``, it is a warning."""
    for loss in losses:
        if fail:
            raise DataLost(
                f"{loss}. To go on without them, set option failOnDataLoss to false",
                topic=loss.topic,
                first=loss.first,
                earliest=loss.earliest,
            )
        warn(f"oncelog source: {loss}; going on without them (failOnDataLoss is false)")


def _behind_what_is_lost(client: Api, options: ReadOptions, wanted: Range, refusal: OncelogError | None) -> int:
    """Where to go on: behind what is lost, or at the same offset, after a refusal once what was stable is so again."""
    asked = {wanted.topic: TopicAsked(after=wanted.upto - 1)}
    deadline, wait = inf, 0.0
    while True:
        try:
            known = client.offsets(asked, options.connection.namespace, wait=wait)[wanted.topic]
        except TopicNotFound:
            report([Loss(wanted.topic, wanted.first, wanted.upto, gone=True)], options.fail_on_data_loss)
            return wanted.upto
        loss = loss_at(wanted.topic, wanted.first, wanted.generation, known)
        if loss is not None:
            loss = loss._replace(earliest=min(loss.earliest, wanted.upto))
            report([loss] if loss.anew or not wanted.oldest else [], options.fail_on_data_loss)
            return wanted.upto if loss.anew else loss.earliest
        if refusal is None or known.stable >= wanted.upto:
            return wanted.first
        # A service that was restarted may take a while to ask how transactions ended that had ended before.
        if time.monotonic() > deadline:
            raise refusal
        # From the first answer on: until then it was tried whether anybody is there.
        deadline, wait = min(deadline, time.monotonic() + options.connection.retry_seconds), _UNSETTLED_WAIT
