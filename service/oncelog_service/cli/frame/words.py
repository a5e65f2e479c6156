"""Words that hands bring along from the command lines of other logs, and what they are called here. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_COMMANDS: Mapping[str, str] = {
    "produce": "publish",
    "pub": "publish",
    "send": "publish",
    "consume": "read",
    "sub": "read",
    "subscribe": "read",
    "tail": "read",
    "cat": "read",
    "consumer": "subscription",
    "consumers": "subscription",
    "group": "subscription",
    "groups": "subscription",
    "lag": "subscription",
    "describe": "show",
    "info": "show",
    "ls": "list",
    "add": "create",
    "rm": "delete",
    "remove": "delete",
}
_OPTIONS: Mapping[str, str] = {
    "--bootstrap-server": "--url",
    "--brokers": "--url",
    "--server": "--url",
    "--from-beginning": "--from",
    "--offset": "--from",
    "--group": "--subscription",
    "--count": "--limit",
    "--header": "--property",
    "--retention": "--ttl",
}


def meant(word: str, known: Collection[str]) -> str | None:
    """What a command or an option is called here, if it is one of those that are ``known``."""
    ours = _COMMANDS.get(word) or _OPTIONS.get(word)
    return ours if ours in known else None
