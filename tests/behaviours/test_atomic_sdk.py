"""Atomic commits through the SDK while requests are lost and the service is killed: each on both topics, once, in one order."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from oncelog import Client, Reader
from oncelog.errors import OncelogError
from tests.patience import PATIENCE
from tests.sdk.fakes import lossy_proxy
from tests.support import ServiceProcess, running_service

TOPICS = ("orders", "audit")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.api.retry.FIRST_SECONDS", 0.002)
    monkeypatch.setattr("oncelog.api.retry.LONGEST_SECONDS", 0.1)


def commit(client: Client, number: int) -> str:
    """One in three stages what it sends; one in three has a branch. All use both topics."""
    with client.atomic("g", buffer_bytes=0 if number % 3 == 0 else 1 << 20, branches=(branches := [])) as batch:
        for topic in TOPICS:
            batch.send(topic, b"%d" % number)
        if number % 3 == 1:
            with client.atomic_branch(batch.id, "g") as branch:
                for topic in TOPICS:
                    branch.send(topic, b"%d in a branch" % number)
            branches.append(branch.id)
    return batch.id


def payloads(client: Client, topic: str) -> list[bytes]:
    with Reader(topic, client=client, timeout=0) as reader:
        return [message.payload for message in reader]


def expected(numbers: range | list[int]) -> list[bytes]:
    messages = []
    for number in numbers:
        messages += [b"%d" % number, b"%d in a branch" % number] if number % 3 == 1 else [b"%d" % number]
    return messages


def test_what_is_lost_on_the_way_is_committed_once_and_everywhere() -> None:
    seed = 1
    with running_service() as house, Client(house.url) as direct:
        for topic in TOPICS:
            direct.create_topic(topic)
        with lossy_proxy(house.url, seed, share=0.2) as (url, losses), Client(url) as client:
            ids = [commit(client, number) for number in range(24)]
        assert losses.requests, f"seed {seed}"
        assert losses.answers, f"seed {seed}"
        for topic in TOPICS:
            assert payloads(direct, topic) == expected(range(24)), f"seed {seed}"
        assert {direct.atomic_outcome(each).state for each in ids} == {"committed"}, f"seed {seed}"
        assert not list(direct.atomic_transactions()), f"seed {seed}"


def test_a_service_that_is_killed_under_way_commits_what_it_is_asked_to_once(tmp_path: Path) -> None:
    outcomes: dict[int, str] = {}
    refused: dict[int, OncelogError] = {}
    stop = threading.Event()

    def commit_all(client: Client, thread: int) -> None:
        number = thread
        while not stop.is_set():
            try:
                outcomes[number] = commit(client, number)
            except OncelogError as error:  # such as a branch that timed out; never a doubt that is not told
                refused[number] = error
            number += 2

    with ServiceProcess(tmp_path / "data") as service, Client(service.url, retry=PATIENCE) as client:
        for topic in TOPICS:
            client.create_topic(topic)
        threads = [threading.Thread(target=commit_all, args=(client, thread)) for thread in range(2)]
        for thread in threads:
            thread.start()
        while len(outcomes) < 20:
            stop.wait(0.005)
        service.kill()
        service.start()
        while len(outcomes) < 40:
            stop.wait(0.005)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not refused
        first, second = (payloads(client, topic) for topic in TOPICS)
        assert first == second
        assert sorted(first) == sorted(expected(sorted(outcomes)))
        assert {client.atomic_outcome(each).state for each in outcomes.values()} == {"committed"}
