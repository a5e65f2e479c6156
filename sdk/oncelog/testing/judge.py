"""Finds what was lost, doubled, reordered, or came from nowhere: what there was to do against what was done. Pure.

Both sides are told as items in their order. One that was there n times is to be done n times; the first of those that were done
counts for the order, so that a repeat, which is told as one, is not told again as out of order. Order is judged within a key:
wherever one follows that lies before the one before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["lost", "doubled", "reordered", "unknown"]

SHOWN = 10
"""How many findings of one kind an error tells, before it only counts them."""


class Item(NamedTuple):
    """One of what there was to do, or of what was done."""

    identity: Hashable
    """Equal on both sides."""
    says: str
    """How people are told of it, in a sentence."""
    key: Hashable = None
    """Of what there was to do: within one key, order counts."""
    due: bool = True
    """Of what there was to do: False, if it may still come."""


class Finding(NamedTuple):
    """One thing that is wrong."""

    kind: Kind
    says: str
    """It, in a sentence."""
    identity: Hashable
    """Of the item."""


class Words(NamedTuple):
    """How each kind is told: ``{it}`` is what there was to do, ``{done}`` what was done, ``{other}`` what it came behind."""

    lost: str
    doubled: str
    reordered: str
    unknown: str


class NotExactlyOnce(AssertionError):
    """What was done is not what there was to do. ``findings`` has all of it; the text up to ten of each kind."""

    def __init__(self, what: str, findings: Sequence[Finding]) -> None:
        self.findings = list(findings)
        by_kind: dict[Kind, list[Finding]] = defaultdict(list)
        for each in findings:
            by_kind[each.kind].append(each)
        lines = [f"{what}: {', '.join(f'{len(found)} {kind}' for kind, found in by_kind.items())}"]
        for kind, found in by_kind.items():
            lines += [f"  {kind}: {each.says}" for each in found[:SHOWN]]
            if len(found) > SHOWN:
                lines.append(f"  {kind}: and {len(found) - SHOWN} more")
        super().__init__("\n".join(lines))


def judge(expected: Sequence[Item], done: Sequence[Item], words: Words, *, ordered: bool = True) -> list[Finding]:
    """Tells all that is wrong: what is lost, in the order of ``expected``; then what is wrong with what was done, in its."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, item in enumerate(expected):
        places[item.identity].append(place)
    doings: dict[Hashable, list[Item]] = defaultdict(list)
    for item in done:
        doings[item.identity].append(item)
    left = sorted(place for identity, wanted in places.items() for place in wanted[len(doings.get(identity, ())) :])
    lost = [expected[place] for place in left if expected[place].due]
    findings = [Finding("lost", words.lost.format(it=each.says), each.identity) for each in lost]
    newest: dict[Hashable, int] = {}
    counts: dict[Hashable, int] = defaultdict(int)
    for item in done:
        wanted, at = places.get(item.identity, []), counts[item.identity]
        counts[item.identity] += 1
        if not wanted:
            findings.append(Finding("unknown", words.unknown.format(done=item.says), item.identity))
        elif at == len(wanted):  # once for each identity, whatever comes then
            findings.append(_doubled(expected[wanted[0]], len(wanted), doings[item.identity], words))
        elif at < len(wanted):
            it, place = expected[wanted[at]], wanted[at]
            before = newest.get(it.key, -1)
            newest[it.key] = place
            if ordered and place < before:
                says = words.reordered.format(it=it.says, done=item.says, other=expected[before].says)
                findings.append(Finding("reordered", says, item.identity))
    return findings


def _doubled(it: Item, wanted: int, doings: Sequence[Item], words: Words) -> Finding:
    said = [each.says for each in doings]
    done = f"{', '.join(said[:-1])} and {said[-1]}" if len(said) <= SHOWN else f"{', '.join(said[:SHOWN])} and more"
    times = f"{len(doings)} times" if wanted == 1 else f"{len(doings)} times instead of {wanted}"
    return Finding("doubled", words.doubled.format(it=it.says, times=times, done=done), it.identity)
