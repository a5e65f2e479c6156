"""Nothing in the documentation leads nowhere, and nothing is found only by chance."""

from __future__ import annotations

import re

from tests.docs.pages import PAGES, ROOT, anchors, links, named


def test_the_links_of_a_page_lead_somewhere() -> None:
    for page, link in [(each, link) for each in PAGES for link in links(each)]:
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)} links to {link}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{named(page)} links to {link}, which is no heading there"


def test_every_page_is_linked_from_another_one() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)}
    found = [page for page in PAGES if page.parent.name != "site"]  # whose contents are the generator's
    assert [named(page) for page in found if page not in linked and page.name != "README.md"] == []


def test_every_decision_is_linked_from_the_architecture() -> None:
    architecture = ROOT / "ARCHITECTURE.md"
    linked = {(ROOT / link).resolve() for link in links(architecture)}
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert decisions
    assert [named(decision) for decision in decisions if decision not in linked] == []


def test_no_two_decisions_have_one_number_and_each_says_what_was_rejected() -> None:
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    numbers = [int(decision.name[:4]) for decision in decisions]
    assert len(set(numbers)) == len(numbers)
    for decision in decisions:
        assert {"why", "rejected"} <= anchors(decision), f"{named(decision)} lacks a heading"


def test_every_page_that_the_code_names_exists() -> None:
    sources = [ROOT / "Makefile", ROOT / "pyproject.toml"]
    sources += [
        path for folder in ("sdk", "service", "dedup", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]
    for source in sources:
        for name in re.findall(r"docs/(?:decisions/\d{4}|[a-z]+\.md)", source.read_text("utf-8")):
            assert list(ROOT.glob(f"{name}*")), f"{named(source)} names {name}, which does not exist"


def test_every_file_that_the_architecture_names_exists() -> None:
    tops = [top for top in ROOT.iterdir() if not top.name.startswith(".")]
    tree = {str(path.relative_to(ROOT)) for top in tops for path in (top, *top.rglob("*"))}
    names = re.findall(r"`([a-z_/]+(?:\.py|/))`", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    assert names
    assert [name for name in names if not any(f"/{path}".endswith("/" + name.rstrip("/")) for path in tree)] == []


def test_the_glossary_is_in_alphabetical_order() -> None:
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", (ROOT / "docs/glossary.md").read_text("utf-8"), re.MULTILINE)
    assert len(terms) > 50
    assert terms == sorted(terms)


def test_every_folder_of_the_product_is_named_in_the_architecture() -> None:
    names = ["oncelog_dedup", *re.findall(r"`([a-z_/]+)/`", (ROOT / "ARCHITECTURE.md").read_text("utf-8"))]
    folders = {
        path.parent.relative_to(ROOT) for part in ("sdk", "service", "dedup") for path in (ROOT / part).rglob("__init__.py")
    }
    assert len(folders) > 20
    assert [str(each) for each in sorted(folders) if not any(f"/{each}".endswith("/" + name) for name in names)] == []
