"""Runs the measurements, prints a table, writes JSON.

Never a test: machines are noisy, and only ratios in one run count.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.atomic import atomic_rates
from benchmarks.cluster import cluster_rates
from benchmarks.conditional import conditional_rates
from benchmarks.lag import lag
from benchmarks.measure import Row, machine, publish_rates, sdk_rates, ten_million
from benchmarks.spark import spark_rates
from benchmarks.sql import sql_rates
from benchmarks.transactions import transaction_rates

RESULTS = Path(__file__).with_name("results")


NEED_WRK = ("publish", "sql", "cluster")


def _kinds(args: argparse.Namespace) -> dict[str, tuple[str, Callable[[], list[Row]]]]:
    """What can be measured: what is said meanwhile, and the measurement."""
    seconds, messages, large = args.seconds, args.messages, args.large
    return {
        "publish": ("publishing with wrk, oncelog and bare in turns", lambda: publish_rates(seconds)),
        "sdk": (f"{messages:,} messages through the SDK", lambda: sdk_rates(messages)),
        "transactions": ("transactions", lambda: transaction_rates(seconds)),
        "conditional": ("conditional publish", lambda: conditional_rates(seconds)),
        "atomic": ("atomic commits", lambda: atomic_rates(seconds)),
        "sql": ("publishing into PostgreSQL, bare inserts in turns with it", lambda: sql_rates(seconds)),
        "cluster": ("several instances over one PostgreSQL", lambda: cluster_rates(seconds)),
        "spark": (f"{messages:,} messages through Spark", lambda: spark_rates(messages)),
        "lag": ("small requests beside the largest ones", lag),
        "large": (f"{large:,} messages, SIGKILL, open", lambda: ten_million(large)),
    }


def main() -> None:
    """The whole, or what --only names."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=int, default=6, help="of load for each figure (default %(default)s)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="through the SDK (default %(default)s)")
    parser.add_argument("--large", type=int, default=10_000_000, help="messages of the large topic (default %(default)s)")
    parser.add_argument(
        "--only", action="append", metavar="KIND", help="publish, sdk, transactions, …: several times for several"
    )
    args = parser.parse_args()
    console = Console()
    kinds = _kinds(args)
    chosen = args.only or list(kinds)
    if unknown := set(chosen) - kinds.keys():
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(kinds)}")
    rows: list[Row] = []
    where = machine()
    if shutil.which("wrk") is None:
        console.print(
            "[yellow]wrk is not installed (Debian: apt-get install wrk); the rates of publish, sql and cluster are left out[/]"
        )
        chosen = [kind for kind in chosen if kind not in NEED_WRK]
    for kind in chosen:
        status, measure = kinds[kind]
        with console.status(status):
            rows += measure()
    _print(console, rows, where)
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps({"at": now.isoformat(), "machine": where, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    console.print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def _print(console: Console, rows: list[Row], where: dict[str, str]) -> None:
    table = Table(title="oncelog", caption=", ".join(f"{name} {value}" for name, value in where.items()))
    table.add_column("what")
    table.add_column("figure", justify="right")
    table.add_column("unit")
    table.add_column("target")
    for row in rows:
        figure = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:,.2f}"
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met]
        table.add_row(row.what, figure, row.unit, f"{row.target} {mark}".strip())
    console.print(table)


if __name__ == "__main__":
    main()
