"""How many calls one plain publish makes on the event loop: what it costs is mostly that."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.wire.codec import encode_publish_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import PublishRequest
from oncelog_service.app import build_service
from oncelog_service.clock import SystemClock
from oncelog_service.config import Settings
from oncelog_service.group_commit import Writer
from oncelog_service.rest.application import Application
from oncelog_service.rest.protocol import Shared
from tests.rest.talk import head
from tests.rest.test_protocol import Wire, until

MOST = 250
"""Of Python functions, and of functions in C that those call; 675 before publishes were answered in one step."""
TOGETHER = 16
"""Connections whose requests share a write."""


class Counted:
    """Counts the calls that are made within."""

    def __init__(self) -> None:
        self.calls = 0

    def within(self, call: Callable[..., Any], *args: Any) -> Any:
        def count(_frame: object, event: str, _arg: object) -> None:
            self.calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            return call(*args)
        finally:
            sys.setprofile(None)


def published(name: str, sequence_id: int) -> bytes:
    body = encode_publish_request(PublishRequest([b"." * 100], name, None, [sequence_id]))
    path = "/v1/namespaces/default/topics/t/publish"
    return head("POST", path, f"content-type: {ONCELOG_AVRO}", f"content-length: {len(body)}") + body


async def test_a_plain_publish_makes_so_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, decided = Counted(), Writer._decided
    service = build_service(settings := Settings(store="memory://"))
    await service.start()
    await service.opening.topics.changes.create("default", "t", {})
    await service.opening.topics.logs.open("default", "t")
    shared = Shared(Application(service), settings, SystemClock())
    wires = [Wire(shared) for _ in range(TOGETHER)]
    requests = 0
    monkeypatch.setattr(Writer, "_decided", lambda *args: counted.within(decided, *args))
    for sequence_id in range(40, 60):  # ids of one size: each head comes again
        if sequence_id == 50:
            counted.calls = requests = 0
        for at, wire in enumerate(wires):
            counted.within(wire.protocol.data_received, published(f"p{at:02}", sequence_id))
            requests += 1
        await until(lambda upto=sequence_id - 39: all(len(wire.answers()) == upto for wire in wires))
    for wire in wires:
        wire.abort()
    await asyncio.sleep(0)
    await service.stop()
    assert 100 < counted.calls / requests <= MOST
