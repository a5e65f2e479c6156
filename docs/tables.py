"""Writes the tables of docs/errors.md and docs/settings.md anew, from the code: `python docs/tables.py`. A test compares them."""

from __future__ import annotations

from pathlib import Path

from oncelog.errors import OncelogError, all_errors
from oncelog_service.config import Settings

DOCS = Path(__file__).parent
_BEGIN, _END = "<!-- {} begin, written by docs/tables.py -->\n", "<!-- {} end -->"


def service_errors() -> str:
    """What the service answers, by status."""
    kinds = sorted((kind for kind in all_errors() if kind.status is not None), key=lambda kind: kind.status or 0)
    rows = [
        f"| {kind.status} | `{kind.code}` | `{kind.__name__}` | {_definite(kind)} | {_values(kind)} | {_sentence(kind)} |"
        for kind in kinds
    ]
    return _table("status | code | class | definite | carries | meaning", rows)


def sdk_errors() -> str:
    """What only the SDK raises."""
    kinds = [kind for kind in all_errors() if kind.status is None and kind is not OncelogError]
    rows = [f"| `{kind.code}` | `{kind.__name__}` | {_definite(kind)} | {_values(kind)} | {_sentence(kind)} |" for kind in kinds]
    return _table("code | class | definite | carries | meaning", rows)


def settings() -> str:
    """Every setting, its option and its variable; its key in a file is the variable in small letters, without its beginning."""
    rows = []
    for name, field in Settings.model_fields.items():
        option = "--" + name.replace("_", "-")
        default = "`./oncelog-data`" if name == "store" else "none" if field.default is None else f"`{_shown(field.default)}`"
        rows.append(f"| `{option}` | `ONCELOG_{name.upper()}` | {default} | {' '.join((field.description or '').split())} |")
    return _table("option | variable | default | meaning", rows)


TABLES = {"errors.md": {"service": service_errors, "sdk": sdk_errors}, "settings.md": {"settings": settings}}
"""Page → name of the table → what writes it."""


def page(name: str, text: str) -> str:
    """The page with its tables as they should be."""
    for table, write in TABLES[name].items():
        begin, end = _BEGIN.format(table), _END.format(table)
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{name} has no place for the table {table!r}: {begin!r} … {end!r}")
        text = before + begin + write() + end + after
    return text


def _table(head: str, rows: list[str]) -> str:
    columns = head.split(" | ")
    return "\n".join([f"| {head} |", "|" + "---|" * len(columns), *rows]) + "\n"


def _shown(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _definite(kind: type[OncelogError]) -> str:
    return "yes" if kind.certain else "**no**"


def _values(kind: type[OncelogError]) -> str:
    return ", ".join(f"`{name}`" for name in kind.values)


def _sentence(kind: type[OncelogError]) -> str:
    return " ".join((kind.__doc__ or "").split())


if __name__ == "__main__":
    for each in TABLES:
        path = DOCS / each
        path.write_text(page(each, path.read_text("utf-8")), "utf-8")
