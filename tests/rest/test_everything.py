"""Polls without a limit where CDAP's clients are served: everything that the log held when the answer began, or a broken answer.

Pages are of three messages and larger than what the system's buffers take, so an answer whose client has read its head is within
its first page.
"""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import fastavro
import pytest
import requests

from oncelog.wire.codec import avro_source
from oncelog.wire.isolation import MORE
from oncelog.wire.media import AVRO, JSON, ONCELOG_AVRO
from oncelog.wire.transaction import Transaction
from oncelog_service.bounds.waits import Waits
from oncelog_service.log.read import polls
from oncelog_service.rest import forward
from oncelog_service.rest.handlers import cdap_polls
from oncelog_service.storage.port import Table
from tests.access.carrying import Carrying
from tests.cluster.instances import InPlace, Instances, address, in_place, until
from tests.rest.talk import TIMEOUT, Topic, avro_poll, connected, done, head, read_answer
from tests.world.disk import arm, flip
from tests.world.house import House

PAGE = 3
SIZE = 100_000
MESSAGES = 10
NO_LIMIT = 2**31 - 1
SCHEMA = fastavro.parse_schema(avro_source(AVRO, "ConsumeResponse"))
BROKEN = (requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small pages; the topics of those that are made."""
    made: list[str] = []
    page = cdap_polls._page

    async def noted(call: Any, *rest: Any) -> Any:
        made.append(call.path["topic"])
        return await page(call, *rest)

    monkeypatch.setattr(cdap_polls, "_PAGE", cdap_polls._PAGE._replace(max_messages=PAGE))
    monkeypatch.setattr(cdap_polls, "_page", noted)
    monkeypatch.setattr(polls, "_SMALL_PAGE", PAGE - 1)
    return made


@pytest.fixture
def house(pages: list[str]) -> Iterator[House]:
    with House(cdap_clients=True, cache_bytes=0) as found:
        fill(found.topic)
        yield found


def fill(topic: Topic, first: int = 0, messages: int = MESSAGES) -> None:
    for number in range(first, first + messages):
        done(topic.publish(f"{number} ".ljust(SIZE)))


class Everything:
    """A poll without a limit, whose answer is read when it is asked for."""

    def __init__(self, topic: Topic, query: str = "", **fields: Any) -> None:
        self.answer = topic.session.post(
            f"{topic.url}/poll{query}", avro_poll(**fields), headers={"content-type": AVRO}, stream=True, timeout=TIMEOUT
        )
        self._pieces = self.answer.iter_content(2**14)
        self._read = b""

    def read(self, size: int) -> None:
        """Read so much, and a bit more."""
        while len(self._read) < size:
            self._read += next(self._pieces)

    def numbers(self) -> list[int | None]:
        """Of the messages, all read now; None where a payload is empty. Raises BROKEN."""
        assert self.answer.status_code == 200
        return numbers(self._read + b"".join(self._pieces))


def numbers(body: bytes) -> list[int | None]:
    stream = io.BytesIO(body)
    found = [int(each["payload"].split()[0]) if each["payload"] else None for each in fastavro.schemaless_reader(stream, SCHEMA)]
    assert not stream.read(), "nothing follows the array"
    return found


ALL = list(range(MESSAGES))


@pytest.mark.parametrize("limit", [None, NO_LIMIT])
def test_without_a_limit_everything_is_answered_a_page_at_a_time(house: House, pages: list[str], limit: int | None) -> None:
    everything = Everything(house.topic, limit=limit)
    assert everything.answer.headers["transfer-encoding"] == "chunked"
    assert MORE not in everything.answer.headers
    assert everything.numbers() == ALL
    assert len(pages) == 4
    later = Everything(house.topic, limit=limit, startFrom=house.topic.read(startOffset=4, limit=1)[0]["id"].encode("latin-1"))
    assert later.numbers() == ALL[4:]


def test_what_fits_a_page_is_an_answer_with_a_length(house: House) -> None:
    last = house.topic.read(startOffset=MESSAGES - PAGE, limit=1)[0]["id"].encode("latin-1")
    answer = done(house.topic.post("/poll", avro_poll(startFrom=last), AVRO))
    assert "content-length" in answer.headers
    assert numbers(answer.content) == ALL[-PAGE:]
    assert numbers(done(house.topic.post("/poll", avro_poll(startFrom=last[:7] + b"\xff" * 13), AVRO)).content) == []


@pytest.mark.parametrize("media", [AVRO, ONCELOG_AVRO, JSON])
def test_everybody_else_is_answered_a_page_that_says_that_there_is_more(house: House, pages: list[str], media: str) -> None:
    house.restart(default_poll_messages=4, max_poll_messages=4)
    asked = {"limit": NO_LIMIT - 1} if media == AVRO else {}
    body = b"{}" if media == JSON else avro_poll(media, **asked)
    answer = done(house.topic.post("/poll", body, media))
    assert (answer.headers[MORE], "transfer-encoding" in answer.headers, pages) == ("true", False, [])
    house.restart(cdap_clients=False)
    answer = done(house.topic.post("/poll", avro_poll(), AVRO))
    assert (answer.headers[MORE], numbers(answer.content)) == ("true", ALL[:4])


def in_http_1_0(url: str, path: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
    body = avro_poll()
    asked = head("POST", f"{path}/poll", f"content-type: {AVRO}", f"content-length: {len(body)}", *headers)
    with connected(url) as connection:
        connection.sendall(asked.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        return read_answer(connection.makefile("rb"))


def test_in_http_1_0_nobody_could_tell_a_broken_answer_so_it_is_a_page_that_says_that_there_is_more(house: House) -> None:
    house.restart(default_poll_messages=4)
    status, headers, content = in_http_1_0(house.service.url, address("t"))
    assert (status, headers[MORE], numbers(content)) == (200, "true", ALL[:4])


# --- what happens under way


def trimmed(house: House) -> None:
    done(house.topic.request("POST", "/trim", json={"beforeOffset": 7}))


def erased(house: House) -> None:
    done(house.topic.request("POST", "/erase", json={"offset": 5}))


def expired(house: House) -> None:
    house.clock.advance(604_800_000)


def more(house: House) -> None:
    fill(house.topic, MESSAGES, PAGE + 1)


@pytest.mark.parametrize(
    ("act", "found"),
    [(more, ALL), (trimmed, [0, 1, 2, 7, 8, 9]), (erased, [0, 1, 2, 3, 4, None, 6, 7, 8, 9]), (expired, [0, 1, 2])],
    ids=["published", "trimmed", "erased", "expired"],
)
@pytest.mark.parametrize("query", ["", "?isolation=committed"])
def test_the_end_is_that_of_the_beginning_and_what_is_gone_by_then_is_left_out(
    house: House, act: Callable[[House], None], found: list[int | None], query: str
) -> None:
    everything = Everything(house.topic, query)
    act(house)
    assert everything.numbers() == found


@pytest.mark.parametrize("how", ["commit", "abort"])
@pytest.mark.parametrize("reads", ["everything", "committed", "in a transaction"])
def test_a_transaction_that_ends_under_way_is_seen_as_a_whole_or_not_at_all(house: House, how: str, reads: str) -> None:
    """Its messages lie in the second page and in the fourth."""
    pointer = house.start("long")
    for first, under in ((10, None), (12, pointer), (13, None), (18, pointer), (19, None)):
        fields = {} if under is None else {"transactionWritePointer": under}
        for number in range(first, {10: 12, 13: 18}.get(first, first + 1)):
            done(house.topic.publish(f"{number} ".ljust(SIZE), **fields))
    start = house.topic.read(startOffset=8, limit=1)[0]["id"].encode("latin-1")
    reader: Transaction | None = house.client.start_transaction() if reads == "in a transaction" else None
    everything = Everything(
        house.topic,
        "?isolation=committed" if reads == "committed" else "",
        startFrom=start,
        transaction=None if reader is None else reader.to_bytes(),
    )
    house.end(pointer, how)
    house.settle()
    before, behind = [*range(8, 12)], [*range(13, 18), 19]
    if reads == "everything":
        expected = [*range(8, 20)]
    elif reads == "committed" or how == "commit":
        expected = before  # it was undecided when the answer began, and is so for the reader's transaction for ever
    else:
        expected = before + behind  # rolled back before it was reached
    assert everything.numbers() == expected


def test_a_stored_group_is_answered_over_the_pages(house: House) -> None:
    pointer = house.start("long")
    for number in range(MESSAGES, 2 * MESSAGES):
        house.topic.store_under(pointer, f"{number} ".ljust(SIZE))
    house.topic.publish_under(pointer)
    everything = Everything(house.topic)
    fill(house.topic, 2 * MESSAGES, 1)
    assert everything.numbers() == [*range(2 * MESSAGES)]


# --- what fails under way


def deleted(house: House) -> None:
    done(house.topic.request("DELETE", ""))


def damaged(house: House) -> None:
    house.damaged = True
    for key in sorted(house.disk.tables[Table.MESSAGE])[4:]:
        flip(house.disk, Table.MESSAGE, key)


def away(house: House) -> None:
    house.damaged = True
    arm(house.disk, "crash before", 0)
    assert house.topic.publish("x").status_code >= 500


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (deleted, "topic_not_found"),
        (House.again, "stale_message_id"),
        (damaged, "topic_damaged"),
        (away, "storage_unavailable"),
    ],
    ids=["deleted", "made anew", "damaged", "the store is away"],
)
def test_what_fails_under_way_is_a_broken_answer_said_in_the_log_and_counted(
    house: House, caplog: pytest.LogCaptureFixture, act: Callable[[House], None], code: str
) -> None:
    everything = Everything(house.topic)
    act(house)
    with pytest.raises(BROKEN):
        everything.numbers()
    (said,) = [each for each in caplog.records if "the answer broke off" in each.getMessage()]
    assert (said.levelno, said.exc_info) == (logging.WARNING, None)
    assert said.getMessage().startswith("POST /v1/namespaces/default/topics/t/poll: the answer broke off: ")
    assert house.service.service.traffic.broken_off == {code: 1}
    if act is away:
        house.healthy()
    counted = f'oncelog_answers_broken_off_total{{code="{code}"}} 1.0'
    assert counted in requests.get(house.service.url + "/metrics", timeout=TIMEOUT).text


@pytest.mark.parametrize("read", [0, PAGE * SIZE + SIZE // 2], ids=["before the second", "before the third"])
def test_who_asks_is_judged_for_each_page(house: House, pages: list[str], read: int) -> None:
    house.restart(token="secret-of-the-operator")
    admin = Carrying(house.service.url, "secret-of-the-operator")
    made = admin.make("bob", "read:default/t")
    topic = Topic(house.service.url, create=False)
    topic.session.headers["authorization"] = f"Bearer {made['secret']}"
    assert Everything(topic).numbers() == ALL
    del pages[:]
    everything = Everything(topic)
    everything.read(read)
    house.service.arrived(1)
    assert len(pages) == (2 if read else 1)
    assert admin.revoke(made["id"]).status_code == 200
    with pytest.raises(BROKEN):
        everything.numbers()
    assert house.service.service.traffic.broken_off == {"unauthorized": 1}
    house.damaged = True  # nobody without a token may look


def test_a_service_that_stops_breaks_it_off_and_says_so(house: House, caplog: pytest.LogCaptureFixture) -> None:
    everything = Everything(house.topic)
    traffic = house.service.service.traffic
    house.damaged = True
    house._life.close()
    with pytest.raises(BROKEN):
        everything.numbers()
    assert "the answer broke off: the service is stopping" in caplog.text
    assert traffic.broken_off == {"storage_unavailable": 1}


# --- what it holds, and for how long


def test_of_a_client_that_does_not_read_one_page_is_held_and_no_place(house: House, pages: list[str]) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            stack.callback(Everything(house.topic).answer.close)
        house.service.arrived(4)
        assert len(pages) == 4
        assert house.service.service.traffic.unread_bytes <= 4 * PAGE * (SIZE + 100)
        assert house.topic.payloads(limit=1_000, startOffset=MESSAGES - 1)[0].split() == ["9"]
    until(lambda: house.service.server.under_way == 0)
    assert len(pages) == 4, "nothing is read for who has gone"
    assert house.service.service.traffic.broken_off == {}
    assert not house.service.service.scans._large_pages.locked()


def test_of_what_its_client_has_taken_nothing_is_held(house: House) -> None:
    Everything(house.topic).numbers()  # what is made once is made now
    with ExitStack() as stack:
        gc.collect()
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(4):
            stack.callback(Everything(house.topic).answer.close)
        house.service.arrived(4)
        gc.collect()
        # The network, which is memory here, has the rest of the page.
        assert tracemalloc.get_traced_memory()[0] < 4 * (PAGE + 1) * SIZE


def test_no_page_is_made_while_others_do_not_read_what_they_have(house: House, pages: list[str]) -> None:
    everything = Everything(house.topic)
    traffic = house.service.service.traffic
    house.service.arrived(1)
    there, traffic.unread_bytes = traffic.unread_bytes, traffic.unread_bytes + 10 * 2**20
    everything.read(PAGE * SIZE)
    for _ in range(50):
        house.service.on_loop(lambda _: asyncio.sleep(0))
    assert len(pages) == 1
    assert there > 0
    traffic.unread_bytes -= 10 * 2**20
    assert everything.numbers() == ALL


def test_each_page_has_a_place_among_the_large_ones_and_waits_for_it(house: House, pages: list[str]) -> None:
    everything = Everything(house.topic)
    place = house.service.service.scans.place()
    house.service.on_loop(lambda _: place.take())
    everything.read(PAGE * SIZE)
    house.service.arrived(1)
    assert house.service.service.traffic.unread_bytes == 0
    place.leave()
    assert everything.numbers() == ALL


def test_transactions_that_are_held_for_it_have_a_share_of_what_waits(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    large = Transaction(2, 2, invalids=[*range(10**18, 10**18 + 1_000)], write_pointer=2).to_bytes()
    monkeypatch.setattr(house.service.service, "waits", Waits(len(large) + 1_000))
    first = Everything(house.topic, transaction=large)
    assert first.answer.status_code == 200
    refused = Everything(house.topic, transaction=large).answer
    assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
    assert Everything(house.topic).numbers() == ALL
    assert first.numbers() == ALL
    assert Everything(house.topic, transaction=large).numbers() == ALL


# --- where another instance serves the topic


@contextmanager
def two(pages: list[str]) -> Iterator[tuple[Instances[InPlace], InPlace, Topic]]:
    """Two instances, the one that serves a topic, and the topic as the other one hands it on."""
    with in_place(2, cdap_clients=True) as cluster, cluster.client(retry=TIMEOUT) as client:
        owner, other = cluster.all
        name = cluster.topic_at(owner, client)
        fill(Topic(owner.url, name, create=False))
        del pages[:]
        topic = Topic(other.url, name, create=False)
        topic.session.headers["oncelog-route"] = "proxy"
        yield cluster, owner, topic


def test_another_instance_hands_it_on_as_it_comes_and_a_broken_one_broken(pages: list[str]) -> None:
    with two(pages) as (cluster, owner, topic):
        everything = Everything(topic)
        assert everything.answer.headers["oncelog-isolation"] == "uncommitted"
        for _ in range(20):
            owner.service.arrived(1)
        assert len(pages) < 4, "it is not read ahead of its client"
        assert everything.numbers() == ALL
        everything = Everything(topic)
        assert requests.delete(owner.url + address(topic.url.rpartition("/")[2]), timeout=TIMEOUT).status_code == 200
        with pytest.raises(BROKEN):
            everything.numbers()
        for each in cluster.all:
            assert sum(each.service.service.traffic.broken_off.values()) == 1


def test_for_who_has_no_chunks_another_instance_hands_on_what_it_holds_as_a_whole_or_refuses(
    pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with two(pages) as (cluster, _, topic):
        path = address(topic.url.rpartition("/")[2])
        status, headers, content = in_http_1_0(cluster.all[1].url, path, "oncelog-route: proxy")
        assert (status, "transfer-encoding" in headers, numbers(content)) == (200, False, ALL)
        monkeypatch.setattr(forward, "_MAX_CHUNKED", 2 * PAGE * SIZE)
        status, _, content = in_http_1_0(cluster.all[1].url, path, "oncelog-route: proxy")
        assert (status, b"not_supported" in content) == (400, True)


def test_who_hangs_up_ends_it_at_the_other_instance_too(pages: list[str]) -> None:
    with two(pages) as (cluster, owner, topic):
        Everything(topic).answer.close()
        topic.session.close()
        until(lambda: all(each.service.server.under_way == 0 for each in cluster.all))
        assert len(pages) < 4
        assert owner.service.service.traffic.broken_off == {}


def test_it_breaks_off_where_another_instance_serves_the_topic_from_then_on(pages: list[str]) -> None:
    with two(pages) as (cluster, owner, topic):
        name = topic.url.rpartition("/")[2]
        everything = Everything(topic)
        target = next(each.id for each in cluster.seen().instances if each.url != owner.url)
        asked = {"namespace": "default", "topic": name, "instance": target}
        assert owner.ask("POST", "/v1/cluster/hand-over", json=asked).status_code == 200
        with pytest.raises(BROKEN):
            everything.numbers()
        assert Everything(topic).numbers() == ALL
