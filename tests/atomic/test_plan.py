"""What is known of each transaction, what is to be given up, which records cannot follow which, and what may be deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.atomic.plan import GiveUp, Plan, PlanError
from oncelog_service.atomic.records import Abort, Begin, Commit, Enlist, Record, TopicRef

A, B = TopicRef("default", "a", 1), TopicRef("default", "b", 1)
NOW, EXPIRES = 1_000, 2_000


def begin(number: int, of: int | None = None, group: str = "g", expires: int = EXPIRES) -> Begin:
    return Begin(number, f"t{number}", group, NOW, expires, None if of is None else f"t{of}")


def commit(number: int, *branches: int) -> Commit:
    return Commit(number, branches)


def follow(plan: Plan, records: Iterable[Record]) -> Plan:
    for record in records:
        plan.apply(record)
    return plan


def plan_of(*records: Record) -> Plan:
    return follow(Plan(), records)


def given_up(plan: Plan, now_ms: int = NOW) -> list[tuple[int, str]]:
    return [(step.number, step.reason) for step in plan.due(now_ms)]


# --- the life of one transaction


def test_a_transaction_is_in_progress_until_it_is_committed_aborted_or_given_up() -> None:
    plan = plan_of(begin(1), Enlist(1, A), Enlist(1, B), Enlist(1, A))
    transaction = plan.transactions[1]
    assert (transaction.id, transaction.group, transaction.began, transaction.expires) == ("t1", "g", NOW, EXPIRES)
    assert list(transaction.topics) == [A, B]
    assert plan.due(EXPIRES - 1) == []
    assert given_up(plan, EXPIRES) == [(1, "timed_out")]
    for end in (commit(1), Abort(1)):
        ended = plan_of(begin(1), end)
        assert (ended.transactions, ended.due(EXPIRES)) == ({}, [])


# --- branches


def test_the_branches_that_a_commit_names_end_with_it_and_its_others_are_given_up() -> None:
    plan = plan_of(begin(1), begin(2, of=1), begin(3, of=1), begin(4), begin(5), commit(1, 4, 2))
    assert list(plan.transactions) == [3, 5]
    assert plan.due(NOW) == [GiveUp(3, "not_named", "its transaction t1 has ended")]


def test_the_branches_of_an_aborted_transaction_are_given_up() -> None:
    plan = plan_of(begin(1), begin(2, of=1), Abort(1))
    assert plan.due(NOW) == [GiveUp(2, "not_named", "its transaction t1 was aborted")]
    assert follow(plan, [Abort(2)]).transactions == {}


def test_a_branch_may_begin_before_its_transaction() -> None:
    plan = plan_of(begin(2, of=1), begin(1))
    assert plan.due(NOW) == []
    assert given_up(follow(plan, [commit(1)])) == [(2, "not_named")]


def test_the_same_id_in_another_group_is_another_transaction() -> None:
    assert plan_of(begin(2, of=1, group="other"), begin(1), Abort(1)).due(NOW) == []


def test_the_branches_of_a_branch_are_given_up_when_it_has_ended_with_its_transaction() -> None:
    assert given_up(plan_of(begin(1), begin(2, of=1), begin(3, of=2), commit(1, 2))) == [(3, "not_named")]


# --- records that cannot follow


@pytest.mark.parametrize(
    "record",
    [
        begin(1),
        Begin(99, "t1", "g", NOW, EXPIRES, None),
        *(Enlist(number, A) for number in (0, 2, 3)),
        *(commit(number) for number in (0, 2, 3)),
        *(commit(1, branch) for branch in (0, 1, 2, 3, 8)),
        commit(1, 7, 7),
        *(Abort(number) for number in (0, 2, 3)),
    ],
    ids=str,
)
def test_a_record_that_cannot_follow_is_refused_and_changes_nothing(record: Record) -> None:
    """Of 0 nothing is known; 1 and 7 are in progress; 2 is committed and 3 was a branch of it; 8 is of another group."""
    life = [*(begin(number) for number in (1, 2, 3, 7)), begin(8, group="other"), commit(2, 3)]
    plan = plan_of(*life)
    with pytest.raises(PlanError):
        follow(plan, [record])
    assert (plan.transactions, plan.position) == (plan_of(*life).transactions, len(life))


# --- what may be deleted


def kept(*records: Record) -> int:
    """From where on records are kept; what is left must say the same as all of them."""
    whole = plan_of(*records)
    begin_at = whole.keep_from()
    left = follow(Plan(begin_at), records[begin_at:])
    assert list(left.transactions.items()) == list(whole.transactions.items())
    assert left.due(EXPIRES) == whole.due(EXPIRES)
    assert (left.position, left.keep_from()) == (whole.position, begin_at)
    for plan in (whole, left):
        assert plan.transactions or not any(vars(plan)[each] for each in ("_ids", "_branches")), "something is remembered"
    return begin_at


def test_everything_from_the_first_transaction_that_has_not_ended_is_kept() -> None:
    assert kept() == 0
    assert kept(begin(1), begin(2), Abort(1)) == 1
    assert kept(begin(1), begin(2), Abort(2)) == 0
    assert kept(begin(1), begin(2), commit(1)) == 1
    assert kept(begin(1), begin(2), Abort(1), Abort(2)) == 4


@given(st.data())
def test_whatever_happens_what_is_kept_says_the_same_as_everything(data: Any) -> None:
    """At every moment of any life; and when all have ended nothing is left."""
    records: list[Record] = []
    moves = st.sampled_from(["begin", "begin", "branch", "branch", "commit", "commit", "abort", "enlist"])
    for number in range(1, data.draw(st.integers(1, 25), "steps")):
        plan = plan_of(*records)
        open_ = list(plan.transactions.values())
        what = data.draw(moves)
        if what == "begin" or not open_:
            records.append(begin(number, of=data.draw(st.none() | st.integers(1, 25)), group=data.draw(st.sampled_from("ggh"))))
        else:
            one = data.draw(st.sampled_from(open_))
            others = [each for each in open_ if each is not one and each.group == one.group]
            if what == "branch":
                records.append(begin(number, of=one.number, group=one.group))
            elif what == "commit":
                named = data.draw(st.lists(st.sampled_from(others), unique_by=id, max_size=3)) if others else []
                records.append(commit(one.number, *(each.number for each in named)))
            else:
                records.append(Abort(one.number) if what == "abort" else Enlist(one.number, A))
        kept(*records)
    while due := plan_of(*records).due(EXPIRES):
        records += [Abort(step.number) for step in due]
    assert kept(*records) == len(records)
