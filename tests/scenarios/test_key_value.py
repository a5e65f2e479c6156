"""`examples/key_value/`: leaders that fence each other, the fight of two of them, and the proof that follows it."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from examples.key_value.check import Logged, check
from examples.key_value.follower import Follower
from examples.key_value.history import Answer, Attempt, Kind, Notes, Request, attempts, read_notes
from examples.key_value.leader import Fenced, Incomplete, Leader, Value, ValueDiffers

from oncelog import Client, Producer
from oncelog.errors import ProducerFenced
from oncelog.wire.requests import PublishRequest
from tests.support import ManualClock, RunningService, running_service

ROOT = Path(__file__).parents[2]
TOPIC = "store"


# --- a leader


@pytest.fixture
def anna(running: RunningService) -> Iterator[Leader]:
    with Leader(TOPIC, name="anna", url=running.url) as leader:
        yield leader


@pytest.fixture
def bert(running: RunningService) -> Iterator[Leader]:
    with Leader(TOPIC, name="bert", url=running.url) as leader:
        yield leader


def test_a_leader_serves_what_it_has_written_and_says_where(anna: Leader) -> None:
    assert anna.get("apples") is None
    assert anna.put("apples", "3") == (0, "apples", None, "3")
    assert anna.compare_and_set("apples", "3", "2") == (1, "apples", "3", "2")
    assert anna.update("apples", lambda before: f"{before}0") == (2, "apples", "2", "20")
    assert anna.put("", "ä\n") == (3, "", None, "ä\n")
    assert anna.delete("apples") == (4, "apples", "20", None)
    assert anna.delete("apples") == (5, "apples", None, None)
    assert anna.compare_and_set("apples", None, "1") == (6, "apples", None, "1")
    assert dict(anna.values) == {"apples": "1", "": "ä\n"}
    assert anna.fenced == 0


def test_a_compare_and_set_of_another_value_changes_nothing(anna: Leader) -> None:
    anna.put("apples", "3")
    with pytest.raises(ValueDiffers) as refused:
        anna.compare_and_set("apples", "4", "5")
    assert (refused.value.key, refused.value.expected, refused.value.actual) == ("apples", "4", "3")
    assert anna.get("apples") == "3"
    assert anna.next_offset == 1


def test_a_new_leader_has_everything_that_was_ever_written(anna: Leader, running: RunningService) -> None:
    for number in range(50):
        anna.put(f"key {number % 7}", str(number))
    anna.delete("key 3")
    with Leader(TOPIC, name="bert", url=running.url) as bert:
        assert bert.next_offset == 51
        assert bert.values == anna.values


def test_a_fenced_leader_decides_again_on_what_the_other_has_written(anna: Leader, bert: Leader) -> None:
    anna.put("apples", "3")
    assert bert.update("apples", lambda before: f"{before}+") == (1, "apples", "3", "3+")
    assert anna.put("pears", "1") == (2, "pears", None, "1")
    assert (anna.fenced, bert.fenced) == (1, 1)
    assert anna.get("apples") == bert.get("apples") == "3+"


def test_a_fenced_leader_that_does_not_rejoin_says_so_and_changes_nothing(anna: Leader, running: RunningService) -> None:
    with Leader(TOPIC, name="bert", url=running.url, rejoins=False) as bert:
        anna.put("apples", "3")
        with pytest.raises(Fenced):
            bert.put("apples", "4")
        assert dict(bert.values) == {"apples": "3"}
        anna.put("apples", "5")
        with pytest.raises(Fenced):
            bert.compare_and_set("apples", "4", "6")
        assert anna.get("apples") == "5"
        assert bert.compare_and_set("apples", "5", "6").offset == 2, "it may take part again if its caller wants that"


def test_nothing_is_refused_for_a_value_that_is_out_of_date(anna: Leader, bert: Leader) -> None:
    anna.put("apples", "3")
    assert bert.compare_and_set("apples", "3", "4").before == "3"
    assert anna.compare_and_set("apples", "4", "5").before == "4"
    with pytest.raises(ValueDiffers) as refused:
        bert.compare_and_set("apples", "4", "6")
    assert refused.value.actual == "5"


def test_reading_sees_what_another_leader_has_written_and_values_what_this_one_has_read(anna: Leader, bert: Leader) -> None:
    anna.put("apples", "3")
    assert "apples" not in bert.values
    assert bert.get("apples") == "3"
    assert bert.values["apples"] == "3"


def test_leaders_on_many_threads_lose_no_increment(running: RunningService) -> None:
    def increment(name: str) -> None:
        with Leader(TOPIC, name=name, url=running.url) as leader:
            for _ in range(20):
                leader.update("n", lambda before: str(int(before or 0) + 1))

    threads = [threading.Thread(target=increment, args=(f"leader-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Leader(TOPIC, name="judge", url=running.url) as judge:
        assert judge.get("n") == "60"


def test_a_leader_of_the_same_name_shuts_the_older_one_out(anna: Leader, running: RunningService) -> None:
    with Leader(TOPIC, name="anna", url=running.url) as newer:
        with pytest.raises(ProducerFenced):
            anna.put("apples", "3")
        assert newer.put("apples", "4").offset == 0


def test_a_topic_that_holds_something_else_is_no_store(anna: Leader, running: RunningService) -> None:
    anna.put("apples", "3")
    with Client(running.url) as client:
        client.publish(TOPIC, PublishRequest([b'"no key"']))
    with pytest.raises(Incomplete):
        anna.get("apples")
    with pytest.raises(Incomplete):
        Leader(TOPIC, name="bert", url=running.url)


def test_a_store_whose_oldest_changes_are_gone_is_refused(clock: ManualClock) -> None:
    with running_service(clock=clock) as running:
        with Client(running.url) as client:
            client.create_topic(TOPIC, {"check.expected.offsets": True})
            with Producer[str](TOPIC, name="p", client=client, codec="json") as producer:
                producer.send("1", key="a", ttl=1)
                producer.send("2", key="a")
        clock.advance(1_000)
        with pytest.raises(Incomplete, match="offset 0 is missing"):
            Leader(TOPIC, name="anna", url=running.url)


# --- batches, and who follows


def move(key: str, to: str) -> Callable[[Mapping[str, str]], Mapping[str, Value]]:
    """Takes one from a key, and gives it to another."""
    return lambda values: {key: str(int(values[key]) - 1), to: str(int(values.get(to, "0")) + 1)}


def test_changes_that_belong_together_are_one_batch_of_consecutive_offsets(anna: Leader, bert: Leader) -> None:
    anna.put("apples", "3")
    assert bert.update_many(move("apples", "pears")) == [(1, "apples", "3", "2"), (2, "pears", None, "1")]
    assert bert.fenced == 1
    assert anna.update_many(move("apples", "pears")) == [(3, "apples", "2", "1"), (4, "pears", "1", "2")]
    with pytest.raises(KeyError):
        anna.update_many(move("plums", "pears"))
    assert anna.update_many(lambda _: {}) == []
    assert bert.get("apples") == anna.values["apples"] == "1"
    assert anna.next_offset == 5


def test_a_batch_of_a_fenced_leader_is_stored_as_a_whole_or_not_at_all(anna: Leader, running: RunningService) -> None:
    anna.put("apples", "3")
    with Leader(TOPIC, name="bert", url=running.url, rejoins=False) as bert:
        anna.put("plums", "1")
        with pytest.raises(Fenced):
            bert.update_many(lambda _: {"apples": "0", "pears": "0", "plums": "0"})
        assert dict(bert.values) == {"apples": "3", "plums": "1"}
        assert bert.next_offset == 2


def test_a_follower_shows_what_was_written_and_each_batch_as_a_whole(anna: Leader, running: RunningService) -> None:
    anna.put("apples", "3")
    with Follower(TOPIC, url=running.url) as follower:
        assert (dict(follower.values), follower.next_offset) == ({}, 0)
        last = anna.update_many(move("apples", "pears"))[-1]
        assert follower.wait_for(last.offset)
        assert follower.values == anna.values
        assert not follower.wait_for(last.offset + 1, timeout=0)
        follower._reader.seek(3)
        page, read = [], follower._reader.read
        anna.update_many(lambda _: {"apples": None, "plums": "5"})
        page += read(1, 5)
        follower._reader.read = lambda *_: page  # type: ignore[method-assign]  # a page that ends within the batch
        assert follower.follow() == []
        assert dict(follower.values) == {"apples": "2", "pears": "1"}
        follower._reader.read = read  # type: ignore[method-assign]
        assert follower.follow(5) == [(3, "apples", None), (4, "plums", "5")]
        assert follower.values == anna.values


def test_a_follower_goes_on_as_a_leader_without_reading_everything_again(anna: Leader, running: RunningService) -> None:
    anna.put("apples", "3")
    with Follower(TOPIC, url=running.url) as follower:
        follower.wait_for(0)
        anna.put("apples", "4")  # which the follower has not read
        with follower.lead("carl") as carl:
            assert carl.next_offset == 2
            assert carl.compare_and_set("apples", "4", "5").offset == 2
        with pytest.raises(ValueDiffers):
            anna.compare_and_set("apples", "4", "6")
        assert anna.fenced == 1


def test_a_follower_sees_only_whole_moves_while_leaders_compete(running: RunningService) -> None:
    """What is moved between keys is neither more nor less at any place where a follower stands."""

    def compete(name: str) -> None:
        with Leader(TOPIC, name=name, url=running.url) as leader:
            for _ in range(20):
                leader.update_many(move("left", "right"))

    with Leader(TOPIC, name="bank", url=running.url) as bank:
        bank.update_many(lambda _: {"left": "100", "right": "0"})
    threads = [threading.Thread(target=compete, args=(f"leader-{number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    with Follower(TOPIC, url=running.url) as follower:
        assert follower.wait_for(1)
        while follower.next_offset < 82:
            assert sum(map(int, follower.values.values())) == 100
            follower.follow(1)
        assert dict(follower.values) == {"left": "60", "right": "40"}
    for thread in threads:
        thread.join()


def test_the_command_line_of_a_follower_prints_each_change(anna: Leader, running: RunningService) -> None:
    anna.put("apples", "3")
    anna.update_many(lambda _: {"apples": None, "pears": "x y"})
    done = _run("examples.key_value.follower", TOPIC, "--url", running.url, "--upto", "2")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["0 apples 3", "1 apples -", "2 pears x y"]), done.stderr


def test_the_command_line_serves_one_operation_a_line(running: RunningService) -> None:
    said = "put a 'x y'\nget a\ncas a 'x y' 2\ncas a 1 3\nset b 1 c 2\n\nlist\ndelete a\nget a\nnonsense\nput 'a\n"
    done = _run("examples.key_value", TOPIC, "--name", "anna", "--url", running.url, said=said)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "- -> x y at offset 0",
        "x y",
        "x y -> 2 at offset 1",
        "refused: 'a' is '2', not '1'",
        "- -> 1 at offset 2",
        "- -> 2 at offset 3",
        "a 2",
        "b 1",
        "c 2",
        "2 -> - at offset 4",
        "-",
        "put KEY VALUE, get KEY, delete KEY, cas KEY EXPECTED VALUE, set KEY VALUE …, list",
        "refused: No closing quotation",
    ]


# --- the fight


def test_two_leaders_that_fight_and_are_killed_make_one_serial_history(tmp_path: Path) -> None:
    done = _fight(tmp_path, operations=200, kills=1, service_kills=0)
    assert done.stdout.count("kill -9 anna") + done.stdout.count("kill -9 bert") == 1


@pytest.mark.slow
def test_ten_thousand_requests_of_two_leaders_that_are_killed_make_one_serial_history(tmp_path: Path) -> None:
    done = _fight(tmp_path, operations=10_000, kills=12, service_kills=3)
    assert done.stdout.count("kill -9 service") == 3


def _fight(work: Path, operations: int, kills: int, service_kills: int) -> subprocess.CompletedProcess[str]:
    kept = work / "fight"
    sizes = {"operations": operations, "kills": kills, "service-kills": service_kills}
    options = [word for name, number in sizes.items() for word in (f"--{name}", str(number))]
    done = _run("examples.key_value.fight", *options, "--keep", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved:" in done.stdout
    noted = {name: read_notes(kept / f"{name}.notes") for name in ("anna", "bert")}
    assert sum(map(len, noted.values())) == operations
    assert sum(each.answer is None for asked in noted.values() for each in asked) <= kills
    assert any(each.answer is not None and each.answer.fenced for asked in noted.values() for each in asked), "it was no fight"
    return done


def _run(module: str, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, input=said, capture_output=True, text=True, cwd=ROOT, timeout=1_500, check=False)


# --- the proof


class Story:
    """A log and what clients noted of it, told in order of time: everything is as it should be, and may then be spoilt."""

    def __init__(self) -> None:
        self.log: list[Logged] = []
        self.attempts: dict[str, Attempt] = {}
        self.values: dict[str, str] = {}

    def tell(self, name: str, kind: Kind, key: str, value: Value = None, expected: Value = None, after: Value = None) -> None:
        """A request is made and answered; ``after``: the value of a change, unless it is given already."""
        request, now, place = Request(name, kind, key, value, expected), float(len(self.attempts)), len(self.log)
        before = self.values.get(key)
        if kind == "get":
            answer = Answer("read", place, before, before)
        elif kind == "compare and set" and before != expected:
            answer = Answer("refused", place, before, before)
        else:
            after = value if after is None else after
            answer = Answer("changed", place, before, after)
            self.log.append(Logged(place, name, key, after))
            self.values = {each: text for each, text in (self.values | {key: after}).items() if text is not None}
        self.attempts[name] = Attempt(request, now, answer, now + 0.5)

    def answered(self, name: str, **changed: object) -> None:
        """The client was told something else."""
        attempt = self.attempts[name]
        assert attempt.answer is not None
        values = vars(attempt.answer) | changed
        self.attempts[name] = Attempt(attempt.request, attempt.begun, Answer(**values), attempt.ended)  # type: ignore[arg-type]

    def unanswered(self, name: str) -> None:
        """The client was killed before the answer came."""
        self.attempts[name] = Attempt(self.attempts[name].request, self.attempts[name].begun)

    def logged(self, *offsets: int) -> None:
        """These changes are what the log holds, in this order, numbered anew."""
        self.log = [self.log[offset]._replace(offset=place) for place, offset in enumerate(offsets)]

    def problems(self) -> list[str]:
        return check(self.log, list(self.attempts.values()), [(len(self.log), self.values)])


@pytest.fixture
def story() -> Story:
    """apples: 1 2 5 5 - 7, pears: 1; seven changes, a refusal and two readings."""
    story = Story()
    story.tell("a0", "increment", "apples", after="1")
    story.tell("b0", "increment", "apples", after="2")
    story.tell("a1", "compare and set", "apples", "5", expected="2")
    story.tell("b1", "compare and set", "apples", "6", expected="2")
    story.tell("a2", "get", "apples")
    story.tell("b2", "put", "apples", "5")
    story.tell("a3", "delete", "apples")
    story.tell("b3", "compare and set", "apples", "7", expected=None)
    story.tell("a4", "increment", "pears", after="1")
    story.tell("b4", "get", "pears")
    return story


def test_a_history_as_it_should_be_has_no_problems(story: Story) -> None:
    assert story.values == {"apples": "7", "pears": "1"}
    assert story.problems() == []


def test_a_change_without_an_answer_may_be_there_or_not(story: Story) -> None:
    story.unanswered("a4")
    assert len(story.log) == 7
    assert story.problems() == []
    story.logged(0, 1, 2, 3, 4, 5)
    story.values, story.attempts = {"apples": "7"}, {name: each for name, each in story.attempts.items() if name != "b4"}
    assert story.problems() == []


SPOILT: dict[str, tuple[Callable[[Story], object], str]] = {
    "an acknowledged change is lost": (
        lambda story: story.logged(0, 1, 2, 4, 5, 6),
        "acknowledged at 3, and in the log at []",
    ),
    "the last acknowledged change is lost": (
        lambda story: story.logged(0, 1, 2, 3, 4, 5),
        "acknowledged at 6, and in the log at []",
    ),
    "a change is there twice": (
        lambda story: story.logged(0, 1, 2, 3, 3, 4, 5, 6),
        "b2 has changed something 2 times",
    ),
    "a change without an answer is there twice": (
        lambda story: (story.unanswered("a4"), story.logged(0, 1, 2, 3, 4, 5, 6, 6)),
        "a4 has changed something 2 times",
    ),
    "two changes are swapped": (
        lambda story: story.logged(0, 1, 2, 3, 5, 4, 6),
        "a3 (delete apples): acknowledged at 4, and in the log at [5]",
    ),
    "nobody asked for a change": (
        lambda story: story.log.append(Logged(7, None, "plums", "1")),
        "nobody asked for the changes of None",
    ),
    "another store's request is there": (
        lambda story: story.log.append(Logged(7, "c0", "plums", "1")),
        "nobody asked for the changes of 'c0'",
    ),
    "what was refused is there": (
        lambda story: story.log.append(Logged(7, "b1", "apples", "6")),
        "refused, and in the log at [7]",
    ),
    "what was read is there": (
        lambda story: story.log.append(Logged(7, "a2", "apples", "6")),
        "read, and in the log at [7]",
    ),
    "a get without an answer changed something": (
        lambda story: (
            story.unanswered("b4"),
            story.log.append(Logged(7, "b4", "pears", "1")),
        ),
        "a get has changed something at 7",
    ),
    "an update is lost": (
        lambda story: (
            story.answered("b0", after="1", before=None),
            story.log.__setitem__(1, Logged(1, "b0", "apples", "1")),
        ),
        "has made '1' of '1' at 1",
    ),
    "an increment without an answer adds two": (
        lambda story: (
            story.unanswered("b0"),
            story.log.__setitem__(1, Logged(1, "b0", "apples", "3")),
        ),
        "has made '3' of '1' at 1",
    ),
    "a compare-and-set has overwritten another value": (
        lambda story: (
            story.unanswered("b0"),
            story.log.__setitem__(1, Logged(1, "b0", "pears", "1")),
        ),
        "expected '2' and has changed '1' at 2",
    ),
    "a put has another value": (
        lambda story: story.log.__setitem__(3, Logged(3, "b2", "apples", "55")),
        "has made '55' of '5' at 3",
    ),
    "a change is of another key": (
        lambda story: story.log.__setitem__(6, Logged(6, "a4", "plums", "1")),
        "has changed 'plums' at 6",
    ),
    "an offset is left out": (
        lambda story: story.log.__setitem__(6, Logged(7, "a4", "pears", "1")),
        "the change at place 6 says offset 7",
    ),
    "acknowledged at another place": (
        lambda story: story.answered("a4", place=5),
        "acknowledged at 5, and in the log at [6]",
    ),
    "acknowledged behind the end": (
        lambda story: story.answered("a4", place=8),
        "answered at place 8",
    ),
    "acknowledged with another value before": (
        lambda story: story.answered("b2", before="4"),
        "saw '4' at 3",
    ),
    "acknowledged with another value after": (
        lambda story: story.answered("b2", after="4"),
        "acknowledged as '4', and in the log as '5'",
    ),
    "refused though it held": (
        lambda story: story.answered("b1", place=2, before="2"),
        "refused for no reason",
    ),
    "refused for a value that was not there": (
        lambda story: story.answered("b1", before="9"),
        "saw '9' at 3",
    ),
    "a put is refused": (
        lambda story: (story.logged(0, 1, 2, 4, 5, 6), story.answered("b2", status="refused")),
        "refused for no reason",
    ),
    "a reading of what was never there": (
        lambda story: story.answered("a2", before="9", after="9"),
        "saw '9' at 3",
    ),
    "a reading of what was there before it was asked": (
        lambda story: story.answered("a2", place=2, before="2", after="2"),
        "lies at 2, before",
    ),
    "a leader believes something else": (
        lambda story: story.values.update(pears="2"),
        "a leader's dictionary after 7 changes",
    ),
    "a leader has read what is not there": (
        lambda story: story.values.update(plums="1"),
        "a leader's dictionary after 7 changes",
    ),
}


@pytest.mark.parametrize(("spoil", "problem"), SPOILT.values(), ids=SPOILT)
def test_the_proof_sees_what_no_serial_history_has(story: Story, spoil: Callable[[Story], object], problem: str) -> None:
    spoil(story)
    assert any(problem in each for each in story.problems()), story.problems()


def test_a_change_that_lies_before_what_had_been_answered_is_seen(story: Story) -> None:
    """Apples and pears are independent: only the clock can tell."""
    late = story.attempts["a4"]
    story.attempts = {name: story.attempts[name] for name in ("a0", "a4")}
    story.logged(6, 0)
    story.values = {"apples": "1", "pears": "1"}
    story.answered("a0", place=1)
    story.answered("a4", place=0)
    assert len(story.problems()) == 1
    assert "before a0, which had been answered" in story.problems()[0]
    story.attempts["a4"] = Attempt(late.request, 0.2, story.attempts["a4"].answer, late.ended)
    assert story.problems() == [], "they overlap: either may be first"


# --- the notes


def test_notes_that_a_kill_has_cut_say_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "anna.notes"
    asked = [Request(f"anna:{number}", "put", "apples", "1") for number in range(3)]
    answer = Answer("changed", 0, None, "1")
    for request in asked:  # each by another process
        notes = Notes(path)
        notes.asks(request)
        notes.was_answered(request, answer)
    whole = path.read_text()
    found = read_notes(path)
    assert [(each.request, each.answer) for each in found] == [(request, answer) for request in asked]
    assert all(each.ended is not None and each.begun <= each.ended for each in found)
    for cut in range(0, len(whole), 7):
        path.write_text(whole[:cut])
        Notes(path).asks(Request("anna:9", "get", "apples"))
        kept = read_notes(path)
        assert kept[-1].request.name == "anna:9"
        assert _as_told(kept[:-1]) == _as_told(attempts(whole[:cut].splitlines()))


def _as_told(found: Sequence[Attempt]) -> list[tuple[str, bool]]:
    return [(each.request.name, each.answer is not None) for each in found]


def test_a_cut_line_never_passes_for_an_answer() -> None:
    lines = io.StringIO('\n{"request": {"name": "a", "kind": "get", "key": "k"}, "at": 1.0}\n{"answered": "a", "answer": {"sta')
    (found,) = attempts(lines)
    assert found.answer is None
