"""A notification that triggers something: when a partition of a data set is ready, a job runs over it, and takes effect once.

    python examples/partition_ready.py load 2013-01-01 --lines day.txt --folder sales    # and says that it is ready
    python examples/partition_ready.py run --folder sales --results results.db           # what is triggered by that

The two know nothing of each other but the topic. The loader writes the partition's file, whole, and then publishes a notification
that names it. The trigger is a durable consumer: it is given each notification at least once, in order, and goes on where it was,
whatever is killed when; any number of triggers with subscriptions of their own may hang on the same topic.

At least once is made exactly once where the effect is. The job writes its result and the note that it has run, one row for each
partition and version, in *one* SQL transaction, and only then acknowledges:

* Killed before the transaction is committed: neither is there, the notification comes again, and the job runs.
* Killed between the commit and the acknowledgement: it comes again, finds the note, and is acknowledged without running.
* Announced twice, by a loader that was killed and begun again: the same. Loaded anew as another version, it is another row.
* Two triggers at once under one subscription: the service fences the older one; what it is just doing meets the same note.

What a job does outside of that database (a mail, a call) can be repeated by a crash: let the other side refuse it by the same
name.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from oncelog import Client, Consumer, Message, OncelogError, Producer

TOPIC = "partitions-ready"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS runs (partition TEXT, version INTEGER, offset INTEGER, PRIMARY KEY (partition, version))",
    "CREATE TABLE IF NOT EXISTS totals (partition TEXT PRIMARY KEY, version INTEGER, lines INTEGER, total INTEGER)",
)


def load(folder: Path, partition: str, numbers: Iterable[int], *, version: int = 1, url: str | None = None) -> None:
    """Write a partition, and say that it is ready. Killed anywhere it may be done again."""
    file = folder / _file(partition, version)
    draft = file.with_suffix(".draft")
    draft.write_text("".join(f"{number}\n" for number in numbers))
    draft.replace(file)  # whoever hears of it finds the whole file
    with Client(url) as client:
        client.create_topic(TOPIC, exist_ok=True)
        with Producer[Any](TOPIC, name="loader", client=client, codec="json") as producer:
            producer.send({"partition": partition, "version": version}, key=partition)


def _file(partition: str, version: int) -> str:
    return f"{partition}.{version}.txt"


class Trigger:
    """Runs the job once for each version of a partition that is announced. A context manager."""

    def __init__(self, folder: Path, results: Path, *, subscription: str = "totals", url: str | None = None) -> None:
        """Raises OncelogError."""
        self._folder = folder
        self._database = sqlite3.connect(results, isolation_level=None, timeout=60)
        for table in _TABLES:
            self._database.execute(table)
        self._client = Client(url)
        try:
            self._client.create_topic(TOPIC, exist_ok=True)
            self._consumer = Consumer(TOPIC, subscription, client=self._client, codec="json")
        except BaseException:
            self.close()
            raise

    def run(self, *, idle: float | None = None) -> int:
        """Wait for notifications, and run the job for each; how many ran when none has come for ``idle`` seconds. None: for ever.

        Raises OncelogError: another trigger has taken the subscription (ConsumerFenced), or the service stays away.
        """
        ran = 0
        while messages := self._consumer.read(1, timeout=idle):
            ran += self.handle(messages[0])
            self._consumer.ack(messages[0])  # the effect is committed: it need not come again
        return ran

    def handle(self, message: Message) -> bool:
        """Run the job unless it has run; whether it did. The result, and that it has run, are committed when this returns."""
        ready = message.value
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            note = (ready["partition"], ready["version"], message.offset)
            is_new = database.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?)", note).rowcount == 1
            if is_new:
                self._job(ready["partition"], ready["version"])
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise
        return is_new

    def _job(self, partition: str, version: int) -> None:
        """Yours. Here: the total of a partition's numbers; a newer version takes the place of an older one."""
        numbers = [int(line) for line in (self._folder / _file(partition, version)).read_text().splitlines()]
        self._database.execute(
            "INSERT INTO totals VALUES (?, ?, ?, ?) ON CONFLICT (partition) DO UPDATE SET version = excluded.version, "
            "lines = excluded.lines, total = excluded.total WHERE excluded.version > totals.version",
            (partition, version, len(numbers), sum(numbers)),
        )

    def close(self) -> None:
        """Let go of service and database."""
        self._client.close()
        self._database.close()

    def __enter__(self) -> Trigger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def totals(results: Path) -> dict[str, tuple[int, int, int]]:
    """Of each partition: version, how many lines, and their total."""
    with closing(sqlite3.connect(results)) as database:
        rows = database.execute("SELECT partition, version, lines, total FROM totals")
        return {partition: (version, lines, total) for partition, version, lines, total in rows}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=os.environ.get("ONCELOG_URL"), help="of the service; else port 7070 here")
    commands = parser.add_subparsers(dest="command", required=True)
    loads = commands.add_parser("load", help="write a partition, and say that it is ready")
    loads.add_argument("partition")
    loads.add_argument("--lines", type=Path, required=True, help="a file with a number on each line")
    loads.add_argument("--version", type=int, default=1, help="of the partition: a corrected one has a higher one")
    runs = commands.add_parser("run", help="run the job for each partition that is announced")
    runs.add_argument("--results", type=Path, required=True, help="a SQLite database")
    runs.add_argument("--idle", type=float, help="end when nothing has come for so many seconds")
    for command in (loads, runs):
        command.add_argument("--folder", type=Path, required=True, help="where the partitions are")
    args = parser.parse_args(arguments)
    try:
        if args.command == "load":
            load(args.folder, args.partition, map(int, args.lines.read_text().split()), version=args.version, url=args.url)
            return 0
        with Trigger(args.folder, args.results, url=args.url) as trigger:
            trigger.run(idle=args.idle)
    except KeyboardInterrupt:
        return 130
    except (OncelogError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for partition, (version, lines, total) in sorted(totals(args.results).items()):
        print(f"{partition} version {version}: {total} in {lines} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
