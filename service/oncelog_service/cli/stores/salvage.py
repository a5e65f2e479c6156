"""`oncelog salvage`: what can still be read of a damaged store, into a new one (files/salvage_read.py, log/keep/losses.py)."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer
from rich.filesize import decimal

from oncelog_service.atomic.recovery import find
from oncelog_service.cli.frame.codes import FOUND
from oncelog_service.cli.output import Output, progress_bar
from oncelog_service.cli.stores.opening import TELLING_ROWS, check_store, ending, opened, show
from oncelog_service.cli.stores.rows import ON_DISK, shown_key
from oncelog_service.log.keep.losses import (
    count_bytes,
    drop_trimmed,
    fill,
    holes,
    lacks_numbers,
    lost_topics,
    restart_atomic,
    restart_transactions,
    restore_topic,
)
from oncelog_service.renewal import LIVES_AGAIN, begin_incarnation
from oncelog_service.storage.copying import SALVAGED, TABLES, CopyRefused, copy_row_of, set_copy_row
from oncelog_service.storage.files.end_file import ROW_KEY, beside, number_of_row, read_end
from oncelog_service.storage.files.salvage_read import readable_rows
from oncelog_service.storage.keys import split_topic_key
from oncelog_service.storage.open import path_of, shown
from oncelog_service.storage.port import Batch, Store, StoreDamaged, Table
from oncelog_service.storage.records import CopyRow
from oncelog_service.storage.seals import raw
from oncelog_service.transactions.recovery import recover
from oncelog_service.transactions.store_id import find_store_id

_NAMED = 1_000
_PIECE_BYTES = 8 * 2**20


@dataclass(slots=True)
class Salvaged:
    """What came of it."""

    rows: int = 0
    size: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    """What is not there, as sentences; the first thousand."""

    def lost(self, text: str) -> None:
        """Note one."""
        if len(self.losses) < _NAMED:
            self.losses.append(text)


def salvage_store(out: Output, source: str, target: str, accept_losses: bool) -> None:
    """Copies what can be read, and prints what is lost. Exits with 2 unless the losses are accepted."""
    check_store(source, "FROM", there=True)
    check_store(target, "TO", there=False)
    path = path_of(source)
    if path is None:
        raise typer.BadParameter("a database server has its own tools; only stores in files are salvaged", param_hint="FROM")
    with ending(out, "salvage"), opened(target) as store:
        found = Salvaged()
        if _begin(store, shown(source)):
            _copy(source.partition(":")[0], path, store, found, out.as_json)
        _look_for_losses(store, found)
        if accept_losses:
            _accept(store)
    value = {
        "from": shown(source),
        "to": shown(target),
        "rows": found.rows,
        "bytes": found.size,
        "unreadable": dict(found.unreadable),
        "losses": found.losses,
        "accepted": accept_losses,
    }
    lines = [f"salvaged {found.rows:,} rows, {decimal(found.size)}", *found.losses]
    out.result(value, "\n".join(lines))
    if not accept_losses:
        out.note("no service opens it: look at what is lost, then run the same command with --accept-losses")
        raise typer.Exit(FOUND)
    out.note(f"clients of before are told that the store is another incarnation (docs/operating.md). {LIVES_AGAIN}")


def _begin(store: Store, source: str) -> bool:
    """Marks the target; whether it is still to be filled. Raises CopyRefused: it holds something else."""
    mark = copy_row_of(store)
    if mark is None:
        for table in TABLES:
            with closing(store.scan(table, b"", b"\xff" * 64)) as rows:
                if next(rows, None) is not None:
                    raise CopyRefused("the target is not empty, and nothing in it says that it was salvaged; choose an empty one")
        set_copy_row(store, CopyRow(of="", source=SALVAGED + source, finished=False))
        return True
    if mark.source != SALVAGED + source or mark.finished:
        raise CopyRefused("the target holds another store, or one whose losses were accepted; choose an empty one")
    return mark.of == ""


def _copy(scheme: str, path: Path, store: Store, found: Salvaged, as_json: bool) -> None:
    tables, inner, batch, size, number = {table.value: table for table in Table}, raw(store), Batch(), 0, 0
    with tempfile.TemporaryDirectory(prefix="oncelog-salvage-") as name, progress_bar(as_json, TELLING_ROWS) as bar:
        task = bar.add_task("salvaging", total=None, rows=0, size="", rate=0.0)
        for key, value in readable_rows(scheme, path, Path(name)):
            table = tables.get(key[:1])
            if key == ROW_KEY:
                number = max(number, number_of_row(value))
            if table is None or table is Table.COPY:
                continue
            at = key[1:]
            try:
                ON_DISK[table](at, value)
            except Exception as damage:  # whatever reading bytes that may be any brings
                found.unreadable[table.name] += 1
                found.lost(f"{table.name} {shown_key(at)}: {damage}")
                continue
            batch.put(table, at, value)
            found.rows += 1
            found.size += len(key) + len(value)
            size += len(key) + len(value)
            if size > _PIECE_BYTES:
                inner.write([batch])
                batch, size = Batch(), 0
                show(bar, task, found.size, found.rows)
        inner.write([batch])
    _compare_ends(path, number, found)
    set_copy_row(store, CopyRow(of="0" * 32, source=SALVAGED + shown(f"{scheme}://{path}"), finished=False))


def _compare_ends(path: Path, number: int, found: Salvaged) -> None:
    """Note how many of the newest writes are not there, whatever was in them."""
    try:
        lost = read_end(beside(path)) - number
    except StoreDamaged as damage:
        found.lost(f"how far the store had come is not known: {damage}")
        return
    if lost > 0:
        found.lost(f"the last {lost} writes, or parts of them: what was in them may be published again, at the same offsets")


def _look_for_losses(store: Store, found: Salvaged) -> None:
    if find_store_id(store) is None:
        found.lost("the store's name: transactions that were under way on its topics are never settled")
    for key, row in lost_topics(store):
        found.lost(
            f"{'/'.join(split_topic_key(key))}: its properties; it is given a generation of {row.generation} and keeps everything"
        )
    for hole in holes(store):
        found.lost(hole.name)
    for what, _ in _broken(store):
        found.lost(what)


def _broken(store: Store) -> Iterator[tuple[str, Callable[[Store], None]]]:
    """Folds that cannot be made: (a sentence, what has them begin anew)."""
    try:
        recover(store)
    except StoreDamaged as damage:
        yield f"transactions: {damage}", restart_transactions
    try:
        find(store, 1)
        if lacks_numbers(store):
            raise StoreDamaged("which numbers were handed out is not known")
    except StoreDamaged as damage:
        yield f"atomic commits: {damage}", restart_atomic


def _accept(store: Store) -> None:
    drop_trimmed(store)
    for key, row in list(lost_topics(store)):
        restore_topic(store, key, row)
    for hole in list(holes(store)):
        fill(store, hole)
    count_bytes(store)
    for _, restart in list(_broken(store)):
        restart(store)
    # Whatever was lost: what it had handed out may be handed out again, and a row may be what it was before its last change.
    begin_incarnation(store, time.time_ns() // 1_000_000)
    mark = copy_row_of(store)
    assert mark is not None
    set_copy_row(store, replace(mark, finished=True))
