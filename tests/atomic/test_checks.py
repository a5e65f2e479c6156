"""Requests of atomic commits that are refused before anything is looked up: definitely, and with their reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from oncelog.errors import InvalidMessageId, InvalidRequest, RequestTooLarge
from oncelog.wire.codec import decode_commit_request, encode_commit_request
from oncelog.wire.media import ONCELOG_AVRO
from oncelog.wire.models import BeginAtomic
from oncelog.wire.requests import MAX_CARRIED, CommitRequest, Part, PublishRequest
from oncelog_service.atomic.checks import MAX_BRANCHES, MAX_CHUNK, check_begin, check_commit, check_stage
from oncelog_service.atomic.limits import AtomicLimits

LIMITS = AtomicLimits(1, 5, 10, 5)
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


NO_NAMES: list[tuple[CommitRequest, str]] = [
    *[(CommitRequest(text), "group") for text in NO_IDS],
    *[(CommitRequest(branches=["a", text]), "branch") for text in NO_IDS],
    (CommitRequest(producer="a b", sequence_id=0), "producer's name"),
    (CommitRequest(producer="p", sequence_id=0, incarnation=""), "incarnation is 1 to 249"),
    (CommitRequest(producer="p", sequence_id=0, incarnation="x" * 250), "incarnation is 1 to 249"),
    (CommitRequest(checksum="x" * 250), "checksum is 1 to 249"),
    (CommitRequest(parts=[part(), part("..")]), r"parts\[1\]: a topic is"),
    (CommitRequest(parts=[part("a b")]), "a topic is"),
    (CommitRequest(parts=[part(namespace="a-b")]), "a namespace is"),
    (CommitRequest(parts=[part(producer="a b")]), r"parts\[0\]: a producer's name"),
]


@pytest.mark.parametrize(("request_", "reason"), NO_NAMES, ids=lambda each: str(each)[:80])
def test_what_is_no_name_is_refused_where_the_commit_is_read(request_: CommitRequest, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        decode_commit_request(ONCELOG_AVRO, encode_commit_request(request_))
    assert len(caught.value.detail) < 1000


REFUSED: list[tuple[CommitRequest, str]] = [
    (CommitRequest(branches=["a", "b", "a"]), "branch a is named twice"),
    (CommitRequest(branches=["id"]), "itself"),
    (CommitRequest(producer="p"), "go together"),
    (CommitRequest(sequence_id=0), "go together"),
    (CommitRequest(producer="p", sequence_id=-1), "sequence id is 0 to"),
    (CommitRequest(producer="p", sequence_id=2**63), "sequence id is 0 to"),
    (CommitRequest(incarnation="i"), "name it in producer"),
    (CommitRequest(parts=[part(), part("u"), part()]), "two parts are for n/t"),
    (CommitRequest(parts=[part("u"), part(messages=[])]), "the part for n/t: messages is empty"),
    (CommitRequest(parts=[part(write_pointer=5)]), "the part for n/t: .*transactionWritePointer"),
    (CommitRequest(parts=[part(write_pointer=5, messages=[])]), "transactionWritePointer"),
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


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        (CommitRequest(parts=[part(messages=[b""] * 3), part("u", [b""] * 3)]), LIMITS.max_messages),
        (CommitRequest(branches=["b"] * (MAX_BRANCHES + 1)), MAX_BRANCHES),
    ],
    ids=["messages of all parts together", "branches"],
)
def test_a_commit_is_bounded(request_: CommitRequest, limit: int) -> None:
    with pytest.raises(RequestTooLarge) as caught:
        check_commit("id", request_, LIMITS)
    assert caught.value.limit == limit


def test_a_topic_weighs_as_a_hundred_messages_do() -> None:
    parts = [part(f"t{number}") for number in range(124)]
    check_commit("id", CommitRequest(parts=parts[1:]), LIMITS._replace(max_messages=10_000))
    with pytest.raises(RequestTooLarge) as caught:
        check_commit("id", CommitRequest(parts=parts), LIMITS._replace(max_messages=10_000))
    assert caught.value.limit == MAX_CARRIED
    check_commit("id", CommitRequest(parts=parts), LIMITS._replace(max_messages=20_000))


def test_a_message_id_in_a_part_that_is_none_is_said_to_be_that() -> None:
    with pytest.raises(InvalidMessageId, match="the part for n/t"):
        check_commit("id", CommitRequest(parts=[part(expected_last_message_id=b"x")]), LIMITS)


def test_a_begin_that_makes_sense_is_taken() -> None:
    BeginAtomic(group="g")
    BeginAtomic(id="a.b:c@d=e-f_1", group="g", of="other")
    check_begin(None, None, None, LIMITS)
    check_begin("a", 10, "other", LIMITS)


@pytest.mark.parametrize("text", NO_IDS)
@pytest.mark.parametrize("field", ["id", "group", "of"])
def test_a_begin_whose_names_are_none_is_refused_where_it_is_read(field: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match="the name of a group" if field == "group" else "the id of a transaction"):
        BeginAtomic.model_validate({"group": "g", field: text})


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        *[((None, timeout_ms, None), "timeoutMs is 1 to 10") for timeout_ms in (0, -1, 11)],
        (("a", None, "a"), "itself"),
    ],
)
def test_a_begin_that_makes_no_sense_is_refused(asked: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        check_begin(*asked, LIMITS)  # type: ignore[call-arg]


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
