"""An event comes out as it went in, in whichever mode, and once, however often it was published."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent
from examples.cloud_events.events import create_topic, events, publish, received

from oncelog import Producer, Reader
from oncelog.testing import OncelogService

pytestmark = pytest.mark.real

TIME = datetime(2026, 11, 24, 12, 30, tzinfo=UTC)
DATA: list[Any] = [{"paid": 17, "euro": "é€"}, "text ü", b"\x00\xff", None]


def event(data: Any = None, number: int = 17, **more: Any) -> CloudEvent:
    kinds = {dict: "application/json", str: "text/plain", bytes: "application/octet-stream"}
    kind = {"datacontenttype": kinds[type(data)]} if data is not None else {}
    attributes = {"id": f"evt-{number}", "source": "/shop/ü%", "type": "paid", "time": TIME, **kind, **more}
    return CloudEvent(attributes, data)


@pytest.mark.parametrize("data", DATA)
def test_an_event_comes_out_as_it_went_in(oncelog_service: OncelogService, data: Any) -> None:
    sent = event(data, subject="order 17", tenant="north")
    create_topic(oncelog_service.client, "events")
    with Producer("events") as producer:
        assert publish(producer, sent)
    with Reader("events", timeout=0) as reader:
        (found,) = events(reader)
    assert found.get_attributes() == sent.get_attributes()
    assert found.get_data() == sent.get_data()


def test_an_event_that_comes_again_in_the_other_mode_from_somebody_else_is_stored_once(oncelog_service: OncelogService) -> None:
    oncelog_service.faults.lose_answer("publish", topic="events")
    create_topic(oncelog_service.client, "events")
    sent = event({"paid": 17})
    modes = [http.to_binary_event(sent), http.to_structured_event(sent), http.to_binary_event(sent)]
    stored = []
    for each in modes:
        with Producer("events") as producer:
            stored.append(publish(producer, received(each.headers, each.body)))
            stored.append(publish(producer, event({"paid": 18}, 18)))
    assert stored == [True, True, False, False, False, False]
    with Reader("events", timeout=0) as reader:
        assert [found.get_id() for found in events(reader)] == ["evt-17", "evt-18"]
