import requests

from tests.support import RunningService


def test_a_message_sent_twice_is_stored_once(running: RunningService) -> None:
    topic = running.url + "/v1/namespaces/default/topics/t"
    assert requests.put(topic, json={}, timeout=5).status_code == 200
    body = {"producer": "p", "sequenceIds": [0], "messages": ["a"]}
    first = requests.post(topic + "/publish", json=body, timeout=5).json()
    again = requests.post(topic + "/publish", json=body, timeout=5).json()
    assert first["receipts"][0]["status"] == "stored"
    assert again["receipts"][0]["status"] == "duplicate"
    assert again["receipts"][0]["messageId"] == first["receipts"][0]["messageId"]
    assert len(requests.post(topic + "/poll", json={}, timeout=5).json()) == 1
