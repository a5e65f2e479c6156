"""A service that sends spans and metrics: to a real collector over HTTP, from a process of its own."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import sqlalchemy as sa
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from oncelog import Client, Producer, Reader, telemetry
from oncelog.errors import StorageUnavailable
from oncelog_service.config import Settings
from oncelog_service.rest.answer import Answer
from oncelog_service.rest.exchange import Head
from oncelog_service.telemetry.spans import RequestSpans
from tests.patience import until
from tests.world.collector import Collector, collecting, said
from tests.world.service import ServiceProcess, free_port

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PUBLISH = "POST /v1/namespaces/{namespace}/topics/{topic}/publish"
TOPIC = "/v1/namespaces/default/topics/t"
ONE = "GET /v1/namespaces/{namespace}/topics/{topic}"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        yield collector


@pytest.fixture
def house(tmp_path: Path) -> ServiceProcess:
    house = ServiceProcess(tmp_path / "data", telemetry="true", log_format="json", log_requests="true", max_request_bytes=4_096)
    house.log_to = tmp_path / "log"
    return house


def hexed(span: Any) -> tuple[str, str, str]:
    return span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()


@pytest.mark.real
def test_each_request_is_a_span_below_that_of_who_sent_it(collector: Collector, house: ServiceProcess, tmp_path: Path) -> None:
    with house:
        requests.put(house.url + TOPIC, timeout=30).raise_for_status()
        body = {"messages": ["YQ=="]}
        headers = {"traceparent": GIVEN, "x-request-id": "mine"}
        requests.post(f"{house.url}{TOPIC}/publish", json=body, headers=headers, timeout=30)
        requests.get(house.url + TOPIC + "x", timeout=30)
        requests.get(house.url + "/nowhere", timeout=30)
        (published,) = collector.named(PUBLISH)
        (missing,) = collector.named("GET /v1/namespaces/{namespace}/topics/{topic}")
        (nowhere,) = collector.named("GET")
        (made,) = collector.named("PUT /v1/namespaces/{namespace}/topics/{topic}")
    trace, _, parent = hexed(published)
    assert f"00-{trace}-{parent}-01" == GIVEN
    assert not made.parent_span_id
    found = said(published)
    assert found.pop("http.response.status_code") in (200, 400, 415)
    assert {name: found[name] for name in list(found) if name != "error.type"} == {
        "http.request.method": "POST",
        "http.route": PUBLISH.partition(" ")[2],
        "url.path": f"{TOPIC}/publish",
        "client.address": "127.0.0.1",
        "messaging.system": "oncelog",
        "messaging.destination.name": "default/t",
        "enduser.id": "anonymous",
    }
    assert published.kind == 2  # SERVER
    assert (said(missing)["error.type"], said(missing)["http.response.status_code"]) == ("topic_not_found", 404)
    assert missing.status.code == 0  # what was asked, not the service, was wrong
    assert (said(nowhere)["error.type"], "http.route" in said(nowhere)) == ("not_found", False)
    assert collector.resources[0]["service.name"] == "oncelog"
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["trace"] for line in lines if line.get("request") == "mine"} == {trace}


SECRETS = ["oncelog_" + "S3cret" * 8, "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJTM2NyZXQifQ.U0kzY3JldA"]
"""Tokens that were taken for a name."""
STATES = ["no member", "a=1," * 3_000, "a=1,b"]
"""Contexts that are not by the book."""


@pytest.mark.real
def test_what_no_span_and_no_line_may_show_and_what_is_refused_is_a_span_too(
    collector: Collector, house: ServiceProcess, tmp_path: Path
) -> None:
    with house:
        for secret in SECRETS:
            requests.delete(f"{house.url}/v1/tokens/{secret}", timeout=30)
            requests.get(f"{house.url}/v1/namespaces/default/topics/{secret}/stats", timeout=30)
            requests.get(f"{house.url}/nowhere/{secret}", timeout=30)
        for number, state in enumerate(STATES):
            headers = {"traceparent": GIVEN, "tracestate": state}
            requests.put(f"{house.url}{TOPIC}{number}", headers=headers, timeout=30).raise_for_status()
        requests.get(house.url + TOPIC + "0", headers={"traceparent": "0" * 600}, timeout=30).raise_for_status()
        requests.post(f"{house.url}{TOPIC}0/publish", json={"messages": ["x" * 5_000]}, timeout=30)
        (refused,) = collector.named(PUBLISH)  # the last one: all others have come
        found = {each: collector.named(each) for each in ("GET", "DELETE /v1/tokens/{token}", ONE.replace("GET", "PUT"), ONE)}
        stats = collector.named(f"{ONE}/stats")
        until(lambda: (tmp_path / "log").read_text().count("oncelog_...") >= 6, "the lines are written")
    nowhere, revoked, made, read = found.values()
    assert [said(each)["url.path"] for each in revoked] == ["/v1/tokens/oncelog_..."] * 2
    assert [said(each)["messaging.destination.name"] for each in stats] == ["default/oncelog_..."] * 2
    assert [said(each)["url.path"] for each in nowhere] == ["/nowhere/oncelog_..."] * 2
    for each in made:
        trace, _, parent = hexed(each)
        assert (f"00-{trace}-{parent}-01", each.trace_state) == (GIVEN, "")
    assert (len(made), [each.parent_span_id for each in read]) == (3, [b""])
    assert said(refused)["error.type"] == "request_too_large"
    log = (tmp_path / "log").read_text()
    assert not any(secret in str(collector.spans) + log for secret in SECRETS)
    assert "opentelemetry" not in log


@pytest.mark.parametrize("how", ["read", "left", "failed", "never begun"])
async def test_the_span_of_an_answer_line_by_line_ends_as_its_lines_do(how: str) -> None:
    provider, exporter, gone = TracerProvider(), InMemorySpanExporter(), list[str]()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def lines() -> AsyncGenerator[bytes, None]:
        try:
            yield b"1"
            if how == "failed":
                raise StorageUnavailable("the store is closed")
            yield b"2"
        finally:
            gone.append(how)

    async def answer(body: bytes) -> Answer:
        return Answer(lines(), "text/plain")

    head = Head("POST", "/", b"", "/", {})
    answered = await RequestSpans(provider.get_tracer("test")).around(answer, "/", {}, "", head)(b"")
    assert not isinstance(answered.body, bytes)
    with suppress(StorageUnavailable):
        async with aclosing(answered.body) as body:
            assert exporter.get_finished_spans() == ()
            if how != "never begun":
                assert await anext(body) == b"1"
                assert exporter.get_finished_spans() == ()
            if how in ("read", "failed"):
                assert [line async for line in body] == [b"2"]
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes.get("error.type") == ("storage_unavailable" if how == "failed" else None)
    assert gone == ([] if how == "never begun" else [how])


@pytest.mark.real
def test_one_trace_goes_from_a_producer_over_the_service_and_a_reader_to_sql(collector: Collector, house: ServiceProcess) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer, engine = provider.get_tracer("sql"), sa.create_engine("sqlite://")

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _begin(connection: Any, *_: object) -> None:
        connection.info["span"] = tracer.start_span("SQL")

    @sa.event.listens_for(engine, "after_cursor_execute")
    def _end(connection: Any, *_: object) -> None:
        connection.info["span"].end()

    telemetry.instrument(provider)
    try:
        with house, Client(house.url) as client:
            client.create_topic("t")
            with Producer("t", client=client) as producer:
                producer.send(b"a")
            with Reader("t", client=client, timeout=0) as reader, engine.connect() as connection:
                for message in reader:
                    with telemetry.processing(message, reader):
                        connection.execute(sa.text("SELECT 1"))
            (published,) = collector.named(PUBLISH)
            polls = collector.named("POST /v1/namespaces/{namespace}/topics/{topic}/poll")
    finally:
        telemetry.uninstrument()
    own = {span.name: span for span in exporter.get_finished_spans()}
    sent, request, received = own["send default/t"], own["publish default/t"], own["receive default/t"]
    assert published.trace_id.hex() == f"{sent.context.trace_id:032x}"
    assert published.parent_span_id.hex() == f"{request.context.span_id:016x}"
    assert request.parent.span_id == sent.context.span_id
    assert own["SQL"].context.trace_id == sent.context.trace_id
    assert own["SQL"].parent.span_id == own["process default/t"].context.span_id
    assert f"{received.context.span_id:016x}" in {poll.parent_span_id.hex() for poll in polls}


@pytest.mark.real
def test_metrics_are_those_of_the_page_and_counters_are_cumulative(collector: Collector, house: ServiceProcess) -> None:
    begun = time.time_ns()
    with house, Client(house.url) as client:
        client.create_topic("t")
        with Producer("t", client=client) as producer:
            producer.send_batch([b"a", b"b"])
        until(lambda: collector.exports and value(collector.exports[-1], "oncelog_messages") == 2)
        with Producer("t", client=client) as producer:
            producer.send(b"c")
        until(lambda: value(collector.exports[-1], "oncelog_messages") == 3)
        until(lambda: published(collector.exports[-1]).count == 2, "both times are counted, which is behind their answers")
        page = requests.get(house.url + "/metrics", timeout=30).text
        last = collector.exports[-1]
    shown = {family.name: family.type for family in text_string_to_metric_families(page)}
    kinds = {"sum": "counter", "gauge": "gauge", "histogram": "histogram"}
    assert {name: kinds[each.WhichOneof("data")] for name, each in last.items()} == {
        name: kind for name, kind in shown.items() if name in last
    }
    assert {name for name in shown if name not in last} <= {"oncelog_subscription_lag"}  # families without a value
    counter = last["oncelog_messages"].sum
    assert (counter.is_monotonic, counter.aggregation_temporality) == (True, 2)
    starts = {point.start_time_unix_nano for each in collector.exports for point in each["oncelog_messages"].sum.data_points}
    assert len(starts) == 1
    assert begun <= starts.pop() <= counter.data_points[0].time_unix_nano
    by_topic = {said(point)["topic"]: point.as_double for point in last["oncelog_topic_messages"].sum.data_points}
    assert by_topic == {"t": 3, "(others)": 0}
    histogram = published(last)
    assert last["oncelog_publish_seconds"].unit == "s"
    assert histogram.count == sum(histogram.bucket_counts) == 2
    assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
    assert histogram.sum > 0


def value(export: dict[str, Any], name: str) -> float:
    return sum(point.as_double for point in export[name].sum.data_points)


def published(export: dict[str, Any]) -> Any:
    return export["oncelog_publish_seconds"].histogram.data_points[0]


@pytest.mark.real
def test_what_waits_is_sent_when_the_service_stops(
    collector: Collector, house: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    with house:
        requests.put(house.url + TOPIC, timeout=30).raise_for_status()
        assert house.stop() == 0
    assert collector.named("PUT /v1/namespaces/{namespace}/topics/{topic}")
    assert collector.exports


@pytest.mark.real
@pytest.mark.parametrize("hangs", [True, False])
def test_a_collector_that_hangs_or_is_away_holds_up_nothing(
    collector: Collector, house: ServiceProcess, monkeypatch: pytest.MonkeyPatch, hangs: bool, tmp_path: Path
) -> None:
    if hangs:
        collector.may.clear()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")  # whatever waits for it never ends
    else:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with house, Client(house.url) as client:
        client.create_topic("t")
        with Producer("t", client=client) as producer:
            producer.send(b"a")
            if hangs:
                assert collector.came.wait(60)
            else:
                until(lambda: "export" in (tmp_path / "log").read_text().lower(), "the exporter has said so")
            producer.send(b"b")
        assert house.stop() == 0
    assert not collector.spans
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_where_the_extra_is_missing_the_setting_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog_service.config.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'oncelog\[otel\]'"):
        Settings(telemetry=True)
