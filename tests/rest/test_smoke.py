import requests

from tests.patience import PATIENCE
from tests.support import RunningService


def test_a_message_sent_twice_is_stored_once(running: RunningService) -> None:
    topic = running.url + "/v1/namespaces/default/topics/t"
    assert requests.put(topic, json={}, timeout=PATIENCE).status_code == 200
    body = {"producer": "p", "sequenceIds": [0], "messages": ["a"]}
    first = requests.post(topic + "/publish", json=body, timeout=PATIENCE).json()
    again = requests.post(topic + "/publish", json=body, timeout=PATIENCE).json()
    assert first["receipts"][0]["status"] == "stored"
    assert again["receipts"][0]["status"] == "duplicate"
    assert again["receipts"][0]["messageId"] == first["receipts"][0]["messageId"]
    assert len(requests.post(topic + "/poll", json={}, timeout=PATIENCE).json()) == 1
