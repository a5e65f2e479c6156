"""A release is refused in one sentence unless the changelog is ready for it and the tree is what is on main."""

from __future__ import annotations

import re
import subprocess
from datetime import date
from pathlib import Path

import pytest
from release.__main__ import check_tree
from release.changelog import NotReady, ready_section, sections
from release.sbom import IN_WHEEL, of_console, text_of, with_console

import oncelog
from tests.docs.pages import ROOT

TODAY = date(2027, 3, 1)
GOOD = """# Changelog

What users notice.

## 0.2.0 – 2027-03-01

### SDK
- Something.

## 0.1.0 – 2027-01-31
- The first one.
"""


def test_a_section_that_is_dated_and_says_something_is_ready() -> None:
    found = ready_section(GOOD, "0.2.0", TODAY)
    assert (found.version, found.date, found.text) == ("0.2.0", "2027-03-01", "### SDK\n- Something.")
    assert [each.version for each in sections(GOOD)] == ["0.2.0", "0.1.0"]


@pytest.mark.parametrize(
    ("old", "new", "version", "said"),
    [
        ("", "", "0.3.0", "the first section of CHANGELOG.md is 0.2.0, not 0.3.0"),
        ("", "", "0.1.0", "the first section of CHANGELOG.md is 0.2.0, not 0.1.0"),
        ("", "", "v0.2.0", "'v0.2.0' is no version; it looks like 1.2.3"),
        ("", "", "0.2", "'0.2' is no version"),
        ("2027-03-01", "unreleased", "0.2.0", "0.2.0 says 'unreleased' where its day should stand"),
        (" – 2027-03-01", "", "0.2.0", "0.2.0 says '' where its day should stand"),
        (" – 2027-03-01", " - 2027-03-01", "0.2.0", "is 0.2.0 - 2027-03-01, not 0.2.0"),
        ("2027-03-01", "2027-03-02", "0.2.0", "dated 2027-03-02, which is still to come"),
        ("2027-01-31", "2027-02-30", "0.2.0", "0.1.0 says '2027-02-30'"),
        ("- Something.\n", "", "0.2.0", "CHANGELOG.md says nothing of 0.2.0"),
        ("- Something.\n", "- \n", "0.2.0", "CHANGELOG.md says nothing of 0.2.0"),
        ("## 0.1.0", "## 0.2.0", "0.2.0", "0.2.0 stands above 0.2.0"),
        ("## 0.1.0", "## 0.10.0", "0.2.0", "0.2.0 stands above 0.10.0"),
        ("## 0.1.0", "## Earlier", "0.2.0", "'Earlier' is no version"),
        (GOOD, "# Changelog\n", "0.2.0", "CHANGELOG.md has no section"),
    ],
)
def test_what_is_not_ready_is_said_in_a_sentence(old: str, new: str, version: str, said: str) -> None:
    with pytest.raises(NotReady, match=re.escape(said)):
        ready_section(GOOD.replace(old, new), version, TODAY)


def test_the_changelog_of_this_tree_begins_with_its_version() -> None:
    first = sections((ROOT / "CHANGELOG.md").read_text("utf-8"))[0]
    assert first.version == oncelog.__version__
    assert first.date == "unreleased" or date.fromisoformat(first.date)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a version on main."""
    for command in (["init", "-q", "-b", "main"], ["config", "user.email", "a@example.org"], ["config", "user.name", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    source = tmp_path / "sdk/oncelog/__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text('__version__ = "0.2.0"\n')
    _git(tmp_path, "add", "-A")
    _git(tmp_path, "commit", "-qm", "begin")
    return tmp_path


def _git(tree: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True)


@pytest.mark.real
def test_a_clean_tree_on_main_with_the_version_is_ready(tree: Path) -> None:
    check_tree(tree, "0.2.0", rehearse=False)


@pytest.mark.real
@pytest.mark.parametrize("rehearse", [False, True])
def test_a_tree_that_is_not_what_would_be_built_is_refused(tree: Path, rehearse: bool) -> None:
    with pytest.raises(NotReady, match=re.escape('says __version__ = "0.2.0", not 0.3.0')):
        check_tree(tree, "0.3.0", rehearse)
    (tree / "new.py").touch()
    with pytest.raises(NotReady, match=r"the tree is not clean: \?\? new.py"):
        check_tree(tree, "0.2.0", rehearse)
    (tree / "new.py").unlink()
    _git(tree, "tag", "v0.2.0")
    with pytest.raises(NotReady, match=r"v0\.2\.0 is tagged already"):
        check_tree(tree, "0.2.0", rehearse)


@pytest.mark.real
def test_only_a_rehearsal_is_held_on_another_branch(tree: Path) -> None:
    _git(tree, "checkout", "-qb", "mine")
    check_tree(tree, "0.2.0", rehearse=True)
    with pytest.raises(NotReady, match="is made on main, and this is mine"):
        check_tree(tree, "0.2.0", rehearse=False)


def test_the_bill_of_what_lies_in_the_wheel_is_that_of_the_console() -> None:
    assert IN_WHEEL.read_text("utf-8") == text_of(of_console()), "python -m release.sbom writes it anew"


def test_the_bill_of_an_installation_has_what_lies_in_oncelog_below_it() -> None:
    other = {"bom-ref": "x==1", "name": "x"}
    ours = {"bom-ref": "oncelog==0.2.0", "name": "oncelog", "version": "0.2.0"}
    dependencies = [{"ref": "oncelog==0.2.0", "dependsOn": ["x==1"]}, {"ref": "x==1"}]
    bom = with_console({"components": [other, ours], "dependencies": dependencies})
    assert bom["metadata"]["component"]["bom-ref"] == "oncelog==0.2.0"
    assert [each["name"] for each in bom["components"]] == ["htm", "preact", "uplot", "x"]
    assert bom["dependencies"][0] == {"ref": "oncelog==0.2.0", "dependsOn": ["console:htm", "console:uplot", "x==1"]}
    assert {"ref": "console:htm", "dependsOn": ["console:preact"]} in bom["dependencies"]
    with pytest.raises(ValueError, match="oncelog is not among"):
        with_console({"components": [other], "dependencies": []})
