"""A Spark pipeline killed where it hurts: topic → Spark → topic holds every message once, in order, whatever dies when.

Each test is a row of the matrix: where it is killed, and what is restarted how. The control at the end is the sink that every
other log has; where ours keeps 300 messages, it has to show duplicates, or these tests would prove nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from oncelog import Client
from oncelog.wire.requests import PublishRequest
from tests.patience import PATIENCE, until
from tests.scenarios.spark_pipeline import BATCH, SOURCE, TARGET, SparkPipeline
from tests.scenarios.spark_proxy import Answer, FaultProxy, Request, Rule, hand_on
from tests.world.service import ServiceProcess

pytestmark = pytest.mark.real

MESSAGES = [b"message-%06d" % number for number in range(300)]
CRUCIAL = 2
"""The micro-batch that harm is done to: two are behind it, three before."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "log") as process:
        with Client(process.url) as client:
            client.create_topic(SOURCE)
            client.create_topic(TARGET)
            client.publish(SOURCE, PublishRequest(MESSAGES))
        yield process


@pytest.fixture
def proxy(service: ServiceProcess) -> Iterator[FaultProxy]:
    with FaultProxy(service.url) as proxy:
        yield proxy


@pytest.fixture
def pipeline(tmp_path: Path, service: ServiceProcess, proxy: FaultProxy) -> Iterator[SparkPipeline]:
    pipeline = SparkPipeline(tmp_path, service.url, proxy)
    yield pipeline
    pipeline.kill()


def once(rule: Rule, when: Callable[[Request], bool]) -> Rule:
    """``rule`` for the first request of which ``when`` holds; no harm to all others."""
    lock = threading.Lock()
    done = False

    def chosen(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        nonlocal done
        with lock:
            mine = not done and when(request)
            done |= mine
        return (rule if mine else hand_on)(request, forward)

    return chosen


def crucial(request: Request) -> bool:
    return request.commits(CRUCIAL)


def stage_of(batch: int, behind: int) -> Callable[[Request], bool]:
    """The first staging request of a micro-batch behind so many of it."""
    seen = 0

    def holds(request: Request) -> bool:
        nonlocal seen
        if not request.is_stage or f".{batch}." not in request.path:
            return False
        seen += 1
        return seen > behind

    return holds


# --- what killed it

Killed = Callable[[SparkPipeline], Rule]


def killed_without_the_request_arriving(pipeline: SparkPipeline, *, first: bool = False, last: bool = False) -> Rule:
    """``first``, ``last``: the request is carried out all the same, before or after it is killed."""

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        if first:
            forward()
        pipeline.kill()
        if last:
            forward()
        return None

    return rule


killed_before_the_request_is_carried_out: Killed = partial(killed_without_the_request_arriving, last=True)
killed_before_the_answer: Killed = partial(killed_without_the_request_arriving, first=True)


def killed_after_the_answer(pipeline: SparkPipeline) -> Rule:
    """The classic window: the sink has committed, Spark's own log does not know yet."""

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        answer = forward()
        pipeline.freeze_jvm()  # it hears of no more, however long the kill takes
        answer.then = pipeline.kill
        return answer

    return rule


def check_exactly_once(pipeline: SparkPipeline) -> None:
    found = pipeline.target()
    twice = [message for message, count in Counter(found).items() if count > 1]
    lost = set(MESSAGES) - set(found)
    assert not twice, f"{len(twice)} are there more than once, the first is {twice[0]!r}"
    assert not lost, f"{len(lost)} are lost, the first is {min(lost)!r}"
    assert found == MESSAGES, "the order is another one"


# --- killed, where and how often, and begun again


def test_killed_between_the_sinks_commit_and_sparks_a_message_is_there_once(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    proxy.rule = once(killed_after_the_answer(pipeline), crucial)
    assert pipeline.run() == -9
    pipeline.read["minPartitions"] = "3"
    pipeline.finish()
    check_exactly_once(pipeline)
    assert proxy.commits(CRUCIAL) == ["committed", "duplicate"], "Spark must have committed the batch again"


@pytest.mark.parametrize(
    ("killed", "is_commit", "times", "partitions"),
    [
        (killed_before_the_answer, False, 1, 3),
        pytest.param(killed_before_the_request_is_carried_out, True, 1, 2, marks=pytest.mark.slow),
        pytest.param(killed_without_the_request_arriving, True, 1, 2, marks=pytest.mark.slow),
        pytest.param(killed_before_the_answer, True, 3, 2, marks=pytest.mark.slow),
    ],
)
def test_killed_while_it_stages_or_commits_and_cut_otherwise_a_message_is_there_once(
    pipeline: SparkPipeline, proxy: FaultProxy, killed: Killed, is_commit: bool, times: int, partitions: int
) -> None:
    for _ in range(times):
        proxy.rule = once(killed(pipeline), crucial if is_commit else stage_of(CRUCIAL, behind=3))
        assert pipeline.run() == -9
    proxy.rule = hand_on
    pipeline.read["minPartitions"] = str(partitions)
    pipeline.finish()
    check_exactly_once(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(6))
def test_killed_at_a_random_moment_a_message_is_there_once(pipeline: SparkPipeline, proxy: FaultProxy, turn: int) -> None:
    choice = random.Random(turn)
    nth = choice.randrange(5, 150)
    seen = 0

    def at_last(_: Request) -> bool:
        nonlocal seen
        seen += 1
        return seen == nth

    rules = [killed_before_the_request_is_carried_out, killed_without_the_request_arriving, killed_before_the_answer]
    proxy.rule = once(choice.choice([*rules, killed_after_the_answer])(pipeline), at_last)
    assert pipeline.run() in (-9, 0)
    proxy.rule = hand_on
    pipeline.finish()
    check_exactly_once(pipeline)


def test_the_control_shows_duplicates_where_the_sink_has_none(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    """Killed once, within the third micro-batch's writes: what was written of it is written again."""
    pipeline.sink = "naive"
    published = [0]

    def is_nth(request: Request) -> bool:
        published[0] += request.is_publish
        return request.is_publish and published[0] == 2 * BATCH // 5 + 4

    proxy.rule = once(killed_before_the_answer(pipeline), is_nth)
    assert pipeline.run() == -9
    pipeline.finish()
    found = pipeline.target()
    assert set(found) == set(MESSAGES)
    assert len(found) > len(MESSAGES)


# --- what lives on, and what is lost


@pytest.mark.slow
def test_a_commit_of_a_dead_driver_that_arrives_after_its_successors_changes_nothing(
    pipeline: SparkPipeline, proxy: FaultProxy
) -> None:
    """It hangs on the way, the driver dies, the next driver commits the batch anew; then it arrives."""
    answers: list[Answer] = []
    held = threading.Event()
    arrived = threading.Event()

    def late(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        pipeline.kill()
        held.wait(200)
        answers.append(forward())
        arrived.set()
        return None

    def successors(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        answer = forward()
        answer.then = held.set
        return answer

    proxy.rule = once(late, crucial)
    assert pipeline.run() == -9
    proxy.rule = once(successors, crucial)
    pipeline.finish()
    assert arrived.wait(PATIENCE)
    assert answers[0].state in ("duplicate", "409")
    check_exactly_once(pipeline)


@pytest.mark.slow
def test_tasks_that_outlive_their_driver_add_nothing(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    """The zombies of a cluster: driver, JVM and daemons are gone, the processes of the tasks go on staging."""
    dead = threading.Event()
    after_death: list[Request] = []

    def die(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        pipeline.kill_all_but_workers()
        dead.set()
        return forward()

    kill = once(die, stage_of(CRUCIAL, behind=2))

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        if dead.is_set() and request.is_stage:
            after_death.append(request)
        return kill(request, forward)

    proxy.rule = rule
    assert pipeline.run() == -9
    until(lambda: after_death, "a zombie stages")
    time.sleep(1)
    pipeline.finish()
    check_exactly_once(pipeline)


@pytest.mark.slow
def test_the_service_is_killed_while_the_query_runs_and_the_query_goes_on(
    pipeline: SparkPipeline, proxy: FaultProxy, service: ServiceProcess
) -> None:
    def kill_the_service(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        service.kill()
        threading.Timer(2, service.start).start()
        return None

    harm = [once(kill_the_service, stage_of(1, behind=2)), once(kill_the_service, lambda request: request.commits(3))]

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        return harm[0](request, lambda: harm[1](request, forward) or _gone())

    def _gone() -> Answer:
        raise ConnectionError

    proxy.rule = rule
    pipeline.finish()
    check_exactly_once(pipeline)
