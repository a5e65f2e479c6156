"""What must hold of transactions whatever was killed, by what a reader in a new transaction is given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import requests

from oncelog.wire.codec import decode_consume_response, encode_consume_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.requests import ConsumeRequest
from tests.patience import PATIENCE
from tests.scenarios.transaction_load import Api, Attempt


def visible(url: str, topic: str) -> list[str]:
    """Every payload that a transaction which begins now is given, in order."""
    api = Api(url)
    begun = api.call("POST", "transactions", {})
    transaction = bytes.fromhex(begun["transaction"])
    found, position = list[str](), None
    while True:
        request = ConsumeRequest(position, inclusive=position is None, limit=700, transaction=transaction)
        answer = requests.post(
            f"{url}/v1/namespaces/default/topics/{topic}/poll",
            data=encode_consume_request(request),
            headers={"content-type": ONCELOG_AVRO},
            timeout=PATIENCE,
        )
        assert answer.status_code == 200, answer.text
        messages, position = decode_consume_response(answer.content)
        found += [message["payload"].decode() for message in messages]
        if position is None:
            api.call("POST", f"transactions/{begun['writePointer']}/abort")
            return found


def check_whole(url: str, topic: str, attempts: Iterable[Attempt]) -> None:
    """Each transaction is wholly there or wholly not, as its status says; nothing is there twice, nothing but what committed."""
    times = Counter(visible(url, topic))
    assert not times or max(times.values()) == 1, f"twice there: {times.most_common(3)}"
    api, expected = Api(url), 0
    for attempt in attempts:
        state = api.state(attempt.pointer)
        assert attempt.answered in (None, state), f"{attempt.pointer} was answered {attempt.answered} and is {state}"
        assert state in ("committed", "aborted", "invalid"), state
        assert state != "committed" or attempt.complete, f"{attempt.pointer} is committed before its client asked for that"
        present = sum(payload in times for payload in attempt.payloads)
        wanted = len(attempt.payloads) if state == "committed" else 0
        assert present == wanted, f"{attempt.pointer} is {state}: {present} of {len(attempt.payloads)} messages are there"
        expected += wanted
    assert len(times) == expected, "there is something that no transaction committed"


def check_nothing_undecided(url: str, topic: str, attempts: Iterable[Attempt]) -> None:
    """Before anybody has cleaned up: a reader is given nothing of what has not committed."""
    api, given = Api(url), set(visible(url, topic))
    for attempt in attempts:
        if attempt.answered != "committed" and api.state(attempt.pointer) != "committed":
            shown = [payload for payload in attempt.payloads if payload in given]
            assert not shown, f"{attempt.pointer} has not committed, and is read: {shown[:3]}"


def end_what_is_open(url: str, attempts: Iterable[Attempt]) -> None:
    """As clients do that come back and do not know what they were about."""
    api = Api(url)
    for attempt in attempts:
        if attempt.answered is None and api.state(attempt.pointer) == "in_progress":
            api.call("POST", f"transactions/{attempt.pointer}/abort")
            attempt.answered = "aborted"


def check_verified(url: str, topic: str) -> None:
    """The live maps are the fold of the log."""
    answer = requests.post(f"{url}/v1/namespaces/default/topics/{topic}/verify", timeout=PATIENCE)
    last = json.loads(answer.content.splitlines()[-1])
    assert last["ok"], last["problems"]
