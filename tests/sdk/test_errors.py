"""One hierarchy for service and SDK: what the service raises is what the SDK raises, or tries again; when, until when, and what
the last error says of all tries."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import errors
from oncelog.api.retry import (
    FIRST_SECONDS,
    LONGEST_ASKED_SECONDS,
    LONGEST_SECONDS,
    Tries,
    ends_a_producer,
    is_one_messages_fault,
    may_retry,
    pause,
    rules_out_earlier_tries,
)
from oncelog.errors import (
    ConnectionFailed,
    InternalError,
    InvalidRequest,
    OffsetMismatch,
    OncelogError,
    QuotaExceeded,
    RequestTooLarge,
    ResponseTimeout,
    SequenceGap,
    StorageFailed,
    StorageUnavailable,
    TopicNotFound,
    all_errors,
    from_problem,
)

EVERY = all_errors()


def example(kind: type[OncelogError], definite: bool | None = None) -> OncelogError:
    """With a value in every attribute; 0 among them, which is a value like any other."""
    return kind("it went wrong", definite=definite, **{name: _example_of(kind, name, at) for at, name in enumerate(kind.values)})


def _example_of(kind: type[OncelogError], name: str, number: int) -> object:
    """Of the type that the class says: what comes as another one is nobody's value."""
    examples = {bool: True, list[str]: [str(number)], dict[str, str]: {"ttl": str(number)}, int: number, int | str | None: number}
    return examples.get(get_type_hints(kind)[name], f"{number:040x}")


def facts(error: OncelogError) -> tuple[Any, ...]:
    return type(error), error.detail, error.definite, {name: getattr(error, name) for name in error.values}


def test_every_class_has_a_code_a_status_and_a_sentence_of_its_own() -> None:
    public = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    assert public <= set(EVERY)
    assert len(EVERY) == len(set(EVERY)) == len({kind.code for kind in EVERY})
    for kind in EVERY:
        assert "code" in vars(kind)
        assert re.fullmatch("[a-z_]+", kind.code)
        assert str(kind()) == kind().detail == (kind.__doc__ or "").strip() != ""
        assert kind().definite is kind.certain
        assert kind.status is None or 300 <= kind.status < 600
        problem = example(kind).to_problem()
        assert (problem["status"], problem["code"], problem["definite"]) == (kind.status or 500, kind.code, kind.certain)
        assert problem.keys() == {"title", "status", "code", "detail", "definite", *kind.values}
        assert "\n" not in problem["title"]
        assert kind().to_problem().keys().isdisjoint(kind.values), "what is not known is left out"
    with pytest.raises(TypeError, match="color"):
        SequenceGap(color="red")


def test_an_error_survives_the_way_from_service_to_sdk_and_pickling() -> None:
    for kind in EVERY:
        for definite in (None, True, False):
            error = example(kind, definite)
            answer = json.loads(json.dumps(error.to_problem()))
            if kind.status is not None:
                assert facts(from_problem(answer, kind.status)) == facts(error), kind
            for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
                assert (facts(again), str(again)) == (facts(error), "it went wrong"), kind


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


def test_an_unknown_code_keeps_its_detail() -> None:
    for status, kind in ((400, InvalidRequest), (418, InvalidRequest), (500, InternalError), (599, InternalError)):
        error = from_problem({"code": "from_the_future", "detail": "new here", "definite": False}, status)
        assert facts(error)[:3] == (kind, "new here", False)
    for code in ("connection_failed", "producer_stopped", "codec_error", "error"):
        assert type(from_problem({"code": code}, 500)) is InternalError, "a service cannot answer what only the SDK may say"


def test_without_a_word_on_it_only_a_4xx_is_definite() -> None:
    for status in (400, 404, 499, 500, 503, 302, 200):
        for said in (None, "true", 1, 0, []):
            assert from_problem({"code": "topic_not_found", "definite": said}, status).definite is (400 <= status < 500)


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


# --- what is tried again ------------------------------------------------------------------------------------------------


TRANSIENT = {
    *(
        "connection_failed",
        "response_timeout",
        "gateway_unavailable",
        "overloaded",
        "disk_full",
        "quota_exceeded",
        "request_timeout",
    ),
    *("storage_failed", "storage_unavailable", "transactions_unavailable", "producer_in_transaction", "key_in_transaction"),
}


@given(attempt=st.integers(0, 10_000), fraction=st.floats(0, 1))
def test_pauses_double_until_the_longest_and_are_spread_over_their_second_half(attempt: int, fraction: float) -> None:
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(attempt, 20))
    assert pause(attempt, fraction) == pytest.approx(longest * (1 + fraction) / 2)


def test_what_passes_is_tried_again_if_that_cannot_do_it_twice() -> None:
    for kind in all_errors():
        passes = kind.code in TRANSIENT
        values: dict[str, Any] = {"retry_after_ms": 0} if kind is QuotaExceeded else {}
        told = [
            may_retry(kind(definite=definite, **values), idempotent) for idempotent in (True, False) for definite in (True, False)
        ]
        assert told == [passes, passes, passes, False], kind.code
    assert not may_retry(QuotaExceeded(), idempotent=True), "it says no time, for no time makes room"


def test_what_a_refusal_says_of_a_producer_and_of_its_messages() -> None:
    def codes(holds: object) -> set[str]:
        return {kind.code for kind in all_errors() if holds(kind(definite=True))}  # type: ignore[operator]

    assert codes(ends_a_producer) == {"producer_fenced", "producer_ended", "sequence_gap", "client_closed"}
    ours = {"invalid_request", "invalid_message_id", "stale_message_id", "offset_out_of_range", "not_supported"}
    ours |= {"invalid_transaction", "sequence_reused"}
    assert codes(rules_out_earlier_tries) == ours
    assert rules_out_earlier_tries(RequestTooLarge(limit=5)), "the service's own word; without a limit it is a gateway's"
    assert rules_out_earlier_tries(OffsetMismatch(expected=3, actual=4))
    assert not rules_out_earlier_tries(OffsetMismatch(expected=4, actual=3)), "that may hold later"
    expected = {"offset_mismatch", "expectations_not_checked", "key_in_transaction"}
    assert codes(is_one_messages_fault) == ours | expected | {"request_too_large"}
    assert not is_one_messages_fault(InvalidRequest(definite=False))


@pytest.mark.parametrize(
    ("asked", "left", "wait"),
    [
        (None, 60, pause(0, 1.0)),
        (3.0, 60, 3.0 + pause(0, 1.0)),
        (86_400.0, 60, LONGEST_ASKED_SECONDS + pause(0, 1.0)),
        (86_400.0, 7, 7),
        (86_400.0, 0.01, None),
        (None, pause(0, 1.0), pause(0, 1.0)),
        (None, -1, None),
    ],
)
def test_when_to_come_again_is_heeded_within_bounds(asked: float | None, left: float, wait: float | None) -> None:
    error = StorageUnavailable()
    error.retry_after = asked
    assert Tries(0.0).wait_after(error, -left, 1.0) == (None if wait is None else pytest.approx(wait))


def test_each_pause_is_longer_and_the_last_one_ends_in_time() -> None:
    tries, now, waits = Tries(1.0), 0.0, []
    while (wait := tries.wait_after(StorageUnavailable(), now, 1.0)) is not None:
        waits.append(wait)
        now += wait
    assert waits == [pause(attempt, 1.0) for attempt in range(4)]
    assert Tries().wait(1e12, 0.5) == pause(0, 0.5), "without an end there is always time"


LOST, AWAY, LATE, REFUSED = ConnectionFailed, StorageUnavailable, ResponseTimeout, TopicNotFound


@pytest.mark.parametrize(
    ("options", "failures", "tries", "definite"),
    [
        ({}, [REFUSED()], 1, True),
        ({}, [AWAY(), AWAY(), REFUSED()], 3, True),
        ({}, [LOST(), REFUSED()], 2, False),
        ({}, [StorageFailed(), AWAY(), REFUSED()], 3, False),
        ({"idempotent": False}, [AWAY(), LOST()], 2, False),
        ({"idempotent": False}, [LOST(definite=True), REFUSED()], 2, True),
        ({"ends": 0.0}, [AWAY()], 1, True),
        ({"ends": 0.0}, [LOST()], 1, False),
        ({"named": True}, [LOST(), REFUSED()], 2, False),
        ({"named": True}, [LOST(), InvalidRequest()], 2, True),
        ({"named": True}, [LOST(), OffsetMismatch(expected=3, actual=4)], 2, True),
        ({"named": True}, [LOST(), RequestTooLarge()], 2, False),
        ({"ends": 0.0, "others": 2}, [LATE(), LATE(), LATE()], 3, False),
        ({"ends": 0.0, "others": 2}, [LATE(), AWAY()], 2, False),
        ({"ends": 0.0, "others": 2, "idempotent": False}, [LATE()], 1, False),
    ],
)
def test_the_last_error_is_definite_only_if_no_earlier_try_may_have_got_through(
    options: dict[str, float], failures: list[OncelogError], tries: int, definite: bool
) -> None:
    asked = Tries(**{"ends": 1e9, **options})  # type: ignore[arg-type]
    waits = [asked.wait_after(failure, 1.0, 0.5) for failure in failures]
    assert [wait is None for wait in waits] == [False] * (tries - 1) + [True]
    assert failures[-1].definite is definite
