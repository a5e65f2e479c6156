"""Which requests meet which faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_service.rest.table import ROUTES
from oncelog_service.testing.plan import ADDRESSES, REQUESTS, Asked, Fault, FaultNotMet, Plan, asked

came = st.lists(st.sampled_from([Asked("publish", "default", "t"), Asked("publish", "default", "u"), Asked("poll", "n", "t")]))


@given(came, st.sampled_from(["publish", "poll", "any"]), st.sampled_from([None, "t"]), st.integers(1, 4), st.integers(1, 3))
def test_a_fault_strikes_the_nth_that_it_is_about_and_those_behind_it(
    came: list[Asked], request: Any, topic: str | None, nth: int, times: int
) -> None:
    plan = Plan()
    fault = Fault("strike", request, topic, nth=nth, times=times)
    plan.faults.append(fault)
    struck = [at for at, each in enumerate(came) if plan.meet(each)]
    about = [
        at
        for at, each in enumerate(came)
        if request in ("any", each.request) and (topic is None or (each.namespace, each.topic) == ("default", topic))
    ]
    assert struck == about[nth - 1 : nth - 1 + times]
    assert (fault.came, fault.fired, fault.is_over) == (len(about), len(struck), len(struck) == times)


def test_each_fault_counts_from_when_it_is_planned_and_for_itself() -> None:
    plan, publish = Plan(), Asked("publish", "default", "t")
    first, second = Fault("first", "publish", nth=2), Fault("second", "publish", nth=2)
    plan.faults.append(first)
    assert plan.meet(publish) == []
    plan.faults.append(second)
    assert plan.meet(publish) == [first]
    assert plan.meet(publish) == [second]


def test_a_fault_that_struck_less_than_it_was_to_is_told_unless_it_may() -> None:
    plan = Plan()
    plan.faults += [
        Fault("lose the answer to", "publish", "t", nth=2, times=3),
        Fault("kill at", "any"),
        Fault("deliver twice", "poll", optional=True),
    ]
    for _ in range(3):
        plan.meet(Asked("publish", "default", "t"))
    with pytest.raises(FaultNotMet) as told:
        plan.verify()
    assert told.value.faults == plan.faults[:1]
    assert str(told.value).splitlines()[1:] == ["  lose the answer to publish 2 to 4 on 't': struck 2 of 3; 3 came"]
    plan.meet(Asked("publish", "default", "t"))
    plan.verify()


def test_a_fault_of_no_kind_or_at_no_request_is_refused() -> None:
    for wrong, said in (
        ({"request": "publsh"}, "publish, poll, .* not 'publsh'"),
        ({"request": "poll", "nth": 0}, "nth and times .* 0 and 1"),
        ({"request": "poll", "times": 0}, "nth and times .* 1 and 0"),
        ({"request": "commit", "topic": "t"}, "leave topic= out"),
    ):
        with pytest.raises(ValueError, match=said):
            Fault("strike", **wrong)


def test_each_kind_of_request_is_an_address_of_the_table_and_known_by_it() -> None:
    assert set(ADDRESSES) <= {(route.method, route.path) for route in ROUTES}
    assert {*ADDRESSES.values(), "any"} == set(REQUESTS)
    for (method, path), name in ADDRESSES.items():
        said = path.format(namespace="n", topic="t", subscription="s", transaction="x", writePointer="7", chunk="0")
        where = ("n" if "{namespace}" in path else None, "t" if "{topic}" in path else None)
        assert asked(method, said) == Asked(name, *where)
    assert asked("GET", "/v1/namespaces/n/topics/t") == asked("POST", "/v1/namespaces/n/topics/t/trim") == Asked("any", "n", "t")
    assert asked("POST", "/healthz") == asked("GET", "/v1/namespaces/n/topics") == Asked("any")
