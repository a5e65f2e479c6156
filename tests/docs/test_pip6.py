"""docs/pip6.md: what it says of oncelog, and the program that writes its table."""

from __future__ import annotations

import pytest
from benchmarks.pip6 import END, PAGE, TRIED, OnceLog, in_words, numbers, page, stored, table

from tests.world.service import running_service

KILLS = [name for name in TRIED if name.startswith("kill -9")]


def said() -> dict[str, str]:
    """Of each thing that is tried, what the page says of oncelog."""
    lines = [[cell.strip() for cell in line.split("|")] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    [at] = [number for number, cell in enumerate(lines[0]) if cell.startswith("oncelog")]
    return {line[1]: line[at] for line in lines}


def test_the_page_says_what_oncelog_does() -> None:
    with running_service() as service:
        side = OnceLog(None, service.url)
        found = {name: tried(side) for name, tried in TRIED.items() if name not in KILLS}
    assert found.items() <= said().items()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_the_page_says_what_becomes_of_kills(name: str) -> None:
    with OnceLog.running() as side:
        assert TRIED[name](side) == said()[name]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["1", "2", "3", "4"], "each once"),
        (["1", "3", "2", "4"], "each once, in another order"),
        (["1", "2", "2", "3", "3", "4"], "2..3 twice"),
        (["1", "1", "1", "4"], "2..3 lost; 1 up to 3 times"),
    ],
)
def test_what_is_stored_is_told(found: list[str], expected: str) -> None:
    assert stored(numbers(1, 4), found) == expected


def test_many_are_told_by_their_number() -> None:
    assert stored(numbers(1, 1_000), ["1"]) == "999 messages lost"


def test_what_nobody_sent_is_no_outcome() -> None:
    with pytest.raises(RuntimeError, match="what nobody sent"):
        stored(numbers(1, 2), ["1", "2", "5"])


def test_answers_are_told_once_or_by_their_number() -> None:
    assert (in_words(["stored"] * 3), in_words(["duplicate", "stored", "stored"])) == ("stored", "1 duplicate, 2 stored")


def test_what_was_found_takes_the_place_of_what_was_there() -> None:
    written = page(PAGE.read_text(), table({"oncelog": dict.fromkeys(TRIED, "each once")}))
    assert written.count("| each once |") == len(TRIED)
    assert written.partition(END)[2] == PAGE.read_text().partition(END)[2]
    with pytest.raises(ValueError, match="no place"):
        page("", "")
