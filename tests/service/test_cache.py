"""The cache holds the end of each log, whole, within its bound."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.log.cache import RecentMessages, TopicCache
from oncelog_service.log.scan import after
from oncelog_service.storage import runs
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import FIRST_ROW_ID, row_id
from oncelog_service.storage.port import Table
from oncelog_service.storage.rows import encode_messages
from oncelog_service.storage.runs import RUN_BYTES, Laying, StoredRun
from tests.service.written import bounds


def ids(begin: int, count: int) -> list[bytes]:
    return [row_id(1000 + number // 3, number % 3) for number in range(begin, begin + count)]


def laid(row_ids: Sequence[bytes], size: int, run_bytes: int = RUN_BYTES) -> list[StoredRun]:
    """The runs of a write: messages with these ids and payloads of this size."""
    laying = Laying(Table.MESSAGE, b"log", 0)
    laying.add(row_ids, encode_messages(Columns([bytes(size)] * len(row_ids)), row_ids, 0))
    with mock.patch.object(runs, "RUN_BYTES", run_bytes):
        return laying.runs


def test_the_oldest_request_of_all_topics_leaves_first_and_one_larger_than_the_bound_is_not_kept() -> None:
    budget = RecentMessages(2_500)
    one, other = budget.topic(), budget.topic()
    for cache, number in ((one, 0), (other, 0), (one, 1)):
        cache.append(laid(ids(number, 1), 700))
    assert (one.messages, other.messages) == (1, 1)
    assert [run.id for run in one.runs(ids(1, 1)[0])] == ids(1, 1)
    one.append(laid(ids(2, 1), 3_000))
    assert (one.messages, other.messages, budget.size) == (0, 0, 0)


@given(
    st.integers(0, 5_000),
    bounds,
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 900)) | st.integers(0, 2), max_size=40),
)
def test_each_cache_is_the_unbroken_end_of_its_log_within_the_bound(
    bound: int, run_bytes: int, history: list[tuple[int, int, int] | int]
) -> None:
    budget = RecentMessages(bound)
    caches = [budget.topic() for _ in range(3)]
    logs: list[list[StoredRun]] = [[], [], []]
    for step in history:
        if isinstance(step, int):
            caches[step].clear()
            continue
        topic, count, size = step
        written = laid(ids(sum(map(len, logs[topic])), count), size, run_bytes)
        logs[topic] += written
        caches[topic].append(written)
        assert budget.size <= bound
    for cache, log in zip(caches, logs, strict=True):
        held = list(cache.runs(FIRST_ROW_ID))
        assert sum(map(len, held)) == cache.messages
        assert held == log[len(log) - len(held) :]
        for number, run in enumerate(held):
            for each in run.ids():
                assert cache.covers(each)
                assert list(cache.runs(each)) == held[number:]
                assert list(cache.runs(after(each))) == held[number + (each == run.id) :]
        assert not cache.covers(FIRST_ROW_ID)
        assert not log[: len(log) - len(held)] or not cache.covers(log[len(log) - len(held) - 1].id)
    assert budget.size == sum(map(size_of, caches))


def size_of(cache: TopicCache) -> int:
    return sum(len(run.data) + 400 for run in cache.runs(FIRST_ROW_ID))


@given(st.sets(st.integers(0, 20)), st.lists(st.integers(1, 4), max_size=4), st.integers(0, 5))
def test_replaced_runs_are_read_in_the_place_of_the_old_ones_and_nothing_else_changes(
    replaced: set[int], blocks: list[int], begin: int
) -> None:
    budget = RecentMessages(10**6)
    cache = budget.topic()
    held: list[StoredRun] = []
    for count in blocks:
        written = [run for each in range(len(held), len(held) + count) for run in laid([row_id(2 * (begin + each), 0)], 3)]
        cache.append(written)
        held += written
    new = {each: laid([each], 3)[0] for each in (row_id(each, 0) for each in sorted(replaced))}
    size = budget.size
    cache.replace([*new.values()])
    assert [*cache.runs(FIRST_ROW_ID)] == [new.get(run.id, run) for run in held]
    assert (budget.size, cache.messages) == (size, len(held))
