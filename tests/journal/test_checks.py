"""What is refused of a request to the journal before anything is looked up: definite, and with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from oncelog.errors import InvalidMessageId, InvalidRequest, RequestTooLarge
from oncelog.wire.requests import CommitRequest, Part, PublishRequest
from oncelog_service.atomic.checks import MAX_BRANCHES, MAX_CHUNK, check_begin, check_commit, check_stage
from oncelog_service.atomic.limits import JournalLimits

LIMITS = JournalLimits(1, 5, 10, 5)
NO_IDS = ["", "a b", "a/b", "é", "x" * 250, "a\n", ".", ".."]


def part(topic: str = "t", messages: Sequence[bytes] = (b"a",), namespace: str = "n", **fields: Any) -> Part:
    return Part(namespace, topic, PublishRequest(list(messages), **fields))


@pytest.mark.parametrize(
    "request_",
    [
        CommitRequest(),
        CommitRequest("g", [part(), part("u"), part(namespace="m")], ("a", "b")),
        CommitRequest(producer="p", sequence_id=0, incarnation="i", checksum="é" * 249),
        CommitRequest(producer="p", sequence_id=2**63 - 1),
        CommitRequest(parts=[part(producer="p", sequence_ids=[0], epoch=1, expected_offset=0, expected_key_offsets={"k": None})]),
        CommitRequest(parts=[part(messages=[b""] * 2), part("u", [b""] * 3)]),
        CommitRequest(branches=[str(number) for number in range(MAX_BRANCHES)]),
    ],
    ids=lambda request: str(request)[:60],
)
def test_a_commit_that_makes_sense_is_taken(request_: CommitRequest) -> None:
    check_commit("id", request_, LIMITS)


REFUSED: list[tuple[CommitRequest, str]] = [
    *[(CommitRequest(text), "group") for text in NO_IDS],
    *[(CommitRequest(branches=["a", text]), "branch") for text in NO_IDS],
    (CommitRequest(branches=["a", "b", "a"]), "branch a is named twice"),
    (CommitRequest(branches=["id"]), "itself"),
    (CommitRequest(producer="p"), "go together"),
    (CommitRequest(sequence_id=0), "go together"),
    (CommitRequest(producer="a b", sequence_id=0), "producer's name"),
    (CommitRequest(producer="p", sequence_id=-1), "sequence id is 0 to"),
    (CommitRequest(producer="p", sequence_id=2**63), "sequence id is 0 to"),
    (CommitRequest(incarnation="i"), "name it in producer"),
    (CommitRequest(producer="p", sequence_id=0, incarnation=""), "incarnation is 1 to 249"),
    (CommitRequest(producer="p", sequence_id=0, incarnation="x" * 250), "incarnation is 1 to 249"),
    (CommitRequest(checksum="x" * 250), "checksum is 1 to 249"),
    (CommitRequest(parts=[part(), part("u"), part()]), "two parts are for n/t"),
    (CommitRequest(parts=[part("u"), part(messages=[])]), "the part for n/t: messages is empty"),
    (CommitRequest(parts=[part(write_pointer=5)]), "the part for n/t: .*transactionWritePointer"),
    (CommitRequest(parts=[part(write_pointer=5, messages=[])]), "transactionWritePointer"),
    (CommitRequest(parts=[part("..")]), "the part for n/[.][.]: a topic is"),
    (CommitRequest(parts=[part("a b")]), "a topic is"),
    (CommitRequest(parts=[part(namespace="a-b")]), "a namespace is"),
    (CommitRequest(parts=[part(sequence_ids=[0])]), "the part for n/t: sequenceIds"),
    (CommitRequest(parts=[part(producer="p")]), "sequenceIds is missing"),
    (CommitRequest(parts=[part(ttls=[0])]), "ttl"),
    (CommitRequest(parts=[part(expected_offset=-1)]), "expectedOffset"),
]


@pytest.mark.parametrize(("request_", "reason"), REFUSED, ids=lambda each: str(each)[:80])
def test_a_commit_that_contradicts_itself_is_refused(request_: CommitRequest, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        check_commit("id", request_, LIMITS)
    assert caught.value.definite
    assert len(caught.value.detail) < 1000


@pytest.mark.parametrize("id_", NO_IDS)
def test_a_transaction_has_an_id_that_is_one(id_: str) -> None:
    with pytest.raises(InvalidRequest, match="the id of a transaction"):
        check_commit(id_, CommitRequest(), LIMITS)
    with pytest.raises(InvalidRequest, match="the id of a transaction"):
        check_begin(id_, "g", None, None, LIMITS)
    with pytest.raises(InvalidRequest, match="the name of a group"):
        check_begin(None, id_, None, None, LIMITS)
    with pytest.raises(InvalidRequest, match="of: the id of a transaction"):
        check_begin(None, "g", None, id_, LIMITS)


def test_the_messages_of_all_parts_together_are_bounded() -> None:
    parts = [part(messages=[b""] * 3), part("u", [b""] * 3)]
    with pytest.raises(RequestTooLarge) as caught:
        check_commit("id", CommitRequest(parts=parts), LIMITS)
    assert caught.value.limit == LIMITS.max_messages


def test_the_branches_of_a_commit_are_bounded() -> None:
    with pytest.raises(RequestTooLarge) as caught:
        check_commit("id", CommitRequest(branches=["b"] * (MAX_BRANCHES + 1)), LIMITS)
    assert caught.value.limit == MAX_BRANCHES


def test_an_id_in_a_part_that_is_none_is_said_to_be_that() -> None:
    with pytest.raises(InvalidMessageId, match="the part for n/t"):
        check_commit("id", CommitRequest(parts=[part(expected_last_message_id=b"x")]), LIMITS)


def test_a_begin_that_makes_sense_is_taken() -> None:
    check_begin(None, "g", None, None, LIMITS)
    check_begin("a.b:c@d=e-f_1", "g", 10, "other", LIMITS)


@pytest.mark.parametrize("timeout_ms", [0, -1, 11])
def test_a_time_out_is_bounded(timeout_ms: int) -> None:
    with pytest.raises(InvalidRequest, match="timeoutMs is 1 to 10"):
        check_begin(None, "g", timeout_ms, None, LIMITS)


def test_a_transaction_is_no_branch_of_itself() -> None:
    with pytest.raises(InvalidRequest, match="itself"):
        check_begin("a", "g", None, "a", LIMITS)


def test_a_chunk_is_numbered_and_holds_messages_of_no_other_transaction() -> None:
    for chunk in (0, MAX_CHUNK):
        check_stage(chunk, PublishRequest([b""] * LIMITS.max_messages), LIMITS)
    for chunk in (-1, MAX_CHUNK + 1):
        with pytest.raises(InvalidRequest, match="number of a chunk"):
            check_stage(chunk, PublishRequest([b"a"]), LIMITS)
    for request in (PublishRequest([]), PublishRequest([b"a"], write_pointer=5), PublishRequest([b"a"], sequence_ids=[0])):
        with pytest.raises(InvalidRequest):
            check_stage(0, request, LIMITS)
    with pytest.raises(RequestTooLarge):
        check_stage(0, PublishRequest([b""] * (LIMITS.max_messages + 1)), LIMITS)
