"""`examples/key_value/`: leaders that fence each other, the fight of two of them, and the proof that follows it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from examples.key_value.check import Logged, check
from examples.key_value.follower import Follower
from examples.key_value.history import Answer, Attempt, Kind, Request, read_notes
from examples.key_value.leader import Fenced, Incomplete, Leader, Value, ValueDiffers, change_in

from oncelog import Message, MessageId
from oncelog.codecs import codec_for
from tests.world.service import RunningService

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


def test_a_fenced_leader_decides_again_or_says_so_and_changes_nothing(anna: Leader, running: RunningService) -> None:
    with Leader(TOPIC, name="bert", url=running.url, rejoins=False) as bert:
        anna.put("apples", "3")
        with pytest.raises(Fenced):
            bert.update_many(lambda _: {"apples": "0", "pears": "0"})
        assert (dict(bert.values), bert.next_offset, bert.fenced) == ({"apples": "3"}, 1, 1)
        assert bert.compare_and_set("apples", "3", "6").offset == 1, "it may take part again if its caller wants that"
        assert anna.update("apples", lambda before: f"{before}+") == (2, "apples", "6", "6+")
        assert anna.fenced == 1


def test_nothing_is_read_or_refused_for_a_value_that_is_out_of_date(anna: Leader, bert: Leader) -> None:
    anna.put("apples", "3")
    assert "apples" not in bert.values
    assert bert.get("apples") == bert.values["apples"] == "3"
    assert anna.compare_and_set("apples", "3", "4").before == "3"
    assert bert.compare_and_set("apples", "4", "5").before == "4"
    with pytest.raises(ValueDiffers) as refused:
        anna.compare_and_set("apples", "4", "6")
    assert (refused.value.key, refused.value.expected, refused.value.actual) == ("apples", "4", "5")
    assert anna.next_offset == 3


@pytest.mark.parametrize(("offset", "key", "payload"), [(1, b"a", b'"1"'), (0, None, b'"1"'), (0, b"a", b"5")])
def test_a_change_left_out_or_a_message_that_is_none_is_refused(offset: int, key: bytes | None, payload: bytes) -> None:
    record = {"id": bytes(MessageId(1, 0)), "offset": offset, "key": key, "payload": payload}
    with pytest.raises(Incomplete, match=f"offset {0 if offset else offset}"):
        change_in(Message(record, codec_for("json")), 0)


# --- batches, and who follows


def move(key: str, to: str) -> Callable[[Mapping[str, str]], Mapping[str, Value]]:
    """Takes one from a key, and gives it to another."""
    return lambda values: {key: str(int(values[key]) - 1), to: str(int(values.get(to, "0")) + 1)}


def test_changes_that_belong_together_are_one_batch_of_consecutive_offsets(anna: Leader, bert: Leader) -> None:
    anna.put("apples", "3")
    assert bert.update_many(move("apples", "pears")) == [(1, "apples", "3", "2"), (2, "pears", None, "1")]
    assert anna.update_many(move("apples", "pears")) == [(3, "apples", "2", "1"), (4, "pears", "1", "2")]
    with pytest.raises(KeyError):
        anna.update_many(move("plums", "pears"))
    assert (anna.update_many(lambda _: {}), anna.next_offset) == ([], 5)


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
        anna.put("plums", "6")  # which the follower has not read
        with follower.lead("carl") as carl:
            assert carl.compare_and_set("plums", "6", "7").offset == 6


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


@pytest.mark.parametrize(
    ("operations", "kills", "service_kills"), [(200, 1, 0), pytest.param(10_000, 12, 3, marks=pytest.mark.slow)]
)
def test_two_leaders_that_fight_and_are_killed_make_one_serial_history(
    tmp_path: Path, operations: int, kills: int, service_kills: int
) -> None:
    kept = tmp_path / "fight"
    sizes = {"operations": operations, "kills": kills, "service-kills": service_kills}
    options = [word for name, number in sizes.items() for word in (f"--{name}", str(number))]
    done = _run("examples.key_value.fight", *options, "--keep", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved:" in done.stdout
    noted = {name: read_notes(kept / f"{name}.notes") for name in ("anna", "bert")}
    assert sum(map(len, noted.values())) == operations
    assert sum(each.answer is None for asked in noted.values() for each in asked) <= kills
    assert any(each.answer is not None and each.answer.fenced for asked in noted.values() for each in asked), "it was no fight"
    assert 1 <= done.stdout.count("kill -9 anna") + done.stdout.count("kill -9 bert") <= kills
    assert done.stdout.count("kill -9 service") == service_kills


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

    def also(self, name: str | None, key: str, value: Value) -> None:
        """There is one more change, behind all others."""
        self.log.append(Logged(len(self.log), name, key, value))

    def instead(self, place: int, name: str, key: str, value: Value, offset: int | None = None) -> None:
        """Another change lies there."""
        self.log[place] = Logged(place if offset is None else offset, name, key, value)

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


SPOILT: list[tuple[str, Callable[[Story], object]]] = [
    # a change is lost, there twice, swapped, or nobody asked for it
    ("acknowledged at 6, and in the log at []", lambda s: s.logged(0, 1, 2, 3, 4, 5)),
    ("b2 has changed something 2 times", lambda s: s.logged(0, 1, 2, 3, 3, 4, 5, 6)),
    ("a3 (delete apples): acknowledged at 4, and in the log at [5]", lambda s: s.logged(0, 1, 2, 3, 5, 4, 6)),
    ("refused, and in the log at [7]", lambda s: s.also("b1", "apples", "6")),
    ("a get has changed something at 7", lambda s: (s.unanswered("b4"), s.also("b4", "pears", "1"))),
    # a change does not follow on the one before
    ("has made '3' of '1' at 1", lambda s: (s.unanswered("b0"), s.instead(1, "b0", "apples", "3"))),
    ("has changed 'plums' at 6", lambda s: s.instead(6, "a4", "plums", "1")),
    # an answer was not so
    ("answered at place 8", lambda s: s.answered("a4", place=8)),
    ("saw '4' at 3", lambda s: s.answered("b2", before="4")),
    ("refused for no reason", lambda s: s.answered("b1", place=2, before="2")),
    ("refused for no reason", lambda s: (s.logged(0, 1, 2, 4, 5, 6), s.answered("b2", status="refused"))),
    ("lies at 2, before", lambda s: s.answered("a2", place=2, before="2", after="2")),
    ("a leader's dictionary after 7 changes", lambda s: s.values.update(pears="2")),
]


@pytest.mark.parametrize(("problem", "spoil"), SPOILT)
def test_the_proof_sees_what_no_serial_history_has(story: Story, problem: str, spoil: Callable[[Story], object]) -> None:
    spoil(story)
    assert any(problem in each for each in story.problems()), story.problems()
