"""Keeps what others have published from driving a person's terminal. Pure."""

from __future__ import annotations

import re

# All control characters but the tab and the line feed, DEL and C1 among them; and the marks that turn the direction of writing,
# by which text shows as another one (CVE-2021-42574).
_DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(data: bytes) -> bytes:
    """The bytes as a terminal may have them: UTF-8 in which what could drive it, and what is no UTF-8, stands as an escape."""
    return _DRIVES.sub(_escape, data.decode("utf-8", "backslashreplace")).encode()


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
