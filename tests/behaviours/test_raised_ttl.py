"""A longer ttl brings nothing back."""

from __future__ import annotations

import requests

from tests.patience import PATIENCE
from tests.support import ManualClock, running_service


def test_what_had_expired_stays_so_under_a_longer_ttl(clock: ManualClock) -> None:
    with running_service(clock=clock) as running:
        topic = running.url + "/v1/namespaces/default/topics/t"
        requests.put(topic, json={"ttl": "10"}, timeout=PATIENCE)
        requests.post(topic + "/publish", json={"transactionWritePointer": None, "messages": ["old"]}, timeout=PATIENCE)
        clock.advance(9_999)
        requests.post(topic + "/publish", json={"transactionWritePointer": None, "messages": ["young"]}, timeout=PATIENCE)
        clock.advance(1)
        assert requests.put(topic + "/properties", json={"ttl": "1000"}, timeout=PATIENCE).status_code == 200
        found = requests.post(topic + "/poll", json={}, timeout=PATIENCE).json()
        assert [each["payload"] for each in found] == ["young"]
        assert running.on_loop(lambda service: service.retention.once()) == 1
