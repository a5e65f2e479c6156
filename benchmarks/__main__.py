"""Runs the measurements, prints a table, writes JSON.

Never a test: machines are noisy, and only ratios in one run count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.atomic import atomic_rates
from benchmarks.attackers import ATTACKS
from benchmarks.before import base_rates
from benchmarks.brokers.rates import broker_rates
from benchmarks.cluster import cluster_rates
from benchmarks.codecs import codec_rates
from benchmarks.conditional import conditional_rates
from benchmarks.engine import engine_rates
from benchmarks.fairness import fairness_rates
from benchmarks.lag import lag
from benchmarks.measure import Row, load, machine, publish_rates, sdk_rates, ten_million
from benchmarks.page import PAGE, page, pictures, rows_from, terminal
from benchmarks.rivals import rival_rates
from benchmarks.spark import spark_rates
from benchmarks.sql import sql_rates
from benchmarks.transactions import transaction_rates

RESULTS = Path(__file__).with_name("results")


NEED_WRK = ("publish", "sql", "cluster")


def _kinds(args: argparse.Namespace) -> dict[str, tuple[str, Callable[[], list[Row]]]]:
    """What can be measured: what is said meanwhile, and the measurement."""
    seconds, messages, large = args.seconds, args.messages, args.large
    return {
        "rivals": ("oncelog, PostgreSQL, Redis and NATS in turns", lambda: rival_rates(seconds)),
        "brokers": ("oncelog, Kafka and Pulsar in turns", lambda: broker_rates(seconds)),
        "publish": ("publishing with wrk, oncelog and bare in turns", lambda: publish_rates(seconds)),
        "sdk": (f"{messages:,} messages through the SDK", lambda: sdk_rates(messages)),
        "transactions": ("transactions", lambda: transaction_rates(seconds)),
        "conditional": ("conditional publish", lambda: conditional_rates(seconds)),
        "access": ("an open service and a locked one in turns", partial(_access, seconds)),
        "atomic": ("atomic commits", lambda: atomic_rates(seconds)),
        "sql": ("publishing into PostgreSQL, bare inserts in turns with it", lambda: sql_rates(seconds)),
        "cluster": ("several instances over one PostgreSQL", lambda: cluster_rates(seconds)),
        "spark": (f"{messages:,} messages through Spark", lambda: spark_rates(messages)),
        "fairness": ("a quiet topic beside a flood on another one, in turns", lambda: fairness_rates(seconds)),
        "attacks": ("a small publish beside attacks, in turns", partial(_attacks, seconds, args.attack or [])),
        **({"base": ("this version and another one in turns", partial(base_rates, args.base, seconds))} if args.base else {}),
        "lag": ("small requests beside the largest ones", lag),
        "codecs": ("each codec, with and without reading back, in turns", codec_rates),
        "engine": ("a store in this process, and a service, in turns", lambda: engine_rates(seconds)),
        "large": (f"{large:,} messages, SIGKILL, open", lambda: ten_million(large)),
    }


def _access(seconds: float) -> list[Row]:
    from benchmarks.access import access_rates  # signs tokens, for which an extra is needed

    return access_rates(seconds)


def _attacks(seconds: float, chosen: list[str]) -> list[Row]:
    from benchmarks.attacks import attack_rates  # signs tokens, too

    return attack_rates(seconds, chosen)


def main() -> None:
    """The whole, or what --only names; or the page, from what was measured before."""
    args, kinds = _arguments()
    if args.page is not None:
        _write_page([Path(path) for path in args.page] or [max(RESULTS.glob("*.json"))])
        return
    console = Console(width=None if sys.stdout.isatty() else 200)
    chosen = args.only or list(kinds)
    rows: list[Row] = []
    where = machine()
    if shutil.which("wrk") is None:
        console.print(
            "[yellow]wrk is not installed (Debian: apt-get install wrk); the rates of publish, sql and cluster are left out[/]"
        )
        chosen = [kind for kind in chosen if kind not in NEED_WRK]
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    for number, kind in enumerate(chosen, 1):
        status, measure = kinds[kind]
        with console.status(f"{number} of {len(chosen)}: {status}"):
            rows += measure()
            where["at the end"] = load()
        # After each kind: one that is interrupted has what it measured until then, and --only goes on with the rest.
        path.write_text(
            json.dumps({"at": now.isoformat(), "machine": where, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )
    console.print(terminal(rows, where))
    console.print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def _arguments() -> tuple[argparse.Namespace, dict[str, tuple[str, Callable[[], list[Row]]]]]:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6, help="of load for each figure (default %(default)s)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="through the SDK (default %(default)s)")
    parser.add_argument("--large", type=int, default=10_000_000, help="messages of the large topic (default %(default)s)")
    parser.add_argument(
        "--only", action="append", metavar="KIND", help="rivals, publish, sdk, transactions, …: several times for several"
    )
    parser.add_argument("--base", metavar="PYTHON", help="of an environment with another version: measure that beside this one")
    parser.add_argument("--attack", action="append", choices=ATTACKS, metavar="WHAT", help="of attacks this one: several times")
    parser.add_argument(
        "--page",
        nargs="*",
        metavar="RESULT",
        help="measure nothing, write docs/benchmarks.md and its pictures from these results (default: the newest)",
    )
    args = parser.parse_args()
    kinds = _kinds(args)
    if unknown := set(args.only or ()) - kinds.keys():
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(kinds)}")
    return args, kinds


def _write_page(paths: list[Path]) -> None:
    """Rows of several results are those of the parts of one run."""
    results = [json.loads(path.read_text()) for path in paths]
    whole = {**results[0], "rows": [row for result in results for row in result["rows"]]}
    PAGE.write_text(page(PAGE.read_text(), whole))
    folder = PAGE.parent / "pictures"
    folder.mkdir(exist_ok=True)
    for name, svg in pictures(rows_from(whole)).items():
        (folder / name).write_text(svg)


if __name__ == "__main__":
    main()
