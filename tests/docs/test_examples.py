"""Each example is on the page of the examples, says how it is run, and has its test beside it."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/examples.md").read_text("utf-8")
NO_TEST_OF_THEIR_OWN = {"flights"}
"""`make demo` runs it, as tests/scenarios/test_demo.py does."""


def test_each_folder_is_on_the_page_and_has_a_test_and_needs_nothing_of_this_checkout() -> None:
    folders = [each for each in (ROOT / "examples").iterdir() if (each / "__init__.py").exists()]
    assert len(folders) >= 10
    for folder in folders:
        assert f"../examples/{folder.name}/" in PAGE, f"docs/examples.md does not name {folder.name}"
        if folder.name in NO_TEST_OF_THEIR_OWN:
            continue
        assert [*folder.glob("test_*.py")], f"{folder.name} has no test"
        for module in folder.glob("*.py"):
            assert not re.search(r"^(from|import) tests\b", module.read_text("utf-8"), re.MULTILINE), module
