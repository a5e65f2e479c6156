"""What the tool for rooms counts, on two rooms made for it, and that it still finds the calls that it measures."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from tests import rooms

INNER = """
    import os, threading
    from concurrent.futures import Future, TimeoutError

    lock: threading.RLock = threading.Lock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release)

    def half(number):
        return number // 2

    def thread(call):
        started = threading.Thread(target=call)
        started.start()
        started.join()
"""
OUTER = """
    from typing import overload
    import inner

    def walk():
        here()
        inner.half(4)
        inner.half(2)
        here()
        inner.thread(here)

    def here():
        pass

    class Twin:
        @overload
        def send(self, value: int): ...
        @overload
        def send(self, value: str): ...
        def send(self, value): ...

    class OtherTwin(Twin):
        async def send(self, value): ...
"""


@pytest.fixture
def outer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A room that calls another one, which lies beside it."""
    loaded = {}
    for name, text in (("inner", INNER), ("outer", OUTER)):
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    return loaded["outer"]


def test_a_call_is_counted_with_what_it_starts(outer: ModuleType, tmp_path: Path) -> None:
    walking = rooms.Walking(tmp_path)
    with walking.followed():
        walk = walking.of(outer.walk)
    assert walk.rooms == {tmp_path / "inner.py", tmp_path / "outer.py"}
    # outer, inner, outer, inner; and outer again on a thread of its own
    assert (walk.stays, walk.returns, walk.calls, walk.depth) == (5, 3, 7, 2)


def test_mechanisms_are_what_is_used_of_threads_and_loops_and_not_what_is_said_of_types(
    outer: ModuleType, tmp_path: Path
) -> None:
    assert rooms.mechanisms(tmp_path / "inner.py") == {"os.register_at_fork", "threading.Lock", "threading.Thread"}
    assert rooms.mechanisms(tmp_path / "outer.py") == set()


def test_a_method_is_counted_wherever_the_twins_define_it(outer: ModuleType) -> None:
    assert rooms.signatures("send", outer.Twin, outer.OtherTwin) == 4


def test_the_calls_of_the_product_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    rooms.main(["--long"])
    said = capsys.readouterr().out
    for call in ("Producer.send", "AsyncProducer.send", "Client.poll", "AsyncClient.poll", "TopicLog.publish"):
        assert f"\n{call} " in said
    assert "sdk/oncelog/producing/core.py" in said
