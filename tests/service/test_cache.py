"""The cache holds the end of each log, whole, within its bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.log.cache import RecentMessages, TopicCache
from oncelog_service.log.scan import after
from oncelog_service.storage.keys import FIRST_ROW_ID, row_id


def ids(begin: int, count: int) -> list[bytes]:
    return [row_id(1000 + number // 3, number % 3) for number in range(begin, begin + count)]


def test_what_was_appended_is_read_from_any_place() -> None:
    cache = RecentMessages(10**6).topic()
    cache.append(ids(0, 4), [b"0", b"1", b"2", b"3"])
    cache.append(ids(4, 2), [b"4", b"5"])
    everything = list(zip(ids(0, 6), [b"0", b"1", b"2", b"3", b"4", b"5"], strict=True))
    assert list(cache.rows(FIRST_ROW_ID)) == everything
    for number, each in enumerate(ids(0, 6)):
        assert cache.covers(each)
        assert list(cache.rows(each)) == everything[number:]
        assert list(cache.rows(after(each))) == everything[number + 1 :]


def test_an_empty_cache_covers_nothing() -> None:
    assert not RecentMessages(10**6).topic().covers(ids(0, 1)[0])


def test_what_lies_before_the_oldest_message_held_is_not_covered() -> None:
    cache = RecentMessages(10**6).topic()
    cache.append(ids(3, 2), [b"3", b"4"])
    assert not cache.covers(ids(2, 1)[0])
    assert not cache.covers(FIRST_ROW_ID)


def test_a_request_larger_than_the_bound_is_not_kept() -> None:
    budget = RecentMessages(1_000)
    cache = budget.topic()
    cache.append(ids(0, 1), [bytes(10)])
    cache.append(ids(1, 1), [bytes(2_000)])
    assert (cache.messages, budget.size) == (0, 0)
    assert not cache.covers(ids(1, 1)[0])


def test_the_oldest_request_of_all_topics_leaves_first() -> None:
    budget = RecentMessages(2_500)
    one, other = budget.topic(), budget.topic()
    one.append(ids(0, 1), [bytes(700)])
    other.append(ids(0, 1), [bytes(700)])
    one.append(ids(1, 1), [bytes(700)])
    assert (one.messages, other.messages) == (1, 1)
    assert list(one.rows(ids(1, 1)[0])) == [(ids(1, 1)[0], bytes(700))]


def test_a_topic_that_is_closed_gives_its_share_back() -> None:
    budget = RecentMessages(10**6)
    one, other = budget.topic(), budget.topic()
    one.append(ids(0, 1), [bytes(700)])
    other.append(ids(0, 1), [bytes(300)])
    before = budget.size
    one.clear()
    assert (one.messages, other.messages) == (0, 1)
    assert 0 < budget.size < before - 700
    other.clear()
    assert budget.size == 0


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
        assert all(cache.covers(each) for each, _ in held)
    assert budget.size == sum(map(size_of, caches))


def size_of(cache: TopicCache) -> int:
    return sum(len(row) + 160 for _, row in cache.rows(FIRST_ROW_ID))


# --- rows that change in place


def test_a_replaced_row_is_read_in_the_place_of_the_old_one_and_nothing_else_moves() -> None:
    budget = RecentMessages(10**6)
    cache = budget.topic()
    cache.append(ids(0, 4), [b"0", b"1", b"2", b"3"])
    cache.append(ids(4, 2), [b"4", b"5"])
    size = budget.size
    cache.replace([ids(1, 1)[0], *ids(3, 2)], [b"a", b"b", b"c"])
    assert [row for _, row in cache.rows(FIRST_ROW_ID)] == [b"0", b"a", b"2", b"b", b"c", b"5"]
    assert [each for each, _ in cache.rows(FIRST_ROW_ID)] == ids(0, 6)
    assert (budget.size, cache.messages) == (size, 6)


@given(st.sets(st.integers(0, 20)), st.lists(st.integers(1, 4), max_size=4), st.integers(0, 5))
def test_replacing_rows_that_are_not_held_changes_nothing(replaced: set[int], blocks: list[int], begin: int) -> None:
    cache = RecentMessages(10**6).topic()
    held: dict[bytes, bytes] = {}
    for count in blocks:
        run = [row_id(2 * each, 0) for each in range(begin + len(held), begin + len(held) + count)]
        cache.append(run, [b"old"] * count)
        held |= dict.fromkeys(run, b"old")
    new = [row_id(each, 0) for each in sorted(replaced)]
    cache.replace(new, [b"new"] * len(new))
    assert dict(cache.rows(FIRST_ROW_ID)) == {each: b"new" if each in new else b"old" for each in held}
