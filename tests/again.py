"""What is run again in ``make test-real``: a test that failed by its surroundings, once, and no other.

An assertion, an error of the model and a time-out of the product are red the first time. What was run again is shown with its
first traceback, which names the seed if there was one, and with the load of the machine; the last line says how many there were.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

SURROUNDINGS = (
    "Python worker failed to connect back",  # Spark gives a process that it starts 10 s, hard-wired
    "the database system is starting up",  # PostgreSQL takes connections before it answers them
    "Address already in use",  # somebody was given the port between its being named and its being taken
)
"""What their errors say."""
NEVER = "^(AssertionError|Failed|TimeoutError|ExceptionGroup)\\b"
"""How what is no matter of surroundings begins, whatever it came of."""


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-rerunfailures do it."""
    config.option.reruns = 1
    config.option.only_rerun = list(SURROUNDINGS)
    config.option.rerun_except = [NEVER]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how busy the machine was when a test failed."""
    report = yield
    if report.failed:
        report.sections.append(("load of the machine", " ".join(f"{load:.1f}" for load in os.getloadavg())))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was run again."""
    found = terminalreporter.getreports("rerun")
    for report in found:
        terminalreporter.section(f"the first time: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            if name == "load of the machine":
                terminalreporter.write_line(f"{name}: {text}")
    terminalreporter.section("run again")
    terminalreporter.write_line(f"{len(found)} tests failed by their surroundings and were run again")
