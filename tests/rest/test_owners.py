"""Whose a transaction is, or an atomic commit, or a producer of a group: every address that names one, asked by every principal.

What was begun is asked for in the life in which it was, after a stop, and after a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count, product
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import requests

from oncelog_service.rest.table import ROUTES
from oncelog_service.storage.memory import Disk, MemoryStore
from tests.access.carrying import Carrying
from tests.rest.talk import assert_problem
from tests.world.disk import crashed
from tests.world.service import RunningService, running_service

TX = "/v1/transactions"
TOPIC = "/v1/namespaces/default/topics/t"
GRANTS = {
    "ada": ("read:default/*", "write:default/*"),
    "bob": ("read:default/*", "write:default/*"),
    "grace": ("read:default/*", "write:default/*", "operate"),
    "orders": ("service",),
    "root": ("admin",),
}


class Row(NamedTuple):
    """An address that names something which is somebody's."""

    method: str
    path: str
    right: str
    """What lets others: operate (who has admin has that too) or admin."""
    body: Mapping[str, Any] = MappingProxyType({})
    ended: bool = True
    """It means something once that has ended, too."""


OF_TRANSACTIONS = [
    Row("GET", TX + "/{id}", "operate"),
    Row("POST", TX + "/{id}/can-commit", "admin", {"changes": ["k"]}),
    Row("POST", TX + "/{id}/commit", "admin"),
    Row("POST", TX + "/{id}/abort", "operate"),
    Row("POST", TX + "/{id}/abort", "operate", {"unlessPrepared": True}),
    Row("POST", TX + "/{id}/invalidate", "operate"),
    Row("POST", TX + "/{id}/checkpoint", "admin"),
    Row("POST", TOPIC + "/publish", "admin", {"messages": ["m"], "transactionWritePointer": "{id}"}),
    Row("POST", TOPIC + "/publish", "admin", {"messages": [], "transactionWritePointer": "{id}"}),
    Row("POST", TOPIC + "/store", "admin", {"messages": ["m"], "transactionWritePointer": "{id}"}),
    Row("POST", TOPIC + "/rollback", "admin", {"transactionWritePointer": "{id}", "range": True}),
    Row("POST", TOPIC + "/poll", "admin", {"transaction": "{id}"}),
]
OF_ATOMIC = [
    Row("POST", "/v1/atomic", "admin", {"id": "{id}", "group": "g"}),
    Row("POST", "/v1/atomic", "admin", {"id": "{id}", "group": "another"}),
    Row("POST", "/v1/atomic", "admin", {"group": "g", "of": "{id}"}),
    Row("GET", "/v1/atomic/{id}", "operate"),
    Row("PUT", TOPIC + "/stage/{id}/1", "admin", {"messages": ["m"]}),
    Row("POST", "/v1/atomic/{id}/commit", "admin", {"parts": []}),
    Row("POST", "/v1/atomic/{id}/commit", "admin", {"parts": [], "group": "another"}),
    Row("POST", "/v1/atomic/{new}/commit", "admin", {"parts": [], "group": "g", "branches": ["{id}"]}, ended=False),
    Row("POST", "/v1/atomic/{id}/abort", "operate"),
]
OF_PRODUCERS = [
    Row("GET", "/v1/atomic/groups/g/producers/{id}", "operate"),
    Row("POST", "/v1/atomic/{new}/commit", "admin", {"parts": [], "group": "g", "producer": "{id}", "sequenceId": 0}),
    Row("POST", "/v1/atomic/{new}/commit", "admin", {"parts": [], "group": "g", "producer": "{id}", "sequenceId": 9}),
    Row(
        "POST", "/v1/atomic/{new}/commit", "admin",
        {"parts": [], "group": "g", "producer": "{id}", "sequenceId": 9, "incarnation": "mine"},
    ),
    Row("DELETE", "/v1/atomic/groups/g/producers/{id}", "operate"),
]  # fmt: skip
NAMES_NONE = {
    f"GET {TX}", f"POST {TX}", f"POST {TX}/prune", f"POST {TX}/states", f"GET {TX}/unacknowledged", f"POST {TX}/unacknowledged",
    "GET /v1/atomic",
    "DELETE /v1/atomic/{transaction}",  # for operators, whosever it is
    # What a participant says is for services.
    TX + "/{writePointer}/participants", TX + "/{writePointer}/participants/{participant}",
}  # fmt: skip
"""What has other tests, or needs none."""


def test_every_address_of_a_transaction_is_looked_at() -> None:
    looked = {(row.method, row.path) for row in (*OF_TRANSACTIONS, *OF_ATOMIC, *OF_PRODUCERS)}
    for route in ROUTES:
        if route.path.startswith((TX, "/v1/atomic")) and f"{route.method} {route.path}" not in NAMES_NONE:
            if route.path in NAMES_NONE:
                continue
            path = route.path.replace("{writePointer}", "{id}").replace("{group}", "g").replace("{producer}", "{id}")
            paths = {path.replace("{transaction}", name) for name in ("{id}", "{new}")}
            assert any((route.method, each) in looked for each in paths), (route.method, route.path)


class House:
    """A locked service over a disk, which goes on after a stop and after a kill, and those who ask it.

    ``apart``: one that runs alone keeps its transactions, where it is a `service` and nothing else.
    """

    def __init__(self, apart: bool) -> None:
        self.disk, self.other_disk = Disk(), Disk()
        self._apart = apart
        self._transactions: dict[str, str] = {}
        """Its token there."""
        self._running = ExitStack()
        self._names = count()
        self.secrets: dict[str, str] = {}
        self._start()
        root = Carrying(self.url)
        for name in sorted(GRANTS, key="root".__ne__):
            self.secrets[name] = root.make(name, *GRANTS[name])["secret"]
            root = self.who("root")
        root.good("PUT", TOPIC, json={})

    def _start(self) -> None:
        settings = {}
        if self._apart:
            other = self._run(self.other_disk, alone=True)
            if not self._transactions:
                root = Carrying(other.url).holding("root", "admin")
                self._transactions["transactions_token"] = root.make("orders", "service")["secret"]
            settings = {"transactions_url": other.url, **self._transactions}
        self.url = self._run(self.disk, **settings).url
        self._people: dict[str, Carrying] = {}

    def _run(self, disk: Disk, **settings: Any) -> RunningService:
        return self._running.enter_context(running_service(open_store=lambda: MemoryStore(disk), **settings))

    def live(self, how: str) -> None:
        """Go on as it is, begin anew after a clean stop, or after a kill, with what was synced."""
        if how == "goes on":
            return
        left = [crashed(disk) if how == "killed" else disk for disk in (self.disk, self.other_disk)]
        self._running.close()
        self.disk, self.other_disk = left
        self._start()

    def close(self) -> None:
        self._running.close()

    def who(self, name: str) -> Carrying:
        if name not in self._people:
            self._people[name] = Carrying(self.url, self.secrets[name])
        return self._people[name]

    def new_name(self) -> str:
        return f"n{next(self._names)}"

    def ask(self, name: str, row: Row, of: int | str, seen: dict[str, Any]) -> requests.Response:
        """``seen``: what is known of it besides."""
        body = {key: self._filled(value, of) for key, value in row.body.items() if key != "range"}
        if "range" in row.body:
            body |= seen["range"]
        path = row.path.format(id=of, new=self.new_name())
        return self.who(name).request(row.method, path, json=body)

    def _filled(self, value: Any, of: int | str) -> Any:
        return {"{id}": of}.get(value, value) if isinstance(value, str) else [of] if value == ["{id}"] else value


@pytest.fixture(scope="module", params=["in the service", "behind a URL"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    house = House(apart=request.param == "behind a URL")
    yield house
    house.close()


def begun(house: House, state: str) -> tuple[int, dict[str, Any]]:
    """A transaction of ada's with a message on the topic, in this state."""
    ada = house.who("ada")
    started = ada.good("POST", TX, json={})
    pointer = started["writePointer"]
    published = ada.good("POST", TOPIC + "/publish", json={"messages": ["ada's"], "transactionWritePointer": pointer})
    seen = {"range": {key: value for key, value in published.items() if key.startswith(("start", "end"))}}
    seen["thrift"] = bytes.fromhex(started["transaction"]).decode("latin-1")
    if state != "in_progress":
        ada.good("POST", f"{TX}/{pointer}/{state}", json={})
    return pointer, seen


def staged(house: House, state: str) -> tuple[str, dict[str, Any]]:
    """An atomic commit of ada's with a message staged on the topic, in this state."""
    ada, name = house.who("ada"), house.new_name()
    ada.good("POST", "/v1/atomic", json={"group": "g", "id": name})
    ada.good("PUT", f"{TOPIC}/stage/{name}/0", json={"messages": ["ada's"]})
    if state != "in_progress":
        ada.good("POST", f"/v1/atomic/{name}/{state}", json={"parts": []} if state == "commit" else None)
    return name, {}


def numbered(house: House, _: str) -> tuple[str, dict[str, Any]]:
    """A producer of the group whose newest commit is ada's."""
    name = house.new_name()
    body = {"group": "g", "producer": name, "sequenceId": 0, "parts": []}
    house.who("ada").good("POST", f"/v1/atomic/{house.new_name()}/commit", json=body)
    return name, {}


def poll_of(row: Row, seen: dict[str, Any]) -> Row:
    return row if "transaction" not in row.body else row._replace(body={"transaction": seen["thrift"]})


def shown(house: House, row: Row, of: int | str) -> Any:
    """What its owner is told of it."""
    place = TX if row in OF_TRANSACTIONS else "/v1/atomic/groups/g/producers" if row in OF_PRODUCERS else "/v1/atomic"
    found = house.who("ada").good("GET", f"{place}/{of}")
    return {key: value for key, value in found.items() if key != "expiresMs"}


MAKES: list[tuple[Row, Callable[[House, str], tuple[Any, dict[str, Any]]], str]] = [
    *((row, begun, state) for row in OF_TRANSACTIONS for state in ("in_progress", "commit", "abort", "invalidate")),
    *((row, staged, state) for row in OF_ATOMIC for state in ("in_progress", "commit", "abort") if state[0] == "i" or row.ended),
    *((row, numbered, "commit") for row in OF_PRODUCERS),
]


@pytest.mark.real
@pytest.mark.parametrize("life", ["goes on", "stopped", "killed"])
def test_only_its_owner_does_anything_with_it_and_others_change_and_learn_nothing(house: House, life: str) -> None:
    made = [(row, state, *make(house, state)) for row, make, state in MAKES]
    house.live(life)
    for row, state, of, seen in made:
        before = shown(house, row, of)
        asked = poll_of(row, seen)
        owner, others = ("ada", ["bob"] if row.right == "operate" else ["bob", "grace"])
        for other in others:
            problem = assert_problem(house.ask(other, asked, of, seen), 403, "not_allowed")
            told = (row, state, problem)
            assert (problem["principal"], problem["right"]) == (other, row.right), told
            assert not {"ada", "committed", "aborted", "invalid", "progress"} & {*problem["detail"].split()}, told
        assert shown(house, row, of) == before, (row, state)
        answer = house.ask(owner, asked, of, seen)
        assert answer.status_code != 401, (row, state, answer.text)
        assert "not_allowed" not in answer.text, (row, state, answer.text)


def test_who_operates_ends_what_others_began_and_who_may_do_everything_goes_on_with_it(house: House) -> None:
    for row, make, state in MAKES:
        for name in ("root", "grace") if row.right == "operate" else ("root",):
            of, seen = make(house, state)
            answer = house.ask(name, poll_of(row, seen), of, seen)
            assert answer.status_code != 401, (row, state, name, answer.text)
            assert "not_allowed" not in answer.text, (row, state, name, answer.text)


def test_lists_and_states_have_ones_own_and_say_whose_each_is_to_who_operates(house: House) -> None:
    pointers = {name: house.who(name).good("POST", TX, json={})["writePointer"] for name in ("ada", "bob")}
    everything = {str(each): "in_progress" for each in pointers.values()}
    for name, pointer in pointers.items():
        who = house.who(name)
        listed = who.good("GET", TX, params={"limit": 1000})
        assert {each["owner"] for each in listed} == {name}
        assert pointer in [each["writePointer"] for each in listed]
        assert who.good("POST", TX + "/states", json={"writePointers": list(pointers.values())}) == {str(pointer): "in_progress"}
        who.good("POST", f"{TX}/{pointer}/invalidate", json={})
        assert {each["owner"] for each in who.good("GET", TX, params={"state": "invalid", "limit": 1000})} == {name}
        assert_problem(who.request("POST", TX + "/prune", json={"writePointers": [pointer]}), 403, "not_allowed")
        begun = who.good("POST", "/v1/atomic", json={"group": "listed"})["id"]
        found = who.good("GET", "/v1/atomic", params={"limit": 2000})
        assert ({each["owner"] for each in found}, found[-1]["id"]) == ({name}, begun)
    operator = house.who("grace")
    listed = operator.good("GET", TX, params={"state": "invalid", "limit": 2000})
    assert {each["owner"] for each in listed if each["writePointer"] in pointers.values()} == {"ada", "bob"}
    states = operator.good("POST", TX + "/states", json={"writePointers": list(pointers.values())})
    assert states == dict.fromkeys(everything, "invalid")
    name, _ = staged(house, "in_progress")
    assert operator.good("GET", f"/v1/atomic/{name}")["owner"] == "ada"
    assert {each["id"]: each["owner"] for each in operator.good("GET", "/v1/atomic", params={"limit": 2000})}[name] == "ada"


def test_nobody_but_a_service_says_for_whom_it_asks(house: House) -> None:
    pointer, _ = begun(house, "in_progress")
    for who, owner in product(("bob", "grace", "root"), ("ada", "", "root", "bob", "grace")):
        for method, path in (
            ("POST", f"/{pointer}/commit"),
            ("GET", f"/{pointer}"),
            ("POST", ""),
            ("POST", "/states"),
            ("GET", ""),
        ):
            body = {"writePointers": [1]} if path == "/states" else {}
            answer = house.who(who).request(method, TX + path, params={"owner": owner}, json=body)
            assert assert_problem(answer, 403, "not_allowed")["right"] == "service", (who, owner, method, path)
    service = house.who("orders")
    assert_problem(service.request("POST", f"{TX}/{pointer}/commit", params={"owner": "bob"}, json={}), 403, "not_allowed")
    assert service.good("POST", f"{TX}/{pointer}/commit", params={"owner": "ada"}, json={})["owner"] == "ada"
    started = service.good("POST", TX, params={"owner": "bob"}, json={})["writePointer"]
    assert house.who("bob").good("GET", f"{TX}/{started}")["owner"] == "bob"
    nobodys = service.good("POST", TX, params={"owner": ""}, json={})["writePointer"]
    assert house.who("bob").good("POST", f"{TX}/{nobodys}/commit", json={})["owner"] is None
    assert_problem(service.request("POST", TX, params={"owner": "x" * 1001}, json={}), 400, "invalid_request")


def test_no_messages_of_another_principal_are_rolled_back_whatever_the_body_says(house: House) -> None:
    pointer, seen = begun(house, "in_progress")
    bob = house.who("bob")
    own = bob.good("POST", TX, json={})["writePointer"]
    for under in (pointer, own):
        answer = bob.request("POST", TOPIC + "/rollback", json={"transactionWritePointer": under, **seen["range"]})
        assert_problem(answer, *((403, "not_allowed") if under == pointer else (409, "rollback_refused")))
    # Nor by what a publish without a transaction was answered.
    plain = house.who("ada").good("POST", TOPIC + "/publish", json={"messages": ["plain"]})
    answer = bob.request("POST", TOPIC + "/rollback", json=plain)
    assert answer.status_code >= 400, answer.text
    house.who("ada").good("POST", f"{TX}/{pointer}/commit", json={})
    payloads = [each["payload"] for each in bob.good("POST", TOPIC + "/poll", json={"limit": 2000})]
    assert payloads[-2:] == ["ada's", "plain"]


def test_a_branch_goes_with_the_commit_of_its_own_principal_alone(house: House) -> None:
    bob, ada = house.who("bob"), house.who("ada")
    whole, own, others = house.new_name(), house.new_name(), house.new_name()
    bob.good("POST", "/v1/atomic", json={"group": "g", "id": others, "of": whole})  # which has not begun
    ada.good("POST", "/v1/atomic", json={"group": "g", "id": whole})
    ada.good("POST", "/v1/atomic", json={"group": "g", "id": own, "of": whole})
    for branches in ([others], [own, others], [others, own]):
        answer = ada.request("POST", f"/v1/atomic/{whole}/commit", json={"parts": [], "branches": branches})
        assert_problem(answer, 403, "not_allowed")
        for name, who in ((whole, ada), (own, ada), (others, bob)):
            assert who.good("GET", f"/v1/atomic/{name}")["state"] == "in_progress"
    assert ada.good("POST", f"/v1/atomic/{whole}/commit", json={"parts": [], "branches": [own]})["state"] == "committed"
    assert bob.good("POST", f"/v1/atomic/{others}/abort")["state"] == "aborted"


def test_a_commit_that_is_refused_for_its_producer_begins_nothing(house: House) -> None:
    producer, _ = numbered(house, "")
    name = house.new_name()
    body = {"group": "g", "producer": producer, "sequenceId": 5, "parts": []}
    assert_problem(house.who("bob").request("POST", f"/v1/atomic/{name}/commit", json=body), 403, "not_allowed")
    assert_problem(house.who("bob").request("GET", f"/v1/atomic/{name}"), 404, "transaction_not_found")
    begun = house.who("bob").good("POST", "/v1/atomic", json={"group": "g"})
    assert_problem(house.who("bob").request("POST", f"/v1/atomic/{begun['id']}/commit", json=body), 403, "not_allowed")
    assert house.who("bob").good("POST", f"/v1/atomic/{begun['id']}/commit", json={"parts": []})["state"] == "committed"
    found = house.who("ada").good("GET", f"/v1/atomic/groups/g/producers/{producer}")
    assert (found["owner"], found["sequenceId"]) == ("ada", 0)
    house.who("ada").good("DELETE", f"/v1/atomic/groups/g/producers/{producer}")
    house.who("bob").good("POST", f"/v1/atomic/{name}/commit", json=body)  # whose it is from now on
    assert_problem(house.who("ada").request("GET", f"/v1/atomic/groups/g/producers/{producer}"), 403, "not_allowed")


def test_what_an_open_service_began_is_everybodys_once_it_is_locked() -> None:
    with running_service() as service:
        anybody = Carrying(service.url)
        anybody.good("PUT", TOPIC, json={})
        started, other = (anybody.good("POST", TX, json={})["writePointer"] for _ in range(2))
        anybody.good("POST", "/v1/atomic", json={"group": "g", "id": "a"})
        root = anybody.holding("root", "admin")
        bob = root.holding("bob", "write:default/t")
        assert bob.good("GET", f"{TX}/{started}")["owner"] is None
        bob.good("POST", TOPIC + "/publish", json={"messages": ["m"], "transactionWritePointer": started})
        assert bob.good("POST", f"{TX}/{started}/commit", json={})["state"] == "committed"
        assert other in [each["writePointer"] for each in bob.good("GET", TX)]
        assert bob.good("POST", "/v1/atomic/a/commit", json={"parts": []})["state"] == "committed"


def test_reading_in_a_transaction_goes_on_without_its_service_and_a_service_that_may_not_ask_there_has_none() -> None:
    with ExitStack() as here:
        with running_service(alone=True) as other:
            there = Carrying(other.url).holding("root", "admin")
            secrets = {right: there.make("orders", grant)["secret"] for right, grant in (("may", "service"), ("not", "operate"))}
            urls = {
                right: here.enter_context(running_service(transactions_url=other.url, transactions_token=secret)).url
                for right, secret in secrets.items()
            }
            people = {}
            for right, url in urls.items():
                root = Carrying(url).holding("root", "admin")
                root.good("PUT", TOPIC, json={})
                people[right] = root, root.holding("ada", "read:default/t", "write:default/t")
            for who in people["not"]:
                assert_problem(who.request("POST", TX, json={}), 503, "transactions_unavailable")
                assert_problem(who.request("GET", TX + "/5"), 503, "transactions_unavailable", definite=True)
            started = people["may"][1].good("POST", TX, json={})["transaction"]
        asked = {"transaction": bytes.fromhex(started).decode("latin-1")}
        for who in people["may"]:
            assert who.good("POST", TOPIC + "/poll", json=asked) == []
            assert_problem(who.request("POST", TX, json={}), 503, "transactions_unavailable")


# --- grants that were revoked between: the same name, with another token

OTHER = "/v1/namespaces/default/topics/other"


def narrowed(house: House, *left: str) -> tuple[Carrying, Carrying, Callable[[], None]]:
    """One principal with two tokens: one that may write everywhere, one with what is ``left``; and how the first one ends."""
    root, name = house.who("root"), house.new_name()
    root.request("PUT", OTHER, json={})
    wide = root.make(name, "write:default/*", "read:default/*")
    first, second = root.carrying(wide["secret"]), root.holding(name, *left)
    return first, second, lambda: root.good("DELETE", f"/v1/tokens/{wide['id']}")


def upcoming(house: House) -> list[int]:
    return [house.who("root").good("GET", f"{topic}/stats")["upcomingOffset"] for topic in (TOPIC, OTHER)]


@pytest.mark.parametrize("branch", [False, True])
def test_no_commit_has_appear_what_was_staged_by_a_grant_that_was_revoked(house: House, branch: bool) -> None:
    before, after, revoke = narrowed(house, "write:default/other")
    whole, part = house.new_name(), house.new_name()
    for each in (whole, part):
        before.good("POST", "/v1/atomic", json={"group": "g", "id": each, **({"of": whole} if each == part else {})})
    at = part if branch else whole
    before.good("PUT", f"{TOPIC}/stage/{at}/0", json={"messages": ["on t"]})
    before.good("PUT", f"{OTHER}/stage/{at}/0", json={"messages": ["on other"]})
    revoke()
    there, body = upcoming(house), {"parts": [], "branches": [part] if branch else []}
    assert_problem(after.request("POST", f"/v1/atomic/{whole}/commit", json=body), 403, "not_allowed")
    assert upcoming(house) == there
    assert after.good("GET", f"/v1/atomic/{whole}")["state"] == "in_progress"
    again = house.who("root").holding(after.good("GET", f"/v1/atomic/{whole}")["owner"], "write:default/*")
    assert again.good("POST", f"/v1/atomic/{whole}/commit", json=body)["state"] == "committed"
    assert upcoming(house) == [each + 1 for each in there]


@pytest.mark.parametrize("producer", ["other-1", None])
def test_no_commit_has_appear_what_was_staged_under_a_name_that_may_not_be_used_any_more(
    house: House, producer: str | None
) -> None:
    before, after, revoke = narrowed(house, "write:default/t:loader-*")
    for name, status in ((producer, 403), ("loader-1", 200)):
        id_ = house.new_name()
        before.good("POST", "/v1/atomic", json={"group": "g", "id": id_})
        staged = {"messages": ["m"]} | ({} if name is None else {"producer": name, "sequenceIds": [0]})
        if name is not None:
            staged["epoch"] = before.good("POST", TOPIC + "/producers", json={"name": name, "nonce": id_})["epoch"]
        before.good("PUT", f"{TOPIC}/stage/{id_}/0", json=staged)
        assert after.request("POST", f"/v1/atomic/{id_}/commit", json={"parts": []}).status_code == status
    revoke()


def test_no_transaction_commits_on_a_topic_that_its_client_may_not_write_to_any_more(house: House) -> None:
    before, after, revoke = narrowed(house, "write:default/other", "read:default/*")
    begun = [before.good("POST", TX, json={})["writePointer"] for _ in range(3)]
    for pointer in begun:
        before.good("POST", TOPIC + "/publish", json={"messages": ["m"], "transactionWritePointer": pointer})
    refused, prepared, allowed = begun
    before.good("POST", f"{TX}/{prepared}/can-commit", json={"changes": [], "resource": "sql"})
    revoke()
    for path, body in (("commit", {}), ("can-commit", {"changes": [], "resource": "sql"})):
        assert_problem(after.request("POST", f"{TX}/{refused}/{path}", json=body), 403, "not_allowed")
    assert after.good("GET", f"{TX}/{refused}")["state"] == "in_progress"
    assert after.good("POST", f"{TX}/{refused}/abort", json={})["state"] == "aborted"
    # What is prepared its database has decided: to refuse it would be half of a transaction.
    assert after.good("POST", f"{TX}/{prepared}/commit", json={})["state"] == "committed"
    again = house.who("root").holding(after.good("GET", f"{TX}/{allowed}")["owner"], "write:default/*")
    for who in (again, after):  # a repeat answers what was done
        assert who.good("POST", f"{TX}/{allowed}/commit", json={})["state"] == "committed"
