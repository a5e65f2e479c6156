"""CONTRACT §3.5 and §3.8: a name that the service assigned ends and leaves nothing, and nothing is ever stored under it again."""

from __future__ import annotations

import asyncio

import pytest
import requests

from oncelog import Client, Producer
from oncelog.errors import ProducerEnded
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_dedup import Snapshot
from oncelog_service.log.scan import expired_rows
from oncelog_service.log.verify import verify_log
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from tests.atomic.house import living, messages, refusal
from tests.rest.talk import Topic, assert_problem
from tests.service.house import PREFIX, opened, turns
from tests.world.disk import Gate, crashed
from tests.world.house import HOUR, House, told

NOBODY = f"producer-{0:032x}"


def assigned(topic: Topic, nonce: str = "n") -> tuple[str, int]:
    opened = topic.open_producer(None, nonce)
    return opened["name"], opened["epoch"]


def end(topic: Topic, name: str, epoch: int) -> requests.Response:
    return topic.request("DELETE", f"/producers/{name}", params={"epoch": epoch})


def producers(topic: Topic) -> list[str]:
    return [each["name"] for each in topic.request("GET", "/producers").json()]


def refused_for_ever(topic: Topic, name: str, epoch: int) -> None:
    """However a late copy comes, it is refused, and nothing is stored."""
    before, pointer = topic.payloads(), Client(topic.base, retry=0).start_transaction().write_pointer
    for fields in ({"epoch": epoch}, {}):
        body = assert_problem(topic.publish("m9", producer=name, sequenceIds=[9], **fields), 409, "producer_ended")
        assert (body["definite"], body["producer"]) == (True, name)
        assert_problem(topic.store(pointer, "m9", producer=name, sequenceIds=[9], **fields), 409, "producer_ended")
    again = topic.request("POST", "/producers", json={"name": name, "nonce": "late", "gaps": "allow"})
    assert_problem(again, 409, "producer_ended")
    assert_problem(topic.request("GET", f"/producers/{name}/why?sequenceId=9"), 409, "producer_ended")
    assert topic.payloads() == before
    assert producers(topic) == []


def snapshot_entries(disk: Disk) -> list[int]:
    return [len(Snapshot.from_bytes(data).last_entries) for data in disk.tables[Table.SNAPSHOT].values()]


async def both_slots(service: Service) -> None:
    log = await service.opening.topics.logs.open("default", "t")
    await log.snapshots.take()
    await log.snapshots.take()


# --- it ends


def test_producers_without_a_name_leave_no_row_and_no_entry_in_a_snapshot(house: House) -> None:
    topic = house.topic
    for number in range(20):
        with Producer[bytes]("t", url=topic.base) as producer:
            producer.send(b"%d" % number)
    assert producers(topic) == []
    assert topic.payloads() == [str(number) for number in range(20)]
    house.restart()
    assert house.rows(Table.PRODUCER) == (0,)
    assert set(snapshot_entries(house.disk)) == {0}


@pytest.mark.parametrize(("snapshots", "deduplication"), [(1, "true"), (1_000, "false")], ids=["in both snapshots", "in none"])
def test_a_late_copy_is_refused_after_the_end_and_after_every_restart(house: House, snapshots: int, deduplication: str) -> None:
    house.restart(snapshot_messages=snapshots)
    topic = house.make(deduplication=deduplication)
    name, epoch = assigned(topic)
    for sequence_id in range(10):
        topic.send(name, sequence_id, epoch=epoch)
    if snapshots == 1:
        house.service.on_loop(both_slots)
        assert snapshot_entries(house.disk) == [1, 1]
    assert [end(topic, name, epoch).status_code for _ in range(2)] == [200, 200]
    for _ in house.lives():
        refused_for_ever(topic, name, epoch)


def test_only_the_service_makes_such_names_and_only_their_newest_incarnation_ends_them(house: House) -> None:
    topic = house.topic
    assert_problem(topic.publish("x", producer=NOBODY, sequenceIds=[0]), 409, "producer_ended")
    opening = {"name": NOBODY, "nonce": "n", "gaps": "allow"}
    assert_problem(topic.request("POST", "/producers", json=opening), 409, "producer_ended")
    topic.send("producer-of-ours", 0)
    name, old = assigned(topic)
    new = topic.open_producer(name, "another process")["epoch"]
    assert_problem(end(topic, name, old), 403, "producer_fenced")
    assert told(topic.send(name, 0, epoch=new)) == "s"
    chosen = topic.open_producer("p", "n")["epoch"]
    assert_problem(end(topic, "p", chosen), 400, "invalid_request")
    assert producers(topic) == sorted(["p", name, "producer-of-ours"])


def test_an_operator_fences_an_assigned_name_like_any_other(house: House) -> None:
    """Else its producer would begin under another name, and send again what the network has brought before."""
    topic = house.topic
    name, epoch = assigned(topic)
    topic.send(name, 0, epoch=epoch)
    assert topic.request("DELETE", f"/producers/{name}").status_code == 200
    assert_problem(topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch), 403, "producer_fenced")
    assert house.rows(Table.PRODUCER) == (1,)
    house.clock.advance(26 * HOUR)
    house.retain()
    assert house.rows(Table.PRODUCER) == (0,)
    assert_problem(topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch), 409, "producer_ended")


def test_an_ended_producer_of_a_deleted_topic_is_fenced_in_the_topic_made_anew(house: House) -> None:
    topic = house.topic
    name, epoch = assigned(topic)
    end(topic, name, epoch)
    house.again()
    body = assert_problem(topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch), 403, "producer_fenced")
    assert body["generation"] == 2
    assert_problem(topic.publish("m0", producer=name, sequenceIds=[0]), 409, "producer_ended")


# --- while others are at work


@pytest.mark.parametrize("deduplication", [True, False])
async def test_what_is_in_flight_at_the_end_is_stored_and_counts_for_nothing(deduplication: bool) -> None:
    disk, gate = Disk(), Gate()
    async with opened(disk, deduplication=deduplication) as house:
        producer = await house.log.producers.open(None, "n", "allow")
        request = PublishRequest([b"a", b"b"], producer.name, producer.epoch, [1, 2])
        older = PublishRequest([b"c"], producer.name, producer.epoch, [0])
        disk.before_sync = gate
        under_way = [asyncio.ensure_future(house.log.publish(each)) for each in (request, older)]
        await turns()
        assert house.log.dedup.in_flight(producer.name)
        ending = asyncio.ensure_future(house.log.producers.end(producer.name, producer.epoch))
        await turns()
        late = asyncio.ensure_future(refusal(house.log.publish(request)))
        await turns()
        assert not any(each.done() for each in (ending, late)), "it depends on an end that is not on disk"
        gate.opened.set()
        await asyncio.gather(ending, *under_way, return_exceptions=True)
        assert isinstance(await late, ProducerEnded)
        assert not list(house.log.dedup.fold.items())
        assert not house.log.dedup.in_flight(producer.name)
        assert house.log.position.upcoming_offset >= 2
        left = crashed(disk)
    for each in (left, disk):
        async with opened(each, deduplication=deduplication, clean=False) as after:
            assert not list(after.log.dedup.fold.items())
            assert isinstance(await refusal(after.log.publish(request)), ProducerEnded)


async def test_a_store_that_waited_while_its_name_ended_stores_nothing() -> None:
    disk, gate = Disk(), Gate()
    async with opened(disk) as house:
        producer = await house.log.producers.open(None, "n", "allow")
        pointer = (await house.transactions.start(TransactionType.SHORT)).write_pointer
        first = PublishRequest([b"a"], producer.name, producer.epoch, [0], write_pointer=pointer)
        more = PublishRequest([b"a", b"b"], producer.name, producer.epoch, [0, 1], write_pointer=pointer)
        disk.before_sync = gate
        storing = asyncio.ensure_future(house.log.store(first))
        await asyncio.to_thread(gate.entered.wait)
        waiting = asyncio.ensure_future(refusal(house.log.store(more)))
        await turns()
        ending = asyncio.ensure_future(house.log.producers.end(producer.name, producer.epoch))
        await turns()
        gate.opened.set()
        assert (await storing).receipts[0].status == "stored"
        assert isinstance(await waiting, ProducerEnded)
        await ending
        assert len(disk.tables[Table.PAYLOAD]) == 1


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_transaction_that_is_open_at_the_end_goes_its_way(house: House, how: str) -> None:
    topic, pointer = house.topic, house.start()
    name, epoch = assigned(topic)
    topic.publish_under(pointer, "m0", producer=name, sequenceIds=[0], epoch=epoch)
    topic.store_under(pointer, "m1", producer=name, sequenceIds=[1], epoch=epoch)
    assert end(topic, name, epoch).status_code == 200
    late = topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch, transactionWritePointer=pointer)
    assert_problem(late, 409, "producer_ended")
    assert_problem(topic.store(pointer, "m1", producer=name, sequenceIds=[1]), 409, "producer_ended")
    topic.publish_under(pointer)
    house.end(pointer, how)
    house.settle()
    for _ in house.lives():
        assert house.now() == (["m0", "m1"] if how == "commit" else [])
        assert producers(topic) == []


async def test_an_atomic_commit_of_what_is_staged_under_an_ended_name_is_refused() -> None:
    async with living(Disk()) as house:
        await house.create("t")
        log = await house.topic("t")
        producer = await log.producers.open(None, "n", "allow")
        named = {"producer": producer.name, "epoch": producer.epoch}
        await house.begin("a")
        await house.stage("a", "t", 0, messages("x", first=0, **named))
        await log.producers.end(producer.name, producer.epoch)
        assert isinstance(await refusal(house.stage("a", "t", 1, messages("y", first=1, **named))), ProducerEnded)
        assert isinstance(await refusal(house.commit("a")), ProducerEnded)
        assert await house.shown("t") == []
        await house.verify("t")


@pytest.mark.parametrize("how", ["ended", "forgotten"])
async def test_a_verification_compares_nobody_who_ends_while_it_reads(how: str) -> None:
    """Its messages expire before they were read again, and no snapshot knows of it any more."""
    async with opened(Disk()) as house:
        producer = await house.log.producers.open(None, "n", "allow")
        await house.log.publish(PublishRequest([b"a", b"b"], producer.name, producer.epoch, [0, 1]))
        await house.log.publish(PublishRequest([b"c"], "p", sequence_ids=[0]))
        steps = verify_log(house.store, house.log)
        if how == "ended":
            await house.log.producers.end(producer.name, producer.epoch)
        else:
            await house.log.producers.forget(producer.name)
        await house.log.snapshots.take()
        await house.log.snapshots.take()
        oldest = expired_rows(house.store, PREFIX, 2**62, 0, 1)
        assert await house.log.removal.delete(oldest) == 1
        *_, findings = steps
        assert findings.problems == []
        assert not house.log.topic.watchers


# --- names that nobody uses


def test_an_assigned_name_ends_when_it_was_idle_for_long_across_a_restart_too(house: House) -> None:
    house.restart(assigned_producer_seconds=24 * 3_600.0)
    topic = house.topic
    (idle, epoch), *others = (assigned(topic, nonce) for nonce in ("idle", "unused", "busy", "opened late"))
    unused, busy, opened_late = (name for name, _ in others)
    topic.send("chosen", 0)
    topic.send(idle, 0)
    house.clock.advance(20 * HOUR)
    topic.send(busy, 0)
    topic.open_producer(opened_late, "again")
    house.retain()
    assert producers(topic) == sorted([idle, unused, busy, opened_late, "chosen"])
    house.restart()
    assert len(producers(topic)) == 5
    house.clock.advance(4 * HOUR + 1)
    house.retain()
    assert producers(topic) == sorted([busy, opened_late, "chosen"])
    assert_problem(topic.publish("m0", producer=idle, sequenceIds=[0], epoch=epoch), 409, "producer_ended")


@pytest.mark.parametrize("holds", ["publish_under", "store_under"])
def test_what_an_open_transaction_holds_is_in_use(house: House, holds: str) -> None:
    house.restart(assigned_producer_seconds=60.0)
    topic, pointer = house.topic, house.start("long")
    name, _ = assigned(topic)
    for sequence_id in (0, 1):
        getattr(topic, holds)(pointer, f"m{sequence_id}", producer=name, sequenceIds=[sequence_id])
        house.clock.advance(HOUR)
        house.retain()
        assert len(house.disk.tables[Table.PRODUCER]) == 1
    house.end(pointer, "abort")
    house.settle()
    house.retain()
    assert producers(topic) == []


def test_a_clock_that_is_set_forward_ends_no_name_in_use(house: House) -> None:
    topic = house.topic
    name, epoch = assigned(topic)
    topic.send(name, 0, epoch=epoch)
    house.clock.ms += 26 * HOUR
    house.retain()
    topic.send(name, 1, epoch=epoch)
    assert producers(topic) == [name]
    for left in ([name], []):  # the first time: it was used when the clock said so late already
        house.clock.advance(26 * HOUR)
        house.retain()
        assert producers(topic) == left
