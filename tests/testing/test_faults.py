"""Each fault by its name: what a client meets, and what is on the log afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncelog import Client, Consumer, Producer, Reader, errors
from oncelog.testing import FaultNotMet, NotExactlyOnce, OncelogService, service
from oncelog.wire.models import TopicAsked
from oncelog.wire.requests import ConsumeRequest, PublishRequest
from tests.patience import PATIENCE, until

pytestmark = pytest.mark.real

ROWS = [b"%d" % at for at in range(6)]


@pytest.fixture
def kit() -> Iterator[OncelogService]:
    with service() as made:
        made.client.create_topic("t")
        yield made


@pytest.fixture
def once(kit: OncelogService) -> Iterator[Client]:
    """A client that tries nothing again."""
    with Client(kit.url, retry=0) as client:
        yield client


def published(kit: OncelogService) -> str:
    """Publish the rows, a request each; the receipts' statuses, a letter each."""
    with Producer("t", name="loader", url=kit.url) as producer:
        return "".join(producer.send(row, sequence_id=at).status[0] for at, row in enumerate(ROWS))


def say(client: Client, payload: bytes, topic: str = "t") -> None:
    """Publish one message once, without a producer."""
    client.publish(topic, PublishRequest([payload]))


def on_log(kit: OncelogService) -> list[bytes]:
    with Reader("t", url=kit.url, start="earliest", timeout=0) as reader:
        return [message.payload for message in reader]


# --- answers and requests


def test_an_answer_is_lost_and_its_request_was_obeyed(kit: OncelogService, once: Client) -> None:
    fault = kit.faults.lose_answer(nth=2, times=2)
    say(once, b"a")
    for payload in (b"b", b"c"):
        with pytest.raises(errors.ConnectionFailed) as lost:
            say(once, payload)
        assert not lost.value.definite
    say(once, b"d")
    assert (on_log(kit), fault.fired) == ([b"a", b"b", b"c", b"d"], 2)


def test_a_lost_request_was_not_obeyed(kit: OncelogService, once: Client) -> None:
    kit.faults.lose_request("create_topic")
    with pytest.raises(errors.ConnectionFailed) as lost:
        once.create_topic("u")
    assert not lost.value.definite
    assert list(once.topics()) == ["t"]


def test_a_request_is_refused_with_any_error_and_not_obeyed(kit: OncelogService, once: Client) -> None:
    kit.faults.refuse(times=2)
    kit.faults.refuse("create_topic", errors.QuotaExceeded("enough", quota="topics", limit=1))
    for _ in range(2):
        with pytest.raises(errors.NotAllowed) as refused:
            say(once, b"a")
        assert refused.value.definite
    with pytest.raises(errors.QuotaExceeded, match="enough"):
        once.create_topic("u")
    say(once, b"b")
    assert (on_log(kit), list(once.topics())) == ([b"b"], ["t"])


def test_a_request_that_is_delivered_twice_is_stored_once_under_a_number_and_twice_without(kit: OncelogService) -> None:
    kit.faults.deliver_twice(nth=2)
    assert published(kit) == "sdssss"
    kit.check_published("t", ROWS)
    kit.faults.deliver_twice()
    say(kit.client, b"unnumbered")
    with pytest.raises(NotExactlyOnce, match=r"row 6 .b'unnumbered'. is in the log 2 times: offset 6 .* and offset 7"):
        kit.check_published("t", [*ROWS, b"unnumbered"])


# --- the life of the service


@pytest.mark.parametrize(("when", "statuses"), [("after", "ssdsss"), ("before", "ssssss")])
def test_a_killed_service_starts_again_with_what_was_on_disk(kit: OncelogService, when: str, statuses: str) -> None:
    url = kit.url
    fault = kit.faults.kill(nth=3, when=when)
    assert published(kit) == statuses
    kit.check_published("t", ROWS)
    assert (kit.url, fault.fired, fault.came) == (url, 1, 7)


def test_clients_of_the_process_that_use_no_port_meet_the_same(kit: OncelogService) -> None:
    kit.faults.lose_answer(nth=2)
    kit.faults.kill(nth=4)
    with Producer("t", name="loader", url=kit.store_url) as producer:
        assert "".join(producer.send(row).status[0] for row in ROWS) == "sddsss"
    kit.check_published("t", ROWS)


def test_a_service_that_is_killed_now_is_down_until_it_is_started(kit: OncelogService, once: Client) -> None:
    published(kit)
    kit.kill(restart=False)
    with pytest.raises(errors.ConnectionFailed):
        once.topic("t")
    kit.start()
    kit.check_published("t", ROWS)
    kit.kill()
    assert once.topic("t").name == "t"


def test_who_waits_for_an_answer_is_cut_off_by_a_kill_and_told_nothing(kit: OncelogService, once: Client) -> None:
    counting = kit.faults.lose_answer("poll", nth=2, optional=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(once.poll, "t", ConsumeRequest(wait=20_000))
        until(lambda: counting.came)
        kit.kill()
        with pytest.raises(errors.ConnectionFailed) as cut:
            waiting.result(PATIENCE)
    assert not cut.value.definite


def test_requests_wait_while_the_service_stands_still(kit: OncelogService) -> None:
    kit.stop_for(PATIENCE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(say, kit.client, b"a")
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        kit.go_on()
        waiting.result(PATIENCE)
    kit.check_published("t", [b"a"])


def test_a_request_stops_the_service_for_a_while_and_who_is_impatient_tries_again(kit: OncelogService) -> None:
    kit.faults.stop_for(0.3, nth=2)
    with Client(kit.url, timeout=0.1) as client, Producer("t", name="loader", client=client) as producer:
        for row in ROWS:
            producer.send(row)
    kit.check_published("t", ROWS)


def test_what_stands_still_is_killed_all_the_same(kit: OncelogService) -> None:
    kit.stop_for(PATIENCE)
    kit.kill()
    published(kit)


def test_nothing_stands_still_that_ends(kit: OncelogService) -> None:
    """However many requests wait that would stop it again."""
    stops = kit.faults.stop_for(PATIENCE / 3, "poll", times=100, optional=True)
    with ThreadPoolExecutor(3) as pool, Client(kit.url, retry=0) as client:
        waiting = [pool.submit(client.poll, "t", ConsumeRequest(wait=20_000)) for _ in range(3)]
        until(lambda: stops.fired)
        begun = time.monotonic()
        kit.close()
        for each in waiting:
            with pytest.raises(errors.OncelogError):
                each.result(PATIENCE)
    assert time.monotonic() - begun < PATIENCE / 3


# --- time


def test_time_that_passes_ends_transactions_and_messages(kit: OncelogService) -> None:
    say(kit.client, b"kept")
    kit.client.create_topic("u", {"ttl": "60"})
    say(kit.client, b"gone", "u")
    started = kit.client.start_transaction()
    kit.pass_time(3_600)
    assert kit.client.transaction_status(started.write_pointer).state == "invalid"
    kit.check_published("t", [b"kept"])
    assert kit.client.stats("u").earliest_offset == 1


def test_time_passes_at_a_request(kit: OncelogService, once: Client) -> None:
    kit.faults.pass_time(3_600, "commit")
    with pytest.raises(errors.TransactionNotInProgress), once.transaction() as tx:
        tx.send("t", b"late")
    say(kit.client, b"kept")
    kit.check_published("t", [b"kept"])


def test_a_clock_that_is_set_back_shows_after_a_kill_and_loses_nothing(kit: OncelogService) -> None:
    say(kit.client, b"a")
    kit.step_clock(-86_400)
    assert kit._clock.behind_ms() > 86_000_000
    kit.kill()
    assert kit._clock.behind_ms() == 0
    say(kit.client, b"b")
    kit.faults.step_clock(2 * 86_400)
    say(kit.client, b"c")
    kit.check_published("t", [b"a", b"b", b"c"])
    with Reader("t", url=kit.url, start="earliest", timeout=0) as reader:
        times = [message.publish_timestamp for message in reader]
    assert times[0] == times[1] <= times[2] - 86_000_000


# --- fences, and the disk


def test_a_producer_is_fenced_at_a_request(kit: OncelogService) -> None:
    fault = kit.faults.fence("t", producer="loader", nth=3)
    with pytest.raises(errors.ProducerFenced):
        published(kit)
    kit.check_published("t", ROWS[:2])
    assert fault.fired == 1
    assert published(kit) == "ddssss"


def test_a_consumer_is_fenced_now_and_at_a_request(kit: OncelogService) -> None:
    published(kit)
    with Consumer("t", "mails", url=kit.url) as consumer:
        message = consumer.read(1, timeout=0)[0]
        kit.fence("t", subscription="mails")
        with pytest.raises(errors.ConsumerFenced):
            consumer.ack(message)
    kit.faults.fence("t", subscription="mails", request="acknowledge")
    with Consumer("t", "mails", url=kit.url) as consumer:
        assert consumer.read(1, timeout=0)[0].offset == 0
        with pytest.raises(errors.ConsumerFenced):
            consumer.ack(message)


def test_where_there_is_nobody_to_fence_it_is_told(kit: OncelogService, once: Client) -> None:
    with pytest.raises(errors.ProducerNotFound, match="loadr"):
        kit.fence("t", producer="loadr")
    with pytest.raises(errors.SubscriptionNotFound, match="mials"):
        kit.fence("t", subscription="mials")
    faults = [
        kit.faults.fence("t", producer="loadr", nth=2),
        kit.faults.fence("t", subscription="mials", request="acknowledge", when="after"),
    ]
    published(kit)
    with Consumer("t", "mails", url=kit.url) as consumer:
        consumer.ack(consumer.read(1, timeout=0)[0])
    with pytest.raises(
        FaultNotMet, match=r"struck 0 of 1; 6 came \(no producer 'loadr' on this topic .*\)\n.*no subscription 'mials'"
    ):
        kit.verify()
    assert [producer.name for producer in once.producers("t")] == ["loader"]
    for fault in faults:
        fault.optional = True


def test_who_is_fenced_is_one(kit: OncelogService) -> None:
    for wrong in ({}, {"producer": "p", "subscription": "s"}):
        with pytest.raises(ValueError, match="either"):
            kit.fence("t", **wrong)
        with pytest.raises(ValueError, match="either"):
            kit.faults.fence("t", **wrong)


def test_a_full_disk_takes_nothing_in_until_it_is_freed(kit: OncelogService, once: Client) -> None:
    kit.faults.fill_disk(nth=2)
    say(once, b"a")
    with pytest.raises(errors.DiskFull) as full:
        say(once, b"b")
    assert full.value.definite
    kit.kill()
    with pytest.raises(errors.DiskFull):
        say(once, b"b")
    kit.free_disk()
    say(once, b"b")
    kit.fill_disk()
    with pytest.raises(errors.DiskFull):
        say(once, b"c")
    kit.check_published("t", [b"a", b"b"])


# --- the end of a block


def test_a_block_fails_at_its_end_where_what_was_planned_did_not_happen() -> None:
    with pytest.raises(FaultNotMet, match="lose the answer to publish 1: struck 0 of 1"), service() as kit:
        kit.faults.lose_answer()


def test_a_block_that_fails_tells_its_own_error_and_what_was_planned() -> None:
    def fails() -> None:
        with service() as kit:
            kit.faults.lose_answer()
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError) as told:
        fails()
    assert "lose the answer to publish 1" in told.value.__notes__[0]


def test_what_was_recorded_is_held_against_the_log_at_the_end_if_not_before(kit: OncelogService) -> None:
    published(kit)
    recorder = kit.recorder("t")
    recorder.effects += [0, 1, 2]
    recorder.verify(upto=3)
    kit.verify()
    recorder(4)
    with pytest.raises(NotExactlyOnce, match="2 lost"):
        kit.verify()
    recorder.verified = True


def test_what_a_test_looks_with_meets_no_fault(kit: OncelogService) -> None:
    published(kit)
    fault = kit.faults.lose_answer("any", nth=2)
    kit.check_published("t", ROWS)
    assert fault.came == 0
    for _ in range(2):  # what somebody else looks with does
        kit.client.offsets({"t": TopicAsked()})
    assert (fault.came, fault.fired) == (3, 1)


def test_a_setting_that_is_none_is_refused() -> None:
    for wrong in ({"no_such": 1}, {"store": "leveldb:///tmp/no_such"}):
        with pytest.raises(ValueError, match=r"no_such|in memory"):
            service(**wrong)


def test_what_a_test_looks_with_shows_the_token_of_its_service() -> None:
    with service(token="s3cret-s3cret-s3cret", min_free_bytes=0) as kit:
        kit.client.create_topic("t")
        say(kit.client, b"a")
        kit.check_published("t", [b"a"])
        with pytest.raises(ValueError, match="min_free_bytes"):
            kit.fill_disk()
        with Client(kit.url) as stranger, pytest.raises(errors.Unauthorized):
            stranger.topic("t")
