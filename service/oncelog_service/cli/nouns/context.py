"""`oncelog context …`: services by name, so that nobody types an address and a token each time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from oncelog.http.credentials import secret_in, shown
from oncelog_service.cli.frame import completing
from oncelog_service.cli.frame.codes import CONFLICT
from oncelog_service.cli.frame.connection import Choice, Connection, check_url, service_url
from oncelog_service.cli.frame.contexts import BadContexts, Context, Contexts, change, checked, load, open_to_others, path_of
from oncelog_service.cli.frame.lazy import noun
from oncelog_service.cli.output import Output
from oncelog_service.cli.session import CONNECTION, Ca, Cert, CertKey, Json, Namespace, as_command, confirm, connection_of, option

group = noun()

SECRET = "…"
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=completing.contexts, show_default=False)
]
Given = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=completing.contexts, show_default=False),
]


@group.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", show_default=False)],
    url: Annotated[str, typer.Argument(metavar="URL", help="Service, as a URL or host:port.", show_default=False)],
    *,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="Bearer token; -: a line of stdin.", show_default=False)
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="File that holds the token.", show_default=False)
    ] = None,
    ca: Ca = None,
    cert: Cert = None,
    cert_key: CertKey = None,
    namespace: Namespace = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the current one.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of one of that name.")] = False,
    as_json: Json = False,
) -> None:
    """Keep a service under a name, in a file that only you can read."""
    from oncelog.wire.names import NAMESPACE_PATTERN  # which builds them all

    secret = _line() if token == "-" else token
    with _sentences():
        files = {"token_file": token_file, "ca": ca, "cert": cert, "cert_key": cert_key}
        absolute = {key: each and str(Path(each).expanduser().absolute()) for key, each in files.items()}
        context = checked(name, Context(service_url(url), secret, **absolute, namespace=namespace))
        check_url(context.url)
        if namespace is not None and not NAMESPACE_PATTERN.fullmatch(namespace):
            raise BadContexts(f"a namespace's name is 1 to 249 of the characters A-Z a-z 0-9 _, not {namespace!r}")
        _read(context)

        def added(contexts: Contexts) -> Contexts:
            if name in contexts.known and not replace:
                raise _Conflict
            found = contexts.added(name, context)
            return found.using(name) if use else found

        try:
            contexts = change(_path(), added)
        except _Conflict:
            _refused(Output(as_json), "context_exists", f"there is a context {name} already; --replace it, or remove it")
    is_current = contexts.current == name
    more = ", and is the current one" if is_current else f"; `oncelog context use {name}` makes it the current one"
    Output(as_json).result({"context": name, "url": shown(context.url), "current": is_current}, f"context {name} is kept{more}")


@group.command("list")
def list_(as_json: Json = False) -> None:
    """List the contexts, and which one is current. Secrets are not shown."""
    with _sentences():
        contexts = load(_path())
    out = Output(as_json)
    if open_to_others(_path(), contexts):
        out.note(f"others on this machine can read {_path()}, which holds a token: chmod 600 {_path()}")
    rows = [
        {"name": name, "current": name == contexts.current, "url": shown(each.url), "namespace": each.namespace, "as": _as(each)}
        for name, each in sorted(contexts.known.items())
    ]
    out.table(rows, ["name", "current", "url", "namespace", "as"], [list(row.values()) for row in rows])


def show(as_json: bool, name: str | None, **given: str | None) -> None:
    """Show what a command typed like this would ask, and where each value comes from. Secrets are not shown."""
    if name is not None:
        if given["context"] not in (None, name):
            raise typer.BadParameter(f"is {given['context']!r}, and the argument {name!r}; choose", param_hint="--context")
        given["context"] = name
    connection = connection_of(given)
    of_all = connection.context
    rows = [
        {"option": "context", "value": of_all.value, "source": of_all.source, "named": of_all.named},
        *({"option": each, **_told(connection, each)} for each in connection.choices),
    ]
    lines = [[row["option"], row["value"], f"{row['source']} {row['named']}".rstrip()] for row in rows]
    Output(as_json).table(rows, ["option", "value", "from"], lines)


options = [option("name", Given), option("namespace", Namespace)]
options += [option(each, annotation) for each, annotation in CONNECTION.items()]
as_command(group, "show", show, [*options, option("as_json", Json, False)], show.__doc__ or "")


@group.command("use")
def use(
    name: Given = None,
    none: Annotated[bool, typer.Option("--none", help="No context is current any more.")] = False,
    as_json: Json = False,
) -> None:
    """Make a context the current one: it counts where neither option nor environment says otherwise."""
    if (name is None) != none:
        raise typer.BadParameter("give the name of a context, or --none")
    with _sentences():
        change(_path(), lambda contexts: contexts.using(name))
    Output(as_json).result({"current": name}, "no context is current" if name is None else f"context {name} is the current one")


@group.command("remove")
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Forget a context, and the token that it holds."""
    out = Output(as_json)
    with _sentences():
        seen = load(_path()).named(name)
        confirm(out, f"Remove context {name} of {shown(seen.url)}?", yes)

        def removed(contexts: Contexts) -> Contexts:
            if contexts.named(name) != seen:
                raise _Conflict
            return contexts.removed(name)

        try:
            change(_path(), removed)
        except _Conflict:
            _refused(out, "context_changed", f"context {name} is another one by now, and stays")
    out.result({"removed": name}, f"context {name} is removed")


def _read(context: Context) -> None:
    """Raises BadContexts: a file of it cannot be read, or is not what it should be."""
    from oncelog.http.trust import Trust

    try:
        if context.token_file is not None:
            secret_in(context.token_file, "token_file")
        _ = Trust(context.ca, context.cert, context.cert_key).context
    except ValueError as error:
        raise BadContexts(str(error)) from None


def _line() -> str:
    try:
        return sys.stdin.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        raise typer.BadParameter("no line of text can be read from stdin", param_hint="--token") from None


class _Conflict(Exception):
    """What is there is not what was expected."""


def _refused(out: Output, code: str, detail: str) -> NoReturn:
    out.failure({"title": "Conflict", "code": code, "detail": detail}, f"error: {detail}")
    raise typer.Exit(CONFLICT) from None


@contextmanager
def _sentences() -> Iterator[None]:
    """What is wrong with contexts is a sentence about the command line."""
    try:
        yield
    except BadContexts as error:
        raise typer.BadParameter(str(error)) from None


def _path() -> Path:
    return path_of(os.environ)


def _as(context: Context) -> str | None:
    """As whom one asks there."""
    told = ("a token" if context.token is not None else None, context.token_file, context.cert)
    return ", ".join(each for each in told if each is not None) or None


def _told(connection: Connection, name: str) -> Mapping[str, str | None]:
    choice: Choice = connection.choices[name]
    value = choice.value
    if name == "token" and value is not None and not choice.named.endswith(("token_file", "TOKEN_FILE")):
        value = SECRET
    return {"value": shown(connection.url) if name == "url" else value, "source": choice.source, "named": choice.named}
