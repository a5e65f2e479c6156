"""Each scenario comes out as its file says, and somebody has said by which page of the documentation that is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest

from tests.scenarios_text.faults import SEEN_BY
from tests.scenarios_text.scenario import FOLDER, Scenario, read, scenarios
from tests.scenarios_text.stage import ACTORS, WORLD, Misspelt
from tests.simulation.faults import Plant

DOCS = FOLDER.parents[1] / "docs"
ALL = scenarios()


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.path.stem)
def test_a_scenario_comes_out_as_it_says(scenario: Scenario) -> None:
    came = zip(scenario.lines, scenario.deeds, scenario.play(), scenario.expected, strict=True)
    differ = [f"line {line}: {deed} -> {answer}, not {expected}" for line, deed, answer, expected in came if answer != expected]
    assert differ == [], "\n".join([scenario.path.name, *differ])


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.path.stem)
def test_what_a_scenario_expects_was_judged_by_a_page(scenario: Scenario) -> None:
    verdict = scenario.verdict()
    assert verdict is not None, f"{scenario.path.name} has no line `# right because: page.md#anchor digest`"
    headings = re.findall(r"^#+ (.+)$", (DOCS / verdict["page"]).read_text(), re.MULTILINE)
    assert verdict["anchor"] in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
    digest = scenario.digest
    assert verdict["digest"] != "?", f"its digest is missing: read what it expects, and where it is right, write {digest}"
    assert verdict["digest"] == digest, f"it expects something else than was judged: read it again, and write {digest}"


@pytest.mark.parametrize(("fault", "name"), SEEN_BY, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_a_fault_that_is_planted_is_seen(fault: Callable[[], Iterator[Plant]], name: str) -> None:
    scenario = read(FOLDER / f"{name}.txt")
    with ExitStack() as stack:
        for owner, member, value in fault():
            stack.enter_context(mock.patch.object(owner, member, value))
        assert scenario.play() != scenario.expected


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("p opnes", "'opnes'"),
        ("somebody reads al", "'al'"),
        ("p sends one", "'one'"),
        ("p publishes x at", "'at'"),
        ("disk burns", "'burns'"),
        ("C commits a &", "'a'"),
        ("T commits", "neither begun"),
        ("operator trims", "missing"),
    ],
)
def test_a_word_that_is_unknown_is_told_with_its_line(tmp_path: Path, deed: str, told: str) -> None:
    path = tmp_path / "misspelt.txt"
    path.write_text(f"# A sentence.\n\np opens -> behind nothing\n{deed} -> ok\n")
    with pytest.raises(Misspelt, match=f"misspelt.txt, line 4: .*{told}.*: {deed}"):
        read(path).play()


def test_every_word_is_on_the_page_of_this_folder() -> None:
    page = (FOLDER / "README.md").read_text()
    assert [word for word in (*WORLD, *ACTORS) if f"`{word}" not in page and f" {word}" not in page] == []
