"""What is to be done about each transaction, and which records cannot follow which."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from oncelog_service.journal.plan import Apply, Decide, Finish, GiveUp, Plan, PlanError, Step
from oncelog_service.journal.records import (
    Abort,
    Applied,
    ApplyCommit,
    Begin,
    Commit,
    Enlist,
    PrepareCommit,
    Record,
    TopicPart,
    TopicRef,
)

A, B, C = TopicRef("default", "a", 1), TopicRef("default", "b", 1), TopicRef("default", "c", 1)
NOW, EXPIRES = 1_000, 2_000


def begin(number: int, of: int | None = None, group: str = "g", expires: int = EXPIRES) -> Begin:
    return Begin(number, f"t{number}", group, NOW, expires, None if of is None else f"t{of}")


def commit(number: int, *branches: int) -> Commit:
    return Commit(number, branches, None, None, None, None)


def prepare(number: int, order: int, *topics: TopicRef, branches: tuple[int, ...] = ()) -> PrepareCommit:
    return PrepareCommit(number, order, tuple(TopicPart(topic, branches or (number,)) for topic in topics))


def applied(number: int, topic: TopicRef) -> ApplyCommit:
    return ApplyCommit(number, topic, 1, 0, "00")


def abort(number: int) -> Abort:
    return Abort(number, "asked", "", None)


def follow(plan: Plan, records: Iterable[Record]) -> Plan:
    for record in records:
        plan.apply(plan.position, record)
    return plan


def plan_of(*records: Record) -> Plan:
    return follow(Plan(), records)


def apply_step(number: int, topic: TopicRef, *branches: int) -> Apply:
    return Apply(number, TopicPart(topic, branches or (number,)))


def given_up(steps: Iterable[Step]) -> list[tuple[int, str]]:
    return [(step.number, step.reason) for step in steps if isinstance(step, GiveUp)]


# --- the life of one transaction


def test_a_transaction_in_progress_asks_for_nothing() -> None:
    plan = plan_of(begin(1), Enlist(1, A), Enlist(1, B), Enlist(1, A))
    transaction = plan.transactions[1]
    assert (transaction.id, transaction.group, transaction.began, transaction.expires, transaction.of) == (
        "t1",
        "g",
        NOW,
        EXPIRES,
        None,
    )
    assert list(transaction.topics) == [A, B]
    assert transaction.in_progress
    assert plan.steps(EXPIRES - 1) == plan.steps_of(1) == []


def test_a_commit_is_decided_then_applied_on_every_topic_then_finished() -> None:
    plan = plan_of(begin(1), commit(1))
    assert plan.steps(NOW) == plan.steps_of(1) == [Decide(1)]
    follow(plan, [prepare(1, 0, B, A)])
    assert plan.steps(NOW) == plan.steps_of(1) == [apply_step(1, B), apply_step(1, A)]
    follow(plan, [applied(1, A)])
    assert plan.steps(NOW) == plan.steps_of(1) == [apply_step(1, B)]
    follow(plan, [applied(1, B)])
    assert plan.transactions[1].applied == {A: applied(1, A), B: applied(1, B)}
    assert plan.steps(NOW) == plan.steps_of(1) == [Finish(1)]
    follow(plan, [Applied(1)])
    assert plan.transactions == {}
    assert plan.steps(NOW) == plan.steps_of(1) == []


def test_a_commit_without_messages_is_finished_at_once() -> None:
    assert plan_of(begin(1), commit(1), prepare(1, 0)).steps(NOW) == [Finish(1)]


@pytest.mark.parametrize("before", [[], [commit(1)]])
def test_an_aborted_transaction_has_ended(before: list[Record]) -> None:
    plan = plan_of(begin(1), *before, abort(1))
    assert plan.transactions == {}
    assert plan.steps(EXPIRES) == []


def test_a_transaction_is_given_up_at_the_very_millisecond_at_which_it_expires() -> None:
    plan = plan_of(begin(1))
    assert plan.steps(EXPIRES - 1) == []
    assert given_up(plan.steps(EXPIRES)) == [(1, "timed_out")]
    assert plan.steps_of(1) == []


@pytest.mark.parametrize("records", [[commit(1)], [commit(1), prepare(1, 0, A)]])
def test_who_is_committing_does_not_time_out(records: list[Record]) -> None:
    assert given_up(plan_of(begin(1), *records).steps(EXPIRES)) == []


# --- order


def test_prepared_ones_are_applied_in_their_order_before_anything_is_decided_or_given_up() -> None:
    plan = plan_of(
        begin(1),
        begin(2),
        begin(3),
        begin(4),
        begin(5),
        commit(4),
        commit(3),
        commit(2),
        commit(1),
        prepare(2, 7, A, B),
        prepare(1, 9, B, A),
    )
    steps = [apply_step(2, A), apply_step(2, B), apply_step(1, B), apply_step(1, A), Decide(4), Decide(3)]
    assert plan.steps(EXPIRES)[:-1] == steps
    assert given_up(plan.steps(EXPIRES)) == [(5, "timed_out")]


def test_a_topic_gets_what_was_prepared_first_before_what_was_prepared_later() -> None:
    plan = plan_of(begin(1), begin(2), commit(1), commit(2), prepare(1, 0, A, B), prepare(2, 1, B, C))
    assert plan.steps_of(2) == [apply_step(2, C)]
    with pytest.raises(PlanError, match="prepared before it"):
        follow(plan, [applied(2, B)])
    follow(plan, [applied(1, B)])
    assert plan.steps_of(2) == [apply_step(2, B), apply_step(2, C)]
    follow(plan, [applied(2, C)])
    assert plan.steps_of(2) == [apply_step(2, B)]


def test_who_waits_for_one_prepared_before_is_not_finished() -> None:
    plan = plan_of(begin(1), begin(2), commit(1), commit(2), prepare(1, 0, A), prepare(2, 1, A))
    assert plan.steps_of(2) == []
    follow(plan, [applied(1, A), applied(2, A)])
    assert plan.steps_of(2) == [Finish(2)]


def test_the_next_order_lies_above_every_order_whatever_was_deleted() -> None:
    plan = plan_of(begin(1), commit(1))
    first = plan.next_order
    follow(plan, [prepare(1, first, A)])
    assert plan.next_order > first
    follow(plan, [applied(1, A), Applied(1)])
    assert Plan(plan.keep_from()).next_order == plan.next_order > first


# --- branches


def test_a_branch_ends_with_the_transaction_that_named_it() -> None:
    plan = plan_of(begin(1), begin(2, of=1), begin(3, of=1), commit(1, 3, 2))
    assert [plan.transactions[number].held_by for number in (1, 2, 3)] == [None, 1, 1]
    follow(plan, [prepare(1, 0, A, branches=(3, 2))])
    assert [plan.transactions[number].adopted_by for number in (1, 2, 3)] == [None, 1, 1]
    assert [plan.transactions[number].held_by for number in (1, 2, 3)] == [None] * 3
    assert plan.transactions[2].left_out is None
    assert plan.steps(EXPIRES) == [apply_step(1, A, 3, 2)]
    follow(plan, [applied(1, A), Applied(1)])
    assert plan.transactions == {}


def test_a_branch_that_a_commit_names_does_not_time_out() -> None:
    records = [begin(1), begin(2, of=1), commit(1, 2)]
    assert plan_of(*records).steps(EXPIRES) == [Decide(1)]
    assert given_up(plan_of(*records, prepare(1, 0)).steps(EXPIRES)) == []
    assert plan_of(*records, prepare(1, 0)).steps_of(2) == []


def test_a_branch_that_the_commit_did_not_name_is_given_up_once_it_is_prepared() -> None:
    plan = plan_of(begin(1), begin(2, of=1), begin(3, of=1), commit(1, 2))
    assert given_up(plan.steps(NOW)) == []
    follow(plan, [prepare(1, 0, A)])
    assert given_up(plan.steps(NOW)) == [(3, "not_named")]
    assert plan.steps_of(3) == plan.steps(NOW)[1:]
    follow(plan, [applied(1, A), Applied(1)])
    assert plan.steps(NOW) == [GiveUp(3, "not_named", "its transaction t1 was prepared without it")]


@pytest.mark.parametrize("before", [[], [commit(1, 2)]])
def test_the_branches_of_an_aborted_transaction_are_given_up(before: list[Record]) -> None:
    plan = plan_of(begin(1), begin(2, of=1), *before, abort(1))
    assert plan.steps(NOW) == plan.steps_of(2) == [GiveUp(2, "not_named", "its transaction t1 was aborted")]
    follow(plan, [abort(2)])
    assert plan.transactions == {}


def test_a_transaction_that_was_named_without_being_for_anybody_goes_on_when_the_commit_is_refused() -> None:
    plan = plan_of(begin(1), begin(2), commit(1, 2), abort(1))
    assert plan.steps(NOW) == []
    assert plan.transactions[2].in_progress
    follow(plan, [commit(2)])
    assert plan.steps(NOW) == [Decide(2)]


def test_a_branch_that_begins_after_its_transaction_was_prepared_is_given_up() -> None:
    plan = plan_of(begin(1), commit(1), prepare(1, 0, A), begin(2, of=1))
    assert given_up(plan.steps(NOW)) == [(2, "not_named")]


def test_a_branch_may_begin_before_its_transaction() -> None:
    plan = plan_of(begin(2, of=1), begin(1))
    assert plan.steps(NOW) == []
    follow(plan, [commit(1), prepare(1, 0)])
    assert given_up(plan.steps(NOW)) == [(2, "not_named")]


def test_the_same_id_in_another_group_is_another_transaction() -> None:
    plan = plan_of(begin(2, of=1, group="other"), begin(1), abort(1))
    assert plan.steps(NOW) == []


def test_the_branches_of_a_branch_are_given_up_when_it_has_ended_with_its_transaction() -> None:
    plan = plan_of(begin(1), begin(2, of=1), begin(3, of=2), commit(1, 2), prepare(1, 0), Applied(1))
    assert given_up(plan.steps(NOW)) == [(3, "not_named")]


def test_a_branch_that_commits_by_itself_is_decided_although_its_transaction_has_ended() -> None:
    plan = plan_of(begin(1), begin(2, of=1), commit(2), abort(1))
    assert plan.steps(EXPIRES) == [Decide(2)]


# --- records that cannot follow


@pytest.mark.parametrize(
    "record",
    [
        begin(1),
        Begin(99, "t1", "g", NOW, EXPIRES, None),
        *(Enlist(number, A) for number in (0, 2, 3, 4, 5)),
        *(commit(number) for number in (0, 2, 3, 4, 5)),
        *(commit(1, branch) for branch in (0, 1, 2, 3, 4, 5, 8)),
        commit(1, 7, 7),
        *(prepare(number, 10, A) for number in (0, 1, 3, 4, 5)),
        prepare(2, 5, A),
        prepare(2, 10, A, A),
        prepare(2, 10, A, branches=(2, 7)),
        prepare(2, 10, A, branches=(5,)),
        *(applied(number, A) for number in (0, 1, 2, 4, 5)),
        applied(3, B),
        applied(3, C),
        *(Applied(number) for number in (0, 1, 2, 3, 4, 5)),
        *(abort(number) for number in (0, 3, 4, 5)),
    ],
    ids=str,
)
def test_a_record_that_cannot_follow_is_refused_and_changes_nothing(record: Record) -> None:
    """Of 0 nothing is known; 1 and 7 are in progress; 2 commits and holds 4; 3 is prepared, on B already, and has adopted 5."""
    life = [
        *(begin(number) for number in (1, 2, 3, 4, 5, 7)),
        begin(8, group="other"),
        commit(2, 4),
        commit(3, 5),
        prepare(3, 5, A, B),
        applied(3, B),
    ]
    plan = plan_of(*life)
    with pytest.raises(PlanError):
        follow(plan, [record])
    assert plan.transactions == plan_of(*life).transactions
    assert plan.steps(EXPIRES) == plan_of(*life).steps(EXPIRES)
    assert plan.position == len(life)


def test_a_record_whose_position_has_been_passed_changes_nothing() -> None:
    plan = plan_of(begin(1), commit(1))
    plan.apply(0, begin(1))
    plan.apply(1, abort(1))
    assert plan.position == 2
    assert plan.steps(NOW) == [Decide(1)]


def test_a_missing_record_is_noticed() -> None:
    plan = plan_of(begin(1))
    with pytest.raises(PlanError, match="position 1 is missing"):
        plan.apply(2, commit(1))


# --- what may be deleted


def kept(*records: Record) -> int:
    """From where on records are kept; what is left must say the same as all of them."""
    whole = plan_of(*records)
    begin_at = whole.keep_from()
    left = follow(Plan(begin_at), records[begin_at:])
    assert left.transactions == whole.transactions
    assert list(left.transactions) == list(whole.transactions)
    assert left.steps(EXPIRES) == whole.steps(EXPIRES)
    assert (left.position, left.next_order, left.keep_from()) == (whole.position, whole.next_order, begin_at)
    return begin_at


def test_everything_from_the_first_transaction_that_has_not_ended_is_kept() -> None:
    assert kept() == 0
    assert kept(begin(1), begin(2), abort(1)) == 1
    assert kept(begin(1), begin(2), abort(2)) == 0
    assert kept(begin(1), begin(2), commit(1), prepare(1, 0, A), applied(1, A), Applied(1)) == 1


def test_nothing_is_kept_when_all_have_ended() -> None:
    assert kept(begin(1), begin(2), abort(1), abort(2)) == 4


def test_an_adopted_branch_is_kept_as_long_as_its_transaction() -> None:
    records = [begin(2, of=1), begin(3), begin(1), commit(1, 2), prepare(1, 0)]
    assert kept(*records) == 0
    assert kept(*records, Applied(1)) == 1


def test_why_a_branch_is_to_be_given_up_is_kept_until_it_is() -> None:
    records = [begin(1), begin(2, of=1), abort(1)]
    assert kept(*records) == 0
    assert kept(*records, abort(2)) == 4
    late = [begin(1), commit(1), prepare(1, 0), begin(2, of=1), Applied(1)]
    assert kept(*late) == 0


def test_a_branch_ends_although_the_beginning_of_its_transaction_is_gone() -> None:
    assert kept(begin(1), begin(3), begin(2, of=1), Enlist(1, A), commit(1, 2), prepare(1, 0, A), applied(1, A), Applied(1)) == 1
    assert kept(begin(1), begin(3), begin(2, of=1), commit(1, 2), abort(1), abort(2)) == 1


def test_a_transaction_ends_although_the_beginning_of_its_branch_is_gone() -> None:
    assert kept(begin(2, of=1), begin(3), begin(1), commit(1, 2), prepare(1, 0, A, branches=(2,)), applied(1, A), Applied(1)) == 1


@pytest.mark.parametrize("begins_at", [0, 1])
def test_nothing_is_remembered_of_what_has_ended(begins_at: int) -> None:
    """Also if it had ended before the plan began."""
    named = [begin(1), begin(2, of=1), begin(3, of=1), commit(1, 2), prepare(1, 0, A), applied(1, A), Applied(1), abort(3)]
    refused = [begin(11), begin(12, of=11), commit(11, 12), abort(11), abort(12)]
    for records in (named, refused):
        plan = follow(Plan(begins_at), records[begins_at:])
        assert not [name for name, value in vars(plan).items() if isinstance(value, dict) and value]
