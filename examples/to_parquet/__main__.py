"""`python -m examples.to_parquet TOPIC FOLDER`: archives a topic, and draws a page of the archive."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.to_parquet import page
from examples.to_parquet.archive import Archive


def main() -> None:
    """Archives what there is, or goes on for ever."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topic")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--follow", action="store_true", help="go on for ever")
    parser.add_argument("--page", type=Path, help="a file of HTML, written anew behind each round")
    asked = parser.parse_args()
    archive = Archive(asked.topic, asked.folder)
    while True:
        archived = archive.follow(5 if asked.follow else 0)
        if asked.page:
            page.write(archive, asked.page)
        print(archived, "messages", flush=True)
        if not asked.follow:
            return


if __name__ == "__main__":
    main()
