"""Act one: every flight lands once, published by processes that are killed, through a service that is killed.

1. A service, a producer and a reader start, each a process of its own. The line number of a flight is its sequence id. The
   reader keeps departures and delay per airport in SQLite, and its position in the same transaction.
2. The reader is killed (SIGKILL), and the producer half way; the next producer resumes behind what the log has.
3. The service is killed and restarted; producer and reader ride it out.
4. The producer is killed again. The next one does not resume: it goes 20,000 lines back and sends them a second time.
5. The log, the table and the service's own maps are compared with the file: each flight exactly once, in order.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from rich.table import Column, Table

from flights.act import Act, Story
from flights.data import TOPIC, Totals
from flights.database import open_database
from flights.processes import Child, Crew
from flights.proof import check_log, check_service, check_table
from flights.tally import AIRPORTS, table
from oncelog import Client

OVERLAP = 20_000
"""Lines sent a second time on purpose, in a full run."""


@dataclass
class Counts:
    """What the summary says."""

    replayed: int = 0
    resent: int = 0
    duplicates: int = 0
    publish_seconds: float = 0.0
    check_seconds: float = 0.0


class ActOne(Act):
    """One run over the first ``rows`` flights."""

    title = "Act one: every flight lands once"
    failed = "Not every flight is there exactly once."

    def __init__(self, rows: int, crew: Crew, client: Client, story: Story) -> None:
        super().__init__(crew, client, story)
        self.rows = rows
        self.proved = f"Each of the {rows:,} flights is there exactly once, in order."
        # Small enough that a short run, too, is killed in the middle of its requests.
        self.batch = max(20, min(5_000, rows // 200))
        self.overlap = min(OVERLAP, rows // 10)
        self.counts = Counts()

    def run(self) -> list[str]:
        """The problems found; none if every flight is there once."""
        self.service = self.crew.service()
        self.client.create_topic(TOPIC)
        self.story.tell(f"service at {self.crew.url}, log and table in {self.crew.work}")
        self.reader = self.crew.reader("reader 1", self.batch)
        self.wait(self.crew.database.exists, lambda: 0)
        self._publish_among_kills()
        self.wait(lambda: self._counted() >= self.rows, self._counted)
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
        self.wait(lambda: self.producer.exit_code is not None, self._stored)
        self._count_duplicates(self.producer)
        self.counts.publish_seconds = time.monotonic() - began
        self.story.tell(f"{self.producer.name} is done: {self.producer.report['duplicate']:,} lines were there already")

    def _kill_producer(self) -> None:
        self.kill(self.producer)
        self._count_duplicates(self.producer)
        acknowledged = self.producer.report.get("line")
        said = "nothing" if acknowledged is None else f"lines up to {acknowledged:,}"
        self.story.tell(f"    acknowledged to it: {said}; in the log: {self._stored():,} flights")

    def _kill_reader(self) -> None:
        self.kill(self.reader)
        self.story.tell(f"    its table and its position are at {self._counted():,} flights; the next one goes on from there")
        self.reader = self.crew.reader("reader 2", self.batch)

    def _kill_service(self) -> None:
        self.kill(self.service)
        began = time.monotonic()
        self.service = self.crew.service()
        stats = self.client.stats(TOPIC)
        self.counts.replayed += stats.replayed
        self.story.tell(
            f"    up again after {time.monotonic() - began:.1f} s: {stats.upcoming_offset:,} flights, of which "
            f"{stats.replayed:,} behind the newest snapshot were replayed"
        )

    def _send_again(self) -> None:
        from_line = max(0, self._stored() - self.overlap)
        self.counts.resent = self._stored() - from_line
        self.story.tell(
            f"the next producer does not resume: it sends from line {from_line:,} on, {self.counts.resent:,} of them again"
        )
        self.producer = self.crew.producer("producer 3", self.rows, self.batch, from_line)

    def _count_duplicates(self, producer: Child) -> None:
        self.counts.duplicates += producer.report.get("duplicate", 0)

    # --- progress

    def _when_stored(self, share: float, act: Callable[[], None]) -> None:
        self.wait(lambda: self._stored() >= share * self.rows, self._stored)
        act()

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
        self.counts.check_seconds = time.monotonic() - began
        self.tell_proof("the log, read from its beginning, is the file line by line", problems)
        found = [f"service: {problem}" for problem in check_service(self.client, self.rows)]
        self.tell_proof("the service has refolded its log: its maps agree", found)
        self.reader.stop()
        self.airports = self._airports()
        wrong = [f"table: {problem}" for problem in check_table(self.airports, self.rows)]
        self.tell_proof("the reader's table is what the file gives in one go", wrong)
        return problems + found + wrong

    def _airports(self) -> dict[str, Totals]:
        engine = open_database(self.crew.database, AIRPORTS.metadata)
        try:
            return table(engine)
        finally:
            engine.dispose()

    def show(self) -> None:
        """The numbers of the run."""
        counts = self.counts
        airports = Table(
            "airport",
            *(Column(name, justify="right") for name in ("flights", "departures", "total delay (h)", "mean delay (min)")),
        )
        for airport, numbers in sorted(self.airports.items()):
            mean = numbers.delay_minutes / numbers.departures if numbers.departures else 0.0
            hours = f"{numbers.delay_minutes / 60:,.1f}"
            airports.add_row(airport, f"{numbers.flights:,}", f"{numbers.departures:,}", hours, f"{mean:.1f}")
        summary = Table(show_header=False)
        summary.add_column()
        summary.add_column(justify="right")
        for name, value in (
            ("flights stored", f"{self.rows:,}"),
            ("sent again on purpose", f"{counts.resent:,}"),
            ("duplicates refused", f"{counts.duplicates:,}"),
            ("kill -9", f"{self.story.kills}"),
            ("replayed after the service's kill", f"{counts.replayed:,}"),
            ("published, kills and restarts included", f"{self.rows / counts.publish_seconds:,.0f}/s"),
            ("read back and compared", f"{self.rows / counts.check_seconds:,.0f}/s"),
        ):
            summary.add_row(name, value)
        self.story.console.print(airports)
        self.story.console.print(summary)
