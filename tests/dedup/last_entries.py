"""Marks, runs and positions for the tests of the core: a message's id is its offset, so that both rise together."""

from __future__ import annotations

from oncelog_dedup import START, Entry, LastEntry, Position, Run


def message_id(offset: int) -> bytes:
    return (1_000 + offset).to_bytes(8, "big") + bytes(12)


def last_entry(sequence_id: int, offset: int = 0) -> LastEntry:
    return LastEntry(sequence_id, message_id(offset), offset)


def entry(offset: int, producer: str | None = None, sequence_id: int | None = None) -> Entry:
    return Entry(offset, message_id(offset), producer, sequence_id)


def transactional(
    write_pointer: int, offset: int, producer: str | None = None, sequence_id: int | None = None, begins: bool = True
) -> Entry:
    return entry(offset, producer, sequence_id)._replace(write_pointer=write_pointer, begins=begins)


def run(offset: int, write_pointer: int | None = None, /, **sequence_ids: int) -> Run:
    """One message, at ``offset``, that raises each of these producers (as the row of a stored group does)."""
    last_entries = tuple((producer, last_entry(sequence_id, offset)) for producer, sequence_id in sequence_ids.items())
    return Run(offset, 1, message_id(offset), message_id(offset), last_entries, write_pointer)


def position(upcoming_offset: int) -> Position:
    return START if upcoming_offset == 0 else Position(upcoming_offset, message_id(upcoming_offset - 1))
