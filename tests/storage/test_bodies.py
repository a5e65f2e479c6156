"""Texts that are made all at once are those that are joined from their parts one by one."""

from __future__ import annotations

from unittest import mock

from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.wire.avro_parts import encode_long
from oncelog_service.storage import bodies
from oncelog_service.storage.bodies import Part, encode_bodies, encode_few, texts
from oncelog_service.storage.fields import Columns
from oncelog_service.storage.keys import SEQ_BYTES

MAX = 2**63 - 1
firsts = st.integers(0, MAX) | st.builds(
    lambda bits, back: max(0, min(MAX, 2**bits - back)), st.integers(0, 63), st.integers(-3, 300)
)


@st.composite
def parts_of(draw: st.DrawFn) -> tuple[int, list[Part]]:
    """How many texts, and their parts."""
    count = draw(st.sampled_from([1, 2, 40, 41, 64, 65, 129, 200, 1_000]))
    numbers = firsts.map(lambda first: min(first, MAX - count))
    ids = st.tuples(st.binary(max_size=3), st.integers(0, 2**24 - count), st.sampled_from([0, 1])).map(
        lambda each: [each[0] + (each[1] + each[2] * at).to_bytes(3, "big") for at in range(count)]
    )
    return count, draw(st.lists(st.binary(max_size=20) | numbers | ids, min_size=1, max_size=6))


def one_by_one(part: Part, index: int) -> bytes:
    if isinstance(part, bytes):
        return part
    return encode_long(part + index) if isinstance(part, int) else part[index]


@example((41, [[b"one id"] * 41]), 64)  # of messages that have none yet
@given(parts_of(), st.sampled_from([64, 4_000]))
def test_texts_are_their_parts_joined(asked: tuple[int, list[Part]], templates: int) -> None:
    count, parts = asked
    with mock.patch.object(bodies, "_TEMPLATES", templates):
        found = [*texts(count, *parts)]
    assert found == [b"".join(one_by_one(part, index) for part in parts) for index in range(count)]


@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=45), st.none() | st.sampled_from(["p", "naïve"]), firsts, firsts,
    st.booleans(),
)  # fmt: skip
def test_few_bodies_are_those_that_are_made_of_many(
    payloads: list[bytes], producer: str | None, offset: int, sequence_id: int, numbered: bool
) -> None:
    count = len(payloads)
    first, number = min(offset, MAX - count), min(sequence_id, MAX - count)
    columns = Columns(payloads, producer, range(number, number + count) if numbered else None)
    parts = b"before", SEQ_BYTES[:count], b"behind", first
    few = encode_few(columns, *parts)
    if few is not None:
        many = encode_bodies(columns, *parts)
        assert ([*few.bodies], [*few.each], few.shapes, few.total) == ([*many.bodies], [*many.each], many.shapes, many.total)
    assert few is None or count <= 40
    assert few is not None or count > 40 or len(encode_long(first)) != len(encode_long(first + count - 1)) or numbered
