"""No request keeps the event loop: what it costs there is bounded, and cut into turns between which others are served."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncelog.wire.codec import encode_commit_request, encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import OpenSubscription
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_service.service import Service
from tests.access.carrying import Carrying
from tests.rest.talk import connected, head, read_answer
from tests.world.service import RunningService, running_service
from tests.world.turns import AT_MOST, Turns, counted

PIPELINE = "oncelog-pipeline: 1"
TOPICS = 200
WAITERS = 5
GRANTS = [*(f"write:other/t*{number}" for number in range(20)), "read:many/t*"]


@pytest.fixture(scope="module")
def many() -> Iterator[RunningService]:
    """A service with many topics that are open, one of which has many producers and subscriptions and holds much back."""

    async def make(service: Service) -> None:
        for number in range(TOPICS):
            await service.opening.topics.changes.create("many", f"t{number}", {})
            log = await service.opening.topics.logs.open("many", f"t{number}")
        for number in range(TOPICS):
            pointer = (await service.opening.transactions.start(TransactionType.LONG)).write_pointer
            await log.publish(PublishRequest([b"m"], write_pointer=pointer, producer=f"p{number}", sequence_ids=[0]))
            await log.subscriptions.open(OpenSubscription(name=f"s{number}", nonce="n"))
        for number in range(TOPICS):
            await service.access.create(f"t{number}", ["read:many/t*"], None)

    with running_service(token="admin", max_transactions_per_principal=2 * TOPICS) as service:
        service.on_loop(make)
        yield service


def publish(service: RunningService, topic: str) -> None:
    Carrying(service.url, "admin").good("POST", f"/v1/namespaces/many/topics/{topic}/publish", json={"messages": ["m"]})


def ask(service: RunningService, after: int, wait: int) -> dict[str, dict[str, int]]:
    """Up to where all of the topics are stable."""
    asked = {"topics": {f"t{number}": {"after": after} for number in range(TOPICS)}, "wait": wait}
    answer: dict[str, dict[str, int]] = Carrying(service.url, "admin").good("POST", "/v1/namespaces/many/offsets", json=asked)
    return answer


def test_a_message_costs_who_waits_for_many_topics_a_few_calls_for_each_that_is_answered(many: RunningService) -> None:
    """A hundred who waited for a thousand topics kept the loop for 22 s."""
    with ThreadPoolExecutor(WAITERS) as pool:
        waiting = [pool.submit(ask, many, 0, 10_000) for _ in range(WAITERS)]
        many.arrived(WAITERS)
        with counted(many.loop) as turns:
            publish(many, "t7")
            answers = [each.result() for each in waiting]
    assert all(len(answer) == TOPICS and answer["t7"]["stable"] == 1 for answer in answers)
    assert turns.longest < AT_MOST, turns.where
    assert turns.calls < 100 * TOPICS * WAITERS


def test_a_message_that_ends_no_wait_costs_a_look_at_its_own_topic(many: RunningService) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, many, 1_000, 10_000)
        many.arrived(1)
        publish(many, "t8")
        with counted(many.loop) as turns:
            publish(many, "t8")
        assert not waiting.done()
        assert turns.calls < 8 * TOPICS
        assert waiting.result()["t8"]["stable"] == 2


def test_a_large_commit_is_digested_beside_the_event_loop(many: RunningService) -> None:
    """With properties that was two thirds of the 43 ms that 64 topics with 150 messages each kept everybody waiting."""
    messages = PublishRequest([b"m"] * 80, properties=[{"a": "b"}] * 80)
    body = encode_commit_request(CommitRequest("g", [Part("many", f"t{number}", messages) for number in range(30)]))
    with counted(many.loop) as turns:
        admin = Carrying(many.url, "admin", **{"content-type": ONCELOG_AVRO})
        admin.good("POST", "/v1/atomic/large/commit", data=body)
    assert turns.longest < 16_000, turns.where


@pytest.mark.parametrize(("wide", "calls"), [("topics", 160), ("branches", 60)])
def test_a_commit_is_judged_and_made_in_a_step_of_a_few_calls_for_each_topic_and_branch(
    many: RunningService, wide: str, calls: int
) -> None:
    """500 topics kept everybody waiting for 82 ms, 1,000 branches for 156."""
    named = [f"{wide}-{number}" for number in range(TOPICS)] if wide == "branches" else []

    async def stage(service: Service) -> None:
        for name in (wide, *named):
            await service.opening.atomic.begin(name, "g", None, None if name == wide else wide)
        for number in range(TOPICS):
            of_p = PublishRequest([b"m"], producer="staged", sequence_ids=[0]) if not named else PublishRequest([b"m"])
            name, topic = (named[number], "t0") if named else (wide, f"t{number}")
            await service.opening.atomic.stage(name, "many", topic, 0, of_p)

    many.on_loop(stage)
    with counted(many.loop) as turns:
        asked = {"parts": [], "branches": named}
        committed = Carrying(many.url, "admin").good("POST", f"/v1/atomic/{wide}/commit", json=asked)
    assert committed["messages"] == TOPICS
    assert turns.longest < calls * TOPICS, turns.where


def test_keys_of_a_change_set_are_sorted_and_encoded_by_the_write(many: RunningService) -> None:
    """Of 20,000 that was half of the 90 ms that they kept everybody waiting."""
    admin = Carrying(many.url, "admin")
    pointer = admin.good("POST", "/v1/transactions")["writePointer"]
    keys = [f"{number:05}" for number in range(5_000)]
    with counted(many.loop) as turns:
        admin.good("POST", f"/v1/transactions/{pointer}/can-commit", json={"changes": keys})
    assert turns.longest < len(keys), turns.where
    admin.good("POST", f"/v1/transactions/{pointer}/abort")


def test_requests_behind_one_another_are_begun_some_at_a_time_and_one_that_has_to_wait_is_not_tried_for_each_behind_it(
    many: RunningService,
) -> None:
    """500 publishes in one read kept everybody waiting for 40 ms; 500 requests behind a repeated one, for 0.8 s."""
    with connected(many.url) as connection, connection.makefile("rb") as stream:

        def ask(*sent: bytes) -> Turns:
            with counted(many.loop) as turns:
                connection.sendall(b"".join(sent))
                assert [read_answer(stream)[0] for _ in sent] == [200] * len(sent)
            return turns

        again = asked(PublishRequest([b""] * 4_000, "again", None, range(4_000)))
        new, small = asked(PublishRequest([b"m"])), head("GET", "/livez", PIPELINE)
        ask(again)
        many_at_once = ask(*[new] * 500)
        assert many_at_once.longest < 25_000, many_at_once.where
        waits = ask(new, again, *[small] * 500)
        assert waits.longest < 16_000, waits.where
        assert waits.calls < 300_000


def asked(request: PublishRequest) -> bytes:
    """A publish, as it is sent with others behind it."""
    body = encode_publish_request(request)
    headers = PIPELINE, "authorization: Bearer admin", f"content-type: {ONCELOG_AVRO}", f"content-length: {len(body)}"
    return head("POST", "/v1/namespaces/many/topics/t9/publish", *headers) + body


LISTS = {
    "/v1/namespaces/many/topics": TOPICS,
    "/v1/namespaces/many/stats": TOPICS,
    f"/v1/namespaces/many/topics/t{TOPICS - 1}/producers": TOPICS,
    f"/v1/namespaces/many/topics/t{TOPICS - 1}/subscriptions": TOPICS,
    f"/v1/namespaces/many/topics/t{TOPICS - 1}/held": TOPICS,
    "/v1/subscriptions": TOPICS,
    "/v1/held": TOPICS,
    "/v1/transactions": TOPICS,
    "/v1/tokens": TOPICS,
}
"""Address → how many it lists."""


def test_names_are_held_against_grants_some_at_a_time(many: RunningService) -> None:
    somebody = Carrying(many.url, "admin").holding("somebody", *GRANTS)
    with counted(many.loop) as turns:
        assert len(somebody.good("GET", "/v1/namespaces/many/topics")) == TOPICS
    assert turns.longest < AT_MOST, turns.where


@pytest.mark.parametrize("path", LISTS)
def test_a_list_gives_others_their_turns(many: RunningService, path: str) -> None:
    with counted(many.loop) as turns:
        found = Carrying(many.url, "admin").good("GET", path)
    assert len(found) >= LISTS[path]
    assert turns.longest < AT_MOST, turns.where


def test_of_many_long_answers_one_has_a_slice_in_each_turn(many: RunningService) -> None:
    """A hundred who were answered by one message had a slice each between two looks at the sockets, 100 to 240 ms."""
    askers = 30
    with ThreadPoolExecutor(askers) as pool, counted(many.loop) as turns:
        asking = [pool.submit(ask, many, 0, 0) for _ in range(askers)]
        assert all(len(each.result()) == TOPICS for each in asking)
    assert turns.longest_round < 6 * AT_MOST
