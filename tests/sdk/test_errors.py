"""One hierarchy for service and SDK: what the service raises is what the SDK raises."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import errors
from oncelog.errors import InternalError, InvalidRequest, OncelogError, ProducerFenced, SequenceGap, all_errors, from_problem

EVERY = all_errors()
ANSWERED = [kind for kind in EVERY if kind.status is not None]


def example(kind: type[OncelogError], definite: bool | None = None) -> OncelogError:
    """With a value in every attribute; 0 among them, which is a value like any other."""
    return kind("it went wrong", definite=definite, **{name: _example_of(kind, name, at) for at, name in enumerate(kind.values)})


def _example_of(kind: type[OncelogError], name: str, number: int) -> object:
    """Of the type that the class says: what comes as another one is nobody's value."""
    wanted = get_type_hints(kind)[name]
    return number if wanted in (int, int | str | None) else [str(number)] if wanted == list[str] else f"{number:040x}"


def facts(error: OncelogError) -> tuple[Any, ...]:
    return type(error), error.detail, error.definite, {name: getattr(error, name) for name in error.values}


def test_every_class_of_the_module_is_in_the_hierarchy() -> None:
    public = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    assert public <= set(EVERY)
    assert EVERY[0] is OncelogError
    assert len(EVERY) == len(set(EVERY))


def test_codes_are_unique_and_look_alike() -> None:
    codes = [kind.code for kind in EVERY]
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code == code.lower() for code in codes)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.code)
def test_a_class_says_itself_what_it_means(kind: type[OncelogError]) -> None:
    assert "code" in vars(kind)
    assert kind.__doc__
    assert str(kind()) == kind().detail == kind.__doc__.strip()
    assert kind().definite is kind.certain
    assert all(getattr(kind(), name) is None for name in kind.values)
    assert kind.status is None or 300 <= kind.status < 600


@pytest.mark.parametrize("kind", ANSWERED, ids=lambda kind: kind.code)
@pytest.mark.parametrize("definite", [None, True, False])
def test_an_error_survives_the_way_from_service_to_sdk(kind: type[OncelogError], definite: bool | None) -> None:
    error = example(kind, definite)
    assert kind.status is not None
    answer = json.loads(json.dumps(error.to_problem()))
    assert facts(from_problem(answer, kind.status)) == facts(error)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.code)
def test_an_error_can_be_pickled_and_copied(kind: type[OncelogError]) -> None:
    error = example(kind, definite=not kind.certain)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert facts(again) == facts(error)
        assert str(again) == "it went wrong"


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.code)
def test_a_problem_has_the_members_of_the_contract(kind: type[OncelogError]) -> None:
    problem = example(kind).to_problem()
    assert problem["status"] == (kind.status or 500)
    assert (problem["code"], problem["detail"], problem["definite"]) == (kind.code, "it went wrong", kind.certain)
    assert problem.keys() == {"title", "status", "code", "detail", "definite", *kind.values}
    assert "\n" not in problem["title"]


def test_a_value_that_is_not_known_is_left_out_of_the_problem() -> None:
    problem = SequenceGap(producer="p", expected=0).to_problem()
    assert problem["expected"] == 0
    assert "received" not in problem


def test_an_error_takes_no_value_it_does_not_carry() -> None:
    with pytest.raises(TypeError, match="color"):
        SequenceGap(color="red")


def test_the_special_error_is_caught_as_the_general_one() -> None:
    with pytest.raises(errors.NotFound):
        raise errors.TopicNotFound
    with pytest.raises(errors.InvalidRequest):
        raise errors.InvalidMessageId
    with pytest.raises(errors.ConnectionFailed):
        raise errors.ResponseTimeout


def test_only_what_may_have_happened_is_indefinite() -> None:
    """The list is the contract: whatever is not on it promises that nothing was done."""
    assert {kind.code for kind in EVERY if not kind.certain} == {
        "internal_error",
        "storage_failed",
        "connection_failed",
        "gateway_unavailable",
        "response_timeout",
        "invalid_response",
        "transaction_in_doubt",
    }


# --- problems that nobody here wrote ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (418, InvalidRequest), (500, InternalError), (599, InternalError)]
)
def test_an_unknown_code_keeps_its_detail(status: int, kind: type[OncelogError]) -> None:
    error = from_problem({"code": "from_the_future", "detail": "new here", "definite": False}, status)
    assert facts(error)[:3] == (kind, "new here", False)


@pytest.mark.parametrize(
    ("status", "definite"), [(400, True), (404, True), (499, True), (500, False), (503, False), (302, False), (200, False)]
)
@pytest.mark.parametrize("said", [None, "true", 1, 0, []])
def test_without_a_word_on_it_only_a_4xx_is_definite(status: int, definite: bool, said: object) -> None:
    assert from_problem({"code": "topic_not_found", "definite": said}, status).definite is definite
    assert from_problem({}, status).definite is definite


@pytest.mark.parametrize("code", ["connection_failed", "producer_stopped", "codec_error", "error"])
def test_a_service_cannot_answer_what_only_the_sdk_may_say(code: str) -> None:
    assert type(from_problem({"code": code}, 500)) is InternalError


@pytest.mark.parametrize(
    "values",
    [
        {"code": "producer_fenced", "epoch": "3", "current_epoch": 2**63, "producer": 5},
        {"code": "stored_group_published", "message_id": "not an id", "offset": True},
        {"code": "method_not_allowed", "allowed": "GET"},
        {"code": "offset_mismatch", "expected": {"a": 1}, "actual": 1.5},
    ],
)
def test_a_value_of_another_type_is_none(values: dict[str, Any]) -> None:
    error = from_problem({**values, "detail": ["no", "text"]}, 409)
    assert all(getattr(error, name) is None for name in error.values)
    assert error.detail == "HTTP status 409"


def test_an_answer_without_detail_still_says_its_status() -> None:
    assert from_problem({}, 502).detail == "HTTP status 502"


def test_values_a_service_did_not_send_are_none() -> None:
    error = from_problem({"code": "producer_fenced", "epoch": 3}, 403)
    assert isinstance(error, ProducerFenced)
    assert (error.producer, error.epoch, error.current_epoch) == (None, 3, None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(["code", "detail", "definite", "status", "title", "expected", "producer", "definite "])


@given(st.dictionaries(members, json_values | st.sampled_from([kind.code for kind in EVERY])), st.integers(100, 599))
def test_whatever_a_problem_holds_becomes_an_error(problem: dict[str, Any], status: int) -> None:
    error = from_problem(problem, status)
    assert isinstance(error, OncelogError)
    assert isinstance(error.definite, bool)
    assert isinstance(str(error), str)
    assert str(error)
    pickle.loads(pickle.dumps(error))
