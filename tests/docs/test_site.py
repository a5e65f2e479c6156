"""The pages become a site: without a warning, with the whole SDK in its reference, and with nothing loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import oncelog
from tests.docs.pages import ROOT

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", "-d", str(to / "doctrees"), "-b", "html", "."]
    made = subprocess.run([sys.executable, *command, str(to / "html")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return to / "html"


def test_its_reference_has_whatever_may_be_imported(site: Path) -> None:
    reference = (site / "docs/site/api.html").read_text("utf-8")
    names = set(oncelog.__all__) - {"UNCHECKED", "errors"}
    there = set(re.findall(r'id="oncelog\.(?:errors\.)?(\w+)"', reference))
    assert names - there == set()


def test_what_its_reference_refers_to_is_there(site: Path) -> None:
    reference = (site / "docs/site/api.html").read_text("utf-8")
    lost = re.findall(r'<code class="xref py[^>]*><span class="pre">(oncelog\.[^<]*)</span></code>(?!</a>)', reference)
    assert lost == []


def test_it_loads_nothing_from_elsewhere_and_its_search_knows_the_words(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    loads = re.compile(
        r"""<(script|img|iframe)[^>]* src="(https?:)?//|<link[^>]* rel="(stylesheet|icon|preload)[^>]* href="(https?:)?//"""
    )
    assert [page.name for page in pages if loads.search(page.read_text("utf-8"))] == []
    assert (site / "index.html").exists()
    words = (site / "searchindex.js").read_text("utf-8")
    assert "checkpoint" in words
    assert "docs/outbox" in words
