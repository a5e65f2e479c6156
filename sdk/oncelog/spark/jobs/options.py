"""What every job takes: the service it talks to, as options of the data source. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def service_options(url: str | None, namespace: str | None, token: str | None) -> dict[str, str]:
    """Of the data source; what is None is left to its defaults (ONCELOG_URL, ONCELOG_TOKEN)."""
    given = {"url": url, "namespace": namespace, "token": token}
    return {name: value for name, value in given.items() if value is not None}


def topic_names(topics: str | Sequence[str]) -> list[str]:
    """One name or several. Raises ValueError where there is none."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names or not all(names):
        raise ValueError("a job needs the name of a topic")
    return names
