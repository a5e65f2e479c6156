"""The matrix: every address and every right. A new address without an entry fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import requests

from oncelog_service.rest.table import ROUTES, TRANSACTION_ROUTES
from tests.access.carrying import Carrying
from tests.patience import until
from tests.rest.talk import ANY, assert_problem, connected, head, read_answer
from tests.world.service import RunningService, running_service

TOPIC = "/v1/namespaces/{namespace}/topics/{topic}"
TX = "/v1/transactions"
ONE = TX + "/{writePointer}"

NEEDS = {
    "GET /v1/namespaces": "nothing",  # which are listed is another matter
    "GET /v1/namespaces/{namespace}/policies": "describe all topics",
    "PUT /v1/namespaces/{namespace}/policies": "manage all topics",
    "GET /v1/namespaces/{namespace}/topics": "nothing",  # likewise
    "POST /v1/namespaces/{namespace}/offsets": "nothing",  # of no topic
    f"PUT {TOPIC}": "manage",
    f"GET {TOPIC}": "describe",
    f"DELETE {TOPIC}": "manage",
    f"PUT {TOPIC}/properties": "manage",
    f"POST {TOPIC}/trim": "manage",
    f"POST {TOPIC}/erase": "manage",
    f"GET {TOPIC}/stats": "describe",
    f"POST {TOPIC}/publish": "write",
    f"POST {TOPIC}/store": "write",
    f"POST {TOPIC}/rollback": "write",
    f"POST {TOPIC}/poll": "read",
    f"GET {TOPIC}/columns": "read",
    f"POST {TOPIC}/verify": "operate",
    f"POST {TOPIC}/producers": "write",
    f"GET {TOPIC}/producers": "describe",
    f"GET {TOPIC}/producers/{{producer}}": "describe",
    f"DELETE {TOPIC}/producers/{{producer}}": "manage",  # without an epoch
    f"GET {TOPIC}/producers/{{producer}}/why": "describe",
    f"POST {TOPIC}/subscriptions": "read",
    "GET /v1/subscriptions": "nothing",  # but for topics that one has a right on
    f"GET {TOPIC}/subscriptions": "describe",
    f"GET {TOPIC}/subscriptions/{{subscription}}": "describe",
    f"POST {TOPIC}/subscriptions/{{subscription}}/receive": "read",
    f"POST {TOPIC}/subscriptions/{{subscription}}/ack": "read",
    f"POST {TOPIC}/subscriptions/{{subscription}}/seek": "read",
    f"DELETE {TOPIC}/subscriptions/{{subscription}}": "read",
    "GET /v1/held": "operate",
    f"GET {TOPIC}/held": "operate",
    f"POST {TOPIC}/held/{{writePointer}}": "operate",
    f"GET {TOPIC}/rows": "read and operate",
    f"GET {TOPIC}/groups": "read and operate",
    f"GET {TOPIC}/payloads": "read and operate",
    f"PUT {TOPIC}/stage/{{transaction}}/{{chunk}}": "write",
    f"POST {TX}": "read or write anywhere",
    f"GET {TX}": "nothing",  # but for those of others
    f"POST {TX}/prune": "operate",
    f"POST {TX}/states": "nothing",  # likewise
    f"GET {TX}/unacknowledged": "service",
    f"POST {TX}/unacknowledged": "service",
    f"GET {ONE}": "nothing",
    f"POST {ONE}/can-commit": "read or write anywhere",
    f"POST {ONE}/commit": "nothing",
    f"POST {ONE}/abort": "nothing",
    f"POST {ONE}/invalidate": "nothing",  # unless it is another's
    f"POST {ONE}/checkpoint": "read or write anywhere",
    f"POST {ONE}/participants": "service",
    f"DELETE {ONE}/participants/{{participant}}": "service",
    "POST /v1/atomic": "write anywhere",
    "GET /v1/atomic": "nothing",  # but for those of others
    "GET /v1/atomic/{transaction}": "nothing",
    "DELETE /v1/atomic/{transaction}": "operate",
    "POST /v1/atomic/{transaction}/commit": "write anywhere",  # names no topic
    "POST /v1/atomic/{transaction}/abort": "nothing",
    "GET /v1/atomic/groups/{group}/producers/{producer}": "nothing",
    "DELETE /v1/atomic/groups/{group}/producers/{producer}": "nothing",  # unless its commit is another's
    "GET /v1/cluster": "observe",
    "POST /v1/cluster/hand-over": "operate",
    "POST /v1/backup": "operate",
    "POST /v1/tokens": "admin",
    "GET /v1/tokens": "admin",
    "DELETE /v1/tokens/{token}": "admin",
    "GET /healthz": "nothing",
    "GET /livez": "nothing",
    "GET /readyz": "nothing",
    "GET /metrics": "observe",
    "GET /v1/namespaces/{namespace}/stats": "nothing",
    "GET /v1/alarms": "observe",
    "GET /v1/overview": "observe",
}
"""What each address needs of who asks."""

AUDITED = {
    "PUT /v1/namespaces/{namespace}/policies",
    f"PUT {TOPIC}",
    f"DELETE {TOPIC}",
    f"PUT {TOPIC}/properties",
    f"POST {TOPIC}/trim",
    f"POST {TOPIC}/erase",
    f"DELETE {TOPIC}/producers/{{producer}}",
    f"POST {TOPIC}/subscriptions/{{subscription}}/seek",
    f"DELETE {TOPIC}/subscriptions/{{subscription}}",
    f"POST {TOPIC}/held/{{writePointer}}",
    f"POST {TX}/prune",
    "DELETE /v1/atomic/{transaction}",
    "DELETE /v1/atomic/groups/{group}/producers/{producer}",
    "POST /v1/cluster/hand-over",
    "POST /v1/backup",
    "POST /v1/tokens",
    "DELETE /v1/tokens/{token}",
}
"""What is administrative."""

GRANTS = {
    "read": "read:default/own",
    "write": "write:default/own",
    "manage": "manage:default/own",
    "observe": "observe",
    "operate": "operate",
    "service": "service",
    "admin": "admin",
}
ON_TOPICS = ("read", "write", "manage")
PLACES = {"own": ("default", "own"), "other": ("default", "other"), "elsewhere": ("elsewhere", "own")}
"""Only the first of these topics is there."""


def allows(right: str, place: str, needed: str) -> bool:
    """Whether one right, on one topic, is enough."""
    if needed == "service":
        return right == "service"  # and nobody else: who ends a participant wrongly has what was aborted appear
    if right == "admin" or needed == "nothing":
        return True
    if needed == "write anywhere":
        return right == "write"
    if needed == "read or write anywhere":
        return right in ("read", "write", "service")  # the last for its clients
    if needed in ("observe", "describe", "describe all topics") and right in ("observe", "operate", "service"):
        return True
    if needed == "describe":
        return right in ON_TOPICS and place == "own"
    if needed == "operate":
        return right in ("operate", "service")
    return right == needed and place == "own"


class House:
    """A locked service, and who asks it."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.url = url = service.url
        self.admin = Carrying(url).holding("ada", "admin")
        self.admin.good("PUT", "/v1/namespaces/default/topics/own", json={})
        self.holders = {right: self.admin.holding(right, grant) for right, grant in GRANTS.items()}


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with running_service() as service:
        yield House(service)


def named(route: Any) -> str:
    return f"{route.method} {route.path}"


def address(path: str, place: str = "own") -> str:
    """One with names that are good."""
    namespace, topic = PLACES[place]
    return path.format(**(ANY | {"namespace": namespace, "topic": topic}))


def test_the_table_has_every_address() -> None:
    assert {named(route) for route in ROUTES} == set(NEEDS)
    assert {named(route) for route in ROUTES if route.audited} == AUDITED
    assert {named(route) for route in TRANSACTION_ROUTES} < set(NEEDS)


@pytest.mark.parametrize("entry", NEEDS)
def test_one_right_on_one_topic_allows_exactly_what_the_table_says(house: House, entry: str) -> None:
    method, path = entry.split(" ")
    places = PLACES if "{namespace}" in path else ["own"]
    for right in sorted(GRANTS, key="admin".__eq__):  # who may do everything deletes the topic, last
        for place in places:
            answer = house.holders[right].request(method, address(path, place), json={})
            if not allows(right, place, NEEDS[entry]):
                missing = assert_problem(answer, 403, "not_allowed")
                assert missing["principal"] == right, (right, place)
                assert missing["right"].split(":")[0] in (*ON_TOPICS, "observe", "operate", "service", "admin")
            else:
                assert answer.status_code not in (401, 403), (right, place, answer.text)
    house.admin.request("PUT", "/v1/namespaces/default/topics/own", json={})


def test_without_a_credential_everything_is_refused_but_health(house: House) -> None:
    strangers = Carrying(house.url), Carrying(house.url, "wrong"), Carrying(house.url, authorization="Basic YWRhOg==")
    for entry, who in zip([*NEEDS, "GET /docs", "GET /openapi.json", "GET /nothing"], cycle(strangers)):
        method, path = entry.split(" ")
        answer = who.request(method, address(path), json={})
        if path in ("/healthz", "/livez", "/readyz"):
            assert answer.status_code == 200
        else:
            assert_problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"


def test_what_is_not_allowed_is_answered_before_the_body_is_sent(house: House) -> None:
    token = str(house.admin.holding("nobody", "manage:nowhere/nothing").session.headers["authorization"])
    by_query = f"DELETE {TOPIC}/producers/{{producer}}"  # which says what right it needs
    for method, path in (entry.split(" ") for entry, needed in NEEDS.items() if needed != "nothing" and entry != by_query):
        if method != "GET":
            with connected(house.url) as connection:
                fields = f"authorization: {token}", "content-type: application/json", "content-length: 1000"
                connection.sendall(head(method, address(path, "elsewhere"), *fields))
                status, _, body = read_answer(connection.makefile("rb"))
            assert (status, json.loads(body)["code"]) == (403, "not_allowed"), (method, path)


def test_rows_as_they_lie_need_two_rights(house: House) -> None:
    both = house.admin.holding("both", "read:default/own", "operate")
    for what in ("rows", "groups", "payloads?under=5"):
        assert both.request("GET", f"/v1/namespaces/default/topics/own/{what}").status_code == 200
        assert_problem(both.request("GET", f"/v1/namespaces/default/topics/other/{what}"), 403, "not_allowed")


def test_what_holds_for_a_namespace_needs_a_grant_on_all_of_its_topics(house: House) -> None:
    path = "/v1/namespaces/default/policies"
    for grant, allowed in (
        ("manage:default/*", True),
        ("manage:default/o*", False),
        ("manage:*/*", True),
        ("read:default/*", False),
    ):
        who = house.admin.holding("manager", grant)
        answer = who.request("PUT", path, json={})
        assert (answer.status_code == 200) is allowed, answer.text
        assert (who.request("GET", path).status_code == 200) is grant.endswith("/*")
    assert_problem(
        house.admin.holding("m", "manage:default/*").request("PUT", "/v1/namespaces/other/policies", json={}), 403, "not_allowed"
    )


def test_lists_have_what_one_may_see(house: House) -> None:
    for namespace, topic in (("default", "a1"), ("default", "a2"), ("default", "b1"), ("hidden", "c"), ("seen", "d")):
        house.admin.request("PUT", f"/v1/namespaces/{namespace}/topics/{topic}", json={})
    who = house.admin.holding("who", "read:default/a*", "write:seen/nothing")
    assert who.good("GET", "/v1/namespaces/default/topics") == ["a1", "a2"]
    assert [each["name"] for each in who.good("GET", "/v1/namespaces/default/stats")] == ["a1", "a2"]
    assert who.good("GET", "/v1/namespaces/seen/topics") == []
    assert who.good("GET", "/v1/namespaces/hidden/topics") == []
    assert who.good("GET", "/v1/namespaces") == ["default", "seen"]
    for right in ("observe", "operate"):
        assert {"a1", "a2", "b1", "own"} <= set(house.holders[right].good("GET", "/v1/namespaces/default/topics"))
        assert {"default", "hidden", "seen"} <= set(house.holders[right].good("GET", "/v1/namespaces"))


def test_the_list_of_all_subscriptions_has_those_of_topics_that_one_may_see(house: House) -> None:
    for namespace, topic in (("default", "s1"), ("default", "s2"), ("others", "s1")):
        path = f"/v1/namespaces/{namespace}/topics/{topic}"
        house.admin.request("PUT", path, json={})
        for name in "ab":
            house.admin.good("POST", path + "/subscriptions", json={"name": name, "nonce": "n"})

    def listed(who: Carrying, **query: Any) -> list[str]:
        found = who.good("GET", "/v1/subscriptions", params=query)
        return [f"{each['namespace']}/{each['topic']}/{each['name']}" for each in found if each["topic"].startswith("s")]

    everything = [f"{topic}/{name}" for topic in ("default/s1", "default/s2", "others/s1") for name in "ab"]
    assert listed(house.admin) == listed(house.holders["operate"]) == everything
    second = house.admin.holding("second", "write:default/s2")
    assert listed(second) == everything[2:4]
    assert listed(second, limit=1) == everything[2:3]
    assert listed(second, limit=1, after=everything[2]) == everything[3:4]
    assert listed(second, after=everything[3]) == listed(house.admin, after=everything[-1]) == []
    assert listed(house.admin, limit=3, after=everything[1]) == everything[2:5]
    for after in ("default", "default/s1", "default/s1/", "a b/c/d", "default/../a", "default/s1/a/b"):
        assert_problem(second.request("GET", "/v1/subscriptions", params={"after": after}), 400, "invalid_request")


# --- topics and producers that a body names


def test_each_topic_whose_offsets_are_asked_for_must_be_readable(house: House) -> None:
    def offsets(*topics: str) -> requests.Response:
        body = {"topics": {topic: {} for topic in topics}}
        return house.holders["read"].request("POST", "/v1/namespaces/default/offsets", json=body)

    assert list(offsets("own").json()) == ["own"]
    for asked in (["other"], ["own", "other"]):  # which is not there: 403 comes before 404
        assert assert_problem(offsets(*asked), 403, "not_allowed")["right"] == "read:default/other"


def test_who_may_write_nowhere_takes_no_name_of_a_producer_in_a_group_nor_leaves_a_row_there(house: House) -> None:
    """Else who may read one topic takes the names that others commit under, and fills the memory and the disk with more."""
    body = {"group": "nightly", "parts": [], "producer": "loader", "sequenceId": 0}
    for right in ("read", "manage", "operate"):
        answer = house.holders[right].request("POST", "/v1/atomic/taken/commit", json=body)
        assert assert_problem(answer, 403, "not_allowed")["right"] == "write"
    names = house.service.service.opening.atomic.producers.newest
    assert ("nightly", "loader") not in names
    under_a_name = house.admin.holding("named", "write:default/own:loader")
    assert under_a_name.good("POST", "/v1/atomic/taken/commit", json=body)["state"] == "committed"
    assert ("nightly", "loader") in names


def part(topic: str, namespace: str = "default", **fields: Any) -> dict[str, Any]:
    return {"namespace": namespace, "topic": topic, "request": {"messages": ["m"], **fields}}


def commit(who: Carrying, name: str, *parts: dict[str, Any]) -> requests.Response:
    return who.request("POST", f"/v1/atomic/{name}/commit", json={"group": "g", "parts": list(parts)})


def test_each_topic_of_an_atomic_commit_must_be_writable(house: House) -> None:
    writer = house.holders["write"]
    before = house.admin.good("GET", "/v1/namespaces/default/topics/own/stats")["upcomingOffset"]
    for number, parts in enumerate([[part("other")], [part("own"), part("other")], [part("own", "elsewhere")], [part("own")]]):
        answer = commit(writer, f"parts{number}", *parts)
        if len(parts) == 1 and parts[0] == part("own"):
            assert answer.status_code == 200, answer.text
        else:
            assert_problem(answer, 403, "not_allowed")
            assert_problem(commit(house.holders["read"], f"parts{number}", *parts), 403, "not_allowed")
            assert house.admin.request("GET", f"/v1/atomic/parts{number}").status_code == 404, "nothing was begun"
    assert house.admin.good("GET", "/v1/namespaces/default/topics/own/stats")["upcomingOffset"] == before + 1


def test_who_may_publish_under_some_names_publishes_under_no_others(house: House) -> None:
    topic = "/v1/namespaces/default/topics/limited"
    house.admin.good("PUT", topic, json={})
    loader = house.admin.holding("loader", "write:default/limited:loader-*")

    def refused(method: str, path: str, **body: Any) -> None:
        assert assert_problem(loader.request(method, path, json=body), 403, "not_allowed")["principal"] == "loader"

    def taken(method: str, path: str, **body: Any) -> Any:
        answer = loader.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else None

    mine = {"messages": ["m"], "producer": "loader-1"}
    taken("POST", topic + "/publish", **mine, sequenceIds=[0])
    pointer = loader.good("POST", TX, json={})["writePointer"]
    for body in ({"messages": ["m"]}, {"messages": ["m"], "producer": "other", "sequenceIds": [0]}):
        refused("POST", topic + "/publish", **body)
        refused("POST", topic + "/store", **body, transactionWritePointer=pointer)
        refused("PUT", topic + "/stage/mixed/0", **body)
        answer = commit(loader, "mixed", part("limited", **{**mine, "sequenceIds": [1]}), part("limited", **body))
        assert_problem(answer, 403, "not_allowed")
    taken("POST", topic + "/producers", name="loader-1", nonce="n")
    refused("POST", topic + "/producers", name="other", nonce="n")
    refused("POST", topic + "/producers", nonce="n")  # the service would choose a name
    # What is stored under a pointer, and what a publish stored, may be of any producer.
    taken("POST", topic + "/store", **mine, sequenceIds=[1], transactionWritePointer=pointer)
    refused("POST", topic + "/publish", messages=[], transactionWritePointer=pointer)
    refused("POST", topic + "/publish", messages=[], transactionWritePointer=pointer, producer="loader-1")
    refused(
        "POST",
        topic + "/rollback",
        transactionWritePointer=pointer,
        startTimestamp=0,
        startSequenceId=0,
        endTimestamp=1,
        endSequenceId=0,
    )
    taken("POST", "/v1/atomic", id="staged", group="g")
    taken("PUT", topic + "/stage/staged/0", messages=["m"], producer="loader-2", sequenceIds=[5])
    assert taken("POST", "/v1/atomic/staged/commit", group="g", parts=[])["state"] == "committed"


def test_a_producer_is_ended_by_who_may_publish_under_its_name_and_forgotten_by_who_manages(house: House) -> None:
    topic = "/v1/namespaces/default/topics/ended"
    house.admin.good("PUT", topic, json={})
    writer, manager = (house.admin.holding(right, f"{right}:default/ended") for right in ("write", "manage"))
    opened = writer.good("POST", topic + "/producers", json={"nonce": "n"})
    path = f"{topic}/producers/{opened['name']}"
    assert_problem(writer.request("DELETE", path), 403, "not_allowed")
    assert_problem(manager.request("DELETE", path + f"?epoch={opened['epoch']}"), 403, "not_allowed")
    assert_problem(house.holders["write"].request("DELETE", path + f"?epoch={opened['epoch']}"), 403, "not_allowed")
    assert writer.request("DELETE", path + f"?epoch={opened['epoch']}").status_code == 200
    limited = house.admin.holding("limited", "write:default/ended:loader-*")
    assert_problem(limited.request("DELETE", path + f"?epoch={opened['epoch']}"), 403, "not_allowed")
    writer.good("POST", topic + "/producers", json={"name": "mine", "nonce": "n"})
    assert manager.request("DELETE", f"{topic}/producers/mine").status_code == 200


# --- the audit log


class Lines:
    """The lines of an audit log, from where one has read so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def new(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        new, self._read = lines[self._read :], len(lines)
        return new

    def rotated(self) -> None:
        """Move the file away."""
        self.path.rename(self.path.with_suffix(".1"))
        self._read = 0


def test_what_is_administrative_leaves_a_line_done_and_refused(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "audit.jsonl")
    with running_service(audit_log=lines.path) as service:
        house, nobody = House(service), Carrying(service.url)
        lines.new()
        for method, path in (entry.split(" ") for entry in sorted(AUDITED)):
            wrong = "write" if NEEDS[f"{method} {path}"] == "read" else "read"
            for name, who in {"ada": house.admin, wrong: house.holders[wrong], None: nobody}.items():
                answer = who.request(method, address(path), json={})
                (line,) = lines.new()
                assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time"))
                said: dict[str, Any] = {"principal": name, "from": "127.0.0.1", "method": method, "path": address(path)}
                said |= {"status": answer.status_code, **({} if answer.ok else {"code": answer.json()["code"]})}
                assert {each: value for each, value in line.items() if each != "subject"} == said
        nobody.request("GET", "/v1/namespaces")
        house.admin.request("GET", "/v1/tokens")
        assert lines.new() == []


def test_a_line_says_which_token_was_made_and_revoked_but_no_secret(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "audit.jsonl")
    with running_service(audit_log=lines.path) as service:
        made = Carrying(service.url).make("ada", "admin", "operate")
        ada = Carrying(service.url, made["secret"])
        (line,) = lines.new()
        assert line["subject"] == {"id": made["id"], "name": "ada", "grants": ["admin", "operate"]}
        assert line["principal"] == "anonymous"
        other = ada.make("other", "read:*/*")
        ada.revoke(other["id"])
        ada.revoke(other["secret"])
        _, revoked, mistaken = lines.new()
        assert revoked["subject"] == {"id": other["id"], "name": "other", "grants": ["read:*/*"]}
        assert mistaken["path"] == "/v1/tokens/oncelog_..."
        moving = {"namespace": "default", "topic": "t", "instance": "i" * 100}
        assert_problem(ada.request("POST", "/v1/cluster/hand-over", json=moving), 400, "not_supported")
        assert lines.new()[0]["subject"] == {"topic": "default/t", "instance": "i" * 100}
    assert "secret" not in lines.path.read_text()
    assert made["secret"] not in lines.path.read_text()


def test_a_line_says_what_was_asked_for_done_and_refused(tmp_path: Path) -> None:
    lines, topic = Lines(tmp_path / "audit.jsonl"), "/v1/namespaces/default/topics/t"
    with running_service(audit_log=lines.path) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        lines.new()
        for method, path, asked, said in (
            ("PUT", topic, {"ttl": 60}, {"properties": {"ttl": 60}}),
            ("PUT", topic + "/properties", {"max.bytes": 10}, {"properties": {"max.bytes": 10}}),
            ("POST", topic + "/erase", {"offset": 7}, {"offset": 7}),
            ("POST", topic + "/erase", {"messageId": "0" * 40, "generation": 1}, {"messageId": "0" * 40, "generation": 1}),
            ("POST", topic + "/trim", {"beforeOffset": 0}, {"beforeOffset": 0}),
            ("POST", topic + "/trim", {"beforeTime": 1}, {"beforeTime": 1}),
            ("POST", topic + "/held/5", {"committed": False}, {"committed": False}),
            ("PUT", "/v1/namespaces/default/policies", {"maxBytes": 9}, {"maxBytes": 9}),
            ("POST", "/v1/backup", {"directory": "../elsewhere"}, {"directory": "../elsewhere"}),
            ("POST", "/v1/backup", {"directory": "x" * 2_000}, {"directory": "x" * 1_000}),
        ):
            ada.request(method, path, json=asked)
            (line,) = lines.new()
            assert (line["path"], line["subject"]) == (path, said)


def test_the_file_may_be_moved_away_and_is_its_owners_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    lines = Lines(folder / "audit.jsonl")
    with running_service(audit_log=lines.path) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        assert lines.path.stat().st_mode & 0o777 == 0o600
        lines.rotated()
        ada.make("other", "read:*/*")
        assert [line["subject"]["name"] for line in lines.new()] == ["other"]
        assert lines.path.stat().st_mode & 0o777 == 0o600
        lines.rotated()
        folder.rename(tmp_path / "away")
        ada.make("unnoted", "read:*/*")  # is done, and not noted anywhere but on stderr
        folder.mkdir()
        ada.make("noted", "read:*/*")
        assert [line["subject"]["name"] for line in lines.new()] == ["noted"]
    assert "unnoted" in capfd.readouterr().err


def test_a_line_is_one_line_whatever_the_address_holds(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "audit.jsonl")
    with running_service(audit_log=lines.path) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        lines.new()
        ada.request("DELETE", "/v1/namespaces/default/topics/%0A%7B%22principal%22%3A%22x%22%7D%1B%5B31m%C3%A9")
        (line,) = lines.new()
        assert line["path"].endswith('\n{"principal":"x"}\x1b[31mé')
        assert lines.path.read_text().isascii()


def test_a_failure_that_nobody_foresaw_leaves_a_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(tmp_path / "audit.jsonl")
    with running_service(audit_log=lines.path) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        lines.new()
        monkeypatch.setattr(service.service.access, "revoke", None)
        assert_problem(ada.revoke("ab12"), 500, "internal_error", definite=False)
        until(lambda: lines.path.read_text().count("\n") == 2)
        assert [(line["status"], line["code"]) for line in lines.new()] == [(500, "internal_error")]


def test_ending_what_another_one_began_leaves_a_line_and_ending_ones_own_does_not(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "audit.jsonl")
    with running_service(audit_log=lines.path) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        owner, other = ada.holding("owner", "write:default/t"), ada.holding("other", "write:default/t")
        holders = {"ada": ada, "operator": ada.holding("operator", "operate"), "orders": ada.holding("orders", "service")}
        begun = count()

        def transaction() -> str:
            return f"/v1/transactions/{owner.good('POST', '/v1/transactions')['writePointer']}"

        def atomic() -> str:
            return f"/v1/atomic/{owner.good('POST', '/v1/atomic', json={'id': f'a{next(begun)}', 'group': 'g'})['id']}"

        for make, ends, name in (
            (transaction, "abort", "operator"),
            (transaction, "invalidate", "operator"),
            (transaction, "commit", "ada"),
            (transaction, "commit?owner=owner", "orders"),
            (atomic, "abort", "operator"),
        ):
            lines.new()
            owner.good("POST", f"{make()}/{ends.partition('?')[0]}", json={})
            assert lines.new() == [], (make, ends)
            asked = f"{make()}/{ends}"
            path = asked.partition("?")[0]
            assert_problem(other.request("POST", asked, json={}), 403, "not_allowed")
            holders[name].good("POST", asked, json={})
            noted = [(line["principal"], line["path"], line["status"], line.get("subject")) for line in lines.new()]
            assert noted == [("other", path, 403, None), (name, path, 200, {"owner": "owner"})]
        part = {"namespace": "default", "topic": "t", "request": {"messages": ["m"]}}
        ada.good("PUT", "/v1/namespaces/default/topics/t")
        for who, noted in ((owner, []), (ada, [{"owner": "owner"}])):
            path = atomic()
            lines.new()
            who.good("POST", path + "/commit", json={"parts": [part]})
            assert [line["subject"] for line in lines.new()] == noted


def test_what_a_client_does_with_its_own_subscription_and_producer_leaves_no_line(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "audit.jsonl")
    topic = "/v1/namespaces/default/topics/t"
    with running_service(audit_log=lines.path) as service:
        ada = Carrying(service.url).holding("ada", "admin")
        ada.good("PUT", topic)
        epoch = ada.good("POST", topic + "/subscriptions", json={"name": "s", "nonce": "a"})["epoch"]
        producer = ada.good("POST", topic + "/producers", json={"nonce": "b"})
        lines.new()
        ada.good("POST", topic + "/subscriptions/s/seek", json={"to": {"at": "latest"}, "nonce": "c", "epoch": epoch})
        assert ada.request("DELETE", f"{topic}/producers/{producer['name']}", params={"epoch": producer["epoch"]}).ok
        assert lines.new() == []
        ada.good("POST", topic + "/subscriptions/s/seek", json={"to": {"offset": 0}, "nonce": "d"})
        (line,) = lines.new()
        assert (line["path"], line["subject"]) == (topic + "/subscriptions/s/seek", {"to": {"offset": 0}})
