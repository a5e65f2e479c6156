"""CONTRACT §3: named producers and deduplication; and where others fell."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.behaviours.conftest import Machine
from tests.rest.talk import TIMEOUT, Topic, assert_problem, receipts, without_status
from tests.support import RunningService, running_service


def statuses(found: list[dict[str, Any]]) -> list[str]:
    return [each["status"] for each in found]


def test_a_batch_of_old_and_new_messages_stores_exactly_the_new_ones(running: RunningService) -> None:
    topic = Topic(running.url)
    first = topic.send("p", 0, 1, 2)
    second = topic.send("p", 1, 2, 3, 4)
    assert statuses(second) == ["duplicate", "duplicate", "stored", "stored"]
    assert without_status(second[:2]) == without_status(first[1:])
    assert [each["offset"] for each in second] == [1, 2, 3, 4]
    assert topic.payloads() == ["m0", "m1", "m2", "m3", "m4"]
    assert topic.verify()["ok"]


def test_zero_is_a_sequence_id_like_any_other(running: RunningService) -> None:
    topic = Topic(running.url)
    assert topic.open_producer("p", "n")["lastSequenceId"] is None
    assert statuses(topic.send("p", 0)) == ["stored"]
    assert topic.open_producer("p", "m")["lastSequenceId"] == 0
    assert topic.request("GET", "/producers/p").json()["lastPersisted"] == 0
    assert statuses(topic.send("p", 0)) == ["duplicate"]
    assert topic.payloads() == ["m0"]
    assert topic.read()[0]["sequenceId"] == {"long": 0}


def test_a_file_replayed_from_record_0_loses_and_doubles_nothing(running: RunningService) -> None:
    topic = Topic(running.url)
    topic.send("p", *range(10))
    for record in range(20):
        topic.send("p", record)
    assert topic.payloads() == [f"m{record}" for record in range(20)]


def test_the_largest_sequence_id_is_the_last_word_of_a_producer_and_of_no_other(running: RunningService) -> None:
    topic = Topic(running.url)
    last = 2**63 - 1
    assert statuses(topic.send("p", last)) == ["stored"]
    assert statuses(topic.send("p", last)) == ["duplicate"]
    assert statuses(topic.send("p", 5, last)) == ["duplicate", "duplicate"]
    assert statuses(topic.send("q", 5)) == ["stored"]
    assert_problem(topic.publish("x", producer="p", sequenceIds=[last + 1]), 400, "invalid_request")


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
@pytest.mark.parametrize("many", [1, 7, 2_500])
def test_an_exact_retry_gets_the_original_ids_after_a_restart_too(machine: Machine, clean: bool, many: int) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        topic.send("p", *range(many))
        for each in range(30):
            topic.send(f"other{each}", *range(5))
        stored = topic.send("p", *range(many, 2 * many))
        assert without_status(topic.send("p", *range(many, 2 * many))) == without_status(stored)
        crashed = machine.crash()
    with (machine if clean else crashed).run() as service:
        topic = Topic(service.url, create=False)
        again = topic.send("p", *range(many, 2 * many))
        assert statuses(again) == ["duplicate"] * many
        assert without_status(again) == without_status(stored)
        part = topic.send("p", *range(many + many // 2, 2 * many))
        assert without_status(part) == without_status(stored[many // 2 :])
        assert topic.verify()["ok"]


def test_a_retry_of_a_request_that_was_itself_partly_duplicate_gets_all_original_ids(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        first = topic.send("p", *range(10))
        for each in range(300):
            topic.send(f"other{each}", *range(10))
        second = topic.send("p", *range(5, 15))
        for each in range(300):
            topic.send(f"other{each}", *range(10, 20))
        expected = without_status(first[5:]) + without_status(second[5:])
        assert without_status(topic.send("p", *range(5, 15))) == expected
        crashed = machine.crash()
    with crashed.run(cache_bytes=0) as service:
        again = Topic(service.url, create=False).send("p", *range(5, 15))
        assert statuses(again) == ["duplicate"] * 10
        assert without_status(again) == expected


def test_a_restart_on_leveldb_remembers_every_producer(tmp_path: Path) -> None:
    store = f"leveldb://{tmp_path / 'data'}"
    with running_service(store) as service:
        topic = Topic(service.url)
        stored = {f"p{each}": topic.send(f"p{each}", each, each + 1) for each in range(50)}
    with running_service(store) as service:
        topic = Topic(service.url, create=False)
        assert topic.stats()["replayed"] == 0, "a clean stop leaves a snapshot"
        for producer, receipt in stored.items():
            again = topic.send(producer, *[each["sequence_id"] for each in receipt])
            assert statuses(again) == ["duplicate"] * 2
            assert without_status(again) == without_status(receipt)
        assert topic.verify()["ok"]


def test_another_payload_under_a_stored_sequence_id_refuses_the_whole_request(running: RunningService) -> None:
    topic = Topic(running.url)
    stored = topic.send("p", 0, 1)
    answer = topic.publish("m1", "CHANGED", "new", producer="p", sequenceIds=[0, 1, 2])
    problem = assert_problem(answer, 422, "sequence_reused")
    assert problem["sequence_id"] == 0
    answer = topic.publish("CHANGED", "new", producer="p", sequenceIds=[1, 2])
    problem = assert_problem(answer, 422, "sequence_reused")
    assert (problem["producer"], problem["sequence_id"], problem["offset"]) == ("p", 1, 1)
    assert problem["message_id"] == stored[1]["id"]
    assert topic.payloads() == ["m0", "m1"]
    assert topic.request("GET", "/producers/p").json()["lastPersisted"] == 1
    assert statuses(topic.send("p", 1, 2)) == ["duplicate", "stored"], "the refused request burnt nothing"


def test_holes_are_allowed_unless_the_producer_was_opened_with_gaps_refused(running: RunningService) -> None:
    topic = Topic(running.url)
    assert statuses(topic.send("p", 0, 5, 1_000)) == ["stored"] * 3
    topic.open_producer("strict", "n", gaps="refuse")
    topic.send("strict", 7, 8)
    problem = assert_problem(topic.publish("a", producer="strict", sequenceIds=[10]), 409, "sequence_gap")
    assert (problem["expected"], problem["received"], problem["producer"]) == (9, 10, "strict")
    problem = assert_problem(topic.publish("m8", "a", "b", producer="strict", sequenceIds=[8, 9, 11]), 409, "sequence_gap")
    assert (problem["expected"], problem["received"]) == (10, 11)
    assert topic.stats()["upcomingOffset"] == 5
    assert statuses(topic.send("strict", 7, 8, 9, 10)) == ["duplicate", "duplicate", "stored", "stored"]
    topic.open_producer("strict", "later", gaps="allow")
    assert statuses(topic.send("strict", 20)) == ["stored"]


def test_gaps_stay_refused_after_a_restart(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        topic.open_producer("p", "n", gaps="refuse")
        topic.send("p", 0)
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        assert_problem(topic.publish("a", producer="p", sequenceIds=[2]), 409, "sequence_gap")
        assert statuses(topic.send("p", 1)) == ["stored"]


def test_an_older_epoch_is_fenced_for_ever(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        old = topic.open_producer("p", "first")["epoch"]
        topic.send("p", 0, epoch=old)
        new = topic.open_producer("p", "second")
        assert new["epoch"] > old
        assert new["lastSequenceId"] == 0
        problem = assert_problem(topic.publish("x", producer="p", sequenceIds=[1], epoch=old), 403, "producer_fenced")
        assert (problem["producer"], problem["epoch"], problem["current_epoch"]) == ("p", old, new["epoch"])
        assert_problem(topic.publish("m0", producer="p", sequenceIds=[0], epoch=old), 403, "producer_fenced")
        assert statuses(topic.send("p", 1, epoch=new["epoch"])) == ["stored"]
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        assert_problem(topic.publish("x", producer="p", sequenceIds=[2], epoch=old), 403, "producer_fenced")
        assert topic.request("DELETE", "/producers/p").status_code == 200
        for epoch in (old, new["epoch"]):
            assert_problem(topic.publish("x", producer="p", sequenceIds=[2], epoch=epoch), 403, "producer_fenced")
        third = topic.open_producer("p", "third")
        assert third["epoch"] > new["epoch"]
        assert third["lastSequenceId"] is None
        crashed = crashed.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        for epoch in (old, new["epoch"]):
            assert_problem(topic.publish("x", producer="p", sequenceIds=[2], epoch=epoch), 403, "producer_fenced")
        assert statuses(topic.send("p", 0, epoch=third["epoch"])) == ["stored"]


def test_a_repeated_open_fences_nobody_also_after_a_newer_one(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)
        first = topic.open_producer("p", "a")
        assert topic.open_producer("p", "a") == first
        second = topic.open_producer("p", "b")
        assert topic.open_producer("p", "a")["epoch"] == first["epoch"], "the late repeat of the older open"
        assert statuses(topic.send("p", 0, epoch=second["epoch"])) == ["stored"]
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        assert topic.open_producer("p", "b")["epoch"] == second["epoch"]
        assert statuses(topic.send("p", 1, epoch=second["epoch"])) == ["stored"]


def test_opens_at_the_same_time_with_one_nonce_are_one_open(running: RunningService) -> None:
    Topic(running.url)
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: Topic(running.url, create=False).open_producer("p", "same")["epoch"], range(8)))
    assert set(opened) == {1}


def test_without_a_name_the_service_assigns_a_unique_one(running: RunningService) -> None:
    topics = [Topic(running.url, name) for name in ("t", "u")]
    names = [topic.open_producer(None, f"nonce{each}")["name"] for topic in topics for each in range(20)]
    assert len(set(names)) == 40
    assert statuses(topics[0].send(names[0], 0)) == ["stored"]


def test_a_publish_without_a_name_is_never_a_duplicate(running: RunningService) -> None:
    topic = Topic(running.url)
    assert topic.publish("same").status_code == 200
    assert topic.publish("same").status_code == 200
    assert topic.payloads() == ["same", "same"]


def test_producers_and_topics_do_not_touch_each_other(running: RunningService) -> None:
    one, two = Topic(running.url, "one"), Topic(running.url, "one", namespace="other")
    for topic in (one, two):
        for producer in ("p", "P", "p.", "p:1"):
            assert statuses(topic.send(producer, 0, 1)) == ["stored"] * 2
    assert one.verify()["ok"]


def test_topic_before_namespace_before_service_and_null_inherits() -> None:
    with running_service(deduplication=False) as service:
        topic = Topic(service.url)
        policies = f"{service.url}/v1/namespaces/default/policies"

        def deduplicates() -> bool:
            return bool(topic.stats()["deduplication"])

        assert not deduplicates()
        assert topic.session.put(policies, json={"deduplication": True}, timeout=TIMEOUT).status_code == 200
        assert deduplicates()
        topic.request("PUT", "/properties", json={"deduplication": "false"})
        assert not deduplicates()
        topic.request("PUT", "/properties", json={})
        assert deduplicates()
        topic.session.put(policies, json={"deduplication": None}, timeout=TIMEOUT)
        assert not deduplicates()
        assert not Topic(service.url, "born", deduplication="false").stats()["deduplication"]


@pytest.mark.parametrize("restart", [False, True])
def test_switched_on_for_a_topic_with_history_it_knows_all_of_it(machine: Machine, restart: bool) -> None:
    with machine.run() as service:
        topic = Topic(service.url, deduplication="false")
        assert statuses(topic.send("p", 0, 1, 2)) == ["stored"] * 3
        assert statuses(topic.send("p", 2)) == ["stored"], "off means off"
        if not restart:
            topic.request("PUT", "/properties", json={"deduplication": "true"})
            assert statuses(topic.send("p", 1, 2, 3)) == ["duplicate", "duplicate", "stored"]
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        topic.request("PUT", "/properties", json={"deduplication": "true"})
        assert statuses(topic.send("p", 2, 3)) == ["duplicate", "stored" if restart else "duplicate"]


def test_switched_off_and_on_again_nothing_is_forgotten(running: RunningService) -> None:
    topic = Topic(running.url)
    topic.send("p", 0, 1)
    topic.request("PUT", "/properties", json={"deduplication": "false"})
    topic.send("p", 2)
    topic.send("q", 9)
    topic.request("PUT", "/properties", json={"deduplication": "true"})
    assert statuses(topic.send("p", 0, 1, 2, 3)) == ["duplicate"] * 3 + ["stored"]
    assert statuses(topic.send("q", 9)) == ["duplicate"]


def test_forgetting_is_an_operators_word_and_outlives_a_restart(machine: Machine) -> None:
    with machine.run(snapshot_messages=1) as service:
        topic = Topic(service.url)
        topic.send("p", 0, 1, 2)
        topic.send("q", 0)
        assert topic.request("DELETE", "/producers/p").status_code == 200
        assert_problem(topic.request("GET", "/producers/p"), 404, "producer_not_found")
        assert_problem(topic.request("DELETE", "/producers/p"), 404, "producer_not_found")
        assert topic.payloads() == ["m0", "m1", "m2", "m0"], "its messages stay"
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        assert statuses(topic.send("q", 0)) == ["duplicate"]
        again = topic.send("p", 0, 1, payload="new{}")
        assert statuses(again) == ["stored"] * 2
        assert without_status(topic.send("p", 0, 1, payload="new{}")) == without_status(again)
        crashed = crashed.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        assert statuses(topic.send("p", 1, 2, payload="new{}")) == ["duplicate", "stored"]
        assert topic.verify()["ok"], topic.verify()


def test_why_tells_what_would_become_of_a_sequence_id(running: RunningService) -> None:
    topic = Topic(running.url)
    stored = topic.send("p", 3, 7)

    def why(producer: str, sequence_id: int) -> dict[str, Any]:
        answer = topic.request("GET", f"/producers/{producer}/why?sequenceId={sequence_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    assert why("never", 0)["verdict"] == "new"
    assert why("p", 8)["verdict"] == "new"
    for each in stored:
        told = why("p", each["sequence_id"])
        assert (told["verdict"], told["messageId"], told["offset"]) == ("duplicate", each["id"], each["offset"])
    left_out = why("p", 5)
    assert (left_out["verdict"], left_out["messageId"], left_out["offset"]) == ("duplicate", None, None)
    topic.request("PUT", "/properties", json={"deduplication": "false"})
    assert why("p", 3)["verdict"] == "not_judged"


def test_all_producers_are_listed_page_by_page(running: RunningService) -> None:
    topic = Topic(running.url)
    names = sorted(f"p{each:03d}" for each in range(55))
    for name in names[:30]:
        topic.send(name, 0)
    for name in names[30:]:
        topic.open_producer(name, "n")
    seen: list[str] = []
    while page := topic.request("GET", f"/producers?limit=10&after={seen[-1] if seen else ''}").json():
        assert len(page) <= 10
        seen += [each["name"] for each in page]
    assert seen == names


def test_the_same_request_twice_at_once_is_stored_once_and_both_get_its_ids(running: RunningService) -> None:
    Topic(running.url)
    with ThreadPoolExecutor(8) as pool:
        for batch in range(25):
            ids = list(range(batch * 4, batch * 4 + 4))
            found = list(pool.map(lambda _, ids=ids: Topic(running.url, create=False).send("p", *ids), range(8)))  # type: ignore[misc]
            assert sorted(each[0]["status"] for each in found) == ["duplicate"] * 7 + ["stored"]
            assert len({str(without_status(each)) for each in found}) == 1
    topic = Topic(running.url, create=False)
    assert topic.payloads() == [f"m{number}" for number in range(100)]
    assert topic.verify()["ok"]


def test_overlapping_requests_at_once_store_each_message_once(running: RunningService) -> None:
    Topic(running.url)

    def publish(start: int) -> int:
        ids = list(range(start, start + 10))
        answer = Topic(running.url, create=False).publish(*[f"m{each}" for each in ids], producer="p", sequenceIds=ids)
        assert answer.status_code == 200, answer.text
        return sum(each["status"] == "stored" for each in receipts(answer))

    with ThreadPoolExecutor(8) as pool:
        stored = sum(pool.map(publish, [each * 3 for each in range(40)]))
    topic = Topic(running.url, create=False)
    numbers = [int(payload[1:]) for payload in topic.payloads()]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == stored
    assert topic.verify()["ok"]


def test_an_all_duplicate_batch_moves_nothing(running: RunningService) -> None:
    topic = Topic(running.url)
    topic.send("p", *range(5))
    before = topic.stats()
    answer = topic.publish(*[f"m{each}" for each in range(5)], producer="p", sequenceIds=list(range(5)))
    assert [answer.json()[name] for name in ("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId")] == [0] * 4
    assert topic.stats() == before
    assert topic.send("p", 5)[0]["offset"] == 5


def test_a_snapshot_bounds_what_a_crash_must_replay(machine: Machine) -> None:
    with machine.run(snapshot_messages=10) as service:
        topic = Topic(service.url)
        for sequence_id in range(95):
            topic.send("p", sequence_id)
        topic.send("q", 0)
        crashed = machine.crash()
    with crashed.run(snapshot_messages=10) as service:
        topic = Topic(service.url, create=False)
        assert topic.stats()["replayed"] <= 25
        assert statuses(topic.send("p", 94, 95)) == ["duplicate", "stored"]
        assert topic.verify()["ok"]


def test_a_damaged_snapshot_costs_time_and_no_sequence_id(machine: Machine) -> None:
    from oncelog_service.storage.port import Table

    with machine.run() as service:
        Topic(service.url).send("p", *range(20))
    snapshots = machine.disk.tables[Table.SNAPSHOT]
    assert snapshots
    for key, data in snapshots.items():
        snapshots[key] = data[:-1] + bytes([data[-1] ^ 1])
    with machine.run() as service:
        topic = Topic(service.url, create=False)
        assert topic.stats()["replayed"] == 20
        assert statuses(topic.send("p", 19, 20)) == ["duplicate", "stored"]


def test_five_thousand_producers_survive_a_crash(machine: Machine) -> None:
    with machine.run() as service:
        topic = Topic(service.url)

        async def publish_all(inside: Any) -> None:
            from oncelog.wire.requests import PublishRequest

            log = await inside.topics.open("default", "t")
            for first in range(0, 5_000, 50):
                requests = [PublishRequest([b"x"], f"p{each}", sequence_ids=[each]) for each in range(first, first + 50)]
                await asyncio.gather(*map(log.publish, requests))

        service.on_loop(publish_all)
        crashed = machine.crash()
    with crashed.run() as service:
        topic = Topic(service.url, create=False)
        assert topic.stats()["producers"] == 5_000
        for each in (0, 1, 2_500, 4_999):
            assert topic.publish("x", producer=f"p{each}", sequenceIds=[each]).json()["receipts"][0]["status"] == "duplicate"
        assert topic.verify()["ok"]
