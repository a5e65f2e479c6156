"""kill -9 in the middle of atomic commits: each is wholly on all its topics or on none, once, and its outcome says which.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
import requests

from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from tests.patience import PATIENCE, until
from tests.scenarios.atomic_judge import Judge, check_verified, outcome_of
from tests.scenarios.atomic_load import TOPICS, Attempt, Chunk, Committer, JournalApi
from tests.scenarios.crashing import CHUNK, CrashPoint, Fallen, crashing_service
from tests.scenarios.judge import read_log
from tests.scenarios.seed import seeded
from tests.support import ServiceProcess, running_service

# --- at every boundary of the journal

_KINDS = (
    CrashPoint("Begin", "before"),
    CrashPoint("Enlist", "before"),
    CrashPoint(CHUNK, "before"),
    CrashPoint("Commit", "before"),
    CrashPoint("Commit", "before", numbered=True),
    CrashPoint("Abort", "before"),
)
_BOUNDARIES = [point._replace(when=when) for point in _KINDS for when in ("before", "after")]
_OFTEN = [CrashPoint("Commit", "before", topics=2), CrashPoint("Commit", "after", topics=2)]


def _name(point: CrashPoint) -> str:
    return f"{point.when} {'numbered ' * point.numbered}{point.kind}"


@pytest.mark.parametrize("point", _OFTEN, ids=_name)
def test_the_service_killed_at_the_write_of_a_commit_leaves_each_whole_or_absent(tmp_path: Path, point: CrashPoint) -> None:
    _crash(tmp_path, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", _BOUNDARIES, ids=_name)
def test_the_service_killed_at_any_boundary_leaves_every_commit_whole_or_absent(tmp_path: Path, point: CrashPoint) -> None:
    _crash(tmp_path, point)


def _crash(tmp_path: Path, point: CrashPoint) -> None:
    """Commits of all kinds until the point."""
    store = f"leveldb://{tmp_path / 'log'}"
    with seeded() as rng, _committing(rng) as committers:
        with crashing_service(store, point._replace(nth=rng.randint(2, 4 if point.numbered else 10))) as service:
            url = service.url()
            _make_topics(url)
            _let_go(committers, url)
            fallen = service.fallen()
            _park(committers)
        judge = Judge()
        with running_service(store) as running:
            _check_fallen(JournalApi(running.url), point, fallen)
            judge.look(running.url, _attempts(committers), rng)
            _work(committers, running.url, 3)
            _finish(committers, running.url)
            judge.look(running.url, _attempts(committers), rng, finished=True)


def _check_fallen(api: JournalApi, point: CrashPoint, fallen: Fallen) -> None:
    """What is durable of the transaction says what must have become of it."""
    if fallen.transaction is None:
        return
    outcome = outcome_of(api, fallen.transaction)
    state = None if outcome is None else outcome.state
    open_still = ("in_progress", "aborted")  # it may be out of time by now
    wanted = {
        ("Begin", "before"): (None,),
        ("Begin", "after"): open_still,
        ("Enlist", "before"): (None, *open_still),
        ("Enlist", "after"): open_still,
        (CHUNK, "before"): open_still,
        (CHUNK, "after"): open_still,
        ("Commit", "before"): ("in_progress",),
        ("Commit", "after"): ("committed",),
        ("Abort", "before"): (None, *open_still),
        ("Abort", "after"): ("aborted", "duplicate"),
    }[point.kind, point.when]
    assert state in wanted, f"{fallen} {point.when} its write: it is {state}"


# --- at random


def test_two_kills_under_load_leave_every_commit_whole_or_absent(tmp_path: Path) -> None:
    _kill_under_load(tmp_path, kills=2)


@pytest.mark.slow
def test_twenty_five_kills_under_load_leave_every_commit_whole_or_absent(tmp_path: Path) -> None:
    _kill_under_load(tmp_path, kills=25)


def _kill_under_load(tmp_path: Path, kills: int) -> None:
    judge = Judge()
    with (
        seeded() as rng,
        ServiceProcess(tmp_path / "log", snapshot_messages=100) as service,
        _committing(rng) as committers,
    ):
        _make_topics(service.url)
        for _ in range(kills):
            _let_go(committers, service.url)
            time.sleep(rng.uniform(0.1, 0.8))
            until(lambda: any(each.at_work for each in committers), "somebody begins something", every=0.001)
            service.kill()
            _park(committers)
            if rng.random() < 0.3:
                _kill_while_starting(service, rng.uniform(0.3, 1.2))
            service.start()
            judge.look(service.url, _attempts(committers), rng)
        _work(committers, service.url, 3)
        while not (set(map(_told, _attempts(committers))) >= _EVERYTHING and len(_attempts(committers)) > 5 * kills):
            assert len(_attempts(committers)) < 1_000, "what is compared does not happen"  # however slow the machine
            _work(committers, service.url, 3)
        _finish(committers, service.url)
        attempts = _attempts(committers)
        judge.look(service.url, attempts, rng, finished=True)
        assert sum(each.resumed for each in committers) >= kills, "the kills met nothing that was under way"
        assert {judge.state_of(attempt) for attempt in attempts} >= _EVERYTHING, "what is compared does not happen"


_EVERYTHING = {"committed", "aborted", "duplicate"}


def _told(attempt: Attempt) -> str | None:
    """The state that its client was told."""
    return attempt.answer.state if isinstance(attempt.answer, AtomicOutcome) else None


def _kill_while_starting(service: ServiceProcess, seconds: float) -> None:
    """A recovery, too, may be interrupted."""
    timer = threading.Timer(seconds, service.kill)
    timer.start()
    try:
        service.start()
    except RuntimeError:
        pass  # it was killed before it answered
    finally:
        timer.join()


# --- the clients


@contextmanager
def _committing(rng: random.Random) -> Iterator[list[Committer]]:
    committers = [Committer(f"p{number}", rng.getrandbits(32)) for number in range(4)]
    for each in committers:
        each.start()
    try:
        yield committers
    except BaseException as error:
        error.add_note(f"failures of the clients: {[each.failure for each in committers]}")
        raise
    finally:
        for each in committers:
            each.enough()
        for each in committers:
            each.join(PATIENCE)
    assert [each.failure for each in committers] == [None] * len(committers)


def _make_topics(url: str) -> None:
    for topic in TOPICS:
        JournalApi(url).make_topic(topic)


def _attempts(committers: Sequence[Committer]) -> list[Attempt]:
    return [attempt for each in committers for attempt in each.attempts]


def _let_go(committers: Sequence[Committer], url: str) -> None:
    for each in committers:
        each.let_go(url)


def _park(committers: Sequence[Committer]) -> None:
    """They come to rest: after a commit that is answered, or within one where the service is gone."""
    for each in committers:
        each.gate.clear()
    for each in committers:
        assert each.parked.wait(PATIENCE), f"{each.name} does not come to rest"
        assert each.failure is None, each.failure


def _work(committers: Sequence[Committer], url: str, commits: int) -> None:
    """Each goes on with what was under way, and makes so many in all."""
    enough = [each.ended + commits for each in committers]
    _let_go(committers, url)

    def ended() -> bool:
        assert [each.failure for each in committers] == [None] * len(committers)
        return all(each.ended >= wanted for each, wanted in zip(committers, enough, strict=True))

    until(ended, "the clients go on")
    _park(committers)


def _finish(committers: Sequence[Committer], url: str) -> None:
    """Every commit is answered, and what was left alone is out of time."""
    api = JournalApi(url)
    until(lambda: not api.open(), "what was left alone times out", every=0.05)
    assert [attempt.id for attempt in _attempts(committers) if attempt.asked and attempt.answer is None] == []


# --- in the recovery


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_service_killed_again_in_its_recovery_gives_up_once_what_the_commit_did_not_name(
    tmp_path: Path, when: Literal["before", "after"]
) -> None:
    """Nothing else of a commit is left to a recovery."""
    store = f"leveldb://{tmp_path / 'log'}"
    with crashing_service(store, CrashPoint("Commit", "after")) as service:
        api = JournalApi(service.url())
        for topic in ("a", "b"):
            api.make_topic(topic)
        for name, of in (("t", None), ("named", "t"), ("unnamed", "t")):
            api.begin(name, "one", of)
            for topic in ("a", "b"):
                api.stage(Chunk(name, topic, 0, PublishRequest([name.encode()])))
        parts = [Part("default", "a", PublishRequest([b"brought"]))]
        request = CommitRequest(parts=parts, branches=["named"], producer="p", sequence_id=0)
        with pytest.raises(requests.RequestException):
            api.commit("t", request)
        assert service.fallen() == ("Commit", "t")
    with crashing_service(store, CrashPoint("Abort", when)) as service:
        assert service.fallen() == ("Abort", "unnamed")
    for _ in range(2):  # and again after a stop
        with running_service(store) as running:
            api = JournalApi(running.url)
            outcome = api.show("t")
            placed = [(each.topic, each.messages, each.first_offset) for each in outcome.topics]
            assert (outcome.state, placed) == ("committed", [("a", 3, 0), ("b", 2, 0)])
            assert api.commit("t", request) == outcome
            assert (api.show("named").of, api.show("unnamed").reason) == ("t", "not_named")
            assert api.last_of("one", "p") == 0
            assert api.open() == []
            payloads = [[message.payload for message in read_log(running.url, topic)] for topic in ("a", "b")]
            assert payloads == [[b"t", b"brought", b"named"], [b"t", b"named"]]
            check_verified(running.url, ("a", "b"))
