"""A leader on a topic, from the command line. Start several on the same topic, each with a name of its own, and let them compete.

    python -m examples.key_value inventory --name anna

Reads one operation a line from stdin: ``put KEY VALUE``, ``get KEY``, ``delete KEY``, ``cas KEY EXPECTED VALUE`` (compare and
set; ``-`` is no value), ``set KEY VALUE KEY VALUE …`` (all of them at once), ``list``. Answers each on stdout. Words are split as
in a shell.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence

from oncelog import OncelogError

from .leader import Change, Fenced, Leader, Value, ValueDiffers


def perform(leader: Leader, words: Sequence[str]) -> Iterator[str]:
    """Do what a line says; the lines to answer."""
    match words:
        case []:
            pass
        case ["put", key, value]:
            yield _told(leader.put(key, value))
        case ["get", key]:
            yield _shown(leader.get(key))
        case ["delete", key]:
            yield _told(leader.delete(key))
        case ["cas", key, expected, value]:
            yield _told(leader.compare_and_set(key, _meant(expected), _meant(value)))
        case ["set", *pairs] if pairs and len(pairs) % 2 == 0:
            wanted = {key: _meant(value) for key, value in zip(pairs[::2], pairs[1::2], strict=True)}
            yield from map(_told, leader.update_many(lambda _: wanted))
        case ["list"]:
            leader.catch_up()
            yield from (f"{key} {value}" for key, value in sorted(leader.values.items()))
        case _:
            yield "put KEY VALUE, get KEY, delete KEY, cas KEY EXPECTED VALUE, set KEY VALUE …, list"


def _meant(word: str) -> Value:
    return None if word == "-" else word


def _shown(value: Value) -> str:
    return "-" if value is None else value


def _told(change: Change) -> str:
    return f"{_shown(change.before)} -> {_shown(change.after)} at offset {change.offset}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic")
    parser.add_argument("--name", required=True, help="of this leader; the same after a restart")
    parser.add_argument("--url", help="of the service; default ONCELOG_URL, or this machine's port 7070")
    parser.add_argument("--give-up", action="store_true", help="end when another leader has written, instead of catching up")
    args = parser.parse_args()
    try:
        with Leader(args.topic, name=args.name, url=args.url, rejoins=not args.give_up) as leader:
            print(f"{len(leader.values)} keys after {leader.next_offset} changes", file=sys.stderr)
            for line in sys.stdin:
                _answer(leader, line)
    except (Fenced, OncelogError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _answer(leader: Leader, line: str) -> None:
    try:
        for answer in perform(leader, shlex.split(line)):
            print(answer, flush=True)
    except (ValueDiffers, ValueError) as refused:  # shlex: a quotation that does not end
        print(f"refused: {refused}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
