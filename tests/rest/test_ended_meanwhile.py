"""A credential that ends while what was asked with it waits: for the answers before it, or for the rest of its body."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from oncelog.errors import NotAllowed, NotServedHere, OncelogError, Unauthorized
from oncelog_service.access.grants import Right
from oncelog_service.atomic.endings import Endings
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.application import Application
from oncelog_service.rest.exchange import Head, Standing
from oncelog_service.rest.handlers import ranges
from oncelog_service.rest.routes import Call, Route
from oncelog_service.rest.table import ROUTES
from oncelog_service.service import Service
from tests.access.carrying import Carrying
from tests.patience import until
from tests.rest.talk import connected, head, read_answer
from tests.service.test_shares import made
from tests.world.service import RunningService, running_service

TOPIC = "/v1/namespaces/default/topics/t"
WAITING = json.dumps({"startOffset": 0, "wait": 60_000}).encode()
PUBLISHED = json.dumps({"messages": ["m"]}).encode()


def asking(path: str, secret: str, body: bytes, method: str = "POST") -> bytes:
    declared = "content-type: application/json", f"content-length: {len(body)}"
    return head(method, path, f"authorization: Bearer {secret}", *declared) + body


class House:
    """A locked service with a topic, and somebody who may read and write there until told otherwise."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.ada = Carrying(service.url).holding("ada", "admin")
        self.ada.good("PUT", TOPIC, json={})
        made = self.ada.make("bob", "read:default/t", "write:default/t", "manage:default/t")
        self.id, self.secret = made["id"], made["secret"]

    def revoke(self) -> None:
        assert self.ada.revoke(self.id).status_code == 200

    @property
    def messages(self) -> int:
        found: int = self.ada.good("GET", TOPIC + "/stats")["upcomingOffset"]
        return found


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with running_service(max_wait_ms=60_000, audit_log=tmp_path / "audit.jsonl") as service:
        yield House(service)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (TOPIC + "/poll", {"startOffset": 0, "wait": 60_000}),
        (TOPIC + "/subscriptions/s/receive", {"epoch": 1, "wait": 60_000}),
        ("/v1/namespaces/default/offsets", {"topics": {"t": {"after": 0}}, "wait": 60_000}),
    ],
)
def test_what_is_published_behind_the_end_of_a_token_reaches_nobody_who_waits_with_it(
    path: str, asked: dict[str, object], house: House
) -> None:
    house.ada.good("POST", TOPIC + "/subscriptions", json={"name": "s", "nonce": "n"})
    with connected(house.service.url) as connection:
        connection.sendall(asking(path, house.secret, json.dumps(asked).encode()))
        house.service.arrived(1)
        house.revoke()
        house.ada.good("POST", TOPIC + "/publish", json={"messages": ["not for bob"]})
        status, _, body = read_answer(connection.makefile("rb"))
    assert (status, json.loads(body)["code"], b"not for bob" in body) == (401, "unauthorized", False)


def test_what_waits_behind_a_poll_is_refused_once_its_token_is_revoked(house: House, tmp_path: Path) -> None:
    """Else one who foresees the end asks for some hundred polls in one go, and goes on reading for hours."""
    with connected(house.service.url) as connection:
        behind = [(TOPIC + "/publish", PUBLISHED, "POST"), (TOPIC + "/poll", WAITING, "POST"), (TOPIC, b"", "DELETE")]
        connection.sendall(b"".join(asking(path, house.secret, body, method) for path, body, method in [
            (TOPIC + "/poll", WAITING, "POST"), *behind,
        ]))  # fmt: skip
        house.service.arrived(1)
        house.revoke()
        assert house.ada.request("POST", TOPIC + "/publish", json={"messages": ["seen"]}).status_code == 200
        stream = connection.makefile("rb")
        assert [read_answer(stream)[0] for _ in range(1 + len(behind))] == [401] * 4
    assert house.messages == 1
    last = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["method"], last["path"], last["principal"], last["status"]) == ("DELETE", TOPIC, None, 401)


def test_a_body_that_comes_after_its_token_was_revoked_is_not_obeyed(house: House) -> None:
    request = asking(TOPIC + "/publish", house.secret, PUBLISHED)
    with connected(house.service.url) as connection:
        connection.sendall(request[:-1])
        until(lambda: house.service.server.under_way == 1, "its head has arrived")
        house.revoke()
        connection.sendall(request[-1:])
        status, _, body = read_answer(connection.makefile("rb"))
    assert (status, json.loads(body)["code"]) == (401, "unauthorized")
    assert house.messages == 0


def test_a_credential_that_holds_on_lets_in_what_has_waited(house: House) -> None:
    request = asking(TOPIC + "/publish", house.secret, PUBLISHED)
    with connected(house.service.url) as connection:
        connection.sendall(request[:-1])
        until(lambda: house.service.server.under_way == 1, "its head has arrived")
        connection.sendall(request[-1:] + head("GET", TOPIC + "/stats", f"authorization: Bearer {house.secret}"))
        stream = connection.makefile("rb")
        assert [read_answer(stream)[0] for _ in range(2)] == [200, 200]
    assert house.messages == 1


# --- what has waited a moment, by no clock: it is asked, held at an await, and its token is not known any more when it goes on


class _Held:
    """Requests to a service that wait, each at its first await of a kind, while who asks loses what it was let in by."""

    def __init__(self, service: Service, routes: tuple[Route, ...] = ROUTES) -> None:
        self.service = service
        self.application = Application(service, routes)
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def pause(self) -> None:
        self.begun.set()
        await self.may_go_on.wait()

    async def outcome(self, head: Head, body: bytes, ended: str) -> Answer | OncelogError:
        """``ended``: the id of the token that is gone while the request waits, in the very turn of the loop."""
        asked = asyncio.ensure_future(self.application.admit(head).answer(body))
        await self.begun.wait()
        access = self.service.access
        access._index([each for each in access.tokens if each.id != ended])
        self.may_go_on.set()
        try:
            return await asked
        except OncelogError as refused:
            return refused


def head_of(house: House, method: str, target: str, **shown: Any) -> Head:
    host, path = urlsplit(house.service.url).netloc.encode(), target.partition("?")[0]
    headers = {b"host": host, b"content-type": b"application/json"}
    if not shown:
        headers[b"authorization"] = f"Bearer {house.secret}".encode()
    return Head(method, path, target.partition("?")[2].encode(), target, headers, **shown)


def held_before(
    house: House, monkeypatch: pytest.MonkeyPatch, owner: Callable[[Service], Any], name: str, head: Head, body: bytes, ended: str
) -> Answer | OncelogError:
    """What comes of a request that waits before it calls this method of the service, while the token ``ended`` goes."""

    async def ask(service: Service) -> Answer | OncelogError:
        held, real = _Held(service), getattr(owner(service), name)

        async def slow(*asked: Any, **how: Any) -> Any:
            await held.pause()
            return await real(*asked, **how)

        monkeypatch.setattr(owner(service), name, slow)
        return await held.outcome(head, body, ended)

    return house.service.on_loop(ask)


def test_who_has_waited_a_moment_is_judged_again_as_one_who_has_waited_long(house: House) -> None:
    async def ask(service: Service) -> Answer | OncelogError:
        async def look(call: Call) -> str:
            await held.pause()
            return "not for bob"

        held = _Held(service, (Route("GET", "/moment", look, "", right=Right.READ, reads=True),))
        return await held.outcome(head_of(house, "GET", "/moment"), b"", house.id)

    assert isinstance(house.service.on_loop(ask), Unauthorized)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_request_that_ends_while_it_waits_holds_its_body_no_longer(fails: bool) -> None:
    """Whose client hangs up again and again would else fill the memory with what no bound counts any more."""

    class Body:
        pass

    async def work(body: Body) -> None:
        await futures[0]

    body, futures = Body(), [asyncio.get_running_loop().create_future()]
    kept, asked = weakref.ref(body), asyncio.ensure_future(Standing(made()).follow(work(body)))
    del body
    gc.disable()
    try:
        await asyncio.sleep(0)
        futures[0].set_exception(ValueError()) if fails else asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        del asked, futures[0]
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/publish", {"messages": ["m"]}),
        ("POST", "/store", {"messages": ["m"], "transactionWritePointer": 5}),
        ("PUT", "/stage/whole/0", {"messages": ["m"]}),
        ("POST", "/trim", {"beforeOffset": 1}),
        ("POST", "/erase", {"offset": 0}),
        ("POST", "/producers", {"name": "p", "nonce": "n"}),
        ("DELETE", "/producers/known", None),
        ("POST", "/subscriptions", {"name": "other", "nonce": "n"}),
        ("POST", "/subscriptions/s/seek", {"to": {"offset": 1}, "nonce": "n"}),
        ("DELETE", "/subscriptions/s", None),
    ],
)
def test_what_waited_until_its_topic_was_open_is_not_obeyed_once_its_token_is_revoked(
    method: str, path: str, body: object, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.ada.good("POST", TOPIC + "/publish", json={"messages": ["there"]})
    house.ada.good("POST", TOPIC + "/producers", json={"name": "known", "nonce": "n"})
    house.ada.good("POST", TOPIC + "/subscriptions", json={"name": "s", "nonce": "n"})
    carol = house.ada.make("carol", "read:default/t", "write:default/t", "manage:default/t", "operate")
    house.id, house.secret = carol["id"], carol["secret"]
    house.ada.carrying(house.secret).good("POST", "/v1/atomic", json={"group": "g", "id": "whole"})

    def state() -> list[object]:
        addresses = "/stats", "/rows", "/producers", "/subscriptions"
        return [house.ada.good("GET", TOPIC + each) for each in addresses]

    before, data = state(), b"" if body is None else json.dumps(body).encode()
    head = head_of(house, method, TOPIC + path)
    answer = held_before(house, monkeypatch, lambda service: service.opening.topics.logs, "open", head, data, house.id)
    assert isinstance(answer, Unauthorized)
    assert state() == before


@pytest.mark.parametrize(("certificate", "refused"), [(None, Unauthorized), ("dora", NotAllowed)])
def test_what_waited_for_the_writes_before_it_is_not_stored_once_its_token_or_the_right_to_its_name_is_gone(
    house: House, monkeypatch: pytest.MonkeyPatch, certificate: str | None, refused: type[OncelogError]
) -> None:
    house.ada.make("cert:dora", "write:default/t:loader-*")
    unnamed = house.ada.make("cert:dora", "write:default/t")["id"]
    head = head_of(house, "POST", TOPIC + "/publish", **({"certificate": certificate} if certificate else {}))
    ended = unnamed if certificate else house.id
    assert isinstance(held_before(house, monkeypatch, lambda _: TopicLog, "_publish", head, PUBLISHED, ended), refused)
    assert house.messages == 0


def test_what_waited_to_learn_who_serves_it_is_not_passed_on_once_its_token_is_revoked(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other instance may learn of the end up to a second later."""
    passed_on = []

    async def ask(service: Service) -> Answer | OncelogError:
        async def elsewhere(*_: object) -> None:
            await held.pause()
            raise NotServedHere(url="http://elsewhere")

        async def send(*asked: object) -> Answer:
            passed_on.append(asked)
            return Answer(b"{}", "application/json")

        held = _Held(service)
        monkeypatch.setattr(service.opening.topics.logs, "open", elsewhere)
        monkeypatch.setattr(held.application._forwarder, "send", send)
        asked = head_of(house, "POST", TOPIC + "/publish")
        asked.headers[b"oncelog-route"] = b"proxy"
        return await held.outcome(asked, PUBLISHED, house.id)

    assert isinstance(house.service.on_loop(ask), Unauthorized)
    assert not passed_on


def test_a_commit_whose_token_is_revoked_while_it_waits_stays_in_progress(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its principal has another token, or gets one: what was staged is not lost with the first."""
    bob, again = Carrying(house.service.url).carrying(house.secret), house.ada.holding("bob", "write:default/t")
    bob.good("POST", "/v1/atomic", json={"group": "g", "id": "whole"})
    bob.good("PUT", f"{TOPIC}/stage/whole/0", json={"messages": ["m"]})

    head = head_of(house, "POST", "/v1/atomic/whole/commit")
    answer = held_before(house, monkeypatch, lambda _: Endings, "_work", head, b'{"parts": []}', house.id)
    assert isinstance(answer, Unauthorized)
    assert again.good("GET", "/v1/atomic/whole")["state"] == "in_progress"
    assert again.good("POST", "/v1/atomic/whole/commit", json={"parts": []})["state"] == "committed"
    assert house.messages == 1


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_whose_token_was_revoked_by_the_change_before_makes_and_revokes_none(method: str, house: House) -> None:
    """Else one who foresees the end has a new token waiting behind it, and stays."""
    carol = house.ada.make("carol", "admin")
    house.id, house.secret = carol["id"], carol["secret"]
    bob, *_ = [each["id"] for each in house.ada.good("GET", "/v1/tokens") if each["name"] == "bob"]

    async def ask(service: Service) -> Answer | OncelogError:
        access, target = service.access, "/v1/tokens" + (f"/{bob}" if method == "DELETE" else "")
        async with access._changing:
            revoking = asyncio.ensure_future(access.revoke(house.id))
            await asyncio.sleep(0)  # it is the first that waits
            head = head_of(house, method, target)
            asked = asyncio.ensure_future(Application(service).admit(head).answer(b'{"name": "later", "grants": ["admin"]}'))
            await asyncio.sleep(0)
        await revoking
        try:
            return await asked
        except OncelogError as refused:
            return refused

    assert isinstance(house.service.on_loop(ask), Unauthorized)
    assert sorted(each["name"] for each in house.ada.good("GET", "/v1/tokens")) == ["ada", "bob"]


def test_who_may_read_fewer_topics_by_now_is_not_told_of_those_it_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is known as before, but of the rows that grant it something one is gone, with the topic that the body names."""
    house.ada.make("cert:dora", "read:default/other")
    ended = house.ada.make("cert:dora", "read:default/t")["id"]

    async def ask(service: Service) -> Answer | OncelogError:
        held = _Held(service)
        monkeypatch.setattr(ranges, "wait_for_more", lambda *_: held.pause())
        head = head_of(house, "POST", "/v1/namespaces/default/offsets", certificate="dora")
        return await held.outcome(head, b'{"topics": {"t": {"after": 0}}, "wait": 60000}', ended)

    assert isinstance(house.service.on_loop(ask), NotAllowed)
