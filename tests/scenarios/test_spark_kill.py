"""A Spark pipeline killed where it hurts: topic → Spark → topic holds every message once, in order, whatever dies when.

Each test is a row of the matrix: where it is killed, and what is restarted how. The control at the end is the sink that every
other log has; where ours keeps 300 messages, it has to show duplicates, or these tests would prove nothing.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog import Client
from tests.patience import PATIENCE, until
from tests.scenarios.spark_pipeline import BATCH, SECONDS, SOURCE, TARGET, SparkPipeline, publish
from tests.scenarios.spark_proxy import Answer, FaultProxy, Request, Rule, hand_on
from tests.support import ServiceProcess

MESSAGES = [b"message-%06d" % number for number in range(300)]
CRUCIAL = 2
"""The micro-batch that harm is done to: two are behind it, three before."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path / "log") as process:
        with Client(process.url) as client:
            client.create_topic(SOURCE)
            client.create_topic(TARGET)
        publish(process.url, MESSAGES)
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


def once(rule: Rule, when: Callable[[Request], bool], times: int = 1) -> Rule:
    """``rule`` for the first requests of which ``when`` holds; no harm to all others."""
    lock = threading.Lock()
    left = times

    def chosen(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        nonlocal left
        with lock:
            mine = left > 0 and when(request)
            left -= mine
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


def killed_without_the_request_arriving(pipeline: SparkPipeline) -> Rule:
    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        pipeline.kill()
        return None

    return rule


def killed_before_the_request_is_carried_out(pipeline: SparkPipeline) -> Rule:
    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        pipeline.kill()
        forward()
        return None

    return rule


def killed_before_the_answer(pipeline: SparkPipeline) -> Rule:
    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        forward()
        pipeline.kill()
        return None

    return rule


def killed_after_the_answer(pipeline: SparkPipeline) -> Rule:
    """The classic window: the sink has committed, Spark's own log does not know yet."""

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        answer = forward()
        pipeline.freeze_jvm()  # it hears of no more, however long the kill takes
        answer.then = pipeline.kill
        return answer

    return rule


def answer_lost(request: Request, forward: Callable[[], Answer]) -> Answer | None:
    forward()
    return None


def check_exactly_once(pipeline: SparkPipeline, messages: list[bytes] = MESSAGES) -> None:
    found = pipeline.target()
    twice = [message for message, count in Counter(found).items() if count > 1]
    lost = set(messages) - set(found)
    assert not twice, f"{len(twice)} are there more than once, the first is {twice[0]!r}"
    assert not lost, f"{len(lost)} are lost, the first is {min(lost)!r}"
    assert found == messages, "the order is another one"


# --- the three of every run


def test_killed_between_the_sinks_commit_and_sparks_a_message_is_there_once(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    proxy.rule = once(killed_after_the_answer(pipeline), crucial)
    assert pipeline.run() == -9
    pipeline.finish()
    check_exactly_once(pipeline)
    assert [batch for batch, _ in proxy.commits()].count(CRUCIAL) == 2, "Spark must have committed the batch again"
    assert '"state":"duplicate"' in [answer for batch, answer in proxy.commits() if batch == CRUCIAL][-1]


def test_killed_in_the_middle_of_writing_and_cut_otherwise_a_message_is_there_once(
    pipeline: SparkPipeline, proxy: FaultProxy
) -> None:
    proxy.rule = once(killed_before_the_answer(pipeline), stage_of(CRUCIAL, behind=3))
    assert pipeline.run() == -9
    pipeline.read["minPartitions"] = "3"
    pipeline.finish()
    check_exactly_once(pipeline)


def test_the_control_shows_duplicates_where_the_sink_has_none(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    """Killed once in the middle of the third micro-batch's writes: what was written of it is written again."""
    pipeline.sink = "naive"
    published = [0]

    def late_publish(request: Request) -> bool:
        published[0] += request.is_publish
        return request.is_publish and published[0] > 2 * BATCH // 5 + 3

    proxy.rule = once(killed_before_the_answer(pipeline), late_publish)
    assert pipeline.run() == -9
    pipeline.finish()
    found = pipeline.target()
    assert set(found) == set(MESSAGES)
    assert len(found) > len(MESSAGES)


# --- the rest of the matrix


@pytest.mark.slow
def test_nothing_killed_everything_there_once(pipeline: SparkPipeline) -> None:
    pipeline.finish()
    check_exactly_once(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize(
    "killed", [killed_before_the_request_is_carried_out, killed_without_the_request_arriving, killed_before_the_answer]
)
def test_killed_at_the_commit_a_message_is_there_once(
    pipeline: SparkPipeline, proxy: FaultProxy, killed: Callable[[SparkPipeline], Rule]
) -> None:
    proxy.rule = once(killed(pipeline), crucial)
    assert pipeline.run() == -9
    pipeline.finish()
    check_exactly_once(pipeline)


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
    assert b'"state":"duplicate"' in answers[0].body or answers[0].status == 409
    check_exactly_once(pipeline)


@pytest.mark.slow
def test_killed_three_times_in_a_row_after_the_same_commit(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    for _ in range(3):
        proxy.rule = once(killed_before_the_answer(pipeline), crucial)
        assert pipeline.run() == -9
    proxy.rule = hand_on
    pipeline.finish()
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
def test_killed_after_the_commit_and_cut_otherwise_a_message_is_there_once(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    proxy.rule = once(killed_after_the_answer(pipeline), crucial)
    assert pipeline.run() == -9
    pipeline.read["minPartitions"] = "3"
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


@pytest.mark.slow
def test_what_was_staged_is_gone_before_the_commit_so_it_is_staged_again(
    pipeline: SparkPipeline, proxy: FaultProxy, service: ServiceProcess
) -> None:
    def lose(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        commit = request.commit
        assert commit is not None
        with Client(service.url) as client:
            for branch in commit.branches:
                client.abort_atomic(branch)
        return forward()

    proxy.rule = once(lose, crucial)
    assert pipeline.run() != 0
    assert "stagingTimeoutMs" in pipeline.log()
    pipeline.finish()
    check_exactly_once(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["commit", "stage"])
def test_an_answer_that_is_lost_is_asked_for_again(pipeline: SparkPipeline, proxy: FaultProxy, which: str) -> None:
    proxy.rule = once(answer_lost, crucial if which == "commit" else lambda request: request.is_stage, times=3)
    pipeline.finish()
    check_exactly_once(pipeline)


@pytest.mark.slow
def test_a_task_that_hears_nothing_of_what_it_staged_is_run_again_by_spark(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    """The rows of its first attempt stay behind in a branch that nobody commits."""
    pipeline.master = "local[2,3]"  # of three attempts
    pipeline.write["retryTimeoutMs"] = "0"
    proxy.rule = once(answer_lost, stage_of(CRUCIAL, behind=1))
    pipeline.finish()
    branches = {request.path.partition("/stage/")[2].split("/")[0] for request, _ in proxy.answered if request.is_stage}
    assert any(f".{CRUCIAL}." in branch and branch.split(".")[3] == "1" for branch in branches), "there was a second attempt"
    check_exactly_once(pipeline)


@pytest.mark.slow
def test_the_answer_to_a_commit_is_lost_and_the_driver_lives(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    """The query ends, and aborts what is committed; begun again, it commits a duplicate."""
    pipeline.write["retryTimeoutMs"] = "0"
    proxy.rule = once(answer_lost, crucial)
    assert pipeline.run() not in (0, -9)
    pipeline.finish()
    assert [state for batch, state in proxy.commits() if batch == CRUCIAL and '"duplicate"' in state]
    check_exactly_once(pipeline)


@pytest.mark.slow
def test_a_new_checkpoint_under_an_old_name_is_refused_and_loses_nothing(pipeline: SparkPipeline) -> None:
    pipeline.finish()
    shutil.rmtree(pipeline.checkpoint)
    assert pipeline.run() != 0
    assert "takeOver" in pipeline.log()
    check_exactly_once(pipeline)


@pytest.mark.slow
def test_the_newest_entry_of_sparks_commit_log_deleted_by_hand(pipeline: SparkPipeline, proxy: FaultProxy) -> None:
    """The last batch id must not live in the driver: the batch runs again, and is a duplicate."""
    pipeline.finish()
    newest = pipeline.newest_commit()
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    proxy.answered.clear()
    pipeline.finish()
    assert [batch for batch, _ in proxy.commits()] == [int(newest.name)]
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


@pytest.mark.slow
def test_latest_killed_in_the_first_batch_loses_nothing_of_what_was_published_since(
    pipeline: SparkPipeline, proxy: FaultProxy, service: ServiceProcess
) -> None:
    """What was there before the stream began is not wanted; of what came after it, everything, however its first batch ended."""
    pipeline.read["startingOffsets"] = "latest"
    pipeline.available_now = False
    feeding = threading.Event()
    fed: list[bytes] = []

    def feed() -> None:
        while not feeding.is_set():
            message = b"later-%06d" % len(fed)
            publish(service.url, [message])
            fed.append(message)
            time.sleep(0.005)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        first_read = once(killed_before_the_answer(pipeline), lambda request: "/columns" in request.path)
        proxy.rule = first_read
        pipeline.start()
        assert pipeline.wait() == -9
        pinned = (pipeline.checkpoint / "offsets" / "0").read_text()  # now: Spark keeps the newest hundred
        pipeline.start()
        until(lambda: len(pipeline.target()) > 200, "there are messages in the target", SECONDS)
    finally:
        feeding.set()
        feeder.join()
    until(lambda: pipeline.target()[-1] == fed[-1], "the last message is in the target", SECONDS)
    pipeline.kill()
    found = pipeline.target()
    assert found == fed[fed.index(found[0]) :], "the target is not an unbroken end of what was fed"
    offset = int(pinned.rpartition('"base":')[2].partition(",")[0].strip(" }"))
    assert found[0] == fed[offset - len(MESSAGES)], f"pinned at {offset}, but the target begins with {found[0]!r}"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["zombies", "after the commit"])
def test_the_control_shows_duplicates_elsewhere_too(pipeline: SparkPipeline, proxy: FaultProxy, moment: str) -> None:
    pipeline.sink = "naive"
    published = [0]

    def nth(request: Request) -> bool:
        published[0] += request.is_publish
        return request.is_publish and published[0] == 3 * BATCH // 5 - (5 if moment == "zombies" else 0)

    def zombies(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        pipeline.kill_all_but_workers()
        return forward()

    proxy.rule = once(zombies if moment == "zombies" else killed_after_the_answer(pipeline), nth)
    assert pipeline.run() == -9
    time.sleep(2)
    pipeline.finish()
    found = pipeline.target()
    assert set(found) == set(MESSAGES)
    assert len(found) > len(MESSAGES)
