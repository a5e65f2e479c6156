"""The addresses of atomic commits: what they answer, and that whatever is wrong with a request is a definite 4xx."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from oncelog.wire.codec import encode_commit_request, encode_publish_request
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog_service.rest.table import JOURNAL_ROUTES
from oncelog_service.service import Service
from tests.rest.talk import ANY, TIMEOUT, Topic, assert_problem
from tests.support import ManualClock, RunningService, running_service


class Journal:
    """The atomic commits of a running service."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False

    def request(self, method: str, path: str = "", **options: Any) -> requests.Response:
        return self.session.request(method, f"{self.url}/v1/journal{path}", timeout=TIMEOUT, **options)

    def begin(self, **asked: Any) -> requests.Response:
        return self.request("POST", json={"group": "g", **asked})

    def begun(self, id_: str, **asked: Any) -> str:
        """Begin, which must succeed."""
        assert good(self.begin(id=id_, **asked))["state"] == "in_progress"
        return id_

    def stage(self, id_: str, topic: str, chunk: int | str, *messages: str, **fields: Any) -> requests.Response:
        path = f"{self.url}/v1/namespaces/default/topics/{topic}/stage/{id_}/{chunk}"
        return self.session.put(path, json={"messages": list(messages), **fields}, timeout=TIMEOUT)

    def staged(self, id_: str, topic: str, chunk: int, *messages: str, **fields: Any) -> None:
        """Stage, which must succeed."""
        assert good(self.stage(id_, topic, chunk, *messages, **fields)) is None

    def commit(self, id_: str, parts: dict[str, dict[str, Any]] | None = None, **fields: Any) -> requests.Response:
        """``parts``: topic → the request for it."""
        carried = [{"namespace": "default", "topic": topic, "request": request} for topic, request in (parts or {}).items()]
        return self.request("POST", f"/{id_}/commit", json={"parts": carried, **fields})

    def abort(self, id_: str) -> requests.Response:
        return self.request("POST", f"/{id_}/abort")

    def show(self, id_: str) -> dict[str, Any]:
        found: dict[str, Any] = good(self.request("GET", f"/{id_}"))
        return found

    def listed(self, **query: Any) -> list[str]:
        return [each["id"] for each in good(self.request("GET", params=query))]


def good(answer: requests.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def placed(outcome: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    """Topic → how many messages, from which offset on."""
    return {each["topic"]: (each["messages"], each["firstOffset"]) for each in outcome["topics"]}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def running(clock: ManualClock) -> Iterator[RunningService]:
    with running_service(clock=clock) as service:
        yield service


@pytest.fixture
def journal(running: RunningService) -> Journal:
    return Journal(running.url)


@pytest.fixture
def left(running: RunningService) -> Topic:
    return Topic(running.url, "left")


@pytest.fixture
def right(running: RunningService) -> Topic:
    return Topic(running.url, "right", **{"check.expected.offsets": "true"})


# --- the life of an atomic commit ---------------------------------------------------------------------------------------


def test_one_request_commits_to_several_topics(journal: Journal, left: Topic, right: Topic) -> None:
    left.publish("before")
    outcome = good(journal.commit("a", {"left": {"messages": ["l1", "l2"]}, "right": {"messages": ["r"]}}, group="g"))
    assert (outcome["id"], outcome["group"], outcome["state"], outcome["messages"]) == ("a", "g", "committed", 3)
    assert placed(outcome) == {"left": (2, 1), "right": (1, 0)}
    assert left.payloads() == ["before", "l1", "l2"]
    assert right.payloads() == ["r"]
    assert {each["topic"]: each["firstMessageId"] for each in outcome["topics"]} == {
        "left": left.read()[1]["id"].encode("latin-1").hex(),
        "right": right.read()[0]["id"].encode("latin-1").hex(),
    }
    assert journal.show("a") == outcome
    assert journal.listed() == []


@pytest.mark.parametrize("media", [ONCELOG_AVRO, JSON])
def test_a_commit_means_the_same_in_both_media_types(journal: Journal, left: Topic, media: str) -> None:
    avro = encode_commit_request(
        CommitRequest(
            "g", [Part("default", "left", PublishRequest([b"a", b"\xff"], keys=[b"k", None]))], producer="p", sequence_id=5
        )
    )
    as_json = (
        b'{"group": {"string": "g"}, "producer": "p", "sequenceId": {"long": 5}, "parts": [{"namespace": "default", "topic": '
        b'"left", "request": {"messages": ["a", "\\u00ff"], "keys": ["k", null]}}]}'
    )
    body = avro if media == ONCELOG_AVRO else as_json
    outcome = good(journal.request("POST", "/a/commit", data=body, headers={"content-type": media}))
    assert (outcome["state"], outcome["producer"], outcome["sequenceId"]) == ("committed", "p", 5)
    assert [(each["payload"], each["key"]) for each in left.read()] == [("a", {"bytes": "k"}), ("\xff", None)]


def test_a_begin_is_idempotent_by_its_id(journal: Journal) -> None:
    first = good(journal.begin(id="a", timeoutMs=5_000))
    assert (first["state"], first["expiresMs"] - first["beganMs"]) == ("in_progress", 5_000)
    assert good(journal.begin(id="a")) == first
    assert good(journal.begin())["id"] not in ("", "a")
    problem = assert_problem(journal.begin(id="a", group="h"), 409, "transaction_exists")
    assert (problem["transaction"], problem["group"]) == ("a", "g")
    assert_problem(journal.begin(id="a", of="b"), 409, "transaction_exists")


def test_what_is_staged_is_seen_by_nobody_and_appears_in_the_order_of_its_chunks(
    journal: Journal, left: Topic, right: Topic
) -> None:
    journal.begun("a")
    journal.staged("a", "left", 0, "1", "2")
    journal.staged("a", "right", 0, "r")
    journal.staged("a", "left", 1, "3")
    assert left.payloads() == right.payloads() == []
    assert [each["topic"] for each in journal.show("a")["topics"]] == ["left", "right"]
    outcome = good(journal.commit("a", {"left": {"messages": ["4"]}}))
    assert placed(outcome) == {"left": (4, 0), "right": (1, 0)}
    assert left.payloads() == ["1", "2", "3", "4"]
    assert right.payloads() == ["r"]


@pytest.mark.parametrize("media", [AVRO, ONCELOG_AVRO, JSON])
def test_a_chunk_that_comes_again_is_staged_once(journal: Journal, left: Topic, media: str) -> None:
    journal.begun("a")
    bodies = {
        AVRO: b"\x02\x02\x02x\x00",
        ONCELOG_AVRO: encode_publish_request(PublishRequest([b"x"])),
        JSON: b'{"messages":["x"]}',
    }
    for _ in range(2):
        path = f"{left.url}/stage/a/0"
        answer = journal.session.put(path, data=bodies[media], headers={"content-type": media}, timeout=TIMEOUT)
        assert good(answer) is None
    problem = assert_problem(journal.stage("a", "left", 0, "y"), 422, "chunk_reused")
    assert (problem["topic"], problem["chunk"]) == ("default/left", 0)
    assert_problem(journal.stage("a", "left", 2, "z"), 400, "invalid_request")
    assert placed(good(journal.commit("a"))) == {"left": (1, 0)}
    assert left.payloads() == ["x"]


def test_a_commit_answers_the_same_again(journal: Journal, left: Topic) -> None:
    commit = {"left": {"messages": ["a"]}}
    outcome = good(journal.commit("a", commit, group="g"))
    assert good(journal.commit("a", commit, group="g")) == outcome
    assert left.payloads() == ["a"]
    for answer in (journal.abort("a"), journal.stage("a", "left", 0, "b")):
        problem = assert_problem(answer, 409, "transaction_not_in_progress")
        assert (problem["transaction"], problem["state"]) == ("a", "committed")


def test_what_is_aborted_is_never_seen_and_stays_so(journal: Journal, left: Topic) -> None:
    journal.begun("a")
    journal.staged("a", "left", 0, "x")
    outcome = good(journal.abort("a"))
    assert (outcome["state"], outcome["reason"]) == ("aborted", "asked")
    assert good(journal.abort("a")) == outcome == journal.show("a")
    for answer in (journal.commit("a"), journal.stage("a", "left", 1, "y")):
        problem = assert_problem(answer, 409, "transaction_not_in_progress")
        assert (problem["transaction"], problem["state"], problem["reason"]) == ("a", "aborted", "asked")
    assert left.payloads() == []


def test_what_is_not_committed_in_time_is_aborted(
    journal: Journal, left: Topic, running: RunningService, clock: ManualClock
) -> None:
    journal.begun("a", timeoutMs=1_000)
    journal.staged("a", "left", 0, "x")
    clock.advance(1_001)

    async def round_(service: Service) -> None:
        await service.journal.once()

    running.on_loop(round_)
    assert (journal.show("a")["state"], journal.show("a")["reason"]) == ("aborted", "timed_out")
    assert assert_problem(journal.commit("a"), 409, "transaction_not_in_progress")["reason"] == "timed_out"


# --- branches -----------------------------------------------------------------------------------------------------------


def test_a_commit_takes_the_branches_that_it_names_in_their_order_and_no_other(journal: Journal, left: Topic) -> None:
    journal.begun("a")
    for branch in ("b1", "b2", "b3"):
        assert good(journal.begin(id=branch, of="a"))["of"] == "a"
        journal.staged(branch, "left", 0, branch)
    journal.staged("a", "left", 0, "own")
    outcome = good(journal.commit("a", branches=["b3", "b1"]))
    assert (outcome["state"], outcome["branches"], outcome["messages"]) == ("committed", ["b3", "b1"], 3)
    assert left.payloads() == ["own", "b3", "b1"]
    assert (journal.show("b3")["state"], journal.show("b3")["of"]) == ("committed", "a")


def test_a_commit_that_names_a_branch_that_is_gone_is_refused_and_can_be_made_again(journal: Journal, left: Topic) -> None:
    journal.begun("a")
    journal.begun("b", of="a")
    journal.staged("b", "left", 0, "x")
    good(journal.abort("b"))
    for branch in ("b", "never"):
        problem = assert_problem(journal.commit("a", branches=[branch]), 409, "branch_gone")
        assert (problem["transaction"], problem["branch"]) == ("a", branch)
    assert journal.show("a")["state"] == "in_progress"
    assert good(journal.commit("a"))["state"] == "committed"
    assert left.payloads() == []
    assert_problem(journal.begin(id="late", of="a"), 409, "transaction_not_in_progress")


def test_a_branch_is_not_committed_by_itself(journal: Journal) -> None:
    journal.begun("b", of="a")
    assert_problem(journal.commit("b"), 400, "invalid_request")


# --- judged as a whole --------------------------------------------------------------------------------------------------


def test_a_commit_with_a_known_sequence_id_is_a_duplicate_and_stores_nothing(journal: Journal, left: Topic) -> None:
    numbered = {"group": "g", "producer": "p", "sequenceId": 7, "incarnation": "i", "checksum": "c"}
    first = good(journal.commit("a", {"left": {"messages": ["x", "y"]}}, **numbered))
    assert (first["producer"], first["sequenceId"], first["incarnation"], first["checksum"]) == ("p", 7, "i", "c")
    again = good(journal.commit("b", {"left": {"messages": ["x", "y"]}}, **{**numbered, "checksum": "other"}))
    assert (again["state"], again["original"], again["messages"], again["checksum"]) == ("duplicate", "a", 2, "c")
    assert good(journal.commit("c", **{**numbered, "sequenceId": 6}))["state"] == "duplicate"
    assert left.payloads() == ["x", "y"]
    problem = assert_problem(journal.commit("d", **{**numbered, "incarnation": "j"}), 403, "producer_fenced")
    assert (problem["producer"], problem["incarnation"], problem["current_incarnation"]) == ("p", "j", "i")


def test_a_producer_of_a_group_is_shown_and_forgotten(journal: Journal) -> None:
    path = "/groups/g/producers/p"
    for method in ("GET", "DELETE"):
        assert_problem(journal.request(method, path), 404, "group_producer_not_found")
    good(journal.commit("a", group="g", producer="p", sequenceId=7, incarnation="i"))
    assert good(journal.request("GET", path)) == {
        "group": "g",
        "producer": "p",
        "sequenceId": 7,
        "incarnation": "i",
        "transaction": "a",
        "messages": 0,
        "checksum": None,
    }
    assert good(journal.request("DELETE", path)) is None
    assert_problem(journal.request("GET", path), 404, "group_producer_not_found")
    assert good(journal.commit("b", group="g", producer="p", sequenceId=0, incarnation="j"))["state"] == "committed"


def test_a_condition_that_does_not_hold_refuses_the_commit_on_every_topic(journal: Journal, left: Topic, right: Topic) -> None:
    right.publish("r")
    parts = {"left": {"messages": ["l"]}, "right": {"messages": ["s"], "expectedOffset": 0}}
    for _ in range(2):
        problem = assert_problem(journal.commit("a", parts, group="g"), 412, "offset_mismatch")
        assert (problem["condition"], problem["expected"], problem["actual"]) == ("offset", 0, 1)
        assert problem["topic"] == "default/right"
    assert (journal.show("a")["state"], journal.show("a")["reason"]) == ("aborted", "offset_mismatch")
    assert (left.payloads(), right.payloads()) == ([], ["r"])
    parts["right"]["expectedOffset"] = 1
    assert placed(good(journal.commit("b", parts, group="g"))) == {"left": (1, 0), "right": (1, 1)}
    unchecked = {"left": {"messages": ["l"], "expectedOffset": 1}}
    assert_problem(journal.commit("c", unchecked, group="g"), 409, "expectations_not_checked")


# --- lists --------------------------------------------------------------------------------------------------------------


def test_those_that_have_not_ended_are_listed_by_age_and_in_pages(journal: Journal, clock: ManualClock) -> None:
    for number in range(4):
        clock.advance(1)
        journal.begun(f"t{number}", group="even" if number % 2 == 0 else "odd")
    good(journal.abort("t1"))
    assert journal.listed() == ["t0", "t2", "t3"]
    assert journal.listed(group="even") == ["t0", "t2"]
    assert journal.listed(limit=2) == ["t0", "t2"]
    assert journal.listed(after="t2") == ["t3"]
    assert journal.listed(after="t1", limit=1) == ["t2"]


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refusing(shared: RunningService) -> Iterator[Journal]:
    """Of one service for all refusals, none of which leaves a transaction behind."""
    Topic(shared.url, "t")
    journal = Journal(shared.url)
    yield journal
    assert journal.listed() == []
    assert journal.session.get(shared.url + "/healthz", timeout=TIMEOUT).status_code == 200


@pytest.mark.parametrize("route", [route for route in JOURNAL_ROUTES if "{" in route.path], ids=lambda route: route.path)
@pytest.mark.parametrize("name", ["a%20b", "caf%C3%A9", "x" * 250, "%ff", "a%00", "a%0A", "%E2%80%AE"])
def test_a_name_that_is_none_is_refused_on_every_address(refusing: Journal, route: Any, name: str) -> None:
    for part in ("transaction", "group", "producer"):
        if f"{{{part}}}" in route.path:
            path = route.path.replace(f"{{{part}}}", "NAME").format(**ANY).replace("NAME", name)
            body = b'{"messages":["a"]}' if route.method == "PUT" else b"{}" if route.request else b""
            answer = refusing.session.request(
                route.method, refusing.url + path, data=body, headers={"content-type": JSON}, timeout=TIMEOUT
            )
            assert_problem(answer, 400, "invalid_request")


def test_a_transaction_that_nobody_began_is_not_found(refusing: Journal) -> None:
    answers = [
        refusing.request("GET", "/never"),
        refusing.commit("never"),
        refusing.abort("never"),
        refusing.stage("never", "t", 0, "a"),
    ]
    for answer in answers:
        assert assert_problem(answer, 404, "transaction_not_found")["transaction"] == "never"


@pytest.mark.parametrize("chunk", ["-1", "x", "1.0", "%20", "2147483648", "99999999999999999999", "%D9%A3"])
def test_a_chunk_that_is_no_number_of_one_is_refused(refusing: Journal, chunk: str) -> None:
    assert_problem(refusing.stage("a", "t", chunk, "a"), 400, "invalid_request")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"transactionWritePointer": 5},
        {"transactionWritePointer": 5, "messages": []},
        {"sequenceIds": [0]},
        {"producer": "p"},
        {"producer": "p", "sequenceIds": [-1]},
        {"ttls": [0]},
        {"expectedOffset": -1},
        {"keys": []},
    ],
    ids=str,
)
def test_messages_that_make_no_sense_are_staged_and_committed_nowhere(refusing: Journal, fields: dict[str, Any]) -> None:
    assert_problem(refusing.stage("a", "t", 0, **{"messages": ["a"], **fields}), 400, "invalid_request")
    assert_problem(refusing.commit("a", {"t": {"messages": ["a"], **fields}}, group="g"), 400, "invalid_request")


def test_more_messages_than_a_request_may_hold_are_refused(refusing: Journal) -> None:
    Topic(refusing.url, "u")
    most = {"messages": ["a"] * 51}
    assert assert_problem(refusing.commit("a", {"t": most, "u": most}, group="g"), 413, "request_too_large")["limit"] == 100
    assert assert_problem(refusing.stage("a", "t", 0, *["a"] * 101), 413, "request_too_large")["limit"] == 100


@pytest.mark.parametrize(
    "fields",
    [
        {"group": "a b"},
        {"group": 5},
        {"producer": "p"},
        {"sequenceId": 1},
        {"producer": "p", "sequenceId": -1},
        {"producer": "p", "sequenceId": True},
        {"producer": "a b", "sequenceId": 1},
        {"incarnation": "i"},
        {"checksum": "x" * 250},
        {"branches": ["a"]},
        {"branches": ["b", "b"]},
        {"branches": [""]},
        {"branches": "b"},
        {"parts": {}},
        {"parts": [{"namespace": "default", "topic": "t", "request": {"messages": ["a"]}}] * 2},
        {"parts": [{"namespace": "default", "topic": "..", "request": {"messages": ["a"]}}]},
        {"parts": [{"namespace": "default", "topic": "t"}]},
    ],
    ids=ascii,
)
def test_a_commit_that_contradicts_itself_is_refused(refusing: Journal, fields: dict[str, Any]) -> None:
    assert_problem(refusing.request("POST", "/a/commit", json={"group": "g", **fields}), 400, "invalid_request")


def test_a_commit_to_a_topic_that_does_not_exist_is_refused(refusing: Journal) -> None:
    assert_problem(refusing.commit("a", {"missing": {"messages": ["a"]}}, group="g"), 404, "topic_not_found")


def test_a_commit_in_the_media_type_of_tms_is_refused(refusing: Journal) -> None:
    body = encode_commit_request(CommitRequest("g"))
    answer = refusing.request("POST", "/a/commit", data=body, headers={"content-type": AVRO})
    assert_problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "fields",
    [
        {"group": None},
        {"group": ""},
        {"group": "a b"},
        {"group": 5},
        {"id": ""},
        {"id": "a/b"},
        {"id": ".."},
        {"id": 5},
        {"timeoutMs": 0},
        {"timeoutMs": -1},
        {"timeoutMs": 10**15},
        {"timeoutMs": True},
        {"timeoutMs": 1.5},
        {"of": "a b"},
        {"id": "a", "of": "a"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_begin_that_makes_no_sense_is_refused(refusing: Journal, fields: dict[str, Any]) -> None:
    assert_problem(refusing.begin(**fields), 400, "invalid_request")


def test_a_begin_needs_a_group(refusing: Journal) -> None:
    assert_problem(refusing.request("POST"), 400, "invalid_request")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=2001",
        "limit=x",
        "limit=-1",
        "after=a%20b",
        "after=",
        "group=",
        "group=a%20b",
    ],
)
def test_a_list_that_makes_no_sense_is_refused(refusing: Journal, query: str) -> None:
    assert_problem(refusing.request("GET", f"?{query}"), 400, "invalid_request")


def test_commits_of_one_group_stand_in_the_same_order_on_every_topic(running: RunningService, left: Topic, right: Topic) -> None:
    async def commit(service: Service) -> None:
        def request(number: int) -> CommitRequest:
            message = PublishRequest([str(number).encode()])
            return CommitRequest("g", [Part("default", "left", message), Part("default", "right", message)])

        await asyncio.gather(*(service.journal.commit(f"t{number}", request(number)) for number in range(50)))

    running.on_loop(commit)
    assert left.payloads() == right.payloads()
    assert sorted(left.payloads(), key=int) == [str(number) for number in range(50)]
