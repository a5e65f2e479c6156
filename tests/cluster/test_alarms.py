"""Any of several instances says what is wrong with all of them."""

from __future__ import annotations

import time

import pytest

from oncelog import Client, Producer, errors
from oncelog.wire.overview import Alarm
from tests.cluster.instances import InPlace, Instances, until


def alarms(of: InPlace) -> dict[str, Alarm]:
    with Client(of.url) as client:
        return {each.code: each for each in client.alarms().alarms}


def test_any_instance_names_what_is_wrong_at_another(cluster: Instances, client: Client) -> None:
    owner, other, *_ = cluster.all
    topic = cluster.topic_at(owner, client)
    with Producer(topic, name="pos", client=client) as old:
        client.open_producer(topic, "pos")
        with pytest.raises(errors.ProducerFenced):
            old.send(b"late")
    found = until(lambda: alarms(other).get("producer_fenced"))
    assert found.about["topic"] == topic
    assert found.instance == owner.url
    assert until(lambda: alarms(owner).get("producer_fenced")).instance == owner.url
    with Client(other.url) as asked:
        # One that does not answer within two seconds is left out of that answer.
        until(lambda: asked.alarms().topics_seen >= 1)
        until(lambda: [each.instance for each in asked.overview().alarms if each.code == "producer_fenced"] == [owner.url])
        until(lambda: asked.overview().instances == len(cluster.all))  # as of its latest heartbeat


def test_an_instance_that_is_gone_without_a_word_is_missed_until_it_is_there_again(cluster: Instances, client: Client) -> None:
    owner, other, *_ = cluster.all
    topic = cluster.topic_at(owner, client)
    with Producer(topic, client=client) as producer:
        producer.send(b"x")
    owner.cut_off()
    found = until(lambda: alarms(other).get("instance_missing"))
    assert found.since_ms is not None
    assert abs(found.since_ms - time.time() * 1000) < 600_000
    assert found.about["url"] == owner.url
    text = other.ask("GET", "/metrics").text
    assert ("\noncelog_instances_missing 1" in text, f"\noncelog_instances {len(cluster.all) - 1}" in text) == (True, True)
    owner.put_back()
    cluster.make_whole()
    until(lambda: "instance_missing" not in alarms(other))
    until(lambda: "\noncelog_instances_missing 0" in other.ask("GET", "/metrics").text)


def test_an_instance_that_is_stopped_is_not_missed(cluster: Instances, client: Client) -> None:
    owner, other, *_ = cluster.all
    with Producer(cluster.topic_at(owner, client), client=client) as producer:
        producer.send(b"x")
    before = alarms(other).keys()
    owner.stop()
    assert alarms(other).keys() - before <= {"instance_silent"}
    until(lambda: "instance_silent" not in alarms(other))
    assert "instance_missing" not in alarms(other)
