"""Grants: what a pattern matches, and that nothing is allowed that no grant names."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import InvalidRequest, NotAllowed
from oncelog_service.access.grants import EVERY_TOPIC, EVERYBODY, Grant, Principal, Right

ON_TOPICS = (Right.READ, Right.WRITE, Right.MANAGE)


def principal(*grants: str) -> Principal:
    return Principal("ada", map(Grant.parse, grants))


@pytest.mark.parametrize(
    ("grant", "right", "on", "answer"),
    [
        ("read:default/orders", Right.READ, "default/orders", True),
        ("read:default/orders", Right.READ, "default/order", False),
        ("read:default/orders", Right.READ, "default/orders2", False),
        ("read:default/orders", Right.READ, "default/orders\n", False),
        ("read:default/orders", Right.READ, "default2/orders", False),
        ("read:default/orders", Right.READ, "Default/orders", False),
        ("read:default/orders", Right.WRITE, "default/orders", False),
        ("read:default/orders", Right.MANAGE, "default/orders", False),
        ("read:default/orders", Right.DESCRIBE, "default/orders", True),
        ("read:default/orders", Right.DESCRIBE, "default/other", False),
        ("read:default/orders", Right.OPERATE, "", False),
        ("read:default/orders", Right.ADMIN, "", False),
        ("read:default/a.c", Right.READ, "default/abc", False),  # a dot is a dot
        ("read:default/a*", Right.READ, "default/a", True),
        ("read:default/a*c", Right.READ, "default/abbc", True),
        ("read:default/a*c", Right.READ, "default/acb", False),
        ("read:default/*-*", Right.READ, "default/a-b", True),
        ("read:default/**", Right.READ, "default/a", True),
        ("read:*/orders", Right.READ, "any/orders", True),
        ("read:*/orders", Right.READ, "any/other/orders", False),  # never over a slash
        ("read:d*/*", Right.READ, "default/a", True),
        ("read:d*/*", Right.READ, "efault/a", False),
        ("write:default/*", Right.READ, "default/a", False),
        ("write:default/*", Right.DESCRIBE, "default/a", True),
        ("manage:default/*", Right.WRITE, "default/a", False),
        ("manage:default/*", Right.MANAGE, f"default/{EVERY_TOPIC}", True),
        ("manage:default/a*", Right.MANAGE, f"default/{EVERY_TOPIC}", False),  # what holds for the namespace is not this one's
        ("manage:*/*", Right.MANAGE, f"any/{EVERY_TOPIC}", True),
        ("read:default/a", Right.DESCRIBE, f"default/{EVERY_TOPIC}", False),
        ("observe", Right.OBSERVE, "", True),
        ("observe", Right.DESCRIBE, "default/a", True),
        ("observe", Right.READ, "default/a", False),
        ("observe", Right.OPERATE, "", False),
        ("observe", Right.SERVICE, "", False),
        ("operate", Right.OPERATE, "", True),
        ("operate", Right.OBSERVE, "", True),
        ("operate", Right.SERVICE, "", False),
        ("operate", Right.DESCRIBE, "default/a", True),
        ("operate", Right.READ, "default/a", False),
        ("operate", Right.WRITE, "default/a", False),
        ("operate", Right.MANAGE, "default/a", False),
        ("operate", Right.ADMIN, "", False),
        ("service", Right.OPERATE, "", True),
        ("service", Right.OBSERVE, "", True),
        ("service", Right.READ, "default/a", False),
        ("service", Right.ADMIN, "", False),
        *(("admin", right, "default/a" if right in ON_TOPICS else "", right is not Right.SERVICE) for right in Right),
    ],
)
def test_a_grant_allows_what_it_names_and_nothing_else(grant: str, right: Right, on: str, answer: bool) -> None:
    who = principal(grant)
    namespace, _, topic = on.partition("/")
    for _ in range(2):  # the second answer is remembered
        assert who.may(right, namespace, topic) is answer
        if not answer:
            with pytest.raises(NotAllowed) as refused:
                who.check(right, namespace, topic)
            assert (refused.value.detail or "").startswith("ada may not do this: the grant ")


@pytest.mark.parametrize("grant", ["write:default/{}", "write:{}/a", "write:default/a:{}"])
def test_a_pattern_of_many_stars_is_judged_at_once(grant: str) -> None:
    who = principal(grant.format("*a" * 60 + "*b"))
    name = "a" * 249
    for topic, producer in ((name, None), ("a", name)):
        with pytest.raises(NotAllowed):
            who.check_producer(name, topic, producer)
        with pytest.raises(NotAllowed):
            who.check_producer("default", topic, producer)
    assert not who.knows(name)


@pytest.mark.parametrize(
    "text",
    [
        "", "reads:default/a", "read", "read:", "read:default", "read:default/", "read:/a", "read:default/a/b", "Read:default/a",
        "describe:default/a", "describe", "admin:default/a", "operate:*/*", "observe:*/*", "services",
        " read:default/a", "read:default/a ", "read:default/a\n",
        "read:default/a:p", "manage:default/a:p", "write:default/a:", "write:default/a:p:q\n", "read:d.d/a", "read:default/é",
        "read:default/" + "a" * 250, "admin\n", "*", "read:default/(a|b)",
    ],
)  # fmt: skip
def test_what_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="not a grant"):
        Grant.parse(text)


@pytest.mark.parametrize(
    ("grants", "producer", "answer"),
    [
        (["write:default/t"], "anyone", True),
        (["write:default/t"], None, True),
        (["write:default/t:loader-*"], "loader-1", True),
        (["write:default/t:loader-*"], "xloader-1", False),
        (["write:default/t:loader-*"], "loader-1\n", False),
        (["write:default/t:loader-*"], None, False),
        (["write:default/t:loader-*"], "", False),
        (["write:default/t:a", "write:default/t:b"], "b", True),
        (["write:default/t:a", "write:default/u"], "b", False),
        (["read:default/t", "manage:default/t"], "a", False),
        (["operate"], "a", False),
        (["admin"], None, True),
    ],
)
def test_under_which_names_one_publishes(grants: list[str], producer: str | None, answer: bool) -> None:
    who = principal(*grants)
    for _ in range(2):  # the second answer is remembered
        with nullcontext() if answer else pytest.raises(NotAllowed, match="write:default/t"):
            who.check_producer("default", "t", producer)
        for right in ON_TOPICS:  # and is another one than that of a right
            assert who.may(right, "default", "t") is (
                "admin" in grants or any(each.startswith(f"{right.value}:default/t") for each in grants)
            )


def test_namespaces_are_known_to_whoever_has_a_grant_that_may_be_in_one() -> None:
    who = principal("read:sales_*/orders")
    assert who.knows("sales_eu")
    assert not who.knows("default")
    assert not principal("write:default/t").knows("other")
    assert principal("observe").knows("any")
    assert principal("operate").knows("any")
    assert EVERYBODY.knows("any")
    assert not principal().knows("any")


def test_without_grants_nothing_is_allowed() -> None:
    assert not any(principal().may(right, "default", "t") for right in Right)


def test_what_is_remembered_of_many_topics_stays_right() -> None:
    who = principal("read:default/t1*")
    for _ in range(2):
        for number in range(5_000):
            assert who.may(Right.READ, "default", f"t{number}") is str(number).startswith("1")
    assert len(who._answers) <= 4_096


# --- against a model that walks both strings, letter by letter

LETTERS = st.text("ab-", min_size=1, max_size=4)
PATTERNS = st.text("ab-*", min_size=1, max_size=4)


def matches(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return matches(pattern[1:], name) or bool(name and matches(pattern, name[1:]))
    return bool(name) and pattern[0] == name[0] and matches(pattern[1:], name[1:])


@st.composite
def grants(draw: st.DrawFn) -> tuple[str, ...]:
    """The parts of a grant: right, namespace, topic, producers."""
    kind = draw(st.sampled_from(["read", "write", "manage", "observe", "operate", "service", "admin"]))
    if kind in ("observe", "operate", "service", "admin"):
        return (kind,)
    parts = (kind, draw(PATTERNS.map(lambda text: text.replace("-", "_"))), draw(PATTERNS))
    return (*parts, draw(PATTERNS)) if kind == "write" and draw(st.booleans()) else parts


def written(parts: tuple[str, ...]) -> str:
    return parts[0] if len(parts) == 1 else f"{parts[0]}:{parts[1]}/{':'.join(parts[2:])}"


@given(st.lists(grants(), max_size=4), LETTERS.map(lambda text: text.replace("-", "_")), LETTERS, st.none() | LETTERS)
def test_a_principal_may_do_what_a_naive_reading_of_its_grants_says(
    held: list[tuple[str, ...]], namespace: str, topic: str, producer: str | None
) -> None:
    who = principal(*map(written, held))
    kinds = {parts[0] for parts in held}
    here = [parts for parts in held if len(parts) > 1 and matches(parts[1], namespace) and matches(parts[2], topic)]
    for right in ON_TOPICS:
        assert who.may(right, namespace, topic) is ("admin" in kinds or any(parts[0] == right.value for parts in here))
    observes = bool({"admin", "service", "operate", "observe"} & kinds)
    assert who.may(Right.DESCRIBE, namespace, topic) is bool(observes or here)
    assert who.may(Right.OBSERVE) is observes
    assert who.may(Right.OPERATE) is bool({"admin", "service", "operate"} & kinds)
    assert who.may(Right.SERVICE) is ("service" in kinds)
    assert who.may(Right.ADMIN) is ("admin" in kinds)
    lets = [parts for parts in here if parts[0] == "write" and (len(parts) == 3 or (producer and matches(parts[3], producer)))]
    try:
        who.check_producer(namespace, topic, producer)
    except NotAllowed:
        assert not lets
        assert "admin" not in kinds
    else:
        assert lets or "admin" in kinds
