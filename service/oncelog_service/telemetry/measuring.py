"""What `/metrics` says as OpenTelemetry's data points: made of the same families, so that there is no second list of metrics.

Counters are cumulative from the beginning of the process, as they are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family

_CUMULATIVE = AggregationTemporality.CUMULATIVE
_UNITS = {"_seconds": "s", "_bytes": "By"}


def data_of(
    families: Iterable[Family], resource: Resource, scope: InstrumentationScope, begun_ns: int, now_ns: int
) -> MetricsData:
    """Returns all families as one export. ``begun_ns``: when counting began."""
    metrics = [_metric(each, begun_ns, now_ns) for each in families if each.samples]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(family: Family, begun_ns: int, now_ns: int) -> Metric:
    data: Sum | Gauge | Histogram
    if family.type == "histogram":
        data = Histogram([*_histograms(family, begun_ns, now_ns)], _CUMULATIVE)
    elif family.type == "counter":
        points = [
            NumberDataPoint(each.labels, begun_ns, now_ns, float(each.value))
            for each in family.samples
            if each.name.endswith("_total")
        ]
        data = Sum(points, _CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge([NumberDataPoint(each.labels, 0, now_ns, float(each.value)) for each in family.samples])
    unit = next((unit for end, unit in _UNITS.items() if family.name.endswith(end)), "")
    return Metric(family.name, family.documentation, unit, data)


def _histograms(family: Family, begun_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """Yields the histogram of each set of labels. Prometheus counts what is not above a bound, OpenTelemetry what is between."""
    found: dict[tuple[tuple[str, str], ...], tuple[dict[str, str], list[float], list[int], dict[str, float]]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        _, bounds, upto, rest = found.setdefault(tuple(sorted(labels.items())), (labels, [], [], {}))
        if sample.name.endswith("_bucket"):
            bounds.append(float(sample.labels["le"]))
            upto.append(int(sample.value))
        else:
            rest[sample.name.removeprefix(family.name)] = sample.value
    for labels, bounds, upto, rest in found.values():
        counts = [many - fewer for many, fewer in zip(upto, [0, *upto], strict=False)]
        unknown: Any = None  # the smallest and the largest value: nobody has counted them
        yield HistogramDataPoint(labels, begun_ns, now_ns, upto[-1], rest.get("_sum", 0.0), counts, bounds[:-1], unknown, unknown)
