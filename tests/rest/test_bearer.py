"""How a token is read from a request."""

from __future__ import annotations

import pytest

from oncelog_service.rest.bearer import bearer_of, same_token

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


def test_only_the_whole_token_is_the_token() -> None:
    expected = "schlüssel".encode()
    assert same_token(bearer_of("bearer schlüssel".encode()), expected)
    for given in (None, b"", expected[:-1], expected + b"x", expected.upper(), "schlüssel".encode("latin-1")):
        assert not same_token(given, expected)
