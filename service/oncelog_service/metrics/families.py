"""Tables of metrics: each says what it is called, what it means, and how it is read from what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from oncelog_service.counting.histogram import Histogram

T = TypeVar("T")
Family: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]
GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily


class Measure(NamedTuple, Generic[T]):
    """One line of a table."""

    kind: Family
    name: str
    """Without what begins and, for a counter, ends it."""
    said: str
    read: Callable[[T], float]


def families(measures: Sequence[Measure[T]], it: T) -> Iterator[Metric]:
    """Yields each as it is of ``it`` now."""
    for each in measures:
        yield each.kind(f"oncelog_{each.name}", each.said, each.read(it))


def histogram(name: str, said: str, found: Histogram) -> Metric:
    """Returns one histogram."""
    return HistogramMetricFamily(f"oncelog_{name}", said, found.buckets(), found.sum)
