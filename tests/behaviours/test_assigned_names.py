"""CONTRACT §3.5 and §3.8: a name that the service assigned ends and leaves nothing, and nothing is ever stored under it again."""

from __future__ import annotations

import asyncio
import threading

import pytest
import requests

from oncelog import Client, Producer
from oncelog.errors import ProducerEnded
from oncelog.wire.requests import PublishRequest
from oncelog.wire.transaction import TransactionType
from oncelog_dedup import Snapshot
from oncelog_service.log.verify import verify_log
from oncelog_service.service import Service
from oncelog_service.storage.memory import Disk
from oncelog_service.storage.port import Table
from tests.behaviours.atomics import living, messages, refusal
from tests.behaviours.conftest import Machine
from tests.patience import PATIENCE
from tests.rest.talk import Topic, assert_problem
from tests.service.house import PREFIX, crashed, opened, single_rows
from tests.support import RunningService

HOUR = 3_600_000
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
        assert body["definite"]
        assert body["producer"] == name
        assert_problem(topic.store(pointer, "m9", producer=name, sequenceIds=[9], **fields), 409, "producer_ended")
    again = topic.request("POST", "/producers", json={"name": name, "nonce": "late", "gaps": "allow"})
    assert_problem(again, 409, "producer_ended")
    assert_problem(topic.request("GET", f"/producers/{name}/why?sequenceId=9"), 409, "producer_ended")
    assert topic.payloads() == before
    assert topic.verify()["ok"]
    assert producers(topic) == []


def snapshot_entries(disk: Disk) -> list[int]:
    return [len(Snapshot.from_bytes(data).marks) for data in disk.tables[Table.SNAPSHOT].values()]


def test_producers_without_a_name_leave_no_row_and_no_entry_in_a_snapshot(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        for number in range(100):
            with Producer[bytes]("t", url=service.url) as producer:
                producer.send(b"%d" % number)
        assert producers(topic) == []
        assert topic.payloads() == [str(number) for number in range(100)]
        assert topic.verify()["ok"]
    assert not machine.disk.tables[Table.PRODUCER]
    assert set(snapshot_entries(machine.disk)) == {0}


@pytest.mark.parametrize("deduplication", ["true", "false"])
@pytest.mark.parametrize("snapshots", [1, 1_000], ids=["in both snapshots", "in none"])
def test_a_late_copy_is_refused_after_the_end_and_after_every_restart(
    machine: Machine, snapshots: int, deduplication: str
) -> None:
    settings = {"snapshot_messages": snapshots}
    with machine.run(**settings) as service:
        topic = Topic(service.url, deduplication=deduplication)
        name, epoch = assigned(topic)
        for sequence_id in range(10):
            topic.send(name, sequence_id, epoch=epoch)
        if snapshots == 1:
            service.on_loop(both_slots)
            assert snapshot_entries(machine.disk) == [1, 1]
        assert end(topic, name, epoch).status_code == 200
        assert end(topic, name, epoch).status_code == 200, "twice is as once"
        crashed = machine.crash()
        refused_for_ever(topic, name, epoch)
    for disk in (crashed, machine):
        with disk.run(**settings) as service:
            refused_for_ever(Topic(service.url, create=False), name, epoch)


async def both_slots(service: Service) -> None:
    log = await service.topics.open("default", "t")
    await log.snapshots.take()
    await log.snapshots.take()


def test_only_the_service_makes_such_names(running: RunningService) -> None:
    topic = Topic(running.url)
    assert_problem(topic.publish("x", producer=NOBODY, sequenceIds=[0]), 409, "producer_ended")
    assert_problem(
        topic.request("POST", "/producers", json={"name": NOBODY, "nonce": "n", "gaps": "allow"}), 409, "producer_ended"
    )
    topic.send("producer-of-ours", 0)


def test_the_end_is_that_of_the_newest_incarnation_and_of_no_chosen_name(running: RunningService) -> None:
    topic = Topic(running.url)
    name, old = assigned(topic)
    new = topic.open_producer(name, "another process")["epoch"]
    assert_problem(end(topic, name, old), 403, "producer_fenced")
    topic.send(name, 0, epoch=new)
    chosen = topic.open_producer("p", "n")["epoch"]
    assert_problem(end(topic, "p", chosen), 400, "invalid_request")
    assert producers(topic) == sorted(["p", name])


def test_an_operator_fences_an_assigned_name_like_any_other(machine: Machine) -> None:
    """Else its producer would begin under another name, and send again what the network has brought before."""
    with machine.run() as service:
        topic = Topic(service.url)
        name, epoch = assigned(topic)
        topic.send(name, 0, epoch=epoch)
        assert topic.request("DELETE", f"/producers/{name}").status_code == 200
        assert_problem(topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch), 403, "producer_fenced")
        assert machine.disk.tables[Table.PRODUCER]
        machine.clock.advance(26 * HOUR)
        retain(service)
        assert not machine.disk.tables[Table.PRODUCER]
        assert_problem(topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch), 409, "producer_ended")


@pytest.mark.parametrize("deduplication", [True, False])
def test_what_is_in_flight_at_the_end_is_stored_and_counts_for_nothing(deduplication: bool) -> None:
    async def scenario() -> None:
        disk, gate = Disk(), threading.Event()
        async with opened(disk, deduplication=deduplication) as house:
            producer = await house.log.producers.open(None, "n", "allow")
            request = PublishRequest([b"a", b"b"], producer.name, producer.epoch, [1, 2])
            older = PublishRequest([b"c"], producer.name, producer.epoch, [0])
            disk.before_sync = lambda _: gate.wait(PATIENCE)
            under_way = [asyncio.ensure_future(house.log.publish(each)) for each in (request, older)]
            await turns()
            assert house.log.dedup.in_flight(producer.name)
            ending = asyncio.ensure_future(house.log.producers.end(producer.name, producer.epoch))
            await turns()
            late = asyncio.ensure_future(refusal(house.log.publish(request)))
            await turns()
            assert not ending.done()
            assert not late.done(), "it depends on an end that is not on disk"
            gate.set()
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

    asyncio.run(scenario())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_transaction_that_is_open_at_the_end_goes_its_way(machine: Machine, how: str) -> None:
    with machine.run() as service:
        topic, client = Topic(service.url), Client(service.url, retry=0)
        name, epoch = assigned(topic)
        pointer = client.start_transaction().write_pointer
        topic.publish_under(pointer, "m0", producer=name, sequenceIds=[0], epoch=epoch)
        topic.store_under(pointer, "m1", producer=name, sequenceIds=[1], epoch=epoch)
        assert end(topic, name, epoch).status_code == 200
        late = topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch, transactionWritePointer=pointer)
        assert_problem(late, 409, "producer_ended")
        assert_problem(topic.store(pointer, "m1", producer=name, sequenceIds=[1]), 409, "producer_ended")
        topic.publish_under(pointer)
        if how == "commit":
            client.commit_transaction(pointer)
        else:
            client.abort_transaction(pointer)
        service.on_loop(settle_all)
        seen = ["m0", "m1"] if how == "commit" else []
        assert topic.seen(client.start_transaction()) == seen
        assert producers(topic) == []
        assert topic.verify()["ok"]
        after = machine.crash()
    with after.run() as service:
        topic, client = Topic(service.url, create=False), Client(service.url, retry=0)
        assert topic.seen(client.start_transaction()) == seen
        assert producers(topic) == []
        assert topic.verify()["ok"]


async def settle_all(service: Service) -> None:
    await (await service.topics.open("default", "t")).settle_ended()


def test_an_atomic_commit_of_what_is_staged_under_an_ended_name_is_refused() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_an_assigned_name_ends_when_it_was_idle_for_long_across_a_restart_too(machine: Machine) -> None:
    settings = {"assigned_producer_seconds": 24 * 3_600.0}
    with machine.run(**settings) as service:
        topic = Topic(service.url)
        idle, epoch = assigned(topic, "idle")
        unused, _ = assigned(topic, "unused")
        busy, _ = assigned(topic, "busy")
        opened_late, _ = assigned(topic, "opened late")
        topic.send("chosen", 0)
        topic.send(idle, 0)
        machine.clock.advance(20 * HOUR)
        topic.send(busy, 0)
        topic.open_producer(opened_late, "again")
        retain(service)
        assert producers(topic) == sorted([idle, unused, busy, opened_late, "chosen"])
    with machine.run(**settings) as service:
        topic = Topic(service.url, create=False)
        assert len(producers(topic)) == 5
        machine.clock.advance(4 * HOUR + 1)
        retain(service)
        assert producers(topic) == sorted([busy, opened_late, "chosen"])
        assert_problem(topic.publish("m0", producer=idle, sequenceIds=[0], epoch=epoch), 409, "producer_ended")
        assert topic.verify()["ok"]


@pytest.mark.parametrize("holds", ["published", "stored"])
def test_what_an_open_transaction_holds_is_in_use(machine: Machine, holds: str) -> None:
    with machine.run(assigned_producer_seconds=60.0) as service:
        topic, client = Topic(service.url), Client(service.url, retry=0)
        name, _ = assigned(topic)
        pointer = client.start_transaction("long").write_pointer
        put = topic.publish_under if holds == "published" else topic.store_under
        put(pointer, "m0", producer=name, sequenceIds=[0])
        machine.clock.advance(HOUR)
        retain(service)
        put(pointer, "m1", producer=name, sequenceIds=[1])
        machine.clock.advance(HOUR)
        client.abort_transaction(pointer)
        service.on_loop(settle_all)
        retain(service)
        assert producers(topic) == []


def retain(service: RunningService) -> None:
    service.on_loop(lambda each: each.retention.once())


def test_an_ended_producer_of_a_deleted_topic_is_fenced_in_the_topic_made_anew(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        name, epoch = assigned(topic)
        topic.send(name, 0, epoch=epoch)
        end(topic, name, epoch)
        topic.request("DELETE", "")
        topic = Topic(service.url)
        body = assert_problem(topic.publish("m0", producer=name, sequenceIds=[0], epoch=epoch), 403, "producer_fenced")
        assert body["generation"] == 2
        assert_problem(topic.publish("m0", producer=name, sequenceIds=[0]), 409, "producer_ended")


def test_a_clock_that_is_set_forward_ends_no_name_in_use(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        name, epoch = assigned(topic)
        topic.send(name, 0, epoch=epoch)
        machine.clock.ms += 26 * HOUR
        retain(service)
        topic.send(name, 1, epoch=epoch)
        assert producers(topic) == [name]
        machine.clock.advance(26 * HOUR)
        retain(service)
        assert producers(topic) == [name], "it was used when the clock said so late already"
        machine.clock.advance(26 * HOUR)
        retain(service)
        assert producers(topic) == []


@pytest.mark.parametrize("how", ["ended", "forgotten"])
def test_a_verification_compares_nobody_who_ends_while_it_reads(how: str) -> None:
    """Its messages expire before they were read again, and no snapshot knows of it any more."""

    async def scenario() -> None:
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
            rows = sorted(key[len(PREFIX) :] for key in house.store.disk.tables[Table.MESSAGE])
            assert await house.log.trim(single_rows(rows[:2])) == 2
            *_, findings = steps
            assert findings.problems == []
            assert not house.log.producers.watchers

    asyncio.run(scenario())


def test_a_store_that_waited_while_its_name_ended_stores_nothing() -> None:
    async def scenario() -> None:
        disk, gate = Disk(), threading.Event()
        async with opened(disk) as house:
            producer = await house.log.producers.open(None, "n", "allow")
            pointer = (await house.transactions.start(TransactionType.SHORT)).write_pointer
            first = PublishRequest([b"a"], producer.name, producer.epoch, [0], write_pointer=pointer)
            more = PublishRequest([b"a", b"b"], producer.name, producer.epoch, [0, 1], write_pointer=pointer)
            at_disk = threading.Event()

            def before_sync(_: object) -> None:
                at_disk.set()
                gate.wait(PATIENCE)

            disk.before_sync = before_sync
            storing = asyncio.ensure_future(house.log.store(first))
            await asyncio.to_thread(at_disk.wait, PATIENCE)
            waiting = asyncio.ensure_future(refusal(house.log.store(more)))
            await turns()
            ending = asyncio.ensure_future(house.log.producers.end(producer.name, producer.epoch))
            await turns()
            gate.set()
            assert (await storing).receipts[0].status == "stored"
            assert isinstance(await waiting, ProducerEnded)
            await ending
            assert len(disk.tables[Table.PAYLOAD]) == 1

    asyncio.run(scenario())
