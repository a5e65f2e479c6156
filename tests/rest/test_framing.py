"""Bytes become requests: the same ones however they are cut, and no more of them than were asked for."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.errors import OncelogError
from oncelog_service.rest.framing import End, Framing, Request
from oncelog_service.rest.heads import Heads, Known
from tests.rest.talk import head
from tests.rest.test_protocol import GOOD, LAST, Told, chunked, declared


def whole(events: list[Request | bytes | End]) -> list[tuple[object, ...]]:
    """Each request with its body, and whether it is there as a whole."""
    found: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, Request):
            known = event.body is not None
            found.append((*event[:7], event.body or b"", known, event.keep_alive))
        elif isinstance(event, bytes):
            found[-1] = (*found[-1][:7], found[-1][7] + event, False, False)  # type: ignore[operator]
        else:
            found[-1] = (*found[-1][:8], True, event.keep_alive)
    return found


def read(framing: Framing, *pieces: bytes) -> tuple[list[tuple[object, ...]], str]:
    """All of it, and what it is told that cannot be read."""
    events: list[Request | bytes | End] = []
    try:
        for piece in pieces:
            event = framing.next(piece)
            while event is not None:
                events.append(event)
                event = framing.next()
    except OncelogError as error:
        assert framing.next(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n") is None, "nothing more is read"
        return whole(events), error.detail
    return whole(events), ""


@given(st.lists(GOOD, max_size=5), st.none() | LAST, st.lists(st.integers(0, 3_000), max_size=9), st.booleans())
def test_however_the_bytes_are_cut_the_same_requests_come_of_them(
    requests: list[Told], last: Told | None, cuts: list[int], knows: bool
) -> None:
    raw = b"".join(each.raw for each in requests) + (b"" if last is None else last.raw + declared(b"behind"))
    at = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    heads = Heads()
    if knows:
        for each in requests:
            remember(heads, each.raw)
    found = read(Framing(heads), *(raw[begin:end] for begin, end in pairwise(at)))
    assert found == read(Framing(Heads()), raw) == read(Framing(Heads()), *(raw[at : at + 1] for at in range(len(raw))))
    assert last is None or last.status != 200 or found[0][-1][7] == last.body, "what follows the last one is dropped"


def remember(heads: Heads, raw: bytes) -> None:
    """As the protocol does it, of one that may be remembered."""
    framing = Framing(Heads())
    request = framing.next(raw)
    assert isinstance(request, Request)
    length = request.headers.get(b"content-length")
    if length is not None:
        known = Known(*request[:5], int(length), "address")
        for _ in range(2):
            heads.came(request.raw, known)


def test_what_lies_behind_a_request_is_not_looked_at_before_it_is_asked_for() -> None:
    framing = Framing(Heads())
    assert isinstance(framing.next(declared(b"one") + b"garbage\r\n\r\n"), Request)
    assert framing.next() == b"one"
    assert framing.next() == End(True)
    assert framing.has_more
    framing.hold(b"more")
    with pytest.raises(OncelogError):
        framing.next()
    assert not framing.has_more


def test_empty_lines_before_a_head_that_comes_in_two_pieces_are_not_remembered_as_that_head() -> None:
    """Else whoever sent them would have asked what it asked, under its token."""
    framing, raw = Framing(Heads()), declared(b"four")
    assert framing.next(b"\r\n\r\n") is None
    assert framing.next(raw[:9]) is None
    request = framing.next(raw[9:])
    assert isinstance(request, Request)
    assert request.raw == b""


@pytest.mark.parametrize("what", ["declared", "chunked", "known"])
def test_what_was_looked_at_is_let_go_of(what: str) -> None:
    """A connection may be idle for long behind a read of 256 KiB, and thousands are."""
    heads = Heads()
    remember(heads, declared(b"known"))
    raw = chunked([b"four"]) if what == "chunked" else declared(b"known" if what == "known" else b"four")
    framing, before = Framing(heads), sys.getrefcount(raw)
    read(framing, raw)
    assert sys.getrefcount(raw) == before


@pytest.mark.parametrize("begun", [chunked([b"four"])[:-9], declared(b"four")[:-1], head("POST", "/echo", "x: y")[:-2]])
def test_what_looks_like_a_head_within_a_request_is_none(begun: bytes) -> None:
    heads = Heads()
    remember(heads, declared(b"four"))
    framing, event = Framing(heads), None
    event = framing.next(begun)
    while event is not None:
        event = framing.next()
    try:
        event = framing.next(declared(b"four"))
    except OncelogError:
        return
    assert not isinstance(event, Request) or event.body is None
