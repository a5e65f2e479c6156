"""Load a file into a topic, line i at offset base + i: stopped, killed and started as often as you like, by several at once.

    python examples/nightly_load/load.py flights.csv flights

No producer is named, no position is saved, and nothing is remembered between two runs: *where* a line goes is all there is to
know about it. The loader asks the topic for its upcoming offset and goes on with the line that belongs there, each batch on
condition that its first line gets the offset it should (``expected_offset``).

Why conditions are enough here:

* A batch whose answer was lost is stored, all of it, or it is not. The topic's upcoming offset says which. Sent once more without
  need it is refused, for its place is taken; so is an earlier try that arrives late.
* A second loader of the same file cannot do harm. For each place one of the two is faster, and both would put the same line
  there. The slower one gets ``OffsetMismatch`` and stops, or with ``--follow`` goes on behind what the other has loaded.

When a named producer is the better choice:

* Others publish to the topic while it is loaded. Then lines have no fixed places, and every message of others is a mismatch. A
  producer with sequence id = line number (``examples/flights/publish.py``) is indifferent to what lies between.
* The newest loader is to win, and an older one to be shut out for good: a producer's epoch does that, a condition does not.
* The source is not the same each time, as with a query whose rows may come in another order: then a place says nothing, and
  sequence ids that are made from the rows' own numbers do.

The topic is the file's own: what is there before ``base`` is not looked at, and of what is behind it only the line before the one
to go on with is compared, which tells another file or a wrong ``base`` in most cases.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from oncelog import Client, OncelogError, Reader
from oncelog.api.retry import may_retry, pause
from oncelog.errors import OffsetMismatch
from oncelog.wire.requests import PublishRequest

BATCH = 1_000
PATIENCE_SECONDS = 60.0


class OtherContent(Exception):
    """What the topic holds is not the beginning of this file."""


class Lines:
    """The records behind a place, taken a batch at a time; those at the front may be passed over."""

    def __init__(self, records: Iterable[bytes], base: int) -> None:
        self.offset = base
        """Where the first one of the next batch goes."""
        self._records = iter(records)
        self._ahead: list[bytes] = []
        self._last: bytes | None = None
        """The record that was passed over last."""

    def batch(self, size: int) -> list[bytes]:
        """The next records, which stay at the front; none at the end."""
        self._ahead += islice(self._records, max(0, size - len(self._ahead)))
        return self._ahead[:size]

    def go_on_at(self, offset: int) -> bytes | None:
        """Pass over everything before that offset; the last record passed over. Raises OtherContent if there are not so many."""
        while self.offset < offset:
            passed = self.batch(min(BATCH, offset - self.offset))
            if not passed:
                raise OtherContent(f"the file ends before offset {self.offset}, and the topic's next offset is {offset}")
            self._last = passed[-1]
            self._ahead = self._ahead[len(passed) :]
            self.offset += len(passed)
        return self._last


def load(
    client: Client, topic: str, records: Iterable[bytes], *, base: int = 0, batch: int = BATCH, follow: bool = False
) -> Iterator[int]:
    """Put record i at offset ``base + i``, for all that are not there; yields the upcoming offset after each step.

    It may be dropped or killed anywhere and called again.

    Args:
        records: all of them, from the first, the same ones each time.
        follow: when another loader was faster, go on behind what it has loaded.

    Raises:
        OffsetMismatch: another loader was faster, and ``follow`` is not set. OtherContent: the topic holds something else.
        ExpectationsNotChecked: the topic does not check expected offsets. OncelogError: nothing has succeeded for a minute.
    """
    lines = Lines(records, base)
    _meet(client, topic, lines)
    yield lines.offset
    failures, last_success = 0, time.monotonic()
    while payloads := lines.batch(batch):
        try:
            client.publish(topic, PublishRequest(payloads, expected_offset=lines.offset))
            lines.go_on_at(lines.offset + len(payloads))
        except OffsetMismatch:
            if not follow and not failures:  # else the one that was faster may be this one's own earlier try
                raise
            _meet(client, topic, lines)
        except OncelogError as error:
            # With its condition a batch may be sent again whatever became of it, as if it were a named producer's.
            if not may_retry(error, idempotent=True) or time.monotonic() - last_success > PATIENCE_SECONDS:
                raise
            time.sleep(pause(failures, random.random()))
            failures += 1
            sent = lines.offset
            _meet(client, topic, lines)
            if lines.offset == sent:
                continue  # else the lost answer was that the batch is stored
        failures, last_success = 0, time.monotonic()
        yield lines.offset


def _meet(client: Client, topic: str, lines: Lines) -> None:
    """Go on where the topic ends."""
    upcoming = client.stats(topic).upcoming_offset
    if upcoming < lines.offset:
        raise OtherContent(f"the topic's next offset is {upcoming}, and the line to go on with belongs at {lines.offset}")
    before = lines.go_on_at(upcoming)
    if before is None:
        return
    with Reader(topic, start=upcoming - 1, client=client, timeout=0, page_size=1) as reader:
        present = next(iter(reader), None)
    if present is not None and present.offset == upcoming - 1 and present.payload != before:  # it may have expired, too
        raise OtherContent(f"at offset {present.offset} the topic has {present.payload[:50]!r}, and the file {before[:50]!r}")


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a file, without their ends."""
    with path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("topic")
    parser.add_argument("--url", help="of the service; default ONCELOG_URL, or this machine's port 7070")
    parser.add_argument("--base", type=int, default=0, help="offset of the first line")
    parser.add_argument("--batch", type=int, default=BATCH, help="lines a request")
    parser.add_argument("--follow", action="store_true", help="go on behind another loader instead of stopping")
    args = parser.parse_args()
    try:
        with Client(args.url, retry=PATIENCE_SECONDS) as client:
            client.create_topic(args.topic, {"check.expected.offsets": "true"}, exist_ok=True)
            for reached in load(client, args.topic, lines_of(args.file), base=args.base, batch=args.batch, follow=args.follow):
                print(reached, flush=True)
    except OffsetMismatch as mismatch:
        print(f"another loader is at offset {mismatch.actual}: this one stops", file=sys.stderr)
        return 3
    except (OtherContent, OncelogError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
