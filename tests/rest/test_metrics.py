"""What /metrics says of a running service: real requests, and what is counted of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

import oncelog
from oncelog import Client, Consumer
from oncelog_service.storage.memory import Disk, MemoryStore
from oncelog_service.storage.port import Batch, Table
from tests.patience import until
from tests.rest.talk import TIMEOUT, Topic, done
from tests.rest.test_transactions import Transactions
from tests.world.clock import ManualClock
from tests.world.service import RunningService, running_service

Labels = frozenset[tuple[str, str]]
PUBLISH = "/v1/namespaces/{namespace}/topics/{topic}/publish"


class Metrics:
    """What a service answers now."""

    def __init__(self, service: RunningService) -> None:
        self.text = done(requests.get(service.url + "/metrics", timeout=TIMEOUT)).text
        families = [*text_string_to_metric_families(self.text)]
        assert all(family.documentation for family in families)
        self.kinds = {family.name: family.type for family in families}
        self.values: dict[tuple[str, Labels], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value for family in families for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.values[f"oncelog_{name}", frozenset(labels.items())]

    def of(self, name: str) -> dict[Labels, float]:
        return {labels: value for (each, labels), value in self.values.items() if each == f"oncelog_{name}"}

    def topic(self, name: str, topic: str = "t") -> float:
        return self.value(f"topic_{name}", namespace="default", topic=topic)

    def of_topics(self, name: str) -> dict[str, float]:
        return {dict(labels)["topic"]: value for labels, value in self.of(f"topic_{name}").items()}

    @property
    def counters(self) -> Iterator[tuple[tuple[str, Labels], float]]:
        """All that must never fall."""
        for (name, labels), value in self.values.items():
            if name.endswith(("_total", "_bucket", "_count", "_sum")):
                yield (name, labels), value


def check_none_fell(before: Metrics, after: Metrics) -> None:
    fallen = {each: (value, after.values.get(each)) for each, value in before.counters if after.values.get(each, -1) < value}
    assert fallen == {}


def refused(answer: requests.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_what_happens_on_a_topic_is_counted_in_its_series() -> None:
    with running_service() as service:
        topic = Topic(service.url)
        topic.send("p", 0, 1, 2, payload="12{}")
        topic.send("p", 1, 2, 3, payload="12{}")
        topic.send("p", 2, 3, payload="12{}")
        topic.read(limit=3)
        topic.read()
        found = Metrics(service)
        for prefix in ("", "topic_"):
            labels = {"namespace": "default", "topic": "t"} if prefix else {}
            assert found.value(f"{prefix}messages_total", **labels) == 4
            assert found.value(f"{prefix}duplicates_total", **labels) == 2 + 2
            assert found.value(f"{prefix}delivered_total", **labels) == 3 + 4
            assert found.value(f"{prefix}delivered_bytes_total", **labels) > 7 * 3
            assert found.value(f"{prefix}bytes_total", **labels) == 9 + 9, (
                "of a request that stores some of it, all that it brought"
            )
        assert (found.topic("end_offset"), found.topic("stable_offset"), found.topic("begin_offset")) == (4, 4, 0)
        assert found.topic("producers") == 1
        assert found.of_topics("messages_total") == {"t": 4, "(others)": 0}


def test_producers_that_are_fenced_and_sequence_ids_that_are_left_out_are_counted_once_each() -> None:
    with running_service() as service:
        topic = Topic(service.url)
        old, new = (
            topic.good("POST", "/producers", json={"name": "p", "nonce": nonce, "gaps": "refuse"})["epoch"]
            for nonce in ("first", "second")
        )
        topic.send("p", 0, epoch=new)
        for count in (1, 2):
            refused(topic.publish("x", producer="p", sequenceIds=[1], epoch=old), 403, "producer_fenced")
            refused(topic.publish("x", producer="p", sequenceIds=[7], epoch=new), 409, "sequence_gap")
            found = Metrics(service)
            assert (found.topic("fenced_total"), found.topic("sequence_gaps_total")) == (count, count)
            assert found.value("problems_total", code="producer_fenced") == count
            assert found.value("problems_total", code="sequence_gap") == count


def test_consumers_that_are_fenced_are_counted_on_their_topic() -> None:
    with running_service() as service:
        topic = Topic(service.url)
        old, _ = (
            topic.good("POST", "/subscriptions", json={"name": "s", "nonce": nonce, "start": {"at": "earliest"}})["epoch"]
            for nonce in ("first", "second")
        )
        for count in (1, 2):
            refused(topic.request("POST", "/subscriptions/s/receive", json={"epoch": old}), 403, "consumer_fenced")
            found = Metrics(service)
            assert (found.topic("fenced_consumers_total"), found.topic("fenced_total")) == (count, 0)


def test_times_are_counted_by_the_address_as_it_stands_in_the_table_and_by_status() -> None:
    with running_service() as service:
        topic = Topic(service.url)
        topic.publish("a")
        topic.publish("b")
        topic.publish("x", producer="p", sequenceIds=[-1])
        topic.request("GET", "/nothing")
        requests.get(service.url + "/etc/passwd?secret=1", timeout=TIMEOUT)
        found = Metrics(service)
        counted = {tuple(dict(each)[name] for name in ("method", "route", "code")): value
                   for each, value in found.of("http_request_seconds_count").items()}  # fmt: skip
        assert counted["POST", PUBLISH, "200"] == found.value("publish_seconds_count") == 2
        assert counted["POST", PUBLISH, "400"] == 1
        assert counted["", "(none)", "404"] == 2
        assert counted["PUT", PUBLISH.removesuffix("/publish"), "200"] == 1
        assert "passwd" not in found.text
        assert found.value("problems_total", code="not_found") == 2
        published = found.value("http_request_seconds_sum", method="POST", route=PUBLISH, code="200")
        assert found.value("publish_seconds_sum") == published


def test_a_page_is_measured_without_the_wait_for_messages_and_a_request_with_it() -> None:
    with running_service() as service:
        topic = Topic(service.url)
        poll = PUBLISH.replace("publish", "poll")
        assert topic.read(wait=300) == []
        found = Metrics(service)
        whole = found.value("http_request_seconds_sum", method="POST", route=poll, code="200")
        assert whole > 0.299
        assert found.value("page_seconds_count") == 2, "before the wait, and behind it"
        assert found.value("page_seconds_sum") < whole - 0.29


def test_writes_are_measured_and_how_many_share_one() -> None:
    with running_service() as service:
        topic = Topic(service.url)
        before = Metrics(service)
        for _ in range(5):
            topic.publish("a")
        found = Metrics(service)
        assert found.value("writes_total") - before.value("writes_total") == 5
        assert found.value("sync_seconds_count") == found.value("write_submissions_count") == found.value("writes_total")
        assert found.value("write_submissions_sum") == found.value("submissions_total")
        assert (found.value("queue_submissions"), found.value("queue_bytes")) == (0, 0)


def test_what_waits_for_the_disk_is_seen() -> None:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service:

        async def hand_over(_: object) -> tuple[int, int]:
            writer = service.service.opening.writer
            batches = [Batch() for _ in range(3)]
            for batch in batches:
                batch.put(Table.NAMESPACE, b"key", bytes(100))
                batch.delete(Table.NAMESPACE, b"gone")
                writer.submit(batch)
            return writer.queued()

        submissions, size = service.on_loop(hand_over)
        assert submissions in (2, 3), "the writer's thread may have taken the first"
        assert size == submissions * (3 + 100 + 4)


def no_space(_: object) -> None:
    raise OSError(28, "No space left on device")


def act(service: RunningService, topics: int = 3) -> None:
    """A bit of everything that is counted."""
    for number in range(topics):
        topic = Topic(service.url, f"t{number}")
        topic.send("p", 0, 1)
        topic.send("p", 0, 1)
        topic.publish("x", producer="p", sequenceIds=[1, 0])
        topic.read()
    transactions = Transactions(service.url)
    transactions.end(transactions.start(), "commit")
    transactions.end(transactions.start(), "abort")
    with Client(service.url).atomic() as batch:
        batch.send("t0", b"x")


def test_no_counter_falls_when_the_store_fails_and_is_opened_anew() -> None:
    disk = Disk()
    with running_service(open_store=lambda: MemoryStore(disk)) as service:
        act(service)
        before = Metrics(service)
        assert before.value("transactions_committed_total") == before.value("transactions_aborted_total") == 1
        assert before.value("atomic_committed_total") == 1
        assert before.value("messages_total") == 7
        disk.before_sync = no_space
        assert Topic(service.url, "t1", create=False).publish("x").status_code == 503
        while_closed = Metrics(service)
        assert while_closed.value("store_open") == 0
        check_none_fell(before, while_closed)
        assert while_closed.of_topics("messages_total") == before.of_topics("messages_total")
        assert while_closed.of_topics("end_offset") == {}
        disk.before_sync = None
        until(lambda: requests.get(service.url + "/healthz", timeout=TIMEOUT).status_code == 200)
        after = Metrics(service)
        check_none_fell(before, after)
        act(service)
        again = Metrics(service)
        check_none_fell(after, again)
        assert again.value("messages_total") == 8, "the others were duplicates"
        assert again.value("replayed_total") == 7


def test_no_counter_falls_when_a_topic_is_closed_deleted_or_out_of_the_busiest() -> None:
    clock = ManualClock()
    with running_service(clock=clock, metrics_topics=2) as service:
        act(service, 4)
        before = Metrics(service)
        assert before.of_topics("messages_total") == {"t0": 3, "t1": 2, "(others)": 4}
        assert set(before.of_topics("end_offset")) == {"t0", "t1"}
        # Its log is closed, as at a hand-over.
        done(Topic(service.url, "t1", create=False).request("PUT", "/properties", json={"check.expected.offsets": "true"}))
        without = Metrics(service)
        check_none_fell(before, without)
        assert set(without.of_topics("end_offset")) == {"t0"}
        assert without.of_topics("messages_total") == before.of_topics("messages_total")
        Topic(service.url, "t1", create=False).read()
        Topic(service.url, "t0", create=False).request("DELETE", "")
        after = Metrics(service)
        check_none_fell(before, after)
        assert set(after.of_topics("end_offset")) == {"t1"}
        clock.advance(600_000)
        Topic(service.url, "t3").send("p", *range(2, 50))
        changing = Metrics(service)
        check_none_fell(after, changing)
        assert changing.of_topics("messages_total") == {"t0": 3, "t1": 2, "t3": 0, "(others)": 4 + 48}
        Topic(service.url, "t3").send("p", 50)
        changed = Metrics(service)
        assert changed.of_topics("messages_total") == {"t1": 2, "t3": 1, "(others)": 4 + 48}
        assert changed.value("messages_total") == 9 + 48 + 1


def test_the_lag_of_each_subscription_is_shown_those_that_are_farthest_behind_first_of_all() -> None:
    with running_service(metrics_topics=2) as service:
        for number, name in enumerate(("near", "far", "farther")):
            topic = Topic(service.url, name)
            topic.publish(*["m"] * (number + 1))
            with Consumer(name, subscription=f"of-{name}", start="earliest", url=service.url):
                pass
        found = Metrics(service)
        lags = {dict(labels)["subscription"]: value for labels, value in found.of("subscription_lag").items()}
        assert lags == {"of-far": 2, "of-farther": 3}
        assert found.value("largest_lag") == 3
        assert found.value("subscriptions") == 3
        assert found.topic("lag", "far") == 2


def test_the_age_of_what_no_snapshot_has_grows_until_one_is_written() -> None:
    clock = ManualClock()
    with running_service(clock=clock, snapshot_messages=5, snapshot_seconds=10_000) as service:
        topic = Topic(service.url)
        assert Metrics(service).value("snapshot_age_seconds") == 0
        clock.advance(50_000)
        topic.publish("a")
        clock.advance(7_000)
        topic.publish("a")
        found = Metrics(service)
        assert (found.value("snapshot_age_seconds"), found.value("unsnapshotted_messages")) == (7, 2)
        topic.publish(*"abc")
        until(lambda: Metrics(service).value("unsnapshotted_messages") == 0, "a snapshot is written")
        assert Metrics(service).value("snapshot_age_seconds") == 0
        clock.advance(9_000)
        topic.publish("a")
        clock.advance(2_000)
        assert Metrics(service).value("snapshot_age_seconds") == 2, "of the message, and not of the snapshot before it"


def test_the_bytes_of_the_store_are_those_of_its_files(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_service(store=f"leveldb://{tmp_path}/data", clock=clock) as service:
        topic = Topic(service.url)
        before = Metrics(service).value("store_bytes")
        assert 0 < before < 10**6
        for _ in range(4):
            topic.publish("x" * 10**6)
        assert Metrics(service).value("store_bytes") == before, "it is not looked at more often than every ten seconds"
        clock.advance(10_000)
        found = Metrics(service).value("store_bytes")
        assert 4 * 10**6 < found < 20 * 10**6


def test_the_build_and_the_process_are_told() -> None:
    with running_service() as service:
        found = Metrics(service)
        ((labels, value),) = found.of("build_info").items()
        assert (dict(labels)["version"], value) == (oncelog.__version__, 1)
        for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"):
            assert found.values[f"process_{name}", frozenset()] > 0


def test_names_are_as_prometheus_wants_them() -> None:
    with running_service() as service:
        act(service)
        found = Metrics(service)
        assert set(found.kinds.values()) == {"counter", "gauge", "histogram"}
        for name, kind in found.kinds.items():
            assert re.fullmatch(r"(oncelog|process)_[a-z_]+", name), name
            assert "milli" not in name
            if kind == "histogram" and name != "oncelog_write_submissions":
                assert name.endswith("_seconds"), name
        heads = set(re.findall(r"^# TYPE (\S+) counter", found.text, re.M))
        assert all(name.endswith("_total") for name in heads)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_store_says_what_it_takes(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/data"
    with running_service(store=url) as service:
        Topic(service.url).publish("x" * 10**6)
        size = Metrics(service).value("store_bytes")
        assert size == 0 if store == "memory" else size > 10**6
