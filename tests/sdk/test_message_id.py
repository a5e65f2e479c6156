"""A message id sorts as the log does, whatever form it is in."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog import MessageId
from oncelog.message_id import SIZE

milliseconds = st.integers(0, 2**63 - 1)
counters = st.integers(0, 2**16 - 1)
fields = st.tuples(milliseconds, counters, milliseconds, counters)


def test_the_layout_is_the_one_of_the_tms_page() -> None:
    message_id = MessageId(0x0102030405060708, 0x090A, 0x0B0C0D0E0F101112, 0x1314)
    assert bytes(message_id) == bytes(range(1, 21))
    assert str(message_id) == "0102030405060708090a0b0c0d0e0f1011121314"
    assert SIZE == 20


def test_the_last_two_fields_are_zero_unless_given() -> None:
    assert bytes(MessageId(1, 2)) == bytes.fromhex("0000000000000001 0002 0000000000000000 0000")


@given(fields)
def test_the_four_fields_come_back(values: tuple[int, int, int, int]) -> None:
    each = MessageId(*values)
    assert (each.publish_timestamp, each.seq_id, each.write_timestamp, each.payload_seq_id) == values


@given(st.lists(fields, max_size=20))
def test_ids_their_fields_their_bytes_and_their_text_sort_alike(values: list[tuple[int, int, int, int]]) -> None:
    expected = sorted(values)
    ids = [MessageId(*each) for each in values]
    assert sorted(ids) == [MessageId(*each) for each in expected]
    assert sorted(map(bytes, ids)) == [bytes(MessageId(*each)) for each in expected]
    assert sorted(map(str, ids)) == [str(MessageId(*each)) for each in expected]


@given(fields, fields)
def test_all_six_comparisons_follow_the_fields(left: tuple[int, int, int, int], right: tuple[int, int, int, int]) -> None:
    a, b = MessageId(*left), MessageId(*right)
    assert (a < b, a <= b, a == b, a != b, a >= b, a > b) == (
        left < right,
        left <= right,
        left == right,
        left != right,
        left >= right,
        left > right,
    )


@given(fields)
def test_equal_ids_are_one_key(values: tuple[int, int, int, int]) -> None:
    assert len({MessageId(*values), MessageId.from_bytes(bytes(MessageId(*values)))}) == 1


@given(fields)
def test_every_form_reads_back_as_the_same_id(values: tuple[int, int, int, int]) -> None:
    each = MessageId(*values)
    assert MessageId.parse(str(each)) == MessageId.parse(str(each).upper()) == each
    assert MessageId.from_bytes(bytes(each)) == each
    assert eval(repr(each), {"MessageId": MessageId}) == each
    assert [pickle.loads(pickle.dumps(each, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)] == [each] * 6
    assert copy.deepcopy(each) == copy.copy(each) == each


def test_an_id_does_not_follow_the_buffer_it_was_read_from() -> None:
    buffer = bytearray(SIZE)
    each = MessageId.from_bytes(buffer)
    buffer[0] = 1
    assert each == MessageId(0, 0)


@pytest.mark.parametrize("name", ["publish_timestamp", "seq_id", "write_timestamp", "payload_seq_id", "_raw", "anything"])
def test_an_id_cannot_be_changed(name: str) -> None:
    each = MessageId(1, 2, 3, 4)
    with pytest.raises(AttributeError):
        setattr(each, name, 9)
    with pytest.raises(AttributeError):
        delattr(each, name)
    assert each == MessageId(1, 2, 3, 4)


def test_an_id_knows_when_it_was_published() -> None:
    assert MessageId(1_790_000_000_123, 0).published_at == datetime(2026, 9, 21, 14, 13, 20, 123_000, tzinfo=UTC)


@pytest.mark.parametrize("other", [bytes(SIZE), "00" * SIZE, 0, None])
def test_an_id_equals_and_precedes_nothing_that_is_no_id(other: object) -> None:
    assert MessageId(0, 0) != other
    with pytest.raises(TypeError):
        _ = MessageId(0, 0) < other  # type: ignore[operator]


@pytest.mark.parametrize(
    "values",
    [(2**63, 0), (-(2**63) - 1, 0), (0, -1), (0, 65536), (0, 0, 2**63), (0, 0, 0, 65536), (1.0, 0), ("1", 0), (None, 0)],
)
def test_a_field_that_does_not_fit_is_a_value_error(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not a message id"):
        MessageId(*values)


@pytest.mark.parametrize("size", [0, 19, 21, 40])
def test_an_id_of_another_length_is_a_value_error(size: int) -> None:
    with pytest.raises(ValueError, match=f"20 bytes, not {size}"):
        MessageId.from_bytes(bytes(size))


@pytest.mark.parametrize(
    "text", ["", "0" * 39, "0" * 41, "g" * 40, "0x" + "0" * 38, " " * 40, "00 " * 13 + "0", "０" * 40, "٠" * 40]
)
def test_text_that_is_not_40_hex_digits_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="40 hex digits"):
        MessageId.parse(text)
