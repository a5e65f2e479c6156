"""What the documentation lists is what there is: errors, settings, metrics, names, addresses."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import tomllib
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import get_args

import pytest
import requests

import oncelog
from oncelog import (
    AtomicBatch,
    AtomicBranch,
    Checkpoint,
    Client,
    Consumer,
    Message,
    MessageId,
    Outbox,
    OutboxRelay,
    Producer,
    Reader,
    Receipt,
    SqlParticipant,
    TransactionAware,
    TransactionContext,
)
from oncelog.wire.media import AVRO, JSON, NDJSON, ONCELOG_AVRO, PROBLEM, THRIFT
from oncelog_service.properties import (
    CHECK_EXPECTED_OFFSETS,
    DEDUPLICATION,
    GENERATION,
    MAX_BYTES,
    MAX_BYTES_PER_SECOND,
    MAX_BYTES_POLICY,
    MAX_MESSAGES_PER_SECOND,
    TRANSACTIONAL,
    TTL,
)
from oncelog_service.rest.table import CONSOLE_ROUTES, ROUTES
from oncelog_service.storage.port import Table
from oncelog_service.storage.records import Record
from tests.docs.pages import ROOT
from tests.world.service import RunningService

DOCS = ROOT / "docs"
TABLES = runpy.run_path(str(DOCS / "tables.py"))


@pytest.mark.parametrize("name", TABLES["TABLES"])
def test_the_generated_tables_are_current(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    assert TABLES["page"](name, text) == text, f"run `python docs/tables.py`: the tables of docs/{name} are old"


def test_every_metric_is_documented_and_every_documented_one_exists(running: RunningService) -> None:
    # By their heads: one that has labels has no value before there is something to say.
    answered = set(re.findall(r"^# TYPE (oncelog_\w+)", requests.get(running.url + "/metrics", timeout=60).text, re.MULTILINE))
    documented = set(re.findall(r"^\| `(oncelog_\w+)`", (DOCS / "operating.md").read_text("utf-8"), re.MULTILINE))
    assert answered == documented


def test_every_public_name_is_documented() -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    assert [name for name in oncelog.__all__ if not re.search(rf"^##+ {name}$", text, re.MULTILINE | re.IGNORECASE)] == []


MADE = (
    *(Producer, Reader, Consumer, Checkpoint, Client, TransactionContext, AtomicBatch, AtomicBranch),
    *(SqlParticipant, Outbox, OutboxRelay),
)
"""Whose arguments are shown."""
TABLED = (*MADE, Receipt, Message)
"""Whose members are in a table."""
TOLD = (MessageId, TransactionAware)
"""Whose members are told in sentences."""


def section_of(kind: type) -> str:
    """Of docs/python.md, what stands under the class's name."""
    _, _, section = (DOCS / "python.md").read_text("utf-8").partition(f"\n## {kind.__name__}\n")
    return section.partition("\n## ")[0]


def documented_members(kind: type) -> dict[str, str]:
    """The names in the first column of its tables of members, and how each is called there."""
    tables = re.findall(r"^\| member \|.*\n\|[-|]+\n((?:\|.*\n?)+)", section_of(kind), re.MULTILINE)
    cells = [cell for table in tables for cell in re.findall(r"^\|(.*?)\|", table, re.MULTILINE)]
    return {name: arguments for cell in cells for name, arguments in re.findall(r"`(\w+)(.*?)`", cell)}


def members(kind: type) -> set[str]:
    """What a caller finds on an object of the class: what it has, what it inherits of ours, what its making sets."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("oncelog")]
    made = [
        node for each in ours for node in ast.walk(ast.parse(dedent(inspect.getsource(each)))) if isinstance(node, ast.Attribute)
    ]
    attributes = {node.attr for node in made if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self"}
    return {name for name in attributes.union(*map(vars, ours)) if not name.startswith("_")}


@pytest.mark.parametrize("kind", TABLED, ids=lambda kind: kind.__name__)
def test_the_members_that_are_documented_are_those_there_are(kind: type) -> None:
    assert documented_members(kind).keys() == members(kind)


@pytest.mark.parametrize("kind", TABLED, ids=lambda kind: kind.__name__)
def test_a_member_is_called_as_it_is_documented(kind: type) -> None:
    for name, shown in documented_members(kind).items():
        if shown and "…" not in shown:
            documented = ast.parse(f"def {name}{shown}: pass").body[0]
            assert isinstance(documented, ast.FunctionDef)
            named = {each.arg for each in (*documented.args.args, *documented.args.kwonlyargs, documented.args.vararg) if each}
            assert named <= inspect.signature(getattr(kind, name)).parameters.keys(), name


def first_column(page: Path, head: str) -> list[str]:
    """What stands as code in the first column of the table that has this head; a cell may have several names, or none."""
    table = re.search(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text("utf-8"), re.MULTILINE)
    assert table, f"{page.name} has no table {head!r}"
    return [name for cell in re.findall(r"^\|(.*?)\|", table[1], re.MULTILINE) for name in re.findall(r"`(.+?)`", cell)]


def test_each_argument_that_is_a_time_has_its_unit_in_the_table_of_units() -> None:
    methods = [call for kind in MADE for name, call in inspect.getmembers(kind, callable) if not name.startswith("_")]
    arguments = [each for call in (*MADE, *methods) for each in inspect.signature(call).parameters.values()]
    times = {each.name for each in arguments if "float" in str(each.annotation) or each.name == "ttl"}
    assert set(first_column(DOCS / "python.md", "argument | of")) == times


def test_both_pages_list_the_properties_of_a_topic() -> None:
    listed = first_column(DOCS / "python.md", "property | unit")
    assert [*listed, GENERATION] == first_column(DOCS / "http.md", "property | default")


def test_the_readme_lists_each_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(first_column(ROOT / "README.md", "extra")) == extras.keys()


@pytest.mark.parametrize("kind", TOLD, ids=lambda kind: kind.__name__)
def test_the_members_that_are_told_are_those_there_are(kind: type) -> None:
    said = section_of(kind)
    words = set(re.findall(r"`(?:\w+\.)?(\w+)[`(]", said))
    assert members(kind) <= words
    assert {name for name in re.findall(rf"`{kind.__name__}\.(\w+)", said) if not hasattr(kind, name)} == set()


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_the_arguments_of_a_class_are_as_documented(kind: type) -> None:
    """Names, order and defaults. Values that are constants are compared; the rest only by name."""
    text = (DOCS / "python.md").read_text("utf-8")
    shown = re.search(rf"^`{kind.__name__}(\(.*?\))`", text, re.MULTILINE | re.DOTALL)
    assert shown, f"docs/python.md does not show how to make a {kind.__name__}"
    documented = ast.parse(f"def shown{' '.join(shown[1].split())}: pass").body[0]
    assert isinstance(documented, ast.FunctionDef)
    variables: dict[str, object] = {}
    exec(compile(ast.Module([documented], []), "python.md", "exec"), variables)
    expected = [(each.name, each.default, each.kind) for each in inspect.signature(variables["shown"]).parameters.values()]  # type: ignore[arg-type]
    actual = [(each.name, each.default, each.kind) for each in inspect.signature(kind).parameters.values()]
    assert actual == expected


@pytest.mark.parametrize("row", get_args(Record), ids=lambda row: row.__name__)
def test_the_small_tables_are_drawn_as_they_are_written(row: type) -> None:
    text = (DOCS / "formats.md").read_text("utf-8")
    table = re.sub("(?<!^)(?=[A-Z])", "_", row.__name__.removesuffix("Row")).upper()
    drawn = re.search(rf"^{table} +(\{{.*?\}})\n(?=[A-Z`])", text, re.MULTILINE | re.DOTALL)
    assert drawn
    # Members of the row stand before a colon and a type; names in nested braces are those of its values.
    members = set(re.findall(r'"(\w+)": (?:int|ms|bool|offset|hex|str|\[|\{|"|1)', drawn[1])) - {"version", "deduplication"}
    assert members == {field.name for field in fields(row)}


def test_every_address_is_documented() -> None:
    documented = set(re.findall(r"^\| `([A-Z]+) (/[^`]*)`", (DOCS / "http.md").read_text("utf-8"), re.MULTILINE))
    answered = {(route.method, route.path) for route in (*ROUTES, *CONSOLE_ROUTES)} | {("GET", "/openapi.json"), ("GET", "/docs")}
    assert documented == answered


NAMED: dict[str, list[str]] = {
    "formats.md": [
        *(AVRO, ONCELOG_AVRO, JSON, PROBLEM, NDJSON, THRIFT),
        *(f"`{table.name}` | `{table.value.decode()}`" for table in Table),
    ],
    "http.md": [
        *(f"| `{name}`" for name in (TTL, DEDUPLICATION, TRANSACTIONAL, CHECK_EXPECTED_OFFSETS, GENERATION)),
        f"| `{MAX_MESSAGES_PER_SECOND}`, `{MAX_BYTES_PER_SECOND}`",
        f"| `{MAX_BYTES}`, `{MAX_BYTES_POLICY}`",
    ],
}
"""Page → what it must name: media types and tables on disk, properties of a topic."""


@pytest.mark.parametrize("page", NAMED)
def test_everything_there_is_is_named(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert [name for name in NAMED[page] if name not in text] == []


def test_the_schemas_on_the_wire_are_shown_as_they_are() -> None:
    text = (DOCS / "formats.md").read_text("utf-8")
    schemas = sorted((ROOT / "sdk/oncelog/wire/schemas").glob("*/*.avsc"))
    assert len(schemas) == 10
    missing = [str(path.relative_to(ROOT)) for path in schemas if f"({Path('..') / path.relative_to(ROOT)})" not in text]
    assert missing == []
