"""Replays a simulated world from its seed, and prints what happens: `python -m tests.world SEED`, an event a line."""

from __future__ import annotations

import sys

from tests.simulation.clients import run

if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        print(run(seed, print))
