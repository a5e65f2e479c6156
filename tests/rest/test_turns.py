"""No request keeps the event loop: what it costs there is bounded, and cut into turns between which others are served."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncelog_service.service import Service
from tests.rest.talk import Calls, Topic
from tests.world.service import RunningService, running_service
from tests.world.turns import AT_MOST, counted

TOPICS = 300
WAITERS = 5


@pytest.fixture(scope="module")
def many() -> Iterator[RunningService]:
    """A service with many topics that are open."""

    async def make(service: Service) -> None:
        for number in range(TOPICS):
            await service.topics.create("many", f"t{number}", {})
            await service.topics.open("many", f"t{number}")

    with running_service() as service:
        service.on_loop(make)
        yield service


def ask(service: RunningService, after: int, wait: int) -> dict[str, dict[str, int]]:
    """Up to where all of the topics are stable."""
    asked = {"topics": {f"t{number}": {"after": after} for number in range(TOPICS)}, "wait": wait}
    answer: dict[str, dict[str, int]] = Calls(service.url, "/v1/namespaces/many").good("POST", "/offsets", json=asked)
    return answer


def test_a_message_costs_who_waits_for_many_topics_a_few_calls_for_each_that_is_answered(many: RunningService) -> None:
    """A hundred who waited for a thousand topics kept the loop for 22 s."""
    with ThreadPoolExecutor(WAITERS) as pool:
        waiting = [pool.submit(ask, many, 0, 10_000) for _ in range(WAITERS)]
        many.arrived(WAITERS)
        with counted(many.loop) as turns:
            Topic(many.url, "t7", "many", create=False).publish("m")
            answers = [each.result() for each in waiting]
    assert all(len(answer) == TOPICS and answer["t7"]["stable"] == 1 for answer in answers)
    assert turns.longest < AT_MOST, turns.where
    assert turns.calls < 100 * TOPICS * WAITERS


def test_a_message_that_ends_no_wait_costs_a_look_at_its_own_topic(many: RunningService) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, many, 1_000, 10_000)
        many.arrived(1)
        topic = Topic(many.url, "t8", "many", create=False)
        topic.publish("m")
        with counted(many.loop) as turns:
            topic.publish("m")
        assert not waiting.done()
        assert turns.calls < 5 * TOPICS
        assert waiting.result()["t8"]["stable"] == 2
