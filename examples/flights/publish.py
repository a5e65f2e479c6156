"""The producer's process: publishes the flights, each under its line number, and says on stdout how far it is.

Without ``--from-line`` it resumes behind what the log already has. With it, it goes back on purpose and sends lines again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice

from flights.data import PRODUCER, TOPIC, Flight, flights
from oncelog import Producer, Receipt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--from-line", type=int)
    args = parser.parse_args()
    with Producer(TOPIC, name=PRODUCER, url=args.url, batch_max_messages=args.batch) as producer:
        rows = _rows(producer, args.rows, args.from_line)
        publish(producer, rows, args.batch)


def _rows(producer: Producer[bytes], limit: int, from_line: int | None) -> Iterator[Flight]:
    if from_line is None:
        return producer.resume(flights(limit), sequence_id=lambda flight: flight.line)
    return islice(flights(limit), from_line, None)


def publish(producer: Producer[bytes], rows: Iterator[Flight], batch: int) -> None:
    """Send every row, a few batches ahead of the receipts; report after each batch of receipts."""
    counts: Counter[str] = Counter()
    waiting: deque[Future[Receipt]] = deque()
    for flight in rows:
        waiting.append(producer.send_async(flight.payload, sequence_id=flight.line, key=flight.airport))
        if len(waiting) >= 4 * batch:
            _take(waiting, batch, counts)
    while waiting:
        _take(waiting, min(batch, len(waiting)), counts)


def _take(waiting: deque[Future[Receipt]], count: int, counts: Counter[str]) -> None:
    receipts = [waiting.popleft().result() for _ in range(count)]
    counts.update(receipt.status for receipt in receipts)
    report = {"stored": counts["stored"], "duplicate": counts["duplicate"], "line": receipts[-1].sequence_id}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
