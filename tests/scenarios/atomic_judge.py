"""What must hold of atomic commits whatever was killed, by what a reader that knows nothing of transactions is given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from random import Random

import pytest

from oncelog import Client, Message
from oncelog.errors import OffsetMismatch, OncelogError, TransactionNotFound
from oncelog.wire.models import AtomicOutcome, Verification
from tests.scenarios.atomic_load import KEY, TOPICS, Attempt, JournalApi
from tests.scenarios.judge import check_prefix, read_log

Logs = Mapping[str, Sequence[Message]]
Outcomes = Mapping[str, AtomicOutcome | None]
"""Id of an attempt → what the service says became of it; None: nothing was begun."""

OPEN = (None, "in_progress")


class Judge:
    """Looks at the service now and again, remembers what it saw, and compares."""

    def __init__(self) -> None:
        self._logs: dict[str, list[Message]] = {topic: [] for topic in TOPICS}
        self._outcomes: dict[str, AtomicOutcome | None] = {}

    def look(self, url: str, attempts: Sequence[Attempt], rng: Random, finished: bool = False) -> None:
        """Nobody commits meanwhile. ``finished``: every client has its answer, and what was left alone is out of time."""
        api = JournalApi(url)
        self._look_at_logs(url)
        for attempt in attempts:
            before = self._outcomes.get(attempt.id)
            if finished or before is None or before.state in OPEN or rng.random() < 50 / len(attempts):
                now = outcome_of(api, attempt.id)
                assert before is None or before.state in OPEN or now == before, f"{attempt.id} was {before} and is {now}"
                self._outcomes[attempt.id] = now
        check(self._logs, self._outcomes, attempts)
        check_repeated(api, rng.sample(attempts, min(20, len(attempts))), self._outcomes)
        self._look_at_logs(url)
        check(self._logs, self._outcomes, attempts)
        check_verified(url, self._logs)
        if finished:
            assert api.open() == []
            still = [attempt.id for attempt in attempts if self._outcomes[attempt.id] is None or not attempt_ended(attempt)]
            assert not still, f"no outcome of {still[:5]}"

    def state_of(self, attempt: Attempt) -> str | None:
        """Of what was seen last."""
        outcome = self._outcomes[attempt.id]
        return None if outcome is None else outcome.state

    def _look_at_logs(self, url: str) -> None:
        """What was read before is read again, in the same places, under the same ids."""
        for topic, before in self._logs.items():
            now = read_log(url, topic)
            check_prefix(before, now)
            self._logs[topic] = now


def attempt_ended(attempt: Attempt) -> bool:
    """Whether its client has been answered, if it asked at all."""
    return attempt.answer is not None or (attempt.commit is None and not attempt.aborts)


def outcome_of(api: JournalApi, id_: str) -> AtomicOutcome | None:
    try:
        return api.show(id_)
    except TransactionNotFound:
        return None


def check(logs: Logs, outcomes: Outcomes, attempts: Sequence[Attempt]) -> None:
    """Each attempt is wholly there on all its topics or on none, once, as its outcome says; nothing else is there."""
    for topic, log in logs.items():
        _check_dense(topic, log)
    owners: dict[str, list[str | None]] = {topic: [None] * len(log) for topic, log in logs.items()}
    for attempt in attempts:
        outcome = outcomes[attempt.id]
        check_answer(attempt, outcome)
        if outcome is not None and outcome.state == "committed":
            _check_placed(logs, owners, attempt, outcome)
    for topic, owned in owners.items():
        strangers = [logs[topic][offset].payload for offset, owner in enumerate(owned) if owner is None]
        assert not strangers, f"topic {topic}: nobody committed {strangers[:3]} ({len(strangers)} in all)"
    check_group_order(attempts, owners)
    _check_numbered(outcomes, attempts)
    _check_key(logs.get("c", ()), attempts, owners.get("c", ()))


def _check_dense(topic: str, log: Sequence[Message]) -> None:
    last = b""
    for offset, message in enumerate(log):
        assert message.offset == offset, f"topic {topic}: offset {message.offset} stands where {offset} should"
        assert last < bytes(message.message_id), f"topic {topic}: the id at offset {offset} does not rise"
        last = bytes(message.message_id)
    assert len({message.payload for message in log}) == len(log), f"topic {topic}: a message is there twice"
    of = defaultdict[str, list[int]](list)
    for message in log:
        if message.producer is not None and message.sequence_id is not None:
            of[message.producer].append(message.sequence_id)
    for producer, ids in of.items():
        assert ids == list(range(len(ids))), f"topic {topic}: the sequence ids of {producer} are not 0, 1, 2, …: {ids[:50]}"


def check_answer(attempt: Attempt, outcome: AtomicOutcome | None) -> None:
    """What its client was answered is what the service says; what it has not asked for has not happened."""
    state = None if outcome is None else outcome.state
    answer = attempt.answer
    if isinstance(answer, OncelogError):
        assert outcome is not None
        assert (state, outcome.reason) == ("aborted", answer.code), f"{attempt.id} was refused and is {outcome}"
    elif answer is not None:
        assert outcome == answer, f"{attempt.id} was answered {answer} and is {outcome}"
    if attempt.commit is None:
        assert state in (*OPEN, "aborted"), f"{attempt.id} is {state}, and no commit was asked for"
    if not attempt.asked:
        assert state in OPEN or attempt.commit is None, f"{attempt.id} ended before its client asked for that: {outcome}"


def _check_placed(logs: Logs, owners: dict[str, list[str | None]], attempt: Attempt, outcome: AtomicOutcome) -> None:
    placed = {topic.topic: topic for topic in outcome.topics if topic.messages}
    wanted = {topic: payloads for topic, payloads in attempt.messages.items() if payloads}
    assert placed.keys() == wanted.keys(), f"{attempt.id} is committed on {sorted(placed)} and was for {sorted(wanted)}"
    assert outcome.messages == sum(map(len, wanted.values())), f"{attempt.id}: {outcome.messages} messages"
    expected = _expected_offsets(attempt)
    for topic, payloads in wanted.items():
        first = placed[topic].first_offset
        assert first is not None
        log = logs[topic][first : first + len(payloads)]
        found = [message.payload.decode() for message in log]
        assert found == payloads, f"{attempt.id}: topic {topic} has {found[:3]}… at {first}, not {payloads[:3]}…"
        assert log[0].message_id == placed[topic].first_message_id, f"{attempt.id}: not its id on topic {topic}"
        assert expected.get(topic, first) == first, (
            f"{attempt.id}: at {first} on topic {topic}, where {expected[topic]} was expected"
        )
        for offset in range(first, first + len(payloads)):
            assert owners[topic][offset] is None, f"topic {topic}: offset {offset} is of {owners[topic][offset]} and {attempt.id}"
            owners[topic][offset] = attempt.id


def _expected_offsets(attempt: Attempt) -> dict[str, int]:
    parts = () if attempt.commit is None else attempt.commit.parts
    return {part.topic: part.request.expected_offset for part in parts if part.request.expected_offset is not None}


def check_group_order(attempts: Iterable[Attempt], owners: Mapping[str, Sequence[str | None]]) -> None:
    """The commits of one group stand in the same order on any two topics that they share."""
    groups = {attempt.id: attempt.group for attempt in attempts}
    for group in set(groups.values()):
        orders = {
            topic: list(dict.fromkeys(owner for owner in owned if owner is not None and groups[owner] == group))
            for topic, owned in owners.items()
        }
        for one, other in combinations(orders, 2):
            shared = set(orders[one]) & set(orders[other])
            first, second = ([each for each in orders[topic] if each in shared] for topic in (one, other))
            differing = [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]]
            assert not differing, f"group {group}: {differing[0]} stand in another order on {one} and {other}"


def _check_numbered(outcomes: Outcomes, attempts: Iterable[Attempt]) -> None:
    """Of the commits with one producer and sequence id, one is committed, and the others are duplicates of it."""
    by_number = defaultdict[tuple[str, str, int], list[AtomicOutcome]](list)
    for attempt in attempts:
        outcome = outcomes[attempt.id]
        if attempt.named is not None and outcome is not None and outcome.state not in OPEN:
            by_number[attempt.named].append(outcome)
    for named, ended in by_number.items():
        originals = [outcome for outcome in ended if outcome.state == "committed"]
        assert len(originals) == 1, f"{named} is committed {len(originals)} times, by {[each.id for each in originals]}"
        for outcome in ended:
            if outcome.state != "committed":
                assert outcome.state == "duplicate", f"{outcome.id}, {named}, is {outcome.state}"
                told = (outcome.original, outcome.checksum, outcome.messages)
                assert told in ((None, None, None), (originals[0].id, originals[0].checksum, originals[0].messages)), outcome


def _check_key(log: Sequence[Message], attempts: Iterable[Attempt], owners: Sequence[str | None]) -> None:
    """Each message with the key was written by somebody who knew of the one before."""
    by_id = {attempt.id: attempt for attempt in attempts}
    newest: int | None = None
    for message, owner in zip(log, owners, strict=False):
        if message.key == KEY:
            commit = by_id[owner or ""].commit
            assert commit is not None
            expected = commit.parts[0].request.expected_key_offsets
            assert expected == {KEY.decode(): newest}, f"{owner} expected {expected}, the newest of the key is {newest}"
            newest = message.offset


def check_repeated(api: JournalApi, attempts: Iterable[Attempt], outcomes: Outcomes) -> None:
    """A commit that is sent again is answered as it was. That it stores nothing is for the caller to see."""
    for attempt in attempts:
        outcome = outcomes[attempt.id]
        if attempt.commit is None or outcome is None or outcome.state in OPEN:
            continue
        if outcome.state == "aborted":
            with pytest.raises(OffsetMismatch) as again:
                api.commit(attempt.id, attempt.commit)
            assert isinstance(attempt.answer, OffsetMismatch | None)
            assert attempt.answer is None or again.value.to_problem() == attempt.answer.to_problem()
        else:
            assert api.commit(attempt.id, attempt.commit) == outcome


def check_verified(url: str, topics: Iterable[str]) -> None:
    """The live maps are the fold of the log."""
    with Client(url) as client:
        for topic in topics:
            *_, verification = client.verify(topic)
            assert isinstance(verification, Verification)
            assert verification.ok, verification.problems
