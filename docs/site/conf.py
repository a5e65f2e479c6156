"""How the pages of the documentation become a site: `make site`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import oncelog

project = "oncelog"
author = "the authors of oncelog"
copyright = "the authors of oncelog"  # noqa: A001  # Sphinx's name
version = release = oncelog.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "docs/site/index"
include_patterns = ["*.md", "docs/*.md", "docs/site/*.md", "docs/coming/*.md", "docs/decisions/*.md", "docs/notebooks/*.ipynb"]

nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autoclass_content = "both"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"oncelog {version}"
html_extra_path = ["first"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "


def _examples(_app: Any, _what: str, _name: str, _of: Any, _options: Any, lines: list[str]) -> None:
    """Indented lines behind a paragraph are code, as one writes it in a docstring."""
    for number in range(len(lines) - 1, 0, -1):
        begins = re.match(r" {4}\S", lines[number]) and not lines[number - 1]
        before = next((line for line in reversed(lines[:number]) if line), "")
        if begins and not before.startswith((" ", ":", "..")) and not before.endswith("::"):
            lines[number:number] = ["::", ""]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _examples, priority=900)
