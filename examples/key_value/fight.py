"""Two leaders fight over one store while a supervisor kills them with SIGKILL, and a proof that the store is as if they had not.

    python -m examples.key_value.fight --operations 10000 --kills 10 --service-kills 2

1. A service starts, and two leaders on the same topic, each a process of its own. Each works through half of the requests:
   increments, compare-and-sets, puts, deletes and readings on three keys. Every append of the one fences the other.
2. Now and then one of the leaders is killed and started again, and so is the service, under them.
3. The log is read from its beginning, and all that was noted is held against it: see `check.py`.

Exits with 0 only if everything is proved.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom

from examples.flights.processes import Child, Crew, Unexpected
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from oncelog import Reader

from .check import Logged, check
from .history import Attempt, read_notes
from .leader import REQUEST, Leader

TOPIC = "store"
NAMES = ("anna", "bert")
STALLED_SECONDS = 60.0
_SHOWN = 10


@dataclass
class Outcome:
    """How a fight went."""

    problems: list[str]
    attempts: dict[str, list[Attempt]]
    """By the leader's name."""
    changes: int
    """In the log."""
    kills: Counter[str]
    seconds: float
    unknown_but_there: int
    """Requests without an answer that have changed something all the same."""


class Ring(Crew):
    """The processes around one store."""

    @property
    def start(self) -> Path:
        """The leaders begin when this file is there."""
        return self.work / "start"

    def notes(self, name: str) -> Path:
        """Where a client notes what it does."""
        return self.work / f"{name}.notes"

    def contender(self, name: str, requests: int, seed: int) -> Child:
        """A leader with its client; another process of the same name, if there was one, is dead."""
        where = ["--url", self.url, "--topic", TOPIC, "--notes", str(self.notes(name)), "--start", str(self.start)]
        return self._start(
            name, "examples.key_value.contender", *where, "--name", name, "--requests", str(requests), "--seed", str(seed)
        )


@dataclass
class Supervisor:
    """Starts both leaders, kills what is to be killed when it is due, and returns when all requests are done."""

    ring: Ring
    requests: Mapping[str, int]
    seed: int
    say: Callable[[str], None]
    progress: Callable[[str, int], None]
    kills: Counter[str] = field(default_factory=Counter)

    def run(self, leader_kills: int, service_kills: int) -> None:
        """Raises Unexpected when a process fails, or nothing moves any more."""
        self._random = Random(self.seed)
        self._done = dict.fromkeys(self.requests, 0)
        self._service = self.ring.service()
        self._leaders = {name: self._start(name) for name in self.requests}
        for leader in self._leaders.values():
            leader.await_report(lambda report: "ready" in report, STALLED_SECONDS)
        self.ring.start.touch()
        victims = ["leader"] * leader_kills + ["service"] * service_kills
        self._random.shuffle(victims)
        for number, victim in enumerate(victims, start=1):
            self._work_until((number - self._random.uniform(0.2, 0.8)) / (len(victims) + 0.5))
            if victim == "leader":
                self._kill_a_leader()
            else:
                self._kill("service", self._service)
                self._service = self.ring.service()
        self._work_until(1.0)
        for leader in self._leaders.values():
            leader.await_report(lambda report: "values" in report, STALLED_SECONDS)

    def _start(self, name: str) -> Child:
        return self.ring.contender(name, self.requests[name], self.seed)

    def _work_until(self, share: float) -> None:
        moved = time.monotonic()
        while sum(self._done.values()) < share * sum(self.requests.values()):
            self.ring.check()
            for name, leader in self._leaders.items():
                done = leader.report.get("done", 0)
                if done > self._done[name]:
                    self._done[name] = done
                    self.progress(name, done)
                    moved = time.monotonic()
            if time.monotonic() - moved > STALLED_SECONDS:
                raise Unexpected(f"nothing has moved for {STALLED_SECONDS:.0f} s")
            time.sleep(0.002)

    def _kill_a_leader(self) -> None:
        names = list(self._leaders)
        self._random.shuffle(names)
        for name in names:
            if self._kill(name, self._leaders[name]):
                self._leaders[name] = self._start(name)
                return

    def _kill(self, name: str, child: Child) -> bool:
        if not child.kill():
            child.check()
            return False  # it was done already
        self.kills[name] += 1
        self.say(f"[bold red]kill -9[/] {name} after {sum(self._done.values()):,} requests")
        return True

    def dictionaries(self) -> list[tuple[int, dict[str, str]]]:
        """What the leaders believed at their ends, and where."""
        return [(leader.report["next_offset"], leader.report["values"]) for leader in self._leaders.values()]


def fight(work: Path, operations: int, kills: tuple[int, int], seed: int, console: Console) -> Outcome:
    """Let them, and judge. ``kills``: of leaders, of the service."""
    ring = Ring(work)
    half = operations // len(NAMES)
    requests = dict(zip(NAMES, (operations - half, half), strict=True))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.monotonic()
    try:
        with Progress(*columns, console=console) as bars:
            tasks: dict[str, TaskID] = {name: bars.add_task(name, total=count) for name, count in requests.items()}

            def progress(name: str, done: int) -> None:
                bars.update(tasks[name], completed=done)

            supervisor = Supervisor(ring, requests, seed, bars.console.print, progress)
            supervisor.run(*kills)
        seconds = time.monotonic() - began
        log = read_log(ring.url)
        with Leader(TOPIC, name="judge", url=ring.url) as newcomer:
            dictionaries = [*supervisor.dictionaries(), (newcomer.next_offset, dict(newcomer.values))]
    finally:
        ring.dismiss()
    attempts = {name: read_notes(ring.notes(name)) for name in requests}
    problems = check(log, [attempt for each in attempts.values() for attempt in each], dictionaries)
    problems += [
        f"{name} was to ask {requests[name]} times and has asked {len(each)} times"
        for name, each in attempts.items()
        if len(each) != requests[name]
    ]
    unknown = {attempt.request.name for each in attempts.values() for attempt in each if attempt.answer is None}
    there = sum(change.request in unknown for change in log)
    return Outcome(problems, attempts, len(log), supervisor.kills, seconds, there)


def read_log(url: str) -> list[Logged]:
    """The whole topic, as it is: without the leader's code."""
    with Reader(TOPIC, url=url, codec="json", timeout=0) as reader:
        return [
            Logged(message.offset, message.properties.get(REQUEST), (message.key or b"").decode(), message.value)
            for message in reader
        ]


def show(outcome: Outcome, console: Console) -> None:
    """The numbers of the fight."""
    table = Table("", *(Column(name, justify="right") for name in (*outcome.attempts, "together")))
    rows: dict[str, Callable[[Sequence[Attempt]], int]] = {
        "requests": len,
        "acknowledged changes": lambda each: _count(each, "changed"),
        "refused compare-and-sets": lambda each: _count(each, "refused"),
        "readings": lambda each: _count(each, "read"),
        "not answered": lambda each: sum(attempt.answer is None for attempt in each),
        "times fenced": lambda each: sum(attempt.answer.fenced for attempt in each if attempt.answer is not None),
    }
    for name, count in rows.items():
        counts = [count(attempts) for attempts in outcome.attempts.values()]
        table.add_row(name, *(f"{number:,}" for number in (*counts, sum(counts))))
    kills = [outcome.kills[name] for name in outcome.attempts]
    table.add_row("kill -9", *map(str, kills), str(sum(kills)))
    console.print(table)
    console.print(
        f"{outcome.changes:,} changes in the log, {outcome.unknown_but_there} of them never answered; "
        f"the service was killed {outcome.kills['service']} times; "
        f"{sum(map(len, outcome.attempts.values())) / outcome.seconds:,.0f} requests/s, kills and restarts included",
        highlight=False,
        soft_wrap=True,
    )


def _count(attempts: Sequence[Attempt], status: str) -> int:
    return sum(attempt.answer is not None and attempt.answer.status == status for attempt in attempts)


def run(work: Path, args: argparse.Namespace, console: Console) -> int:
    """One fight; the exit code."""
    seed = SystemRandom().randrange(10**9) if args.seed is None else args.seed
    console.print(f"{args.operations:,} requests on one store, by two leaders; seed {seed}", highlight=False)
    try:
        outcome = fight(work, args.operations, (args.kills, args.service_kills), seed, console)
    except Unexpected as unexpected:
        console.print("[bold red]The fight broke off:[/]")
        console.print(str(unexpected), markup=False)
        return 1
    show(outcome, console)
    for problem in outcome.problems[:_SHOWN]:
        console.print(problem, style="red", markup=False, soft_wrap=True)
    if outcome.problems:
        console.print(f"[bold red]WRONG: {len(outcome.problems)} things are not as one serial history has them.[/]")
        return 1
    console.print(
        "[bold green]proved:[/] the log is one serial history, and every answer fits into it: what was acknowledged is there "
        "once, at its place; what was refused is not; every dictionary is its fold.",
        soft_wrap=True,
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=10_000, help="requests of both together")
    parser.add_argument("--kills", type=int, default=10, help="so often a leader is killed")
    parser.add_argument("--service-kills", type=int, default=2, help="so often the service is killed")
    parser.add_argument("--seed", type=int, help="the same requests and victims again; not the same instants")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave log, notes and stderr in this empty directory")
    args = parser.parse_args()
    if args.operations < 100:
        parser.error("--operations is at least 100")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background has SIGINT ignored
    console = Console()
    try:
        if args.keep is None:
            with tempfile.TemporaryDirectory(prefix="oncelog-fight-") as work:
                return run(Path(work), args, console)
        work = args.keep.absolute()
        work.mkdir(parents=True, exist_ok=True)
        if any(work.iterdir()):
            parser.error(f"--keep: {work} is not empty")
        return run(work, args, console)
    except KeyboardInterrupt:
        console.print("interrupted; every process it started has ended")
        return 130


if __name__ == "__main__":
    sys.exit(main())
