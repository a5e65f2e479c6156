"""Act two: a table and a topic change in one transaction, killed at three places: always both or neither.

1. A process books seats on flights of act one: rows in SQLite and a message per booking, in one transaction each.
2. It is killed (SIGKILL) when the messages are published and the database has not committed; when the database has committed and
   the service knows nothing of it; and while the service commits. Once it is the service that is killed in the midst of a
   commit, and then the process, at any moment.
3. Each time the next process ends what was left undecided, the way the database decided, and goes on from the table.
4. The table is compared with what a transactional reader sees: the same bookings, each once. What was rolled back is in the log
   all the same, for readers that ask for everything.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from rich.table import Column, Table

from flights.act import Act, Story
from flights.book import TIMEOUT, TOPIC, open_tables
from flights.booking_proof import Look, check_bookings, check_rolled_back, check_seats, check_service, look, undecided
from flights.processes import Child, Crew
from oncelog import Client

KILLED_AT = {
    "published": "published, not decided",
    "decided": "decided, not committed",
    "committing": "in the commit",
}
PLAN = ("published", "decided", "service", "committing")
"""Where the booking process is killed, one after the other. At "service" that one is, in a commit; then the process, anywhere."""
_EXPECTED = {"published": "aborted", "decided": "committed", "committing": "committed"}
_REPORT_SECONDS = 60.0


@dataclass
class Moment:
    """Right after a kill: how many bookings are to be seen; and what became of the transaction it hit."""

    place: str
    table: int
    topic: int
    plain: int
    became: str = ""


class ActTwo(Act):
    """One run of so many bookings."""

    title = "Act two: a table and a topic, both or neither"
    failed = "The table and the topic do not agree."

    def __init__(self, bookings: int, crew: Crew, client: Client, story: Story) -> None:
        super().__init__(crew, client, story)
        self.bookings = bookings
        self.proved = f"Each of the {bookings:,} bookings is in the table and in the topic, exactly once: always both or neither."
        # So that the kills are spread over the run, and a process has some bookings made when it dies.
        self.each = bookings // (len(PLAN) + 2)
        self.moments: list[Moment] = []
        self.problems: list[str] = []
        self.bookers = 0
        self.left_behind: tuple[Moment, int, str] | None = None

    def run(self) -> list[str]:
        """The problems found; none if table and topic agree."""
        self.service = self.crew.service()
        self.client.create_topic(TOPIC)
        self.engine = open_tables(self.crew.database)
        self.story.tell(f"service at {self.crew.url}, log and tables in {self.crew.work}")
        try:
            self._book_among_kills()
            return self.problems + self._prove()
        finally:
            self.engine.dispose()

    # --- the kills

    def _book_among_kills(self) -> None:
        began = time.monotonic()
        for place in PLAN:
            if place == "service":
                self._kill_anywhere(self._kill_service())
            else:
                self._kill_at(place)
        last = self._booker()
        self.wait(lambda: last.exit_code is not None, lambda: int(last.report.get("booked", 0)))
        self.seconds = time.monotonic() - began
        self.story.tell(f"{last.name} is done")

    def _booker(self, place: str | None = None) -> Child:
        """The next process. It ends what the one before it has left undecided."""
        self.bookers += 1
        stop = None if place is None else (place, max(1, self.each))
        booker = self.crew.booker(f"booker {self.bookers}", self.bookings, stop)
        if self.left_behind is not None:
            self._await_end(*self.left_behind)
            self.left_behind = None
        return booker

    def _kill_at(self, place: str) -> None:
        booker = self._booker(place)
        report = booker.await_report(lambda report: "place" in report, _REPORT_SECONDS)
        self.kill(booker)
        moment = self._look(KILLED_AT[place])
        self.left_behind = moment, report["writePointer"], _EXPECTED[place]

    def _kill_service(self) -> Child:
        """In the midst of a commit; the booking process lives on and finds out by itself."""
        booker = self._booker("committing")
        pointer = booker.await_report(lambda report: "place" in report, _REPORT_SECONDS)["writePointer"]
        self.kill(self.service)
        began = time.monotonic()
        self.service = self.crew.service()
        self.story.tell(f"    up again after {time.monotonic() - began:.1f} s; {booker.name} is alive and goes on")
        self._await_end(self._look("the service, in the commit"), pointer, "committed")
        return booker

    def _kill_anywhere(self, booker: Child) -> None:
        aim = booker.report.get("booked", 0) + self.each
        booker.await_report(lambda report: report.get("booked", 0) >= aim, _REPORT_SECONDS)
        time.sleep(random.uniform(0, 0.01))
        self.kill(booker)
        self._look("at any moment")

    # --- what is seen after a kill

    def _look(self, place: str) -> Moment:
        found = look(self.client, self.engine)
        moment = Moment(place, len(found.table), len(found.topic), len(found.plain))
        self.moments.append(moment)
        self.story.tell(
            f"    {place}: the table has {moment.table:,} bookings, a transactional reader sees {moment.topic:,}, "
            f"a plain one {moment.plain:,}"
        )
        if ahead := set(found.published) - set(found.table):
            self.problems.append(f"{place}: a transactional reader saw what is not in the table: {ahead}")
        return moment

    def _await_end(self, moment: Moment, pointer: int, expected: str) -> None:
        self.wait(lambda: self.client.transaction_status(pointer).state != "in_progress", lambda: 0)
        moment.became = self.client.transaction_status(pointer).state
        self.story.tell(f"    its transaction is {moment.became}: {'both' if moment.became == 'committed' else 'neither'}")
        if moment.became != expected:
            self.problems.append(f"{moment.place}: transaction {pointer} is {moment.became}, not {expected}")

    # --- the proof

    def _prove(self) -> list[str]:
        left = self._undecided()
        self.tell_proof("no transaction is prepared, in progress or in doubt", left)
        self.found = found = look(self.client, self.engine)
        wrong = check_bookings(found.table, found.published, self.bookings)
        self.tell_proof("the table and a transactional reader have the same bookings, each once", wrong)
        seats = check_seats(self.engine, found.published)
        self.tell_proof("the seats that are left are those that nobody booked", seats)
        aborted = sum(moment.became == "aborted" for moment in self.moments)
        ghosts = check_rolled_back(found, aborted)
        self.tell_proof(f"what never happened ({len(found.never_happened):,} in the log) only who reads all of it sees", ghosts)
        service = check_service(self.client)
        self.tell_proof("the service has refolded its log: its maps agree", service)
        return left + wrong + seats + ghosts + service

    def _undecided(self) -> list[str]:
        """What is left after the time that a transaction is given whose process died early."""
        end = time.monotonic() + 2 * TIMEOUT
        while (left := undecided(self.client)) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def show(self) -> None:
        """The numbers of the run."""
        numbers = ("in the table", "read in a transaction", "in the log")
        moments = Table("killed when", *(Column(name, justify="right") for name in numbers), "became")
        for moment in self.moments:
            moments.add_row(moment.place, f"{moment.table:,}", f"{moment.topic:,}", f"{moment.plain:,}", moment.became)
        moments.add_row("[bold]at the end[/]", *(f"{count:,}" for count in _counts(self.found)), "")
        summary = Table(show_header=False)
        summary.add_column()
        summary.add_column(justify="right")
        summary.add_row("kill -9", f"{self.story.kills}")
        summary.add_row("rolled back, in the log only", f"{len(self.found.never_happened):,}")
        summary.add_row("booked, kills and restarts included", f"{self.bookings / self.seconds:,.0f}/s")
        self.story.console.print(moments)
        self.story.console.print(summary)


def _counts(found: Look) -> tuple[int, int, int]:
    return len(found.table), len(found.topic), len(found.plain)
