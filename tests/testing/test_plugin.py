"""The pytest plugin, as people have it: in a pytest of its own, on two workers."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import unittest
from importlib import import_module
from pathlib import Path

import pytest

from oncelog import AsyncClient, AsyncProducer, Client
from oncelog.testing import OncelogService, service
from tests.docs.pages import ROOT
from tests.patience import PATIENCE

pytestmark = pytest.mark.real

PLUGIN = "oncelog_service.testing.plugin"

TESTS = '''
import os
import pytest
from oncelog import AsyncClient, AsyncProducer, Client, Producer, Reader, errors
from unittest import IsolatedAsyncioTestCase

def load(rows):
    """A pipeline that knows no URL: it goes where the environment says."""
    with Client() as client:
        client.create_topic("t", exist_ok=True)
    with Producer("t", name="loader") as producer:
        for at, row in producer.resume(enumerate(rows), sequence_id=lambda each: each[0]):
            producer.send(row, sequence_id=at)

@pytest.fixture
def pipeline(oncelog_service):
    return oncelog_service

def test_passes(oncelog_service, monkeypatch):
    monkeypatch.undo()
    assert os.environ["ONCELOG_URL"] == oncelog_service.url
    oncelog_service.faults.lose_answer("publish", nth=2)
    load([b"a", b"b"])
    oncelog_service.check_published("t", [b"a", b"b"])

def test_each_has_a_service_of_its_own(oncelog_service):
    assert list(oncelog_service.client.topics()) == []

def test_fails_where_its_fault_was_not_met(oncelog_service):
    oncelog_service.faults.lose_answer("publish", nth=3)
    load([b"a", b"b"])

def test_fails_through_a_fixture_and_what_was_recorded(pipeline):
    load([b"a", b"b"])
    pipeline.recorder("t").saw(0)

def test_fails_where_it_asks_for_the_fixture_late(request):
    request.getfixturevalue("oncelog_service").faults.lose_answer()

def test_fails_by_itself_and_says_what_was_planned(oncelog_service):
    oncelog_service.faults.lose_answer()
    assert 1 == 2

@pytest.mark.xfail(strict=True)
def test_may_be_expected_to_fail(oncelog_service):
    oncelog_service.faults.lose_answer()

def test_may_be_skipped(oncelog_service):
    oncelog_service.faults.lose_answer()
    pytest.skip("not today")

class TestWithSettings:
    @pytest.fixture
    def oncelog_settings(self):
        return {"token": "s3cret-s3cret-s3cret"}

    def test_has_them(self, oncelog_service):
        with pytest.raises(errors.Unauthorized):
            load([b"a"])

def test_nothing_is_left_in_the_environment():
    assert "ONCELOG_URL" not in os.environ
'''


def run(folder: Path, *arguments: str) -> str:
    """What a pytest of its own says of the tests."""
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "-rA", *arguments, "test_it.py"]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout + done.stderr


def test_a_test_fails_by_what_it_planned_and_recorded_and_by_nothing_else(tmp_path: Path) -> None:
    said = run(tmp_path, "-p", "xdist.plugin", "-n", "2")
    outcomes = dict(re.findall(r"^(PASSED|FAILED|ERROR|XFAIL|SKIPPED)\b.*?::(\w+(?:::\w+)?)", said, re.MULTILINE)[::-1])
    by_test = {name: outcome for outcome, name in re.findall(r"^(\w+) test_it\.py::(?:\w+::)?(\w+)", said, re.MULTILINE)}
    assert "ERROR" not in outcomes, said
    for name in re.findall(r"def (test_\w+)", TESTS):
        wanted = "FAILED" if name.startswith("test_fails") else "XFAIL" if "expected" in name else "PASSED"
        assert by_test.get(name) == (None if "skipped" in name else wanted), said
    assert "1 skipped" in said
    assert "lose the answer to publish 3: struck 0 of 1; 2 came" in said
    assert "lost: offset 1 " in said
    assert "During handling" not in said
    assert "faults that were planned:" in said


def test_a_pytest_without_such_tests_loads_nothing_for_it() -> None:
    loaded = "import pytest, sys, " + PLUGIN + "; print(*[each for each in sys.modules if each.startswith('oncelog')])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.split() == ["oncelog_service", "oncelog_service.testing", PLUGIN]


AN_OLDER_PYTEST = f"""
import pytest
def hookimpl(function=None, *, hookwrapper=False, optionalhook=False, tryfirst=False, trylast=False):
    return function
pytest.hookimpl = hookimpl
import {PLUGIN} as plugin
print([name for name in vars(plugin) if name.startswith("pytest_") and callable(getattr(plugin, name))])
"""


def test_a_pytest_without_wrappers_loads_it_and_is_asked_nothing_by_it() -> None:
    """As the pluggy of pytest 7.1 has it: there a generator that is a hook would be called in place of the test's."""
    done = subprocess.run([sys.executable, "-c", AN_OLDER_PYTEST], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "[]\n"


def test_the_package_says_where_its_plugin_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"oncelog": PLUGIN}
    assert hasattr(import_module(PLUGIN), "oncelog_service")
    assert project["optional-dependencies"]["testing"] == ["oncelog[service]", "pytest>=8"]


class WithoutPytest(unittest.IsolatedAsyncioTestCase):
    """As unittest has it, and asyncio."""

    kit: OncelogService
    client: Client

    def setUp(self) -> None:
        self.kit = self.enterContext(service())

    async def test_an_asynchronous_pipeline(self) -> None:
        self.kit.faults.kill("publish", nth=2)
        async with AsyncClient(self.kit.url) as client:
            await client.create_topic("t")
            async with AsyncProducer("t", name="loader", client=client) as producer:
                for row in (b"a", b"b", b"c"):
                    await producer.send(row)
        self.kit.check_published("t", [b"a", b"b", b"c"])
