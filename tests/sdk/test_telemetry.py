"""Spans of the SDK, on both twins: what they say, what hangs on what, and that nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from oncelog import Client, Consumer, Producer, Reader, telemetry
from oncelog.errors import ConnectionFailed, OffsetMismatch, ProducerClosed, TransactionNotInProgress
from oncelog.process.tracing import switch
from tests.patience import PATIENCE, until
from tests.world.awaits import of_threads
from tests.world.service import RunningService, free_port

pytestmark = pytest.mark.usefixtures("twin")

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """What was recorded."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """The spans of this name that have ended; at least so many, which may end on another thread."""
        until(lambda: len(self.now(name)) >= count, f"{count} spans {name!r} among {[each.name for each in self.all()]}")
        found = self.now(name)
        assert len(found) == count
        return found

    def now(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.all() if each.name == name]

    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def spans(topic: str, client: Client) -> Iterator[Spans]:
    spans = Spans()
    telemetry.instrument(spans.provider)
    yield spans
    telemetry.uninstrument()


def traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def ids(contexts: Any) -> set[int]:
    return {each.context.span_id for each in contexts}


def read(client: Client, topic: str) -> list[Any]:
    with Reader(topic, client=client, timeout=0) as reader:
        return list(reader)


# --- sending


def test_each_call_that_sends_is_one_span_and_its_messages_carry_it(client: Client, topic: str, spans: Spans) -> None:
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"a")
        producer.send_batch([b"b", b"c"], properties=[{"x": "1"}, None])
        producer.send_async(b"d").result()
    found = spans.named(f"send default/{topic}", 3)
    one, batch, later = found
    assert [span.kind for span in found] == [SpanKind.PRODUCER] * 3
    assert [span.attributes["messaging.batch.message_count"] for span in found] == [1, 2, 1]
    assert dict(one.attributes or {}) == {
        "messaging.system": "oncelog",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": f"default/{topic}",
        "messaging.batch.message_count": 1,
        "server.address": "127.0.0.1",
        "server.port": urlsplit(client.url).port,
    }
    assert [each.properties for each in read(client, topic)] == [
        {"traceparent": traceparent(one)},
        {"traceparent": traceparent(batch), "x": "1"},
        {"traceparent": traceparent(batch)},
        {"traceparent": traceparent(later)},
    ]


def test_a_context_that_the_caller_gave_stays_and_is_linked(client: Client, topic: str, spans: Spans) -> None:
    with Producer(topic, client=client) as producer:
        producer.send(b"a", properties={"traceparent": GIVEN})
        producer.send_batch([b"b", b"c"], properties=[{"traceparent": GIVEN}, None])
    one, batch = spans.named(f"send default/{topic}", 2)
    for span in (one, batch):
        assert [f"{link.context.span_id:x}" for link in span.links] == ["b7ad6b7169203331"]
    own = {"traceparent": traceparent(batch)}
    assert [each.properties for each in read(client, topic)] == [{"traceparent": GIVEN}, {"traceparent": GIVEN}, own]


def test_what_a_trace_says_beside_its_ids_goes_with_it_and_never_with_a_context_of_the_callers(
    client: Client, topic: str, spans: Spans
) -> None:
    state = trace.TraceState([("vendor", "7")])
    above = trace.SpanContext(7, 7, is_remote=True, trace_flags=trace.TraceFlags(1), trace_state=state)
    given = {"traceparent": GIVEN}
    with trace.use_span(trace.NonRecordingSpan(above)), Producer(topic, client=client) as producer:
        producer.send(b"a")
        producer.send(b"b", properties=given)
        producer.send_batch([b"c", b"d"], properties=[given, None])
    carried = [each.properties for each in read(client, topic)]
    assert [each.get("tracestate") for each in carried] == ["vendor=7", None, None, "vendor=7"]
    assert [carried[1], carried[2]] == [given, given]


def test_a_request_of_one_call_is_part_of_it_and_one_of_several_is_linked_to_them(
    client: Client, topic: str, spans: Spans
) -> None:
    with spans.tracer.start_as_current_span("work"), Producer(topic, client=client, linger=3_600) as producer:
        producer.send(b"a")
        futures = [producer.send_async(b"b"), producer.send_async(b"c")]
        producer.flush()
        assert all(each.result() for each in futures)
    single, several = spans.named(f"publish default/{topic}", 2)
    first, second, third = spans.named(f"send default/{topic}", 3)
    (work,) = spans.named("work")
    assert {each.parent.span_id for each in (first, second, third)} == {work.get_span_context().span_id}
    assert (single.kind, several.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
    assert single.parent.span_id == first.get_span_context().span_id
    assert several.parent is None
    assert ids(several.links) == ids([second, third])
    assert several.attributes["messaging.batch.message_count"] == 2


def test_a_call_that_fails_says_of_what(client: Client, topic: str, spans: Spans) -> None:
    producer = Producer(topic, client=client)
    producer.close()
    with pytest.raises(ProducerClosed):
        producer.send(b"a")
    with pytest.raises(ProducerClosed):
        producer.send_async(b"a")
    with pytest.raises(ProducerClosed):
        producer.send_batch([b"a"])
    found = spans.named(f"send default/{topic}", 3)
    assert [span.attributes["error.type"] for span in found] == ["producer_closed"] * 3
    assert not any(span.status.is_ok for span in found)


def test_a_message_that_fails_later_ends_its_span_with_the_error(client: Client, topic: str, spans: Spans) -> None:
    client.update_topic(topic, {"check.expected.offsets": "true"})
    with Producer(topic, client=client, name="p") as producer:
        producer.send(b"a", sequence_id=1)
        future = producer.send_async(b"b", sequence_id=2, expected_offset=7)
        with pytest.raises(OffsetMismatch):
            future.result()
        with pytest.raises(OffsetMismatch):
            producer.flush()
    assert spans.named(f"send default/{topic}", 2)[1].attributes["error.type"] == OffsetMismatch.code


def test_a_resend_in_another_trace_is_a_plain_duplicate(client: Client, topic: str, spans: Spans) -> None:
    for is_first in (True, False):
        with Producer(topic, client=client, name="loader") as producer:
            single = producer.send(b"a", sequence_id=1)
            batch = producer.send_batch([b"b", b"c"], sequence_ids=[2, 3], properties=[{"x": "1"}, None])
        assert [each.status for each in (single, *batch)] == ["stored" if is_first else "duplicate"] * 3
    assert len({each.properties["traceparent"] for each in read(client, topic)}) == 2


def test_an_atomic_commit_that_comes_again_in_another_trace_is_the_same(client: Client, topic: str, spans: Spans) -> None:
    chosen = uuid4().hex
    for _ in range(2):
        with client.atomic(group="g", id=chosen) as batch:
            batch.send(topic, b"a", properties={"x": "1"})
            batch.send(topic, b"b")
            assert batch.commit().state == "committed"
    with client.atomic(group="g", id=chosen) as other:
        other.send(topic, b"a", properties={"x": "2"})
        other.send(topic, b"b")
        with pytest.raises(TransactionNotInProgress):
            other.commit()
    assert len(read(client, topic)) == 2


def test_what_is_staged_again_in_another_trace_is_the_same(client: Client, topic: str, spans: Spans) -> None:
    chosen = uuid4().hex
    for _ in range(2):  # the first process is killed before it commits
        batch = client.atomic(group="g", id=chosen, buffer_bytes=0).__enter__()
        batch.send(topic, b"a", properties={"x": "1"})
        batch.send(topic, b"b")
    assert batch.commit().state == "committed"
    assert [each.payload for each in read(client, topic)] == [b"a", b"b"]


def test_messages_of_transactions_and_atomic_commits_carry_their_calls(client: Client, topic: str, spans: Spans) -> None:
    with client.atomic(group="g") as batch:
        batch.send(topic, b"a")
    with client.transaction() as transaction:
        transaction.send(topic, b"b")
    sent = spans.named(f"send default/{topic}", 2)
    assert [each.properties["traceparent"] for each in read(client, topic)] == [*map(traceparent, sent)]


def test_a_large_message_in_a_transaction_carries_nothing(client: Client, topic: str, spans: Spans) -> None:
    with client.atomic(group="g") as batch:
        batch.send(topic, bytes(300_000))
        batch.send(topic, bytes(200_000))
    assert [bool(each.properties) for each in read(client, topic)] == [False, True]


# --- receiving


def test_a_page_that_brought_something_is_a_span_linked_to_what_its_messages_carry(
    client: Client, topic: str, spans: Spans
) -> None:
    with Producer(topic, client=client) as producer:
        producer.send_batch([b"a", b"b"])
        producer.send(b"c")
    assert [each.payload for each in read(client, topic)] == [b"a", b"b", b"c"]
    (received,) = spans.named(f"receive default/{topic}")
    assert received.kind is SpanKind.CLIENT
    assert received.attributes["messaging.operation.type"] == "receive"
    assert received.attributes["messaging.batch.message_count"] == 3
    assert "messaging.consumer.group.name" not in received.attributes
    assert ids(received.links) == ids(spans.named(f"send default/{topic}", 2))


def test_a_page_has_no_more_links_than_a_span_holds(client: Client, topic: str, spans: Spans) -> None:
    contexts = [{"traceparent": f"00-{7:032x}-{at:016x}-01"} for at in range(1, 301)]
    with Producer(topic, client=client) as producer:
        producer.send_batch([b""] * 300, properties=contexts)
    with Reader(topic, client=client) as reader:
        assert len(reader.read(300)) == 300
    (received,) = spans.named(f"receive default/{topic}")
    assert len(received.links) == telemetry.MOST_LINKS
    assert received.dropped_links == 0


def test_a_span_of_a_service_that_is_away_does_not_show_the_password_of_its_url(spans: Spans) -> None:
    with Client(f"http://ada:S3cret@127.0.0.1:{free_port()}", retry=0) as away, pytest.raises(ConnectionFailed):
        read(away, "t")
    (received,) = spans.named("receive default/t")
    assert "S3cret" not in received.to_json()


def test_what_is_no_context_is_passed_over_and_nobody_is_warned(
    client: Client, topic: str, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(topic, client=client) as producer:
        producer.send(b"a", properties={"traceparent": "nonsense", "tracestate": "="})
    caplog.clear()
    with Reader(topic, client=client, timeout=0) as reader:
        for message in reader:
            with telemetry.processing(message, reader):
                pass
    assert not spans.named(f"receive default/{topic}")[0].links
    assert spans.named(f"process default/{topic}")[0].parent is None
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]


def test_what_is_done_with_a_message_is_below_the_span_that_sent_it(client: Client, topic: str, spans: Spans) -> None:
    with Producer(topic, client=client) as producer:
        producer.send(b"a")
    with Consumer(topic, "billing", client=client, timeout=0) as consumer:
        (message,) = consumer.read()
        with telemetry.processing(message, consumer) as span, spans.tracer.start_as_current_span("SELECT"):
            assert span.get_span_context().is_valid
        with pytest.raises(KeyError), telemetry.processing(message, consumer):
            raise KeyError("missing")
        with telemetry.processing(message):
            pass
    (sent,) = spans.named(f"send default/{topic}")
    done, failed = spans.named(f"process default/{topic}", 2)
    (bare,) = spans.named("process")
    assert done.kind is SpanKind.CONSUMER
    assert {each.parent.span_id for each in (done, failed, bare)} == ids([sent])
    assert done.attributes["messaging.consumer.group.name"] == "billing"
    assert done.attributes["messaging.message.id"] == str(message.message_id)
    assert (done.status.is_ok, failed.attributes["error.type"]) == (True, "KeyError")
    (inner,) = spans.named("SELECT")
    assert inner.parent.span_id == done.get_span_context().span_id
    assert inner.get_span_context().trace_id == sent.get_span_context().trace_id
    (received,) = spans.named(f"receive default/{topic}")
    assert received.attributes["messaging.consumer.group.name"] == "billing"


# --- on and off


def test_off_nothing_is_recorded_and_nothing_is_carried(client: Client, topic: str, spans: Spans) -> None:
    telemetry.uninstrument()
    with Producer(topic, client=client) as producer:
        producer.send(b"a")
    (message,) = read(client, topic)
    with telemetry.processing(message) as span:
        assert not span.get_span_context().is_valid
    assert message.properties == {}
    assert not spans.all()


def test_where_nothing_records_messages_carry_nothing(client: Client, topic: str) -> None:
    telemetry.instrument(trace.NoOpTracerProvider())
    try:
        with Producer(topic, client=client) as producer:
            producer.send(b"a")
        assert [each.properties for each in read(client, topic)] == [{}]
    finally:
        telemetry.uninstrument()


def test_requests_carry_the_current_span(house: RunningService, topic: str, spans: Spans) -> None:
    tracing = switch.tracing
    assert tracing is not None
    assert not tracing.headers()
    with spans.tracer.start_as_current_span("work") as work:
        assert tracing.headers() == {"traceparent": traceparent(work)}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.real
@of_threads
def test_where_the_extra_is_missing_the_error_names_it() -> None:
    hide = "import sys; sys.modules['opentelemetry'] = None\n"
    said = run(hide + "try:\n    from oncelog import telemetry\nexcept ImportError as error:\n    print(error)")
    assert said == "oncelog.telemetry needs OpenTelemetry: pip install 'oncelog[otel]'\n"


@pytest.mark.real
@of_threads
def test_off_a_service_and_the_sdk_load_nothing_of_it() -> None:
    code = """
import sys
from tests.world.service import running_service
from oncelog import Client, Producer, Reader
with running_service() as house, Client(house.url) as client:
    client.create_topic("t")
    with Producer("t", client=client) as producer:
        producer.send(b"a")
    with Reader("t", client=client, timeout=0) as reader:
        assert len(list(reader)) == 1
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
    assert run(code) == "[]\n"


def test_what_sends_is_no_part_of_the_trace_that_happened_to_begin_it(client: Client, topic: str, spans: Spans) -> None:
    """The task or thread of a producer outlives the call that begins it."""
    with Producer(topic, client=client, linger=3_600) as producer:
        with spans.tracer.start_as_current_span("work"):
            producer.send_async(b"a")
            producer.send_async(b"b")
        producer.flush()
    assert spans.named(f"publish default/{topic}")[0].parent is None
