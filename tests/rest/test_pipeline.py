"""Requests behind one another on a connection whose client asks for it: under way together, in effect one after the other."""

from __future__ import annotations

import asyncio
import gzip
from functools import partial
from itertools import permutations, product
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest, NotFound, Unauthorized
from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest
from oncelog_service.cluster.leases import topic_resource
from oncelog_service.rest.answer import Answer, refusal
from oncelog_service.rest.exchange import CONTINUE, Admitted, Answers, Exchange, Head, Step
from oncelog_service.rest.handlers.messages import PublishStep
from oncelog_service.rest.protocol import Shared
from oncelog_service.storage.keys import topic_key
from tests.cluster.instances import InPlace
from tests.rest.talk import Topic, connected, head, read_answer
from tests.rest.test_protocol import Echo, Wire, run, until
from tests.world.disk import FAULTS, Fault, arm
from tests.world.house import House
from tests.world.shared import SharedDatabase

PIPELINE = "oncelog-pipeline: 1"
STEP, FAILS, REFUSES, WAITS, NOTHING = "/step", "/fails", "/refuses", "/waits", "/nothing"
"""Done in a step; the same, and it comes to nothing; the step refuses it; it goes the long way; nothing is there."""
KINDS = (STEP, STEP, STEP, STEP, FAILS, REFUSES, WAITS, NOTHING)


class Stations(Echo):
    """Does what a path says, and has come to it when it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: dict[int, Station | asyncio.Future[None]] = {}
        """What is begun and has come to nothing yet, by number."""
        self.is_over = False
        """One has been refused, or has failed."""
        self.ends = True
        """It is the last one, then."""
        self.wrong = ""
        """What was done that must not be; raised in a step, it would be an answer like others."""

    def admit(self, head: Head, address: object = None) -> Admitted:
        if head.path == NOTHING:
            self.is_over = True
            raise NotFound("nothing here")
        return Admitted(self.answer, False, step=partial(Station, self))

    def begins(self, number: int) -> None:
        if self.is_over and self.ends:
            self.wrong = f"{number} is begun behind one that was refused"
        self.seen.append(b"%d" % number)

    async def answer(self, body: bytes) -> Answer:
        number = int(body)
        assert not self.pending, "it waits for those before it"
        self.begins(number)
        done = self.pending[number] = asyncio.get_running_loop().create_future()
        await done
        return Answer(body, "text/plain")

    def tell(self, number: int) -> None:
        """It has come to what it does."""
        pending = self.pending.pop(number)
        if isinstance(pending, Station):
            pending.tell()
        else:
            pending.set_result(None)


class Station:
    """One step of it."""

    def __init__(self, stations: Stations, exchange: Exchange, connection: Answers) -> None:
        self.stations, self.exchange, self.connection = stations, exchange, connection

    def begin(self, behind: Step | None = None) -> bool:
        stations, exchange, path = self.stations, self.exchange, self.exchange.head.path
        if path == WAITS or exchange.head.is_packed:
            return False
        if path == REFUSES:
            exchange.refused = InvalidRequest("no")
            stations.is_over = True
            return False
        number = int(exchange.body)
        stations.begins(number)
        stations.pending[number] = self
        return True

    def tell(self) -> None:
        answer = Answer(self.exchange.body, "text/plain")
        if self.exchange.head.path == FAILS:
            self.stations.is_over = True
            answer = refusal(InvalidRequest("no"), "")
        self.connection.give(self.exchange, answer)


def asked(path: str, number: int, *headers: str) -> bytes:
    body = b"%d" % number
    return head("POST", path, PIPELINE, f"content-length: {len(body)}", *headers) + body


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=9), st.data())
def test_the_effect_is_that_of_one_after_the_other_up_to_the_first_that_is_refused(kinds: list[str], data: st.DataObject) -> None:
    raw = b"".join(asked(kind, number) for number, kind in enumerate(kinds))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4), "cuts"))
    pieces = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    async def check(stations: Stations, shared: Shared) -> None:
        wire = Wire(shared)
        while pieces or stations.pending:
            if pieces and wire.reads and not wire.closed and not (stations.pending and data.draw(st.booleans(), "tell")):
                wire.protocol.data_received(pieces.pop(0))
            elif stations.pending:
                stations.tell(data.draw(st.sampled_from(sorted(stations.pending)), "which"))
            elif wire.closed:
                pieces.clear()
            for _ in range(3):
                await asyncio.sleep(0)
        await until(lambda: not shared.exchanges)
        bad = next((number for number, kind in enumerate(kinds) if kind in (FAILS, REFUSES, NOTHING)), None)
        upto = len(kinds) if bad is None else bad
        good = [(200, b"%d" % number) for number in range(upto)]
        assert wire.answers()[:upto] == good
        assert len(wire.answers()) == upto + (bad is not None)
        assert wire.closed == (bad is not None) == (b"\r\nconnection: close\r\n" in wire.sent)
        begun = [int(each) for each in stations.seen]
        assert begun == [*range(len(begun))], "in order, and none is left out"
        if bad is None or kinds[bad] != FAILS:
            assert len(begun) == upto, "none behind one that was refused"
        assert not stations.wrong

    run(check, room=8 * 1_024, answers=Stations)  # type: ignore[arg-type]


def test_without_the_header_one_is_answered_before_the_next_is_begun_and_a_refusal_ends_nothing() -> None:
    async def check(stations: Stations, shared: Shared) -> None:
        wire, stations.ends = Wire(shared), False
        sent = [asked(path, number) for number, path in enumerate((STEP, FAILS, STEP))]
        await wire.send(b"".join(sent).replace(PIPELINE.encode(), b"oncelog-pipeline: 0"), turns=3)
        for number in range(3):
            assert [*stations.pending] == [number]
            stations.tell(number)
            await asyncio.sleep(0)
        assert [status for status, _ in wire.answers()] == [200, 400, 200]
        assert not wire.closed

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_what_stands_before_the_first_request_with_the_header_is_not_of_them() -> None:
    async def check(stations: Stations, shared: Shared) -> None:
        wire, stations.ends = Wire(shared), False
        await wire.send(asked(FAILS, 0).replace(PIPELINE.encode(), b"x: y") + asked(STEP, 1) + asked(STEP, 2), turns=3)
        assert [*stations.pending] == [0]
        stations.tell(0)
        await until(lambda: [*stations.pending] == [1, 2])
        stations.tell(1)
        stations.tell(2)

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_those_under_way_together_are_bounded_and_each_counts_as_one_of_its_principals() -> None:
    async def check(stations: Stations, shared: Shared) -> None:
        shared._most_of_one = 3
        wire, other = Wire(shared), Wire(shared)
        await wire.send(b"".join(asked(STEP, number) for number in range(9)), turns=3)
        assert [*stations.pending] == [0, 1, 2]
        assert not wire.reads, "more of what waits is not read"
        await other.send(asked(STEP, 100), turns=9)
        assert [status for status, _ in other.answers()] == [503]
        for number in range(9):
            await until(lambda number=number: number in stations.pending)  # type: ignore[misc]
            stations.tell(number)
        assert [status for status, _ in wire.answers()] == [200] * 9
        assert wire.reads

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_a_client_that_goes_has_what_was_begun_done_and_nothing_else() -> None:
    async def check(stations: Stations, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(b"".join(asked(kind, number) for number, kind in enumerate((STEP, STEP, STEP, WAITS, STEP))), turns=3)
        stations.tell(1)
        wire.abort()
        await asyncio.sleep(0)
        assert shared.exchanges, "it is handed over"
        for number in (2, 0):
            stations.tell(number)
        assert not shared.exchanges
        assert (stations.seen, wire.sent) == ([b"0", b"1", b"2"], b"")

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_none_is_begun_behind_what_is_known_to_be_refused_before_its_answer_can_leave() -> None:
    async def check(stations: Stations, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(asked(STEP, 0) + asked(FAILS, 1) + asked(STEP, 2), turns=3)
        stations.tell(1)
        await wire.send(asked(STEP, 3), turns=3)
        assert [*stations.pending] == [0, 2]
        stations.tell(0)
        stations.tell(2)
        assert ([status for status, _ in wire.answers()], stations.wrong) == ([200, 400], "")

    run(check, answers=Stations)  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [b"", asked(WAITS, 3)], ids=["no more", "one that waits"])
def test_whatever_was_begun_is_noted_once_and_given_back_when_its_client_goes_meanwhile(
    more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut, and learns of it in the next turn only: what is handed over may be told before."""
    noted: list[bytes] = []
    monkeypatch.setattr(Shared, "note_time", lambda _, exchange, *__: noted.append(exchange.body))

    async def check(stations: Stations, shared: Shared) -> None:
        for told, gone_at in product(permutations(range(3)), range(3)):
            noted.clear()
            wire = Wire(shared)
            await wire.send(asked(STEP, 0) + asked(STEP, 1) + asked(STEP, 2) + more, turns=3)
            for turn, number in enumerate(told):
                if turn == gone_at:
                    wire.abort()
                stations.tell(number)
            await until(lambda: not shared.connections)
            assert (sorted(noted), [*shared.exchanges]) == ([b"0", b"1", b"2"], [])

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_what_comes_behind_a_refusal_that_was_sent_is_not_looked_at_and_its_client_can_read_it() -> None:
    """Also where the rest of the refused one's body is still to come."""

    async def check(stations: Stations, shared: Shared) -> None:
        wire = Wire(shared)
        wire.lingers = True
        await wire.send(head("POST", NOTHING, PIPELINE, "content-length: 9"), turns=3)
        assert [status for status, _ in wire.answers()] == [404]
        assert (wire.ended, wire.closed, wire.reads) == (True, False, True)
        await wire.send(b"x" * 9 + asked(STEP, 0), turns=3)
        assert len(wire.answers()) == 1
        assert stations.seen == []

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_one_that_ends_the_connection_or_asks_whether_to_send_its_body_or_is_packed_in_the_midst() -> None:
    async def check(stations: Stations, shared: Shared) -> None:
        wire, body = Wire(shared), gzip.compress(b"2")
        packed = head("POST", STEP, "content-encoding: gzip", f"content-length: {len(body)}") + body
        chunked = head("POST", STEP, "transfer-encoding: chunked") + b"1\r\n3\r\n0\r\n\r\n"
        last = asked(STEP, 4, "connection: close")
        await wire.send(asked(STEP, 0) + asked(STEP, 1, "expect: 100-continue") + packed + chunked + last + asked(STEP, 5), 3)
        for numbers in ([0], [1], [2], [3, 4]):
            assert [*stations.pending] == numbers
            for number in numbers:
                stations.tell(number)
            await until(lambda upto=numbers[-1]: len(wire.answers()) == upto + 1)  # type: ignore[misc]
            await asyncio.sleep(0)
        assert [body for _, body in wire.answers()] == [b"%d" % number for number in range(5)]
        assert wire.sent.index(CONTINUE) > wire.sent.index(b"\r\n\r\n0")
        assert wire.closed

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_to_a_client_that_does_not_read_what_comes_out_of_order_goes_in_order_and_nothing_more_is_begun() -> None:
    async def check(stations: Stations, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(asked(STEP, 0) + asked(STEP, 1) + asked(STEP, 2), turns=3)
        assert shared._has_others("somebody")
        wire.protocol.pause_writing()
        assert not shared._has_others("somebody"), "who reads nothing would hold up others for as long as one likes"
        for number in (2, 1, 0):
            stations.tell(number)
        await wire.send(asked(STEP, 3), turns=9)
        assert (wire.sent, [*stations.pending]) == (b"", [])
        wire.protocol.resume_writing()
        await until(lambda: stations.pending)
        stations.tell(3)
        await until(lambda: len(wire.answers()) == 4)
        assert [body for _, body in wire.answers()] == [b"0", b"1", b"2", b"3"]

    run(check, answers=Stations)  # type: ignore[arg-type]


def test_who_may_not_any_more_when_it_is_begun_is_refused() -> None:
    class Revoking(Stations):
        revoked = False

        def admit(self, head: Head, address: object = None) -> Admitted:
            if self.revoked:
                raise Unauthorized
            return super().admit(head)

    async def check(stations: Revoking, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send(asked(WAITS, 0) + asked(STEP, 1), turns=3)
        stations.revoked = True
        stations.tell(0)
        await until(lambda: len(wire.answers()) == 2)
        assert [status for status, _ in wire.answers()] == [200, 401]
        assert stations.seen == [b"0"]

    run(check, answers=Revoking)  # type: ignore[arg-type]


@pytest.mark.parametrize("behind", [False, True])
def test_one_that_fails_when_it_was_handed_over_is_answered_once(behind: bool) -> None:
    class Failing(Station):
        def begin(self, behind: Step | None = None) -> bool:
            super().begin()
            raise RuntimeError("after it was handed over")

    class Fails(Stations):
        def admit(self, head: Head, address: object = None) -> Admitted:
            kind = Failing if head.path == FAILS else Station
            return Admitted(self.answer, False, step=partial(kind, self))

    async def check(stations: Fails, shared: Shared) -> None:
        wire = Wire(shared)
        await wire.send((asked(STEP, 0) if behind else b"") + asked(FAILS, 1) + asked(STEP, 2), turns=3)
        for number in [*stations.pending]:
            stations.tell(number)
        await until(lambda: wire.closed)
        assert [status for status, _ in wire.answers()] == [200, 500][not behind :]
        assert stations.seen == [b"0", b"1"][not behind :]

    run(check, answers=Fails)  # type: ignore[arg-type]


# --- over a log


class Ask(NamedTuple):
    """A publish."""

    topic: str
    producer: str | None
    is_again: bool
    """It is the producer's last one once more."""


asks = st.builds(Ask, st.sampled_from("tttuv"), st.sampled_from([None, "p", "p"]), st.sampled_from([False] * 5 + [True]))
faults = st.tuples(st.sampled_from(FAULTS), st.integers(0, 3))


def published(topic: str, payload: int, producer: str | None = None, sequence_id: int = 0) -> bytes:
    ids = None if producer is None else [sequence_id]
    body = encode_publish_request(PublishRequest([b"%d" % payload], producer, None, ids))
    path = f"/v1/namespaces/default/topics/{topic}/publish"
    return head("POST", path, PIPELINE, f"content-type: {ONCELOG_AVRO}", f"content-length: {len(body)}") + body


def requests(asks: list[Ask]) -> list[tuple[bytes, int]]:
    """Each as it is sent, and the payload that is stored then: its place, or that of the one which it repeats."""
    found = []
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for number, (topic, producer, is_again) in enumerate(asks):
        payload, sequence_id = number, 0
        if producer is not None:
            newest = last.get((topic, producer))
            if newest is not None:
                payload, sequence_id = newest if is_again else (number, newest[1] + 1)
            last[topic, producer] = payload, sequence_id
        found.append((published(topic, payload, producer, sequence_id), payload))
    return found


def hold_what_came_first(bursts: list[list[Ask]], strikes: list[tuple[Fault, int]]) -> None:
    """Each burst is sent on a connection of its own to topics that are new, and a write of it fails: what is stored is what came
    before some moment, with all that was answered, and nothing behind what was refused."""
    with House() as house:
        house.damaged = True  # topics are deleted
        for burst, strike in zip(bursts, strikes, strict=True):
            for topic in "tu":
                house.make(topic).request("DELETE")
                house.make(topic).request("PUT", json={})
            arm(house.disk, *strike)
            sent, answers = requests(burst), 0
            with connected(house.service.url) as connection, connection.makefile("rb") as stream:
                connection.sendall(b"".join(raw for raw, _ in sent))
                while answers < len(sent):
                    status, headers, _ = read_answer(stream)
                    if status != 200:
                        assert (headers.get("connection"), stream.read()) == ("close", b""), "it is the last one"
                        break
                    answers += 1
            house.healthy()
            stored = {int(each) for topic in "tu" for each in house.make(topic).payloads()}
            upto = max(answers, *(number + 1 for number, (_, payload) in enumerate(sent) if payload in stored), 0, 0)
            assert all(ask.topic != "v" for ask in burst[:upto])
            assert stored == {payload for _, payload in sent[:upto]}


@given(st.lists(st.lists(asks, min_size=2, max_size=12), min_size=3, max_size=3), st.lists(faults, min_size=3, max_size=3))
def test_nothing_is_stored_without_what_came_before_it_on_its_connection(
    bursts: list[list[Ask]], strikes: list[tuple[Fault, int]]
) -> None:
    hold_what_came_first(bursts, strikes)


def test_that_one_behind_a_refused_one_is_processed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "told", lambda *_: None)
    with pytest.raises((AssertionError, TimeoutError)):
        hold_what_came_first([[Ask("v", None, False), Ask("t", None, False)]], [("fails", 9)])


@pytest.mark.parametrize("topic", ["t", "u"])
def test_with_a_write_that_stands_on_a_lost_lease_goes_all_that_came_behind_it(topic: str) -> None:
    assert stored_behind_a_lost_lease(topic) == []


def test_that_one_is_stored_behind_a_lost_lease_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublishStep, "_follows", lambda *_: True)
    assert stored_behind_a_lost_lease("u") == ["1", "2"]


def stored_behind_a_lost_lease(topic: str) -> list[str]:
    """What was sent to this topic behind a publish to another one, or the same, whose lease another instance has taken."""
    database = SharedDatabase(lambda: 0)
    here = InPlace(database, "here")
    here.begin()
    try:
        for name in "tu":
            Topic(here.url, name).publish("before")
        resource = topic_resource(topic_key("default", "t"))
        epoch, _ = database.leases.leases[resource]
        database.leases.leases[resource] = epoch + 1, "there"
        with connected(here.url) as connection, connection.makefile("rb") as stream:
            connection.sendall(published("t", 0) + published(topic, 1) + published("u", 2))
            status, headers, _ = read_answer(stream)
            assert (status, headers["connection"], stream.read()) == (503, "close", b"")
        database.leases.leases[resource] = epoch + 2, None
        return [each for name in "tu" for each in Topic(here.url, name, create=False).payloads() if each != "before"]
    finally:
        here.stop()
