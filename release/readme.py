"""README.md as an index of packages shows it: links to files of the project lead nowhere there, so their text alone is left."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_TO_A_FILE = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)[^)]*\)")


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling, which looks for a class of its interface here."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Gives the project its description."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": _TO_A_FILE.sub(r"\1", text)}
