"""What must hold of transactions: what each reader sees, what is rolled back, and that each is wholly there or wholly not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from oncelog.wire.models import TransactionState
from oncelog.wire.transaction import Transaction
from tests.model.facts import Facts
from tests.model.maps import Entry, fold

_ROLLED_BACK = ("aborted", "invalid")


# --- as a client knows its own, and a reader in a new transaction sees them


@dataclass
class Attempt:
    """One transaction and what its client knows of it."""

    pointer: int
    topic: str
    producer: str
    payloads: list[str] = field(default_factory=list)
    """What it publishes and does not roll back by itself."""
    answered: Literal["committed", "aborted"] | None = None
    complete: bool = False
    """Every publish was acknowledged."""


def check_whole(attempts: Iterable[Attempt], seen: Sequence[str], states: Mapping[int, str]) -> None:
    """Each transaction is wholly there or wholly not, as its status says; nothing is there twice, nothing but what committed."""
    times, expected = Counter(seen), 0
    assert not times or max(times.values()) == 1, f"twice there: {times.most_common(3)}"
    for attempt in attempts:
        state = states[attempt.pointer]
        assert attempt.answered in (None, state), f"{attempt.pointer} was answered {attempt.answered} and is {state}"
        assert state in ("committed", *_ROLLED_BACK), state
        assert state != "committed" or attempt.complete, f"{attempt.pointer} is committed before its client asked for that"
        present = sum(payload in times for payload in attempt.payloads)
        wanted = len(attempt.payloads) if state == "committed" else 0
        assert present == wanted, f"{attempt.pointer} is {state}: {present} of {len(attempt.payloads)} messages are there"
        expected += wanted
    assert len(times) == expected, "there is something that no transaction committed"


def check_nothing_undecided(attempts: Iterable[Attempt], seen: Sequence[str], states: Mapping[int, str]) -> None:
    """Before anybody has cleaned up: a reader is given nothing of what has not committed."""
    given = set(seen)
    for attempt in attempts:
        if attempt.answered != "committed" and states[attempt.pointer] != "committed":
            shown = [payload for payload in attempt.payloads if payload in given]
            assert not shown, f"{attempt.pointer} has not committed, and is read: {shown[:3]}"


# --- as they are on disk


def visible(
    rows: Sequence[Entry], transaction: Transaction, seen: dict[int, TransactionState], own: Sequence[int]
) -> list[Entry]:
    """What a transaction must be given that found the others in these states when it began."""
    found = []
    for each in rows:
        pointer = each.pointer
        if pointer is not None and pointer < 0:
            continue
        if pointer is not None and pointer not in own:
            foreign = pointer not in seen and pointer <= transaction.read_pointer
            if seen.get(pointer) != "committed" and not foreign:
                break
        found.append(each)
    return found


def settled(facts: Facts, entry: Entry, now_ms: int, lifetime_ms: int) -> bool:
    """Whether nothing can change any more about whether the message counts."""
    if entry.pointer is None or entry.pointer < 0:
        return True
    state = facts.state(entry.pointer)
    return state == "committed" or (state is None and facts.expired(entry.pointer, now_ms, lifetime_ms))


def check_signs(facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """All rows of an ended transaction count, or all are rolled back; but for those whose roll-back was asked for alone."""
    for each in log:
        if each.root is None:
            continue
        state = facts.state(each.root)
        asked = any(known.holds(topic, each.root, each.row_id) for known in facts.rolled_back)
        perhaps = any(known.holds(topic, each.root, each.row_id) for known in facts.perhaps_rolled_back)
        if each.counts:
            assert state not in _ROLLED_BACK, f"{topic}: {each} of a transaction that is {state} is not rolled back"
            assert not asked, f"{topic}: the roll-back of {each} was acknowledged"
        else:
            assert asked or perhaps or state in _ROLLED_BACK, f"{topic}: {each} was rolled back, the transaction is {state}"


def check_looks(facts: Facts, topic: str, log: Sequence[Entry]) -> None:
    """A reader that was there meanwhile was given the beginning of what is decided by now, and nothing undecided then."""
    decided = [each for each in log if each.counts and (each.pointer is None or facts.state(each.pointer) == "committed")]
    for of, given in facts.looked:
        if of == topic:
            ours = [each for each in given if facts.placed[topic, each[0]][4] not in facts.foreign]
            assert ours == [each.delivered for each in decided[: len(ours)]], f"{topic}: {ours} was given"
    facts.looked = [each for each in facts.looked if each[0] != topic]


def check_opened(facts: Facts, topic: str, behind: Sequence[Entry]) -> None:
    """A producer resumes behind what is settled, ``behind``, and so behind nothing that may yet be rolled back."""
    if facts.opened is not None and facts.opened[0] == topic:
        _, producer, answered = facts.opened
        last_entry = fold(behind).get(producer)
        assert answered == (None if last_entry is None else last_entry.sequence_id), (
            f"{topic}: {producer} was opened behind {answered}"
        )
        facts.opened = None
