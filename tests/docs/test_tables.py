"""What the documentation lists is what there is: errors, settings, metrics, names, addresses."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import requests

import oncelog
from oncelog import Checkpoint, Client, Message, Producer, Reader, Receipt
from oncelog.wire.media import AVRO, JSON, NDJSON, ONCELOG_AVRO, PROBLEM
from oncelog_service.properties import CHECK_EXPECTED_OFFSETS, DEDUPLICATION, GENERATION, TTL
from oncelog_service.rest.table import ROUTES
from oncelog_service.storage.port import Table
from tests.docs.pages import ROOT
from tests.support import RunningService

DOCS = ROOT / "docs"
TABLES = runpy.run_path(str(DOCS / "tables.py"))


@pytest.mark.parametrize("name", TABLES["TABLES"])
def test_the_generated_tables_are_current(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    assert TABLES["page"](name, text) == text, f"run `python docs/tables.py`: the tables of docs/{name} are old"


def test_every_metric_is_documented_and_every_documented_one_exists(running: RunningService) -> None:
    answered = set(re.findall(r"^(oncelog_\w+)", requests.get(running.url + "/metrics", timeout=10).text, re.MULTILINE))
    documented = set(re.findall(r"^\| `(oncelog_\w+)`", (DOCS / "operating.md").read_text("utf-8"), re.MULTILINE))
    assert answered == documented


def test_every_public_name_is_documented() -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    assert [name for name in oncelog.__all__ if not re.search(rf"^##+ {name}$", text, re.MULTILINE | re.IGNORECASE)] == []


@pytest.mark.parametrize("kind", [Producer, Reader, Checkpoint, Client, Receipt, Message], ids=lambda kind: kind.__name__)
def test_every_public_member_is_documented(kind: type) -> None:
    text = (DOCS / "python.md").read_text("utf-8")
    members = [name for name in vars(kind) if not name.startswith("_")]
    assert members
    assert [name for name in members if not re.search(rf"[`.]{name}\b", text)] == []


def test_every_media_type_is_documented() -> None:
    text = (DOCS / "formats.md").read_text("utf-8")
    assert [media for media in (AVRO, ONCELOG_AVRO, JSON, PROBLEM, NDJSON) if media not in text] == []


def test_every_address_is_documented() -> None:
    documented = set(re.findall(r"^\| `([A-Z]+) (/[^`]*)`", (DOCS / "http.md").read_text("utf-8"), re.MULTILINE))
    answered = {(route.method, route.path) for route in ROUTES} | {("GET", "/openapi.json"), ("GET", "/docs")}
    assert documented == answered


def test_every_property_of_a_topic_is_documented() -> None:
    text = (DOCS / "http.md").read_text("utf-8")
    names = (TTL, DEDUPLICATION, CHECK_EXPECTED_OFFSETS, GENERATION)
    assert [name for name in names if f"| `{name}`" not in text] == []


def test_every_table_on_disk_is_documented() -> None:
    text = (DOCS / "formats.md").read_text("utf-8")
    assert [table.name for table in Table if f"`{table.name}` | `{table.value.decode()}`" not in text] == []


def test_the_schemas_on_the_wire_are_shown_as_they_are() -> None:
    text = (DOCS / "formats.md").read_text("utf-8")
    schemas = sorted((ROOT / "sdk/oncelog/wire/schemas").glob("*/*.avsc"))
    assert len(schemas) == 8
    missing = [str(path.relative_to(ROOT)) for path in schemas if f"({Path('..') / path.relative_to(ROOT)})" not in text]
    assert missing == []
