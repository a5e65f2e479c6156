"""The cache holds the end of each log, whole, within its bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.log.cache import RecentMessages, TopicCache
from oncelog_service.log.scan import after
from oncelog_service.storage.keys import FIRST_ROW_ID, row_id


def ids(begin: int, count: int) -> list[bytes]:
    return [row_id(1000 + number // 3, number % 3) for number in range(begin, begin + count)]


def test_the_oldest_request_of_all_topics_leaves_first_and_one_larger_than_the_bound_is_not_kept() -> None:
    budget = RecentMessages(2_500)
    one, other = budget.topic(), budget.topic()
    for cache, number in ((one, 0), (other, 0), (one, 1)):
        cache.append(ids(number, 1), [bytes(700)])
    assert (one.messages, other.messages) == (1, 1)
    assert list(one.rows(ids(1, 1)[0])) == [(ids(1, 1)[0], bytes(700))]
    one.append(ids(2, 1), [bytes(3_000)])
    assert (one.messages, other.messages, budget.size) == (0, 0, 0)


@given(
    st.integers(0, 3_000),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 900)) | st.integers(0, 2), max_size=40),
)
def test_each_cache_is_the_unbroken_end_of_its_log_within_the_bound(
    bound: int, history: list[tuple[int, int, int] | int]
) -> None:
    budget = RecentMessages(bound)
    caches = [budget.topic() for _ in range(3)]
    logs: list[list[tuple[bytes, bytes]]] = [[], [], []]
    for step in history:
        if isinstance(step, int):
            caches[step].clear()
            continue
        topic, count, size = step
        run = [(each, bytes(size)) for each in ids(len(logs[topic]), count)]
        logs[topic] += run
        caches[topic].append([each for each, _ in run], [row for _, row in run])
        assert budget.size <= bound
    for cache, log in zip(caches, logs, strict=True):
        held = list(cache.rows(FIRST_ROW_ID))
        assert len(held) == cache.messages
        assert held == log[len(log) - len(held) :]
        for number, (each, _) in enumerate(held):
            assert cache.covers(each)
            assert list(cache.rows(each)) == held[number:]
            assert list(cache.rows(after(each))) == held[number + 1 :]
        assert not cache.covers(FIRST_ROW_ID)
        assert not log[: len(log) - len(held)] or not cache.covers(log[len(log) - len(held) - 1][0])
    assert budget.size == sum(map(size_of, caches))


def size_of(cache: TopicCache) -> int:
    return sum(len(row) + 160 for _, row in cache.rows(FIRST_ROW_ID))


@given(st.sets(st.integers(0, 20)), st.lists(st.integers(1, 4), max_size=4), st.integers(0, 5))
def test_replaced_rows_are_read_in_the_place_of_the_old_ones_and_nothing_else_changes(
    replaced: set[int], blocks: list[int], begin: int
) -> None:
    budget = RecentMessages(10**6)
    cache = budget.topic()
    held: dict[bytes, bytes] = {}
    for count in blocks:
        run = [row_id(2 * each, 0) for each in range(begin + len(held), begin + len(held) + count)]
        cache.append(run, [b"old"] * count)
        held |= dict.fromkeys(run, b"old")
    new, size = [row_id(each, 0) for each in sorted(replaced)], budget.size
    cache.replace(new, [b"new"] * len(new))
    assert dict(cache.rows(FIRST_ROW_ID)) == {each: b"new" if each in new else b"old" for each in held}
    assert (budget.size, cache.messages) == (size, len(held))
