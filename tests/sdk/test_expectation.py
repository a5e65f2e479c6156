"""What may be expected, and which refusals are for good."""

from __future__ import annotations

import pytest

from oncelog import MessageId
from oncelog.errors import OffsetMismatch
from oncelog.values.expectation import UNCHECKED, Expectation, expectation, is_past

ID = MessageId(5, 1)


def test_nothing_expected_is_no_expectation() -> None:
    assert expectation(None, None, UNCHECKED, b"k") is None


def test_none_is_an_offset_of_a_key_and_of_nothing_else() -> None:
    assert expectation(None, None, None, b"k\xff") == Expectation(None, None, "k\xff", None)
    assert expectation(0, ID, 7, b"") == Expectation(0, bytes(ID), "", 7)
    assert expectation(None, MessageId.NONE, UNCHECKED, None) == Expectation(None, bytes(20), None, None)


def test_no_messages_id_sorts_before_every_other() -> None:
    assert bytes(MessageId.NONE) == bytes(20)
    assert MessageId(0, 1) > MessageId.NONE
    assert MessageId.parse(str(MessageId.NONE)) == MessageId.NONE


@pytest.mark.parametrize(
    ("expected", "actual", "past"),
    [
        (5, 6, True),
        (6, 5, False),
        (5, None, False),
        (None, 0, True),
        (str(ID), str(MessageId(5, 2)), True),
        (str(MessageId(5, 2)), str(ID), False),
        (str(ID), None, False),
        (None, str(ID), True),
        (5, str(ID), False),
    ],
)
def test_only_what_the_topic_has_gone_past_never_holds_again(
    expected: int | str | None, actual: int | str | None, past: bool
) -> None:
    assert is_past(OffsetMismatch(expected=expected, actual=actual)) is past
