"""The proof: each flight is in the log exactly once and in order, and the table says what the file says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from flights.data import PRODUCER, TOPIC, Flight, Totals, flights, totals
from oncelog import Client, Message, Reader
from oncelog.wire.models import Verification

_SHOWN = 10


def check_log(url: str, rows: int) -> list[str]:
    """Read the whole log beside the file; what differs, in words."""
    with Reader(TOPIC, url=url, timeout=0) as reader:
        return list(_first(differences(reader, flights(rows))))


def differences(log: Iterable[Message], expected: Iterable[Flight]) -> Iterator[str]:
    """What is lost, double, out of order or changed."""
    last = b""
    for number, (message, flight) in enumerate(zip_longest(log, expected)):
        if message is None or flight is None:
            yield f"the {'log' if message is None else 'file'} ends after {number:,} flights, the other goes on"
            return
        if not _same(message, flight):
            yield f"offset {message.offset}: not line {flight.line}, but sequence id {message.sequence_id}: {message.payload!r}"
        if bytes(message.message_id) <= last:
            yield f"offset {message.offset}: the message id does not rise"
        last = bytes(message.message_id)


def _same(message: Message, flight: Flight) -> bool:
    return (
        message.sequence_id == flight.line
        and message.offset == flight.line
        and message.payload == flight.payload
        and message.key == flight.airport.encode()
        and message.producer == PRODUCER
    )


def check_table(table: dict[str, Totals], rows: int) -> list[str]:
    """Compare with the same numbers computed from the file in one go."""
    expected = totals(flight.payload for flight in flights(rows))
    return [
        f"{airport}: the table says {table.get(airport)}, the file {expected.get(airport)}"
        for airport in sorted(expected.keys() | table.keys())
        if table.get(airport) != expected.get(airport)
    ]


def check_service(client: Client, rows: int) -> list[str]:
    """Let the service refold its log; compare its live map with the file."""
    *_, found = client.verify(TOPIC)
    assert isinstance(found, Verification)
    problems = list(_first(iter(found.problems)))
    if not found.ok or found.messages != rows or found.duplicates:
        problems.append(f"verify: ok={found.ok}, {found.messages:,} messages, {found.duplicates} duplicates")
    last = client.producer(TOPIC, PRODUCER).last_persisted
    if last != rows - 1:
        problems.append(f"the live map has sequence id {last} as the producer's last, the file ends with {rows - 1}")
    return problems


def _first(problems: Iterator[str]) -> Iterator[str]:
    for number, problem in enumerate(problems):
        if number == _SHOWN:
            yield "… and more"
            return
        yield problem
