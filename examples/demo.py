"""Processes and services that are killed, and a proof each time that nothing was lost, doubled or half done.

Run it with `make demo`. Act one: 336,776 flights land in a topic once each. Act two: a SQL table and a topic change in one
transaction, both or neither. Act three: streams on Spark give what a batch gives. What happens in them is told in
`flights/act_one.py`, `flights/act_two.py` and `flights/act_three.py`.

Exits with 0 only if everything is proved.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flights.act import Act, Story
from flights.act_one import ActOne
from flights.act_three import ActThree
from flights.act_two import ActTwo
from flights.data import ALL_FLIGHTS
from flights.processes import Crew, Unexpected
from rich.console import Console

from oncelog import Client

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

BOOKINGS = 300
MOST_BOOKINGS = 4_000
"""As many as there are seats for."""

STREAMED = 20_000
"""Of the year's flights, those of three weeks and a half: enough to be killed on the way."""

MakeAct = Callable[[Crew, Client, Story], Act]


def perform(make_act: MakeAct, work: Path, store: str, console: Console) -> int:
    """Play one act; the exit code."""
    crew = Crew(work, store)
    try:
        with Client(crew.url) as client:
            act = make_act(crew, client, Story(console))
            console.print(f"\n[bold]{act.title}[/]")
            problems = act.run()
    except Unexpected as unexpected:
        console.print("[bold red]The demo broke off:[/]")
        console.print(str(unexpected), markup=False)
        return 1
    finally:
        crew.dismiss()
    act.show()
    for problem in problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    console.print(f"[bold red]{act.failed}[/]" if problems else f"[bold green]{act.proved}[/]", soft_wrap=True)
    return 1 if problems else 0


def run(acts: dict[str, MakeAct], work: Path, stores: Stores, console: Console) -> int:
    """Play the acts, each with a service and files of its own."""
    return max([perform(make_act, work / name, stores.fresh(work / name), console) for name, make_act in acts.items()])


class Stores:
    """Where the logs lie: in LevelDB, in SQLite, or in a PostgreSQL that is started for the demo and gone with it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._server: PostgresServer | None = None

    def fresh(self, work: Path) -> str:
        """The URL of a store with nothing in it."""
        if self._kind != "postgresql":
            return f"{self._kind}://{work / 'log'}"
        if self._server is None:
            sys.path.append(str(Path(__file__).parents[1]))
            from tests.postgres import PostgresServer

            self._server = PostgresServer()
        return self._server.fresh_database()

    def remove(self) -> None:
        """End what was started."""
        if self._server is not None:
            self._server.remove()


def main() -> int:
    args, parser = _arguments()
    acts: dict[str, MakeAct] = {
        "act-1": lambda crew, client, story: ActOne(args.rows, crew, client, story),
        "act-2": lambda crew, client, story: ActTwo(args.bookings, crew, client, story),
        "act-3": lambda crew, client, story: ActThree(args.streamed, crew, client, story),
    }
    if args.act is not None:
        acts = {name: act for name, act in acts.items() if name == f"act-{args.act}"}
    console = Console()
    stores = Stores(args.store)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background has SIGINT ignored
    try:
        if args.keep is None:
            with tempfile.TemporaryDirectory(prefix="oncelog-demo-") as work:
                return run(acts, Path(work), stores, console)
        work = args.keep.absolute()
        work.mkdir(parents=True, exist_ok=True)
        if any(work.iterdir()):
            parser.error(f"--keep: {work} is not empty")
        return run(acts, work, stores, console)
    except KeyboardInterrupt:
        console.print("interrupted; every process it started has ended")
        return 130
    finally:
        stores.remove()


def _arguments() -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave logs, tables and the processes' stderr in this empty directory"
    )
    parser.add_argument(
        "--store",
        choices=("leveldb", "sqlite", "postgresql"),
        default="leveldb",
        help="where the log lies; postgresql starts one",
    )
    parser.add_argument("--act", type=int, choices=(1, 2, 3), help="play only this one")
    parser.add_argument("--rows", type=int, default=ALL_FLIGHTS, help="act one: only the first so many flights (at least 1,000)")
    parser.add_argument("--bookings", type=int, default=BOOKINGS, help="act two: so many bookings (at least 50)")
    parser.add_argument(
        "--streamed", type=int, default=STREAMED, help="act three: only the first so many flights (at least 5,000)"
    )
    args = parser.parse_args()
    if not 1_000 <= args.rows <= ALL_FLIGHTS:
        parser.error(f"--rows is 1,000 to {ALL_FLIGHTS:,}")
    if not 50 <= args.bookings <= MOST_BOOKINGS:
        parser.error(f"--bookings is 50 to {MOST_BOOKINGS:,}")
    if not 5_000 <= args.streamed <= ALL_FLIGHTS:
        parser.error(f"--streamed is 5,000 to {ALL_FLIGHTS:,}")
    return args, parser


if __name__ == "__main__":
    sys.exit(main())
