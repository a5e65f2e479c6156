"""`oncelog verify --same-as`: every row of a stopped store beside that of its copy."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import typer
from rich.progress import Progress

from oncelog_service.cli.frame.codes import FOUND
from oncelog_service.cli.output import Output, progress_bar
from oncelog_service.cli.serve import data_of
from oncelog_service.cli.stores.opening import TELLING_ROWS, check_store, ending, opened, show, size_of
from oncelog_service.cli.stores.rows import ON_DISK, READ, shown_key
from oncelog_service.cluster.unserved import Unserved
from oncelog_service.storage.copying import TABLES, Difference, copy_row_of, differences, pieces
from oncelog_service.storage.open import shown
from oncelog_service.storage.port import Store, StoreDamaged, Table
from oncelog_service.storage.seals import SealedStore

MAX_PROBLEMS = 100


def verify_same(out: Output, store: str, same_as: str) -> None:
    """Compare every row of two stores and print what differs. Exits with 2 if anything does."""
    with progress_bar(out.as_json, TELLING_ROWS) as bar:
        found = _compared(out, store, same_as, bar)
    tables = {
        name: {"rows": found.rows[name], "different": found.different[name], "damaged": found.damaged[name]}
        for name in sorted({*(+found.rows), *found.different, *found.damaged})
    }
    value = {
        "store": shown(store),
        "same_as": shown(same_as),
        "ok": found.ok,
        "rows": found.rows.total(),
        "bytes": found.size,
        "different": found.different.total(),
        "damaged": found.damaged.total(),
        "tables": tables,
        "problems": found.problems,
    }
    rows = [(name, *counts.values(), not counts["different"] and not counts["damaged"]) for name, counts in tables.items()]
    rows.append(("all", value["rows"], value["different"], value["damaged"], found.ok))
    out.table(value, ("table", "rows", "different", "damaged", "ok"), rows)
    for problem in found.problems:
        out.note(problem)
    if not found.ok:
        raise typer.Exit(FOUND)


@dataclass(slots=True)
class Compared:
    """What was found."""

    rows: Counter[str] = field(default_factory=Counter)
    """Of the first store, by table."""
    different: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    size: int = 0
    """In bytes."""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def problem(self, text: str) -> None:
        """Note one; the first hundred stay."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)


def _compared(out: Output, left_url: str, right_url: str, bar: Progress) -> Compared:
    """Compare them. Exits with a sentence if that cannot be."""
    check_store(left_url, "--store", there=True)
    check_store(right_url, "--same-as", there=True)
    with ending(out, "verify"), ExitStack() as stack:
        stores = [stack.enter_context(opened(url)) for url in (left_url, right_url)]
        unserved = [Unserved(store) for store in stores]
        for each in unserved:
            each.begin()
        compared = compare(stores[0], stores[1], data_of(left_url), data_of(right_url), bar)
        for each in unserved:
            each.check()
    return compared


def compare(left: Store, right: Store, left_name: str, right_name: str, bar: Progress) -> Compared:
    """Every row of every table, as it is on disk: one that is damaged does not hide those behind it. Raises StoreError."""
    found = Compared()
    for name, store in ((left_name, left), (right_name, right)):
        copied = copy_row_of(store)
        if copied is not None and not copied.finished:
            found.problem(f"{name} is half a copy, of {copied.source}")
    task = bar.add_task("comparing", total=size_of(left, bar), rows=0, size="", rate=0.0)

    def told() -> None:
        show(bar, task, found.size, found.rows.total())

    readers = READ
    if isinstance(left, SealedStore) and isinstance(right, SealedStore):
        left, right, readers = left.inner, right.inner, ON_DISK
    for table in TABLES:
        try:
            _compare_table(found, table, readers[table], left, right, (left_name, right_name), told)
        except StoreDamaged as damage:
            found.damaged[table.name] += 1
            found.problem(f"{table.name}: cannot be read to its end: {damage}")
    return found


def _compare_table(
    found: Compared,
    table: Table,
    read: Callable[[bytes, bytes], object],
    left: Store,
    right: Store,
    names: tuple[str, str],
    told: Callable[[], None],
) -> None:
    with closing(pieces(left, table)) as all_pieces:  # type: ignore[type-var]
        for piece in all_pieces:
            for key, value in piece.rows.items():
                _check(found, table, key, value, read, names[0])
            found.rows[table.name] += len(piece.rows)
            found.size += piece.size
            for difference in differences(piece, right):
                found.different[table.name] += 1
                found.problem(_sentence(difference, *names))
                if difference.right is not None:
                    _check(found, table, difference.key, difference.right, read, names[1])
            told()


def _check(found: Compared, table: Table, key: bytes, value: bytes, read: Callable[[bytes, bytes], object], where: str) -> None:
    try:
        read(key, value)
    except (StoreDamaged, ValueError, struct.error, IndexError, KeyError, TypeError) as damage:
        found.damaged[table.name] += 1
        found.problem(f"{table.name} {shown_key(key)}: damaged in {where}: {damage}")


def _sentence(difference: Difference, left_name: str, right_name: str) -> str:
    table, key, left, right = difference
    name = f"{table.name} {shown_key(key)}"
    if left is None:
        return f"{name}: only in {right_name}"
    if right is None:
        return f"{name}: only in {left_name}"
    differing = (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    at = next(differing, min(len(left), len(right)))
    return f"{name}: differs from byte {at} on; {len(left)} bytes in {left_name}, {len(right)} in {right_name}"
