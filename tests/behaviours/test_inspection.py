"""Rows say their write pointer and what became of it: in JSON polls, to `oncelog read` and to whoever inspects a topic."""

from __future__ import annotations

import json

import pytest
import requests

from oncelog import Client
from oncelog.errors import OffsetOutOfRange
from oncelog.wire.requests import PublishRequest
from tests.behaviours.cli.support import run, value
from tests.behaviours.conftest import Machine
from tests.patience import until
from tests.rest.talk import TIMEOUT
from tests.support import RunningService


class Written:
    """A topic with a row of each kind."""

    def __init__(self, service: RunningService, client: Client) -> None:
        self.url = service.url
        client.create_topic("t")
        begin = [client.start_transaction(timeout=600).write_pointer for _ in range(5)]
        self.committed, self.aborted, self.invalid, self.open, self.group = begin
        client.publish("t", PublishRequest([b"plain"]))
        for pointer, payload in zip(begin[:3], (b"committed", b"aborted", b"invalid"), strict=True):
            client.publish("t", PublishRequest([payload], write_pointer=pointer))
        client.store("t", PublishRequest([b"s1", b"s2"], write_pointer=self.group))
        client.publish_transactional("t", PublishRequest([], write_pointer=self.group))
        client.commit_transaction(self.committed)
        client.commit_transaction(self.group)
        client.abort_transaction(self.aborted)
        client.invalidate_transaction(self.invalid)
        client.publish("t", PublishRequest([b"open"], write_pointer=self.open))
        client.publish("t", PublishRequest([b"behind"]))
        until(lambda: len(client.held_on("t")) == 1)
        self.pointers = [None, self.committed, self.aborted, self.invalid, self.group, self.group, self.open, None]
        self.states = [None, "committed", "rolled_back", "invalid", "committed", "committed", "in_progress", None]


def test_rows_say_their_pointer_and_what_became_of_it_from_memory_and_from_disk(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        written = Written(service, client)
        rows = client.inspect_rows("t")
        assert [each.offset for each in rows] == [0, 1, 2, 3, 4, 6, 7]
        assert [each.write_pointer for each in rows] == [written.pointers[at] for at in (0, 1, 2, 3, 4, 6, 7)]
        assert [each.state for each in rows] == [written.states[at] for at in (0, 1, 2, 3, 4, 6, 7)]
        assert [(each.group, each.messages) for each in rows if each.messages != 1] == [(True, 2)]
        assert [each.payload for each in client.inspect_rows("t", 2, 1)] == ["aborted"]
        (group,) = client.inspect_groups("t")
        assert (group.write_pointer, group.messages, group.state) == (written.group, 2, "committed")
        assert group.published == rows[4].message_id
        assert [each.payload for each in client.inspect_payloads("t", written.group)] == ["s1", "s2"]
        with pytest.raises(OffsetOutOfRange):
            client.inspect_rows("t", 100)
    with machine.run() as service, Client(service.url) as client:
        assert client.inspect_rows("t") == rows


def test_a_json_poll_says_the_pointer_and_the_state_of_each_message_of_a_transaction(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        written = Written(service, client)
        from_memory = polled(service)
    with machine.run() as service:
        assert polled(service) == from_memory
    nobody_asked = ["rolled_back" if each == "invalid" else each for each in written.states]
    assert from_memory == list(zip(written.pointers, nobody_asked, strict=True))


def polled(service: RunningService) -> list[tuple[int | None, str | None]]:
    answer = requests.post(f"{service.url}/v1/namespaces/default/topics/t/poll", json={}, timeout=TIMEOUT)
    return [(each.get("writePointer", {}).get("long"), each.get("state", {}).get("string")) for each in answer.json()]


def test_reading_shows_only_what_is_committed_and_nothing_behind_what_is_undecided(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        written = Written(service, client)
        lines = [json.loads(line) for line in run("read", "t", "--json", url=service.url).stdout.splitlines()]
        assert [each["write_pointer"] for each in lines] == written.pointers
        assert [each["state"] for each in lines] == written.states
        assert run("read", "t", "--committed", url=service.url).stdout.split() == ["plain", "committed", "s1", "s2"]
        client.abort_transaction(written.open)
        shown = run("read", "t", "--committed", "--limit", "5", url=service.url).stdout.split()
        assert shown == ["plain", "committed", "s1", "s2", "behind"]


def test_the_debugger_prints_rows_groups_and_payloads(machine: Machine) -> None:
    with machine.run() as service, Client(service.url) as client:
        written = Written(service, client)
        rows = value(run("inspect", "rows", "t", "--from", "1", "--limit", "2", "--json", url=service.url))
        assert [(each["write_pointer"], each["state"]) for each in rows] == [
            (written.committed, "committed"),
            (written.aborted, "rolled_back"),
        ]
        (group,) = value(run("inspect", "groups", "t", "--json", url=service.url))
        assert group["write_pointer"] == written.group
        assert "s2" in run("inspect", "payloads", "t", str(written.group), url=service.url).stdout
