"""The addresses of atomic commits: what they answer. Their rules are those of tests/atomic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest
from tests.rest.talk import TIMEOUT, Calls, Topic, assert_problem, done
from tests.world.clock import ManualClock
from tests.world.service import RunningService, running_service


class AtomicCommits(Calls):
    """The atomic commits of a running service."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "/v1/atomic")

    def begin(self, **asked: Any) -> requests.Response:
        return self.request("POST", json={"group": "g", **asked})

    def stage(self, id_: str, topic: str, chunk: int, *messages: str) -> requests.Response:
        path = f"{self.base}/v1/namespaces/default/topics/{topic}/stage/{id_}/{chunk}"
        return self.session.put(path, json={"messages": list(messages)}, timeout=TIMEOUT)

    def commit(self, id_: str, parts: dict[str, dict[str, Any]] | None = None, **fields: Any) -> requests.Response:
        """``parts``: topic → the request for it."""
        carried = [{"namespace": "default", "topic": topic, "request": request} for topic, request in (parts or {}).items()]
        return self.request("POST", f"/{id_}/commit", json={"parts": carried, **fields})

    def abort(self, id_: str) -> requests.Response:
        return self.request("POST", f"/{id_}/abort")

    def show(self, id_: str) -> dict[str, Any]:
        found: dict[str, Any] = self.good("GET", f"/{id_}")
        return found


def good(answer: requests.Response) -> Any:
    return done(answer).json()


def refused(answer: requests.Response, status: int, code: str, **facts: object) -> None:
    problem = assert_problem(answer, status, code)
    assert {name: problem[name] for name in facts} == facts


@pytest.fixture
def running(clock: ManualClock) -> Iterator[RunningService]:
    with running_service(clock=clock) as service:
        yield service


@pytest.fixture
def commits(running: RunningService) -> AtomicCommits:
    return AtomicCommits(running.url)


@pytest.fixture
def left(running: RunningService) -> Topic:
    return Topic(running.url, "left")


@pytest.fixture
def right(running: RunningService) -> Topic:
    return Topic(running.url, "right", **{"check.expected.offsets": "true"})


def test_a_commit_begun_staged_and_committed_with_branches(commits: AtomicCommits, left: Topic, right: Topic) -> None:
    first = good(commits.begin(id="a", timeoutMs=5_000))
    assert (first["state"], first["expiresMs"] - first["beganMs"]) == ("in_progress", 5_000)
    assert good(commits.begin(id="a")) == first
    refused(commits.begin(id="a", group="h"), 409, "transaction_exists", transaction="a", group="g")
    assert good(commits.begin())["id"] not in ("", "a")
    ours = encode_publish_request(PublishRequest([b"x"]))
    bodies = {AVRO: b"\x02\x02\x02x\x00", ONCELOG_AVRO: ours, JSON: b'{"messages":["x"]}'}
    for media, body in bodies.items():
        answer = commits.session.put(f"{left.url}/stage/a/0", data=body, headers={"content-type": media}, timeout=TIMEOUT)
        assert good(answer) is None
    refused(commits.stage("a", "left", 0, "y"), 422, "chunk_reused", topic="default/left", chunk=0)
    refused(commits.stage("a", "left", 2, "z"), 400, "invalid_request")
    for branch in ("b1", "b2"):
        assert good(commits.begin(id=branch, of="a"))["of"] == "a"
        good(commits.stage(branch, "right", 0, branch))
    refused(commits.commit("b1"), 400, "invalid_request")
    refused(commits.commit("a", branches=["never"]), 409, "branch_gone", transaction="a", branch="never")
    assert left.payloads() == right.payloads() == []
    outcome = good(commits.commit("a", {"left": {"messages": ["own"]}}, branches=["b2", "b1"]))
    assert (outcome["state"], outcome["branches"], outcome["messages"]) == ("committed", ["b2", "b1"], 4)
    assert (left.payloads(), right.payloads()) == (["x", "own"], ["b2", "b1"])
    for answer in (commits.abort("a"), commits.stage("a", "left", 0, "b")):
        refused(answer, 409, "transaction_not_in_progress", transaction="a", state="committed")


def test_a_commit_is_deduplicated_under_its_producer_which_can_be_forgotten(commits: AtomicCommits, left: Topic) -> None:
    numbered = {"group": "g", "producer": "p", "sequenceId": 7, "incarnation": "i", "checksum": "c"}
    good(commits.commit("a", {"left": {"messages": ["x", "y"]}}, **numbered))
    again = good(commits.commit("b", {"left": {"messages": ["x", "y"]}}, **{**numbered, "checksum": "other"}))
    assert (again["state"], again["original"], again["messages"], again["checksum"]) == ("duplicate", "a", 2, "c")
    assert left.payloads() == ["x", "y"]
    facts = {"producer": "p", "incarnation": "j", "current_incarnation": "i"}
    refused(commits.commit("d", **{**numbered, "incarnation": "j"}), 403, "producer_fenced", **facts)
    path = "/groups/g/producers/p"
    known = {**numbered, "transaction": "a", "messages": 2, "owner": None}
    went = {"namespace": "default", "topic": "left", "generation": 1, "currentGeneration": 1}
    assert good(commits.request("GET", path)) == {**known, "topics": [went]}
    refused(commits.request("DELETE", path, params={"incarnation": "j"}), 403, "producer_fenced")
    assert good(commits.request("DELETE", path)) is None
    refused(commits.request("GET", path), 404, "group_producer_not_found")
    assert good(commits.commit("e", group="g", producer="p", sequenceId=0, incarnation="j"))["state"] == "committed"


def test_those_that_have_not_ended_are_listed_by_age_and_in_pages(commits: AtomicCommits, clock: ManualClock) -> None:
    for number in range(4):
        clock.advance(1)
        good(commits.begin(id=f"t{number}", group="even" if number % 2 == 0 else "odd"))
    outcome = good(commits.abort("t1"))
    assert (outcome["state"], outcome["reason"]) == ("aborted", "asked")
    assert good(commits.abort("t1")) == outcome == commits.show("t1")
    facts = {"transaction": "t1", "state": "aborted", "reason": "asked"}
    refused(commits.commit("t1"), 409, "transaction_not_in_progress", **facts)
    for query, ids in {"": "023", "group=even": "02", "limit=2": "02", "after=t2": "3", "after=t1&limit=1": "2"}.items():
        assert [each["id"] for each in good(commits.request("GET", f"?{query}"))] == [f"t{number}" for number in ids]
