"""Every flight lands once: 336,776 of them, published by processes that are killed, through a service that is killed.

Run it with `make demo`. What happens:

1. A service, a producer and a reader start, each a process of its own. The line number of a flight is its sequence id. The
   reader keeps departures and delay per airport in SQLite, and its position in the same transaction.
2. The reader is killed (SIGKILL), and the producer half way; the next producer resumes behind what the log has.
3. The service is killed and restarted; producer and reader ride it out.
4. The producer is killed again. The next one does not resume: it goes 20,000 lines back and sends them a second time.
5. The log, the table and the service's own maps are compared with the file: each flight exactly once, in order.

Exits with 0 only if all of that holds.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from flights.data import ALL_FLIGHTS, TOPIC, Totals
from flights.processes import Child, Crew, Unexpected
from flights.proof import check_log, check_service, check_table
from flights.tally import open_database, table
from rich.console import Console
from rich.table import Column, Table

from oncelog import Client

OVERLAP = 20_000
"""Lines sent a second time on purpose, in a full run."""
STALLED_SECONDS = 60.0
"""Without any progress for so long, something is wrong."""


@dataclass
class Story:
    """What happened, told as it happens."""

    console: Console
    begun: float = field(default_factory=time.monotonic)
    kills: int = 0
    replayed: int = 0
    resent: int = 0
    duplicates: int = 0
    publish_seconds: float = 0.0
    check_seconds: float = 0.0

    def tell(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.begun:6.1f} s[/]  {text}", highlight=False, soft_wrap=True)


class Demo:
    """One run over the first ``rows`` flights."""

    def __init__(self, rows: int, crew: Crew, client: Client, story: Story) -> None:
        self.rows = rows
        # Small enough that a short run, too, is killed in the middle of its requests.
        self.batch = max(20, min(5_000, rows // 200))
        self.overlap = min(OVERLAP, rows // 10)
        self.crew = crew
        self.client = client
        self.story = story

    def run(self) -> list[str]:
        """The problems found; none if every flight is there once."""
        self.service = self.crew.service()
        self.client.create_topic(TOPIC)
        self.story.tell(f"service at {self.crew.url}, log and table in {self.crew.work}")
        self.reader = self.crew.reader("reader 1", self.batch)
        self._wait(self.crew.database.exists, lambda: 0)
        self._publish_among_kills()
        self._wait(lambda: self._counted() >= self.rows, self._counted)
        self.story.tell("the reader has caught up")
        return self._prove()

    # --- the kills

    def _publish_among_kills(self) -> None:
        began = time.monotonic()
        self.producer = self.crew.producer("producer 1", self.rows, self.batch)
        self._when_stored(0.30, self._kill_reader)
        self._when_stored(0.50, self._kill_producer)
        self.producer = self.crew.producer("producer 2", self.rows, self.batch)
        self._when_stored(0.70, self._kill_service)
        self._when_stored(0.85, self._kill_producer)
        self._send_again()
        self._wait(lambda: self.producer.exit_code is not None, self._stored)
        self._count_duplicates(self.producer)
        self.story.publish_seconds = time.monotonic() - began
        self.story.tell(f"{self.producer.name} is done: {self.producer.report['duplicate']:,} lines were there already")

    def _kill_producer(self) -> None:
        self._kill(self.producer)
        self._count_duplicates(self.producer)
        acknowledged = self.producer.report.get("line")
        said = "nothing" if acknowledged is None else f"lines up to {acknowledged:,}"
        self.story.tell(f"    acknowledged to it: {said}; in the log: {self._stored():,} flights")

    def _kill_reader(self) -> None:
        self._kill(self.reader)
        self.story.tell(f"    its table and its position stand at {self._counted():,} flights; the next one goes on from there")
        self.reader = self.crew.reader("reader 2", self.batch)

    def _kill_service(self) -> None:
        self._kill(self.service)
        began = time.monotonic()
        self.service = self.crew.service()
        stats = self.client.stats(TOPIC)
        self.story.replayed += stats.replayed
        self.story.tell(
            f"    up again after {time.monotonic() - began:.1f} s: {stats.upcoming_offset:,} flights, of which "
            f"{stats.replayed:,} behind the newest snapshot were replayed"
        )

    def _send_again(self) -> None:
        from_line = max(0, self._stored() - self.overlap)
        self.story.resent = self._stored() - from_line
        self.story.tell(
            f"the next producer does not resume: it sends from line {from_line:,} on, {self.story.resent:,} of them again"
        )
        self.producer = self.crew.producer("producer 3", self.rows, self.batch, from_line)

    def _kill(self, child: Child) -> None:
        if child.kill():
            self.story.kills += 1
            self.story.tell(f"[bold red]kill -9[/] {child.name}")
        else:
            child.check()
            self.story.tell(f"{child.name} was done before it could be killed")

    def _count_duplicates(self, producer: Child) -> None:
        self.story.duplicates += producer.report.get("duplicate", 0)

    # --- progress

    def _when_stored(self, share: float, act: Callable[[], None]) -> None:
        self._wait(lambda: self._stored() >= share * self.rows, self._stored)
        act()

    def _wait(self, until: Callable[[], bool], progress: Callable[[], int]) -> None:
        seen, since = -1, time.monotonic()
        while not until():
            self.crew.check()
            now = progress()
            if now != seen:
                seen, since = now, time.monotonic()
            if time.monotonic() - since > STALLED_SECONDS:
                raise Unexpected(f"nothing has moved for {STALLED_SECONDS:.0f} s")
            time.sleep(0.005)

    def _stored(self) -> int:
        """Flights in the log."""
        return self.client.stats(TOPIC).upcoming_offset

    def _counted(self) -> int:
        """Flights in the reader's table."""
        if not self.crew.database.exists():
            return 0
        with closing(sqlite3.connect(self.crew.database, timeout=20)) as database:
            try:
                return int(database.execute("SELECT coalesce(sum(flights), 0) FROM airports").fetchone()[0])
            except sqlite3.OperationalError:  # not created yet
                return 0

    # --- the proof

    def _prove(self) -> list[str]:
        began = time.monotonic()
        problems = [f"log: {problem}" for problem in check_log(self.crew.url, self.rows)]
        self.story.check_seconds = time.monotonic() - began
        self._tell_proof("the log, read from its beginning, is the file line by line", problems)
        found = [f"service: {problem}" for problem in check_service(self.client, self.rows)]
        self._tell_proof("the service has refolded its log: its maps agree", found)
        self.reader.stop()
        self.airports = self._airports()
        wrong = [f"table: {problem}" for problem in check_table(self.airports, self.rows)]
        self._tell_proof("the reader's table is what the file gives in one go", wrong)
        return problems + found + wrong

    def _airports(self) -> dict[str, Totals]:
        engine = open_database(self.crew.database)
        try:
            return table(engine)
        finally:
            engine.dispose()

    def _tell_proof(self, claim: str, problems: list[str]) -> None:
        self.story.tell(f"[green]proved:[/] {claim}" if not problems else f"[red]WRONG:[/] not so: {claim}")


def show(console: Console, demo: Demo) -> None:
    """The numbers of the run."""
    story = demo.story
    airports = Table(
        "airport", *(Column(name, justify="right") for name in ("flights", "departures", "total delay (h)", "mean delay (min)"))
    )
    for airport, numbers in sorted(demo.airports.items()):
        mean = numbers.delay_minutes / numbers.departures if numbers.departures else 0.0
        hours = f"{numbers.delay_minutes / 60:,.1f}"
        airports.add_row(airport, f"{numbers.flights:,}", f"{numbers.departures:,}", hours, f"{mean:.1f}")
    summary = Table(show_header=False)
    summary.add_column()
    summary.add_column(justify="right")
    for name, value in (
        ("flights stored", f"{demo.rows:,}"),
        ("sent again on purpose", f"{story.resent:,}"),
        ("duplicates refused", f"{story.duplicates:,}"),
        ("kill -9", f"{story.kills}"),
        ("replayed after the service's kill", f"{story.replayed:,}"),
        ("published, kills and restarts included", f"{demo.rows / story.publish_seconds:,.0f}/s"),
        ("read back and compared", f"{demo.rows / story.check_seconds:,.0f}/s"),
    ):
        summary.add_row(name, value)
    console.print(airports)
    console.print(summary)


def run(rows: int, work: Path, console: Console) -> int:
    """The exit code."""
    crew = Crew(work)
    try:
        with Client(crew.url) as client:
            demo = Demo(rows, crew, client, Story(console))
            problems = demo.run()
    except Unexpected as unexpected:
        console.print("[bold red]The demo broke off:[/]")
        console.print(str(unexpected), markup=False)
        return 1
    finally:
        crew.dismiss()
    show(console, demo)
    for problem in problems:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    if problems:
        console.print("[bold red]Not every flight is there exactly once.[/]")
        return 1
    console.print(f"[bold green]Each of the {rows:,} flights is there exactly once, in order.[/]")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave log, table and the processes' stderr in this empty directory"
    )
    parser.add_argument("--rows", type=int, default=ALL_FLIGHTS, help="use only the first so many flights (at least 1,000)")
    args = parser.parse_args()
    if not 1_000 <= args.rows <= ALL_FLIGHTS:
        parser.error(f"--rows is 1,000 to {ALL_FLIGHTS:,}")
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background has SIGINT ignored
    try:
        if args.keep is None:
            with tempfile.TemporaryDirectory(prefix="oncelog-demo-") as work:
                return run(args.rows, Path(work), console)
        work = args.keep.absolute()
        work.mkdir(parents=True, exist_ok=True)
        if any(work.iterdir()):
            parser.error(f"--keep: {work} is not empty")
        return run(args.rows, work, console)
    except KeyboardInterrupt:
        console.print("interrupted; every process it started has ended")
        return 130


if __name__ == "__main__":
    sys.exit(main())
