"""The facts come from the live service: each alarm is raised by its cause, and goes with it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import requests
from cryptography import x509

from oncelog import Client, errors
from oncelog.wire.overview import Alarm
from oncelog_service.rest.certificates import ends_ms_of, not_after
from oncelog_service.storage.incarnation import FIRST
from oncelog_service.storage.port import Batch, Table
from oncelog_service.watch.refusals import MOST, Refusals
from oncelog_service.watch.rules import LATELY_MS
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, assert_problem, done
from tests.world.certificates import Authority
from tests.world.clock import ManualClock
from tests.world.disk import flip
from tests.world.house import House
from tests.world.service import free_port, running_service


@pytest.fixture
def house() -> Iterator[House]:
    with House(ManualClock()) as house:
        yield house


def alarms(house: House) -> dict[str, Alarm]:
    house.clock.advance(1_001)
    return {each.code: each for each in house.client.alarms().alarms}


def test_a_topic_that_is_met_damaged_is_named_until_it_is_gone(house: House) -> None:
    house.damaged = True
    topic = house.topic
    topic.publish("x")
    log = house.service.service.opening.topics.logs.opened["default", "t"]
    batch = Batch()
    batch.put(Table.MESSAGE, log.prefix + b"\x7f" * 10, b"no row")

    async def spoil(_: object) -> None:
        await house.service.service.opening.writer.submit(batch)
        house.service.service.opening.topics.logs.drop(("default", "t"))

    house.service.on_loop(spoil)
    assert alarms(house) == {}
    assert_problem(topic.poll(), 500, "topic_damaged")
    house.clock.advance(100 * LATELY_MS)
    found = alarms(house)
    assert found["topic_damaged"].subject == "topic default/t"
    done(topic.request("DELETE", ""))
    assert alarms(house) == {}


def test_a_consumer_a_gap_and_an_atomic_commit_that_are_refused_are_named(house: House) -> None:
    topic = house.topic
    for nonce in ("n1", "n2"):
        done(topic.request("POST", "/subscriptions", json={"name": "s", "nonce": nonce}))
    assert_problem(topic.request("POST", "/subscriptions/s/receive", json={"epoch": 1}), 403, "consumer_fenced")
    opened = topic.good("POST", "/producers", json={"name": "strict", "nonce": "n", "gaps": "refuse"})
    done(topic.publish("x", producer="strict", sequenceIds=[0], epoch=opened["epoch"]))
    assert_problem(topic.publish("x", producer="strict", sequenceIds=[3], epoch=opened["epoch"]), 409, "sequence_gap")
    for number, incarnation, status in ((0, "one", 200), (1, "two", 403)):
        body = {"group": "g", "parts": [], "producer": "sink", "sequenceId": number, "incarnation": incarnation}
        assert requests.post(f"{house.service.url}/v1/atomic/c{number}/commit", json=body, timeout=TIMEOUT).status_code == status
    found = alarms(house)
    assert found.keys() == {"consumer_fenced", "sequence_gap", "producer_fenced"}
    assert (found["consumer_fenced"].about["refused"], found["consumer_fenced"].about["newest"]) == ("1", "2")
    assert (found["sequence_gap"].about["received"], found["sequence_gap"].about["expected"]) == ("3", "1")
    assert (found["producer_fenced"].about["refused"], found["producer_fenced"].about["newest"]) == ("two", "one")
    house.clock.advance(LATELY_MS)
    assert alarms(house) == {}


def test_a_quota_that_refuses_is_named_with_who_and_which(house: House) -> None:
    topic = house.make("metered", **{"max.messages.per.second": "1"})
    done(topic.publish("x"))
    assert_problem(topic.publish("x"), 429, "quota_exceeded")
    found = alarms(house)["quota_exceeded"]
    assert found.subject == "topic default/metered"
    assert "takes 1 messages a second" in found.what


def test_what_is_shed_is_named_for_some_minutes(house: House) -> None:
    until(lambda: house.client.overview().sample, every=0.5)  # what was shed is counted from the first one on
    traffic = house.service.service.traffic
    traffic.refused["idle"] += 5
    assert alarms(house) == {}
    traffic.refused["requests"] += 2
    assert "requests 2 times" in alarms(house)["overloaded"].what
    until(lambda: "overloaded" not in alarms(house) or house.clock.advance(LATELY_MS // 2), every=0.5)


def test_a_transaction_service_that_does_not_answer_is_named_with_its_address() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with running_service(transactions_url=nobody) as service, Client(service.url, retry=0) as client:
        topic = Topic(service.url)
        assert topic.publish("x", transactionWritePointer=1_790_000_000_000_000_000).status_code == 503
        found = until(lambda: {each.code: each for each in client.alarms().alarms}.get("transactions_unreachable"))
        assert nobody in found.what


def test_a_task_that_fails_is_named(house: House) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError

    async def failing(_: object) -> None:
        task = asyncio.ensure_future(house.service.service.background.keep("counting sheep", lambda: fail(None)))
        await asyncio.sleep(0)
        task.cancel()

    house.service.on_loop(failing)
    assert alarms(house)["task_failing"].about == {"task": "counting sheep"}
    house.clock.advance(61_000)
    assert alarms(house) == {}


def test_a_clock_that_was_set_back_over_a_restart_is_seen_by_what_is_stored(house: House) -> None:
    house.topic.publish("x")
    house.restart()
    house.clock.ms -= 60_000
    assert house.topic.payloads() == ["x"]
    assert "default/t" in alarms(house)["clock_back"].what


@pytest.mark.real
def test_a_certificate_that_ends_is_named_until_another_one_is_in_its_place(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    soon, later = (authority.issue(f"c{days}", ips=["127.0.0.1"], ends=timedelta(days=days)) for days in (3, 300))
    clock = ManualClock(round(time.time() * 1000))
    with (
        running_service(clock=clock, token="root", **soon.tls) as service,
        Client(service.url, token="root", verify=authority.file) as client,
    ):

        def found() -> dict[str, Alarm]:
            clock.advance(1_001)
            return {each.code: each for each in client.alarms().alarms}

        def left() -> float:
            headers = {"Authorization": "Bearer root"}
            text = requests.get(service.url + "/metrics", headers=headers, verify=authority.file, timeout=TIMEOUT).text
            return float(re.findall(r"^oncelog_certificate_left_seconds (.*)$", text, re.MULTILINE)[0])

        assert "expires in 3 days" in found()["certificate_ends"].what
        assert 2.9 * 86_400 < left() < 3 * 86_400
        later.put_in_place_of(soon)
        until(lambda: found() == {})
        assert 299 * 86_400 < left() < 300 * 86_400
        client.create_token("loader", ["read:*/*"], expires_in=100)
        assert found() == {}
        clock.advance(91_000)
        assert found()["token_ends"].about["name"] == "loader"
        clock.advance(10_000)
        assert found() == {}


def test_the_end_of_a_certificate_is_read_from_its_file(tmp_path: Path) -> None:
    authority, ends = Authority(tmp_path), list[int]()
    for days in (1, 20_000):  # beyond 2049 the time is written otherwise
        issued = authority.issue(f"c{days}", dns=["x"], ends=timedelta(days=days))
        found = x509.load_pem_x509_certificate(Path(issued.certificate).read_bytes())
        ends.append(round(found.not_valid_after_utc.timestamp() * 1000))
        assert ends_ms_of(issued.certificate) == ends[-1]
    both = tmp_path / "chain.pem"
    both.write_text((tmp_path / "c20000.pem").read_text() + (tmp_path / "c1.pem").read_text())
    assert ends_ms_of(str(both)) == ends[0]
    (tmp_path / "none.pem").write_text("nothing")
    assert ends_ms_of(str(tmp_path / "none.pem")) is None
    assert ends_ms_of(str(tmp_path / "missing.pem")) is None
    with pytest.raises((ValueError, IndexError)):
        not_after(bytes([0x30, 0x03, 0x30, 0x01, 0x02]))


def test_a_restored_store_says_so_for_a_day(house: House) -> None:
    assert house.service.service.opening.topics.directory.incarnation == FIRST
    house.service.service.opening.topics.directory.incarnation = FIRST._replace(began_ms=house.clock.now_ms())
    assert alarms(house)["store_restored"].severity == "info"
    house.clock.advance(86_400_000)
    assert alarms(house) == {}


# --- what is remembered of refusals


def fenced(name: str, epoch: int = 1) -> errors.ProducerFenced:
    return errors.ProducerFenced("it was", producer=name, epoch=epoch, current_epoch=epoch + 1)


HERE = {"namespace": "default", "topic": "t"}


def test_refusals_of_one_thing_are_one_entry_which_counts_them() -> None:
    found = Refusals()
    for at in (1_000, 2_000, 2_000 + LATELY_MS - 1):
        found.note(fenced("p"), at, HERE, "who")
    [entry] = found.lately(2_000 + LATELY_MS)
    assert (entry.times, entry.first_ms, entry.last_ms, entry.who) == (3, 1_000, 2_000 + LATELY_MS - 1, "who")
    found.note(fenced("p", 5), 3_000, HERE, "")
    found.note(fenced("q"), 3_000, HERE, "")
    assert len(found.lately(3_000)) == 3
    found.note(fenced("p"), 10 * LATELY_MS, HERE, "")
    assert [each.times for each in found.lately(10 * LATELY_MS)] == [1]
    assert found.lately(11 * LATELY_MS) == ()


def test_the_memory_is_bounded_and_keeps_what_is_refused_now() -> None:
    found = Refusals()
    for number in range(MOST + 50):
        found.note(fenced("steady"), number, HERE, "")
        found.note(fenced(f"p{number}"), number, HERE, "")
    names = [each.name for each in found.lately(MOST)]
    assert len(names) == MOST
    assert names[-1] == f"p{MOST + 49}"
    assert "steady" in names


def test_what_is_no_refusal_that_matters_is_not_remembered() -> None:
    found = Refusals()
    for error in (ValueError(), errors.TopicNotFound("x"), errors.StorageUnavailable("x"), KeyboardInterrupt()):
        found.note(error, 0, HERE, "")
    assert found.lately(0) == ()


def test_a_lagging_subscription_whose_topic_cannot_be_read_takes_no_alarm_from_others(house: House) -> None:
    house.damaged = True
    topic = house.topic
    done(topic.request("POST", "/subscriptions", json={"name": "s", "nonce": "n"}))
    for _ in range(2):
        done(topic.publish(*["x"] * 600))
    for key in list(house.disk.tables[Table.MESSAGE]):
        flip(house.disk, Table.MESSAGE, key)
    house.clock.advance(LATELY_MS)
    house.service.service.traffic.refused["requests"] += 1
    assert alarms(house).keys() == {"overloaded"}


def test_a_topic_that_is_damaged_keeps_no_other_from_its_snapshot_at_a_stop(house: House) -> None:
    house.damaged = True
    for name in ("bad", "good"):
        done(house.make(name).publish("x"))
    [bad] = [key for key in house.disk.tables[Table.MESSAGE] if b"bad" in key]
    flip(house.disk, Table.MESSAGE, bad)
    house.restart()
    assert house.make("good").stats()["replayed"] == 0
    assert_problem(house.make("bad").poll(), 500, "topic_damaged")
