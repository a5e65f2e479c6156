"""`oncelog bench`: it says what it measured, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import Client, Producer
from oncelog.api.api import Api
from oncelog.errors import ResponseTimeout
from oncelog_service.cli.messages import bench
from oncelog_service.cli.messages.bench import Measured, histogram
from tests.behaviours.cli.support import payloads, process, run, value
from tests.patience import PATIENCE, until
from tests.world.service import RunningService, free_port, running_service


def _topics(url: str) -> list[str]:
    with Client(url) as client:
        return client.topics()


@pytest.mark.real
def test_it_measures_on_a_topic_of_its_own_and_deletes_it(running: RunningService) -> None:
    before = signal.getsignal(signal.SIGTERM)
    arguments = ("bench", "--seconds", "0.1", "--size", "64", "--batch", "10", "--connections", "3")
    found = value(run(*arguments, "--json", url=running.url))
    assert (found["payload_bytes"], found["batch"], found["connections"]) == (64, 10, 3)
    assert [each["what"] for each in found["measured"]] == [
        "publish, one by one", "publish, 3 side by side", "publish, batches of 10", "read, pages of 1,000", "end to end",
    ]  # fmt: skip
    for each in found["measured"]:
        assert each["messages"] > 0
        assert 0 < each["latency_ms"]["p50"] <= each["latency_ms"]["max"]
        # All of it lies in the time that it took, one behind the other.
        side_by_side = 3 if "side by side" in each["what"] else 1
        assert (
            each["what"] == "end to end"
            or each["latency_ms"]["p50"] * each["latencies"] / 2_000 <= each["seconds"] * side_by_side
        )
        assert each["messages_per_second"] == pytest.approx(each["messages"] / each["seconds"], rel=0.05, abs=1)
        assert each["bytes_per_second"] == pytest.approx(64 * each["messages_per_second"], rel=0.05, abs=64)
    batches = found["measured"][2]
    assert batches["messages"] == 10 * batches["latencies"]
    assert any("share the processors" in note for note in found["notes"])
    text = run(*arguments, url=running.url)
    assert (text.exit_code, len(text.stdout.splitlines())) == (0, 6)
    assert "payloads of 64 bytes" in text.stderr
    assert (_topics(running.url), signal.getsignal(signal.SIGTERM)) == ([], before)


@pytest.mark.real
def test_a_topic_that_is_there_stays_as_it_is(running: RunningService) -> None:
    with Client(running.url) as client:
        client.create_topic("t")
        with Producer[bytes]("t", client=client) as producer:
            producer.send(b"somebody's")
    refused = run("bench", "--topic", "t", "--json", url=running.url)
    assert (refused.exit_code, json.loads(refused.stderr)["code"]) == (6, "topic_exists")
    assert payloads(running.url, "t") == [b"somebody's"]
    value(run("bench", "--topic", "mine", "--seconds", "0.1", "--json", url=running.url))
    assert _topics(running.url) == ["t"]


def test_what_the_service_refuses_ends_it_and_the_topic_is_deleted() -> None:
    with running_service(max_request_bytes=2_048) as service:
        refused = run("bench", "--seconds", "0.1", "--size", "5000", "--json", url=service.url)
        assert (refused.exit_code, json.loads(refused.stderr)["code"]) == (1, "request_too_large")
        assert _topics(service.url) == []


@pytest.mark.real
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_topic_is_deleted(running: RunningService, number: int) -> None:
    with process("bench", "--seconds", "600", url=running.url) as measuring:
        until(lambda: measuring.poll() is not None or any(payloads(running.url, topic) for topic in _topics(running.url)))
        measuring.send_signal(number)
        assert measuring.wait(PATIENCE) == 130
        assert measuring.stderr is not None
        assert b"0 of 5 measurements were made, and the topic is deleted" in measuring.stderr.read()
    assert _topics(running.url) == []


@pytest.mark.parametrize(("words", "is_deleted"), [(("--topic", "theirs"), False), ((), True)])
def test_a_topic_that_may_be_somebody_elses_is_not_deleted(
    words: tuple[str, ...], is_deleted: bool, running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the request that makes it is lost: of a name that was drawn it can only be ours."""
    create = Client.create_topic

    def lost(*given: Any, **named: Any) -> None:
        create(*given, **named)
        raise ResponseTimeout("no answer within 30 s")

    monkeypatch.setattr(Api, "create_topic", lost)
    assert run("bench", *words, url=running.url).exit_code == 3
    assert _topics(running.url) == ([] if is_deleted else ["theirs"])


def test_a_service_that_is_away_has_no_topic_of_it() -> None:
    away = run("bench", "-u", f"127.0.0.1:{free_port()}")
    assert (away.exit_code, "is left" in away.stderr, "it was not done" in away.stderr) == (3, False, True)


def test_it_says_what_was_bound_by_the_client() -> None:
    found = [(name, Measured(1, 1, 1.0, [0.1], busy)) for name, busy in (("idle", 0.84), ("busy", 0.85), ("busier", 1.5))]
    (note,) = bench._notes("http://log.example", found)
    assert note.startswith("the client was the bottleneck, not the service: busy; busier;")
    for url in ("http://127.0.0.1:7070", "http://localhost:1,http://b:1", "http://[::1]:7"):
        assert list(bench._notes(url, found[:1])) == ["service and client share the processors of this machine"]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50))
def test_a_histogram_shows_where_latencies_are(latencies: list[float]) -> None:
    bars = histogram(sorted(latencies))
    assert (len(bars), "█" in bars) == (1 if max(latencies) <= min(latencies) else 20, True)
    assert bars[-1] != " "
    assert bars[0] != " "


def test_a_percentile_is_a_latency_that_was_measured_or_is_not_told() -> None:
    found = Measured(100, 1, 1.0, [number / 1000 for number in range(1, 101)], 0.1)
    assert [found.percentile(share, 1) for share in (0.5, 0.9, 0.99, 0.999, 1.0)] == [50, 90, 99, 100, 100]
    assert found.percentile(0.999, 1_000) is None
    assert [Measured(1, 1, 1.0, [0.004], 0.1).percentile(share, 1) for share in (0.5, 1.0)] == [4, 4]
    assert Measured(0, 0, 1.0, [], 0.1).percentile(0.5, 1) is None
