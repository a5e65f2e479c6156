"""kill -9 in the middle of atomic commits: each is wholly on all its topics or on none, once, and its outcome says which.

A failing run names its seed; ``KILL_SEED=… pytest …`` begins again with the same decisions (not the same instants).
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from oncelog.wire.models import AtomicOutcome
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog_service.storage.keys import topic_key
from oncelog_service.storage.open import store_opener
from oncelog_service.storage.port import Batch, Table
from oncelog_service.storage.rows import TopicRow, decode_record, encode_record
from tests.patience import PATIENCE, until
from tests.scenarios.atomic_judge import Judge, check_verified, outcome_of
from tests.scenarios.atomic_load import TOPICS, Attempt, Chunk, Committer, JournalApi
from tests.scenarios.crashing import ANY, CHUNK, CrashPoint, Fallen, crashing_service
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
    CrashPoint("PrepareCommit", "before", topics=2),
    CrashPoint("PrepareCommit", "before", numbered=True),
    CrashPoint("ApplyCommit", "before", place=0),
    CrashPoint("ApplyCommit", "before", place=1),
    CrashPoint("Applied", "before"),
    CrashPoint("Abort", "before"),
)
_BOUNDARIES = [point._replace(when=when) for point in _KINDS for when in ("before", "after")]
_IN_RECOVERY = [
    (CrashPoint("Commit", "after"), CrashPoint(ANY, "before")),
    (CrashPoint("Commit", "after"), CrashPoint(ANY, "after")),
    (CrashPoint("Commit", "after", numbered=True), CrashPoint("PrepareCommit", "after")),
    (CrashPoint("PrepareCommit", "after", topics=2), CrashPoint("ApplyCommit", "before", place=0)),
    (CrashPoint("PrepareCommit", "after", topics=2), CrashPoint("ApplyCommit", "after", place=0)),
    (CrashPoint("PrepareCommit", "after", topics=2), CrashPoint("ApplyCommit", "before", place=1)),
    (CrashPoint("PrepareCommit", "after", topics=2), CrashPoint("ApplyCommit", "after", place=1)),
    (CrashPoint("ApplyCommit", "after", place=0, topics=2), CrashPoint("ApplyCommit", "before", place=0)),
    (CrashPoint("ApplyCommit", "after", place=0, topics=2), CrashPoint("ApplyCommit", "after", place=0)),
    (CrashPoint("ApplyCommit", "after", place=1), CrashPoint("Applied", "before")),
    (CrashPoint("Applied", "before"), CrashPoint("Applied", "after")),
]
_OFTEN = CrashPoint("ApplyCommit", "before", place=1)
_OFTEN_IN_RECOVERY = (CrashPoint("PrepareCommit", "after", topics=2), CrashPoint("ApplyCommit", "after", place=0))


def _name(points: object) -> str:
    named = points if isinstance(points, tuple) and not isinstance(points, CrashPoint) else (points,)
    return ", then ".join(
        f"{each.when} {'numbered ' * each.numbered}{each.kind}{'' if each.place is None else f' {each.place + 1}'}"
        for each in named
        if isinstance(each, CrashPoint)
    )


def test_the_service_killed_between_two_topics_of_a_commit_leaves_every_commit_whole_or_absent(tmp_path: Path) -> None:
    _crash(tmp_path, [_OFTEN])


def test_the_service_killed_again_in_its_recovery_takes_up_the_steps_that_are_left(tmp_path: Path) -> None:
    _crash(tmp_path, _OFTEN_IN_RECOVERY)


@pytest.mark.slow
@pytest.mark.parametrize("point", _BOUNDARIES, ids=_name)
def test_the_service_killed_at_any_boundary_leaves_every_commit_whole_or_absent(tmp_path: Path, point: CrashPoint) -> None:
    _crash(tmp_path, [point])


@pytest.mark.slow
@pytest.mark.parametrize("points", _IN_RECOVERY, ids=_name)
def test_the_service_killed_again_at_any_boundary_of_its_recovery_loses_and_doubles_nothing(
    tmp_path: Path, points: Sequence[CrashPoint]
) -> None:
    _crash(tmp_path, points)


def _crash(tmp_path: Path, points: Sequence[CrashPoint]) -> None:
    """Commits of all kinds until the first point; the others lie in what the restarts then write."""
    store = f"leveldb://{tmp_path / 'log'}"
    first, *later = points
    with seeded() as rng, _committing(rng) as committers:
        with crashing_service(store, first._replace(nth=rng.randint(2, 4 if first.numbered else 10))) as service:
            url = service.url()
            _make_topics(url)
            _let_go(committers, url)
            fallen = service.fallen()
            _park(committers)
        for point in later:
            with crashing_service(store, point._replace(transaction=fallen.transaction)) as service:
                service.fallen()
        judge = Judge()
        with running_service(store) as running:
            _check_fallen(JournalApi(running.url), points, fallen)
            judge.look(running.url, _attempts(committers), rng)
            _work(committers, running.url, 3)
            _finish(committers, running.url)
            judge.look(running.url, _attempts(committers), rng, finished=True)


def _check_fallen(api: JournalApi, points: Sequence[CrashPoint], fallen: Fallen) -> None:
    """What is durable of the transaction says what must have become of it."""
    if fallen.transaction is None:
        return
    outcome = outcome_of(api, fallen.transaction)
    state = None if outcome is None else outcome.state
    (kind, when), again = points[0][:2], points[1:]
    open_still = ("in_progress", "aborted")  # it may be out of time by now
    wanted = {
        ("Begin", "before"): (None,),
        ("Begin", "after"): open_still,
        ("Enlist", "before"): (None, *open_still),
        ("Enlist", "after"): open_still,
        (CHUNK, "before"): open_still,
        (CHUNK, "after"): open_still,
        ("Commit", "before"): ("in_progress",),
        ("Commit", "after"): ("committed", "aborted"),
        ("PrepareCommit", "before"): ("committed",),
        ("Abort", "before"): (None, *open_still),
        ("Abort", "after"): ("aborted", "duplicate"),
    }.get((kind, when), ("committed",))
    assert state in wanted, f"{fallen} {when} its write, then {again}: it is {state}"


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
        while not set(map(_told, _attempts(committers))) >= _EVERYTHING:  # however slow the machine
            assert len(_attempts(committers)) < 1_000, "what is compared does not happen"
            _work(committers, service.url, 3)
        _finish(committers, service.url)
        attempts = _attempts(committers)
        judge.look(service.url, attempts, rng, finished=True)
        assert sum(each.resumed for each in committers) >= kills, "the kills met nothing that was under way"
        assert len(attempts) > 5 * kills, "next to nothing was committed"
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
    until(lambda: not api.open("in_progress"), "what was left alone times out", every=0.05)
    assert [attempt.id for attempt in _attempts(committers) if attempt.asked and attempt.answer is None] == []


# --- a topic that is gone when its turn comes

_MESSAGES = PublishRequest([b"1", b"2"])


def test_a_commit_whose_topic_was_deleted_after_it_was_prepared_ends_on_the_other_topics(tmp_path: Path) -> None:
    parts = [Part("default", topic, _MESSAGES) for topic in ("a", "b")]
    _prepare_and_die(f"leveldb://{tmp_path / 'deleted'}", CommitRequest(parts=parts))
    shutil.copytree(tmp_path / "deleted", tmp_path / "made anew")
    for variant, topics in (("deleted", ["b"]), ("made anew", ["a", "b"])):
        store = f"leveldb://{tmp_path / variant}"
        _delete_topic(store, "a", made_anew=variant == "made anew")
        for _ in range(2):  # and again after a stop
            with running_service(store) as running:
                api = JournalApi(running.url)
                outcome = api.show("t")
                assert outcome.state == "committed"
                assert [(each.topic, each.messages) for each in outcome.topics] == [("a", 0), ("b", 4)]
                assert api.open("prepared") == api.open("in_progress") == []
                assert api.commit("t", CommitRequest(parts=parts[1:])) == outcome
                assert api.call("GET", "namespaces/default/topics") == topics
                for topic in topics:
                    payloads = [message.payload for message in read_log(running.url, topic)]
                    assert payloads == ([] if topic == "a" else [b"1", b"2"] * 2)
                check_verified(running.url, topics)


def _prepare_and_die(store: str, request: CommitRequest) -> None:
    with crashing_service(store, CrashPoint("PrepareCommit", "after")) as service:
        api = JournalApi(service.url())
        for topic in ("a", "b"):
            api.make_topic(topic)
        api.begin("t", "one", None)
        for topic in ("a", "b"):
            api.stage(Chunk("t", topic, 0, _MESSAGES))
        with pytest.raises(requests.RequestException):
            api.commit("t", request)
        assert service.fallen() == ("PrepareCommit", "t")


def _delete_topic(store: str, topic: str, made_anew: bool) -> None:
    """As the service does it; with the service, nothing could come between."""
    opened = store_opener(store)()
    key, batch = topic_key("default", topic), Batch()
    data = opened.get(Table.TOPIC, key)
    assert data is not None
    row = decode_record(TopicRow, data)
    batch.put(Table.TOPIC, key, encode_record(replace(row, generation=row.generation + made_anew, deleted=not made_anew)))
    opened.write([batch])
    opened.close()
