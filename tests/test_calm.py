"""Which tests ``make calm`` takes for changed."""

from __future__ import annotations

import pytest

from tests.calm import cases, changed, main

DIFF = """\
+++ b/tests/rest/test_it.py
@@ -1,0 +4,2 @@ import os
@@ -9 +12 @@
@@ -20,3 +21,0 @@
+++ b/tests/conftest.py
@@ -9 +12 @@
"""
MODULE = """\
import pytest

LIMIT = 3

@pytest.mark.parametrize("x", [1])
def test_first(x):
    assert x

def helper():
    pass

async def test_second():
    helper()
"""


def test_lines_of_modules_of_tests_count_also_where_some_were_only_taken_away() -> None:
    assert changed(DIFF) == {"tests/rest/test_it.py": {4, 5, 12, 21}}


def test_a_test_is_changed_with_its_lines_and_all_are_with_what_they_share() -> None:
    assert cases("t.py", MODULE, {5, 7, 8}) == ["t.py::test_first"]
    assert cases("t.py", MODULE, {7, 13}) == ["t.py::test_first", "t.py::test_second"]
    assert cases("t.py", MODULE, {3}) == cases("t.py", MODULE, {7, 10}) == ["t.py"]


def test_help_is_no_name_of_a_test(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "usage" in capsys.readouterr().out
