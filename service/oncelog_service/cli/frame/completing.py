"""What the shell is offered where a name is due: of contexts, namespaces, topics, producers, subscriptions.

Names are asked of the service that the line so far names. Nobody waits for it, and nothing is ever said: where it is away, or
refuses, there is nothing to offer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import typer

from oncelog_service.cli.frame.connection import OPTIONS, STORES, Connection, chosen
from oncelog_service.cli.frame.contexts import load, path_of

if TYPE_CHECKING:
    from oncelog.api.api import Api

VARIABLE = "_ONCELOG_COMPLETE"
"""Set where the shell asks."""
SECONDS = 1.0
"""For an answer; a key was pressed, and the line waits."""
MOST = 1_000
_PLAIN = re.compile(r"[A-Za-z0-9_.:@=-]+", re.ASCII)
"""What names consist of. A shell may be given nothing else: zsh reads what it gets as a program."""
_JOINED = re.compile(r"(?<=\s)(--[a-z-]+)=(\S*)$")

Ask = Callable[["Api", str], Sequence[str]]


def answer(command: Callable[[], Any]) -> NoReturn:
    """Answer the shell that asks; whatever goes wrong, it hears nothing."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    _part_from_its_value()
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere), suppress(Exception):
        command()
    raise SystemExit(0)


def _part_from_its_value() -> None:
    """Has `--context=pr` at the end of the line be two words: of options before a command typer takes the first part away."""
    for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):  # of bash; of zsh and fish
        line, found = _JOINED.subn(r"\1 \2", os.environ.get(name, ""))
        if found:
            os.environ[name] = line
            os.environ["COMP_CWORD"] = str(int(os.environ.get("COMP_CWORD", 0)) + 1)


def contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of contexts."""
    try:
        return [name for name in load(path_of(os.environ)).known if name.startswith(incomplete)]
    except Exception:
        return []


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of namespaces."""
    return _asked(ctx, incomplete, lambda client, _: client.namespaces())


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics in the namespace of the line."""
    return _asked(ctx, incomplete, lambda client, namespace: client.topics(namespace))


def producers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of producers on the topic of the line."""
    return _asked(ctx, incomplete, lambda client, namespace: _names(client.producers(_topic(ctx), namespace)))


def subscriptions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of subscriptions on the topic of the line."""
    return _asked(ctx, incomplete, lambda client, namespace: _names(client.subscriptions(_topic(ctx), namespace)))


def in_front(taken: Iterable[tuple[str, list[str]]], option: str, incomplete: str) -> list[str]:
    """Names that are offered before a command, behind these options, where ``option`` waits for its value."""
    offer = {"--context": contexts, "--namespace": namespaces}.get(option)
    params = {name.removeprefix("--"): words[-1].removeprefix(f"{name}=") for name, words in taken}
    return [] if offer is None else offer(cast(typer.Context, SimpleNamespace(params=params)), incomplete)


def _topic(ctx: typer.Context) -> str:
    """Where an option still waits for its value, typer has given no argument its name."""
    return str(ctx.params["topic"] or ctx.args[0])


def _names(found: Iterable[Any]) -> list[str]:
    return [each.name for each in found]


def _asked(ctx: typer.Context, incomplete: str, ask: Ask) -> list[str]:
    """What the service answers of what begins so; whatever goes wrong, nothing."""
    try:
        options = {name: _text(ctx.params.get(name)) for name in (*OPTIONS, "context")}
        connection = chosen(options, os.environ, lambda: load(path_of(os.environ)))
        if connection.url.startswith(STORES):
            return []  # a store of this machine: to press a key opens none
        with _silent(), _client(connection) as client:
            found = ask(client, connection.namespace)
        return sorted(name for name in found if name.startswith(incomplete) and _PLAIN.fullmatch(name))[:MOST]
    except Exception:
        return []


def _client(connection: Connection) -> Api:
    from oncelog.api.api import Api

    os.environ.update(connection.variables())
    return Api(connection.url, token=connection.token(), timeout=SECONDS, retry=0)


@contextmanager
def _silent() -> Iterator[None]:
    import logging

    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
