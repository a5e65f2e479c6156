"""How a token is read from a request."""

from __future__ import annotations

import pytest

from oncelog_service.rest.bearer import bearer_of

READ = [
    (b"Bearer s3cret", b"s3cret"),
    (b"bearer s3cret", b"s3cret"),
    (b"BEARER s3cret", b"s3cret"),
    (b"bEaReR  s3cret \t", b"s3cret"),
    ("Bearer schlüssel".encode(), "schlüssel".encode()),
    (b"Bearer a b", b"a b"),
    (b"", None),
    (b"Bearer", None),
    (b"Bearer ", None),
    (b"Bearer  \t ", None),
    (b"s3cret", None),
    (b"Basic czNjcmV0", None),
    (b"Bearers s3cret", None),
    (b"Bearer\ts3cret", None),
    (b" Bearer s3cret", None),
]


@pytest.mark.parametrize(("header", "token"), READ)
def test_a_token_is_read_from_a_header_whatever_the_case_of_its_scheme(header: bytes, token: bytes | None) -> None:
    assert bearer_of(header) == token
