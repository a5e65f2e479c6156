"""A publish that is answered in one step, and one that goes the long way: alike in every answer, over the same history."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest
from oncelog_service.rest.exchange import Step
from oncelog_service.rest.handlers.messages import PublishStep
from tests.rest.talk import connected, head, read_answer
from tests.world.disk import FAULTS, Fault, arm
from tests.world.house import House

TOPICS = ("t", "keyed", "full", "none")
"""Plain; one that checks expectations; one that refuses more at some point; one that is not there."""


class Ask(NamedTuple):
    """A publish over one of some connections."""

    connection: int
    topic: str
    producer: str | None
    step: int
    """From the producer's last sequence id that was sent to the first of this request."""
    messages: int
    epoch: int | None
    expected: int | None


asks = st.builds(
    Ask,
    st.integers(0, 2),
    st.sampled_from(TOPICS + ("t",) * 6),
    st.sampled_from([None, "p", "p", "q", "q", "strict", "no name", "x" * 250]),
    st.sampled_from([1, 1, 1, 1, 0, -1, -3, 2, 5]),
    st.sampled_from([1, 1, 1, 2, 5, 41]),
    st.sampled_from([None] * 8 + [1, 2, -1]),
    st.sampled_from([None] * 8 + [0, 3]),
)
moments = st.lists(st.lists(asks, min_size=1, max_size=4) | st.sampled_from(FAULTS), min_size=15, max_size=30)
"""What is asked at once, of connections that are free; or that the next write fails."""


class Told(NamedTuple):
    """An answer, without what is another one each time."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def history(moments: list[list[Ask] | Fault], *, steps: bool) -> tuple[list[Told], list[Any], int]:
    """All answers; what is in the logs then, and how many requests were done in a step."""
    stepped = 0
    begin = PublishStep.begin

    def counted(self: PublishStep, behind: Step | None = None) -> bool:
        nonlocal stepped
        done = steps and begin(self, behind)
        stepped += done
        return done

    found: list[Told] = []
    with House() as house, ExitStack() as life, pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublishStep, "begin", counted)
        house.make("t")
        house.make("keyed", **{"check.expected.offsets": "true"})
        house.make("full", **{"max.bytes": "400"})
        house.make("t").open_producer("strict", "n", gaps="refuse")
        sockets = [life.enter_context(connected(house.service.url)) for _ in range(3)]
        streams = [each.makefile("rb") for each in sockets]
        last: dict[tuple[str, str | None], int] = {}
        for moment in moments:
            if isinstance(moment, str):
                arm(house.disk, moment, 0)
                continue
            free = {each.connection: each for each in reversed(moment)}
            for ask in free.values():
                sockets[ask.connection].sendall(sent(ask, last))
            for connection in free:
                status, headers, body = read_answer(streams[connection])
                kept = sorted(each for each in headers.items() if each[0] not in ("x-request-id", "date"))
                found.append(Told(status, tuple(kept), body.replace(b"\n", b"")))
            if found[-1].status >= 500:
                house.healthy()
        house.healthy()
        logs = [house.make(name).read() for name in TOPICS[:3]]
        life.close()
    return found, logs, stepped


def sent(ask: Ask, last: dict[tuple[str, str | None], int]) -> bytes:
    key = ask.topic, ask.producer
    ids = None
    if ask.producer is not None:
        first = max(0, last.get(key, -1) + ask.step)
        ids = range(first, first + ask.messages)
        last[key] = max(last.get(key, -1), ids[-1])
    payloads = [b"%d" % each for each in ids or range(ask.messages)]
    epoch = None if ask.producer is None else ask.epoch
    request = PublishRequest(payloads, ask.producer, epoch, ids, expected_offset=ask.expected)
    body = encode_publish_request(request)
    path = f"/v1/namespaces/default/topics/{ask.topic}/publish"
    return head("POST", path, f"content-type: {ONCELOG_AVRO}", f"content-length: {len(body)}") + body


@settings(deadline=None, max_examples=10)
@given(moments)
def test_a_step_and_the_long_way_answer_alike(moments: list[list[Ask] | Fault]) -> None:
    quick, long = history(moments, steps=True), history(moments, steps=False)
    assert quick[0] == long[0]
    assert quick[1] == long[1]
    assert long[2] == 0
    assert quick[2] or not any(each.status == 200 for each in quick[0])
