"""`oncelog copy`: a store into another one, both of them stopped (storage/copying.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import typer
from rich.filesize import decimal

from oncelog_service.cli.frame.codes import INTERRUPTED
from oncelog_service.cli.output import Output, progress_bar
from oncelog_service.cli.stores.opening import TELLING_ROWS, check_store, ending, opened, served_named, show, size_of
from oncelog_service.cluster.unserved import Kept, Served, Unserved
from oncelog_service.storage.copying import Copied, begin_copy, copy_rows, end_copy, set_copy_row
from oncelog_service.storage.open import shown

GO_ON = "; the same command again goes on from there"


def copy_store(out: Output, source: str, target: str) -> None:
    """Copies all rows, and prints how many. Exits with a sentence if that cannot be, or is interrupted."""
    check_store(source, "FROM", there=True)
    check_store(target, "TO", there=False)
    began = time.monotonic()
    with ending(out, "copy", GO_ON), _interruptible(out):
        copied, again = _copied(source, target, out.as_json)
    seconds = time.monotonic() - began
    rate = copied.rows / max(seconds, 0.001)
    value = {
        "from": shown(source),
        "to": shown(target),
        "rows": copied.rows,
        "bytes": copied.size,
        "written": copied.written,
        "deleted": copied.deleted,
        "resumed": again,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rate),
    }
    there = f", {copied.rows - copied.written:,} of them were there" if again else ""
    out.result(value, f"copied {copied.rows:,} rows{there}, {decimal(copied.size)}, in {seconds:,.1f} s ({rate:,.0f} rows/s)")
    out.note(f"oncelog verify --store {shown(source)} --same-as {shown(target)}  proves both equal; then serve the copy only")


def _copied(source_url: str, target_url: str, as_json: bool) -> tuple[Copied, bool]:
    """What was copied, and whether a copy was gone on with."""
    with ExitStack() as stack:
        source = stack.enter_context(opened(source_url))
        target = stack.enter_context(opened(target_url))
        unserved = Unserved(source)
        with served_named("FROM: "):
            unserved.begin()
        with served_named("TO: "):
            kept = stack.enter_context(Kept(target))
        again = begin_copy(source, target, shown(source_url), kept.fence)
        with served_named("TO: "):
            try:
                kept.check()
            except Served:
                if not again:
                    set_copy_row(target, None, kept.fence)
                raise
        with progress_bar(as_json, TELLING_ROWS) as bar:
            task = bar.add_task("copying", total=size_of(source, bar), rows=0, size="", rate=0.0)
            with closing(copy_rows(source, target, kept.fence)) as steps:  # type: ignore[type-var]
                for copied in steps:
                    show(bar, task, copied.size, copied.rows)
        with served_named("FROM: ", "; the copy is not finished, run the same command again"):
            unserved.check()
        end_copy(target, kept.fence)
        return copied, again


@contextmanager
def _interruptible(out: Output) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        detail = f"the copy is not finished{GO_ON}"
        out.failure({"title": "Interrupted", "code": "interrupted", "detail": detail}, f"interrupted: {detail}")
        raise typer.Exit(INTERRUPTED) from None
