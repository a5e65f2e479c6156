"""Series of single topics and subscriptions; how many there may be is a setting, however many topics there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from oncelog_service.counting.topics import Tally, TopicName
from oncelog_service.log.topic_log import TopicLog
from oncelog_service.metrics.families import COUNTER, GAUGE, Measure
from oncelog_service.metrics.overview import Lag
from oncelog_service.service import Service

OTHERS = ("(others)", "(others)")
"""Namespace and topic in the series of all that have none of their own: no topic can have that name."""
_NAMES = ["namespace", "topic"]

COUNTED: Sequence[Measure[Tally]] = (
    Measure(COUNTER, "topic_messages", "Messages stored on a topic", lambda it: it.messages),
    Measure(COUNTER, "topic_bytes", "Bytes of payloads, keys and properties that a topic has taken in", lambda it: it.bytes),
    Measure(COUNTER, "topic_duplicates", "Messages of a topic refused as duplicates", lambda it: it.duplicates),
    Measure(COUNTER, "topic_delivered", "Messages handed to readers and consumers", lambda it: it.delivered),
    Measure(COUNTER, "topic_delivered_bytes", "Bytes of the answers that had them", lambda it: it.delivered_bytes),
    Measure(COUNTER, "topic_fenced", "Requests of producers that a newer one has fenced", lambda it: it.fenced),
    Measure(
        COUNTER, "topic_fenced_consumers", "Requests of consumers that a newer one has fenced", lambda it: it.fenced_consumers
    ),
    Measure(COUNTER, "topic_sequence_gaps", "Requests that left sequence ids out where that is refused", lambda it: it.gaps),
)
"""Of each topic that has a series, and of all others."""

OPEN: Sequence[Measure[TopicLog]] = (
    Measure(GAUGE, "topic_begin_offset", "Offset at which a topic begins", lambda it: it.begin_offset),
    Measure(GAUGE, "topic_end_offset", "Offset that the next message gets", lambda it: it.position.upcoming_offset),
    Measure(GAUGE, "topic_stable_offset", "Offset below which everything is decided", lambda it: it.ranges.stable),
    Measure(GAUGE, "topic_size_bytes", "Bytes of a topic's log", lambda it: it.topic.size.present),
    Measure(GAUGE, "topic_producers", "Producers under whose names something is stored", lambda it: len(it.dedup.fold)),
    Measure(GAUGE, "topic_lag", "Offsets before the subscription farthest behind", lambda it: it.subscriptions.largest_lag),
)
"""Of each topic that has a series and is open."""


def of_topics(service: Service, opened: Mapping[TopicName, TopicLog]) -> Iterator[Metric]:
    """Yields the families of topics. ``opened``: none, while the store is not open; what was counted is known all the same."""
    topics = service.counts.topics
    tallies = [*topics.series(service.clock.monotonic(), opened), (OTHERS, topics.others)]
    for counted in COUNTED:
        counters = CounterMetricFamily(f"oncelog_{counted.name}", counted.said, labels=_NAMES)
        for name, tally in tallies:
            counters.add_metric(name, counted.read(tally))
        yield counters
    logs = [(name, log) for name, _ in tallies if (log := opened.get(name)) is not None]
    for measure in OPEN:
        gauges = GaugeMetricFamily(f"oncelog_{measure.name}", measure.said, labels=_NAMES)
        for name, log in logs:
            gauges.add_metric(name, measure.read(log))
        yield gauges


def of_subscriptions(lags: Iterable[Lag]) -> Metric:
    """Returns the lags of subscriptions."""
    family = GaugeMetricFamily("oncelog_subscription_lag", "Offsets before a subscription", labels=[*_NAMES, "subscription"])
    for lag, *names in lags:
        family.add_metric(names, lag)
    return family
