"""Transactions and atomic commits: what is open, by whom, what it holds; and ending one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.access.carrying import Carrying
from tests.console.browsing import IN_A_BROWSER, assert_accessible, sign_in
from tests.patience import until
from tests.rest.talk import Calls, Topic
from tests.world.service import RunningService, running_service

pytestmark = IN_A_BROWSER

Show = Callable[..., Page]

TX = "/v1/transactions"
HOSTILE = '<img src=x onerror="alert(1)">&amp;\u202e'
"""A database may be called anything."""
OPEN, HELD, INVALID = "Transactions in progress", "Held messages, by topic and write pointer", "Invalid transactions"
names = count()


def row(page: Page, table: str, has: Any) -> Locator:
    return page.get_by_role("table", name=table).get_by_role("row").filter(has_text=str(has))


def begin(calls: Calls, **fields: Any) -> int:
    pointer: int = calls.good("POST", TX, json={"type": "long", **fields})["writePointer"]
    return pointer


def state(calls: Calls, pointer: int) -> str:
    return str(calls.good("GET", f"{TX}/{pointer}")["state"])


def prepare(calls: Calls, pointer: int, resource: str = "postgresql-main") -> None:
    calls.good("POST", f"{TX}/{pointer}/can-commit", json={"changes": [], "resource": resource})


@pytest.fixture
def topic(service: RunningService) -> Topic:
    return Topic(service.url, f"t{next(names)}")


# --- transactions


def test_transactions_are_shown_with_what_they_hold_and_one_of_them_until_it_has_ended(
    calls: Calls, show: Show, topic: Topic
) -> None:
    pointer = begin(calls)
    topic.publish_under(pointer, "a", "b", producer="web", sequenceIds=[1, 2])
    further = calls.good("POST", f"{TX}/{pointer}/checkpoint")["writePointer"]
    topic.publish_under(further, "c")
    page = show("transactions")
    name = topic.url.rpartition("/")[2]
    spent, left = re.compile(r"^[\d.]+ (µs|ms|s|min)$"), re.compile(r"^in 25 h$")
    expect(row(page, OPEN, pointer).get_by_role("cell")).to_have_text(
        ["nobody", "in progress long, 1 checkpoints", spent, left, f"default/{name}", "3", "AbortGive up"]
    )
    held = row(page, HELD, f"default/{name}")
    expect(held).to_have_count(2)
    expect(held.first.get_by_role("cell")).to_have_text([str(pointer), "in progress", spent, "0", "2", "web"])
    assert_accessible(page)
    page.keyboard.press("/")
    page.keyboard.type(f"{further}\n")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Transactions {further}")
    one = page.get_by_role("region", name=f"Transaction {further}")
    expect(one).to_contain_text(f"Checkpoints{further}")
    expect(page.get_by_role("table", name=HELD).get_by_role("row")).to_have_count(3)
    assert_accessible(page)
    calls.good("POST", f"{TX}/{pointer}/commit", json={})
    expect(one).to_contain_text("committed")  # by itself
    expect(one.get_by_role("button")).to_have_count(0)
    expect(page.get_by_text("Nothing: on every topic")).to_be_visible()


def test_a_transaction_is_aborted_or_given_up_after_it_was_asked(calls: Calls, show: Show, topic: Topic) -> None:
    aborted, given_up = begin(calls), begin(calls)
    topic.publish_under(aborted, "a")
    page = show("transactions")
    row(page, OPEN, aborted).get_by_role("button", name="Abort").click()
    dialog = page.get_by_role("dialog", name=f"Abort transaction {aborted}?")
    assert_accessible(page)
    dialog.get_by_role("button", name="Cancel").click()
    assert state(calls, aborted) == "in_progress"
    row(page, OPEN, aborted).get_by_role("button", name="Abort").click()
    dialog.get_by_role("button", name="Abort").click()
    expect(row(page, OPEN, aborted)).to_have_count(0)
    assert state(calls, aborted) == "aborted"
    expect(row(page, OPEN, given_up)).to_have_count(1)
    row(page, OPEN, given_up).get_by_role("button", name="Give up").click()
    page.get_by_role("dialog", name=f"Give transaction {given_up} up?").get_by_role("button", name="Give up").click()
    invalid = row(page, INVALID, given_up)
    invalid.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog", name=f"Forget invalid transaction {given_up}?").get_by_role("button", name="Forget").click()
    expect(invalid).to_have_count(0)
    assert calls.good("GET", TX, params={"state": "invalid"}) == []


def test_one_that_a_database_decides_is_ended_only_by_who_types_its_number(calls: Calls, show: Show) -> None:
    committed, aborted = begin(calls), begin(calls)
    for pointer in (committed, aborted):
        prepare(calls, pointer, HOSTILE)
    page = show("transactions")
    for pointer, action, ends in ((committed, "Commit", "committed"), (aborted, "Abort", "aborted")):
        expect(row(page, OPEN, pointer)).to_contain_text(f"prepared {HOSTILE}")
        row(page, OPEN, pointer).get_by_role("button", name=action).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"{HOSTILE} decides it")
        assert_accessible(page)
        expect(dialog.get_by_role("button", name=action)).to_be_disabled()
        dialog.get_by_label("to go on").fill(str(pointer))
        dialog.get_by_role("button", name=action).click()
        expect(row(page, OPEN, pointer)).to_have_count(0)
        assert state(calls, pointer) == ends
    assert page.locator("img[src=x]").count() == 0


def test_one_that_is_prepared_meanwhile_is_left_to_its_database(calls: Calls, show: Show) -> None:
    pointer = begin(calls)
    page = show(f"transactions/{pointer}")
    page.get_by_role("button", name="Abort").click()
    prepare(calls, pointer)
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Abort").click()
    expect(dialog.get_by_role("alert")).to_contain_text("transaction_prepared")
    assert state(calls, pointer) == "in_progress"
    calls.good("POST", f"{TX}/{pointer}/abort", json={})


def test_old_invalid_ones_are_forgotten_by_a_time(calls: Calls, show: Show) -> None:
    calls.good("POST", f"{TX}/prune", json={"beforeMs": 2**45})
    for _ in range(3):
        calls.good("POST", f"{TX}/{begin(calls)}/invalidate")
    page = show("transactions")
    expect(page.get_by_role("heading", name="Invalid (3)")).to_be_visible()
    page.get_by_role("button", name="Forget old ones").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Begun before").fill("whenever")
    dialog.get_by_role("button", name="Forget").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is no time")
    dialog.get_by_label("Begun before").fill("2999-01-01 00:00")
    dialog.get_by_role("button", name="Forget").click()
    expect(page.get_by_role("heading", name="Invalid (0)")).to_be_visible()
    assert calls.good("GET", TX, params={"state": "invalid"}) == []


@pytest.fixture(scope="module")
def locked() -> Iterator[Carrying]:
    with running_service() as running:
        yield Carrying(running.url).holding("ada", "admin")


def test_one_sees_and_ends_ones_own_and_an_operator_those_of_others(locked: Carrying, show: Show) -> None:
    secrets = {name: locked.make(name, *grants)["secret"] for name, grants in {
        "mine": ["write:default/*"], "theirs": ["write:default/*"], "grace": ["operate"],
    }.items()}  # fmt: skip
    mine, theirs = (begin(locked.carrying(secrets[name])) for name in ("mine", "theirs"))
    page = show("transactions", url=locked.base)
    sign_in(page, secrets["mine"])
    expect(row(page, OPEN, mine)).to_contain_text("mine")
    expect(page.get_by_role("heading", name="In progress (1)")).to_be_visible()
    expect(page.get_by_role("region", name="What topics hold back")).to_contain_text("mine lacks the grant operate")
    page.get_by_label("Write pointer").fill(str(theirs))
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("region", name=f"Transaction {theirs}")).to_contain_text("mine lacks the grant operate")
    assert_accessible(page)
    page.get_by_role("button", name="Sign out").click()
    sign_in(page, secrets["grace"])
    page.goto(f"{locked.base}/console#/transactions")
    expect(row(page, OPEN, mine)).to_contain_text("mine")
    row(page, OPEN, theirs).get_by_role("button", name="Abort").click()
    expect(page.get_by_role("dialog")).to_contain_text("It belongs to theirs.")
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    expect(row(page, OPEN, theirs)).to_have_count(0)
    assert state(locked, theirs) == "aborted"


# --- atomic commits


def test_atomic_commits_are_shown_filtered_and_aborted(calls: Calls, show: Show, topic: Topic) -> None:
    for made, group in (("import:1", "shop"), ("import:2", "other")):
        calls.good("POST", "/v1/atomic", json={"id": made, "group": group, "timeoutMs": 3_600_000})
    calls.good("POST", "/v1/atomic", json={"id": "part@1", "of": "import:1", "group": "shop"})
    assert topic.request("PUT", "/stage/import:1/0", json={"messages": ["a"]}).ok
    page = show("atomic")
    table = "Atomic commits in progress"
    spent = re.compile(r"^[\d.]+ (µs|ms|s|min)$")
    name = topic.url.rpartition("/")[2]
    cells = row(page, table, "import:1").first.get_by_role("cell")
    expect(cells).to_have_text(["shop", "nobody", "–", spent, re.compile(r"^in (60|59\.\d+) min$"), f"default/{name}", "Abort"])
    expect(row(page, table, "part@1")).to_contain_text("import:1")
    assert_accessible(page)
    page.get_by_label("Only of group").fill("other")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("table", name=table).get_by_role("rowheader")).to_have_text(["import:2"])
    row(page, table, "import:2").get_by_role("button", name="Abort").click()
    page.get_by_role("dialog", name="Abort atomic commit import:2?").get_by_role("button", name="Abort").click()
    expect(row(page, table, "import:2")).to_have_count(0)
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("import:2\n")
    one = page.get_by_role("region", name="Atomic commit import:2")
    expect(one).to_contain_text("aborted asked")
    page.goto(page.url.replace("import%3A2", "import%3A1"))
    one = page.get_by_role("region", name="Atomic commit import:1")
    expect(one).to_contain_text("staged")
    one.get_by_role("button", name="Abort").click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    expect(one).to_contain_text("aborted asked")
    until(lambda: calls.good("GET", "/v1/atomic") == [], "its branch goes with it")


def test_what_became_of_an_atomic_commit_and_who_commits_under_a_name(calls: Calls, show: Show, topic: Topic) -> None:
    name = topic.url.rpartition("/")[2]
    part = {"namespace": "default", "topic": name, "request": {"messages": ["a", "b"]}}
    body = {"group": "shop", "parts": [part], "producer": "till@1", "sequenceId": 2**62, "incarnation": "9f3c"}
    calls.good("POST", "/v1/atomic/order-1/commit", json=body)
    page = show("atomic/order-1")
    one = page.get_by_role("region", name="Atomic commit order-1")
    expect(one).to_contain_text("committed")
    expect(one).to_contain_text(f"till@1, sequence id {2**62:,}")
    expect(row(page, "Its messages, by topic", name).get_by_role("cell")).to_have_text(["2", "0", "1"])
    assert_accessible(page)
    page.get_by_role("link", name="All atomic commits").click()
    group = page.get_by_role("region", name="Producer of a group")
    group.get_by_label("Group").fill("shop")
    group.get_by_label("Producer").fill("till@1")
    group.get_by_role("button", name="Show").click()
    expect(group).to_contain_text(f"Newest sequence id{2**62:,}")
    expect(group.get_by_role("link", name="order-1")).to_be_visible()
    group.get_by_role("button", name="Forget").click()
    dialog = page.get_by_role("dialog", name="Forget producer till@1 of group shop?")
    dialog.get_by_label("to go on").fill("till@1")
    dialog.get_by_role("button", name="Forget").click()
    expect(group.get_by_role("alert")).to_contain_text("group_producer_not_found")
    assert_accessible(page)


@pytest.mark.parametrize(
    ("address", "said"), [("atomic/never", "transaction_not_found"), ("transactions/77", "transaction_not_found")]
)
def test_of_one_that_is_not_known_it_is_said(address: str, said: str, show: Show) -> None:
    expect(show(address).get_by_role("alert").filter(has_text=said)).to_be_visible()
