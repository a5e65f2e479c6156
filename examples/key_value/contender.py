"""One of those who fight: a leader and its client in one process. It asks, and notes what it asked and was told.

It may be killed anywhere. Started again, it goes on behind the last request that it had noted, and never asks one a second time:
so what became of the one that was under way stays open, and has to show in the log.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, get_args

from .check import wanted
from .history import Answer, Kind, Notes, Request, read_notes
from .leader import Leader, Value, ValueDiffers

KEYS = ("apples", "bananas", "cherries")
"""Few, so that the leaders are at each other's keys all the time."""
_WEIGHTS: Mapping[Kind, int] = {"increment": 45, "compare and set": 35, "put": 8, "delete": 4, "get": 8}
_THINKS_SECONDS = (0.0,) * 8 + (0.002, 0.02)
"""Before a request: mostly not, else long enough for the other leader to write something that this one has not read."""
_REPORT_EVERY = 10


def draw(random: Random, name: str, leader: Mapping[str, str], seen: Mapping[str, Value]) -> Request:
    """The next request. A compare-and-set expects what its leader believes, or what its client was told when it last asked."""
    (kind,) = random.choices(get_args(Kind), [_WEIGHTS[kind] for kind in get_args(Kind)])
    key = random.choice(KEYS)
    value = str(random.randrange(1_000)) if kind in ("put", "compare and set") else None
    expected = random.choice([leader.get(key), seen.get(key)]) if kind == "compare and set" else None
    return Request(name, kind, key, value, expected)


def ask(leader: Leader, request: Request) -> Answer:
    """What the leader says to it."""
    fenced = leader.fenced
    if request.kind == "get":
        value = leader.get(request.key)
        return Answer("read", leader.next_offset, value, value)
    try:
        if request.kind == "compare and set":
            assert request.value is not None
            change = leader.compare_and_set(request.key, request.expected, request.value, request=request.name)
        elif request.kind == "put":
            assert request.value is not None
            change = leader.put(request.key, request.value, request=request.name)
        elif request.kind == "delete":
            change = leader.delete(request.key, request=request.name)
        else:
            change = leader.update(request.key, lambda before: wanted(request, before), request=request.name)
    except ValueDiffers as refused:
        return Answer("refused", leader.next_offset, refused.actual, refused.actual, leader.fenced - fenced)
    return Answer("changed", change.offset, change.before, change.after, leader.fenced - fenced)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--requests", type=int, required=True, help="so many in all, those of earlier processes included")
    parser.add_argument("--seed", required=True)
    parser.add_argument("--start", type=Path, required=True, help="the file that lets it begin once it is there")
    args = parser.parse_args()
    done = len(read_notes(args.notes))
    notes = Notes(args.notes)
    seen: dict[str, Value] = {}
    with Leader(args.topic, name=args.name, url=args.url) as leader:
        _report(ready=True)
        while not args.start.exists():
            time.sleep(0.005)
        for number in range(done, args.requests):
            random = Random(f"{args.seed}-{args.name}-{number}")
            request = draw(random, f"{args.name}:{number}", leader.values, seen)
            time.sleep(random.choice(_THINKS_SECONDS))
            notes.asks(request)
            answer = ask(leader, request)
            notes.was_answered(request, answer)
            seen[request.key] = answer.after
            if (number + 1) % _REPORT_EVERY == 0:
                _report(done=number + 1)
        _report(done=args.requests, next_offset=leader.next_offset, values=dict(leader.values))


def _report(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
