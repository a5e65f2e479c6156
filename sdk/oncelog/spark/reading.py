"""What a task does: the messages of one range of offsets, page by page, the next one fetched while Spark takes this one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from oncelog.errors import DataLost, InvalidResponse, OffsetOutOfRange, OncelogError, StaleMessageId
from oncelog.spark.columns import record_batch
from oncelog.spark.offsets import Loss, Range, loss_at
from oncelog.spark.options import warn
from oncelog.wire.columns import MessageColumns
from oncelog.wire.models import TopicAsked

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.client import Client
    from oncelog.spark.read_options import ReadOptions

T = TypeVar("T")

_UNSETTLED_WAIT = 1.0
"""Seconds of one wait until what was settled is so again."""


def batches(options: ReadOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The messages of ``wanted`` in order. Raises DataLost where some are gone and failOnDataLoss is on; OncelogError."""
    for page in ahead(pages(options, wanted)):
        if page.messages:
            yield record_batch(wanted.topic, page, options.include_headers)


def pages(options: ReadOptions, wanted: Range) -> Iterator[MessageColumns]:
    """The same as the service answers it."""
    client, namespace = options.connection.client(), options.connection.namespace
    topic, first, upto, generation = wanted
    while first < upto:
        try:
            page = client.read_columns(topic, first, upto, namespace, generation=generation, properties=options.include_headers)
        except (OffsetOutOfRange, StaleMessageId) as error:
            first = _behind_what_is_lost(client, options, wanted._replace(first=first), error)
            continue
        if not first < page.next <= upto:
            raise InvalidResponse(f"asked for offsets {first} to {upto - 1} of {topic}, told to go on at {page.next}")
        yield page
        first = page.next


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


def _behind_what_is_lost(client: Client, options: ReadOptions, wanted: Range, refusal: OncelogError) -> int:
    """Where to go on after a refusal: behind what is lost, or at the same place once what was settled is so again."""
    topic, first, upto, generation = wanted
    deadline = time.monotonic() + options.connection.retry_seconds
    while True:
        known = client.offsets({topic: TopicAsked(after=upto - 1)}, options.connection.namespace, wait=_UNSETTLED_WAIT)[topic]
        loss = loss_at(topic, first, generation, known)
        if loss is not None:
            report([loss], options.fail_on_data_loss)
            return upto if loss.anew else min(loss.earliest, upto)
        if known.settled >= upto:
            return first
        # A service that was restarted may take a while to ask how transactions ended that had ended before.
        if time.monotonic() > deadline:
            raise refusal
