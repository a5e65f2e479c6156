"""`make accept`: rewrites what scenarios expect by what comes of them now. Each that changed is to be read and judged anew."""

from __future__ import annotations

import sys

from tests.scenarios_text.scenario import read, scenarios

if __name__ == "__main__":
    for scenario in scenarios():
        if len(sys.argv) > 1 and scenario.path.stem not in sys.argv[1:]:
            continue
        scenario.accept()
        new, verdict = read(scenario.path), scenario.verdict()
        if new.expected != scenario.expected or verdict is None or verdict["digest"] == "?":
            print(f"{scenario.path.name}: read it; where it is right, its digest is {new.digest}")
