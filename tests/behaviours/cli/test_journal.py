"""`oncelog journal …`: atomic commits over several topics listed, shown and aborted; their producers shown and forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog import Client
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from tests.behaviours.cli.support import payloads, run, value
from tests.support import RunningService


@pytest.fixture
def url(running: RunningService) -> str:
    return running.url


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        for topic in ("left", "right"):
            client.create_topic(topic)
        yield client


def listed(url: str, *options: str) -> list[str]:
    return [each["id"] for each in value(run("journal", "list", *options, "--json", url=url))]


def shown(url: str, transaction: str) -> dict[str, Any]:
    outcome: dict[str, Any] = value(run("journal", "show", transaction, "--json", url=url))
    return outcome


def lines(*arguments: str, url: str) -> list[list[str]]:
    return [line.split("\t") for line in run(*arguments, url=url).stdout.splitlines()]


def test_those_that_have_not_ended_are_listed(url: str, client: Client) -> None:
    client.begin_atomic("even", id="t0", timeout=60)
    client.begin_atomic("odd", id="t1")
    client.begin_atomic("even", id="t2", of="t0")
    client.stage("t0", "left", 0, PublishRequest([b"a"]))
    client.begin_atomic("even", id="t3")
    client.abort_atomic("t3")
    assert listed(url) == ["t0", "t1", "t2"]
    assert listed(url, "--group", "even") == ["t0", "t2"]
    table = lines("journal", "list", url=url)
    assert table[0] == ["id", "group", "began", "expires", "branch of", "topics"]
    assert [(row[0], row[1], row[4], row[5]) for row in table[1:]] == [
        ("t0", "even", "-", "default/left"),
        ("t1", "odd", "-", "-"),
        ("t2", "even", "t0", "-"),
    ]
    assert table[1][2].endswith("+00:00")
    assert run("journal", "list", "--state", "committed", url=url).exit_code == 2


def test_what_became_of_an_atomic_commit_is_shown_and_where_its_messages_are(url: str, client: Client) -> None:
    parts = [Part("default", "left", PublishRequest([b"a", b"b"])), Part("default", "right", PublishRequest([b"c"]))]
    client.begin_atomic("g", id="b", of="a")
    client.commit_atomic("a", CommitRequest("g", parts, ["b"], producer="p", sequence_id=7, incarnation="i"))
    outcome = shown(url, "a")
    assert (outcome["state"], outcome["messages"], outcome["branches"]) == ("committed", 3, ["b"])
    assert (outcome["producer"], outcome["sequence_id"], outcome["incarnation"]) == ("p", 7, "i")
    table = dict(lines("journal", "show", "a", url=url)[1:])
    assert table["topics"] == "default/left offsets 0 to 1, default/right offset 0"
    assert (table["state"], table["branches"], table["branch of"], table["expires"]) == ("committed", "b", "-", "-")
    assert table["began"].endswith("+00:00")
    assert dict(lines("journal", "show", "b", url=url)[1:])["branch of"] == "a"
    missing = run("journal", "show", "never", "--json", url=url)
    assert (missing.exit_code, json.loads(missing.stderr)["code"]) == (1, "transaction_not_found")
    assert json.loads(run("journal", "show", "a b", "--json", url=url).stderr)["code"] == "invalid_request"


def test_an_atomic_commit_is_aborted_only_after_a_yes(url: str, client: Client) -> None:
    client.begin_atomic("g", id="a")
    client.stage("a", "left", 0, PublishRequest([b"x"]))
    for answer in ("n\n", "\n", ""):
        assert run("journal", "abort", "a", url=url, stdin=answer).exit_code == 1
    assert shown(url, "a")["state"] == "in_progress"
    for _ in range(2):
        outcome = value(run("journal", "abort", "a", "--yes", "--json", url=url))
        assert (outcome["state"], outcome["reason"]) == ("aborted", "asked")
    assert listed(url) == []
    client.commit_atomic("b", CommitRequest("g", [Part("default", "left", PublishRequest([b"y"]))]))
    refused = run("journal", "abort", "b", "--yes", "--json", url=url)
    problem = json.loads(refused.stderr)
    assert (refused.exit_code, problem["code"], problem["state"]) == (1, "transaction_not_in_progress", "committed")
    assert payloads(url, "left") == [b"y"]


def test_a_producer_of_atomic_commits_is_shown_and_forgotten_only_after_a_yes(url: str, client: Client) -> None:
    def commit(number: int) -> str:
        parts = [Part("default", "left", PublishRequest([b"x"]))]
        return client.commit_atomic(f"c{number}", CommitRequest("g", parts, producer="p", sequence_id=7, checksum="1:a")).state

    assert [commit(1), commit(2)] == ["committed", "duplicate"]
    known = value(run("journal", "producer", "g", "p", "--json", url=url))
    assert (known["sequence_id"], known["transaction"], known["checksum"]) == (7, "c1", "1:a")
    assert dict(lines("journal", "producer", "g", "p", url=url)[1:])["sequence id"] == "7"
    assert run("journal", "forget", "g", "p", url=url, stdin="n\n").exit_code == 1
    assert commit(3) == "duplicate"
    assert value(run("journal", "forget", "g", "p", "--yes", "--json", url=url)) == {"group": "g", "forgotten": "p"}
    missing = run("journal", "producer", "g", "p", "--json", url=url)
    assert (missing.exit_code, json.loads(missing.stderr)["code"]) == (1, "group_producer_not_found")
    assert commit(4) == "committed"
    assert payloads(url, "left") == [b"x", b"x"]
