"""What every command that talks to a service shares: its options, its connection, and how it ends."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncelog.errors import OncelogError
from oncelog.wire.media import DEFAULT_URL
from oncelog_service.cli.frame import completing
from oncelog_service.cli.frame.codes import ERROR, INTERRUPTED, OK, code_of
from oncelog_service.cli.frame.connection import Connection, chosen
from oncelog_service.cli.frame.contexts import BadContexts, load, path_of
from oncelog_service.cli.frame.ending import forget_stdout
from oncelog_service.cli.output import Output

if TYPE_CHECKING:
    from oncelog.api.api import Api

PATIENCE_SECONDS = 1.0
"""How long a short command tries again. People wait for it; 15 s of silence, the SDK's, would be no answer."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        metavar="URL",
        help=f"Service, as URL or host:port (env ONCELOG_URL, default {DEFAULT_URL}).",
        show_default=False,
    ),
]
Named = Annotated[
    str | None,
    typer.Option(
        "--context",
        "-c",
        metavar="NAME",
        help="Context to use (env ONCELOG_CONTEXT, else the current one).",
        autocompletion=completing.contexts,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TOKEN", help="Bearer token (env ONCELOG_TOKEN, or the file ONCELOG_TOKEN_FILE).", show_default=False
    ),
]
Ca = Annotated[
    str | None, typer.Option("--ca", metavar="FILE", help="CA to trust behind https (env ONCELOG_CA).", show_default=False)
]
Cert = Annotated[
    str | None, typer.Option("--cert", metavar="FILE", help="A certificate of one's own (env ONCELOG_CERT).", show_default=False)
]
CertKey = Annotated[
    str | None,
    typer.Option(
        "--cert-key", metavar="FILE", help="Its key, unless that is in the same file (env ONCELOG_KEY).", show_default=False
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-N",
        metavar="NAME",
        help="Namespace of the topic; else the context's, else default.",
        autocompletion=completing.namespaces,
        show_default=False,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", "-j", help="JSON on stdout and nothing else there; errors as problem JSON on stderr.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=completing.topics, show_default=False)]

CONNECTION: Mapping[str, Any] = {
    "url": Url,
    "context": Named,
    "token": Token,
    "ca": Ca,
    "cert": Cert,
    "cert_key": CertKey,
}
"""The options that say which service it is, by their parameters."""


@dataclass(slots=True)
class Session:
    """One run of a command."""

    client: Api
    namespace: str
    out: Output
    token: str | None = field(default=None, repr=False)
    """As it was chosen; for what does not go through the client."""
    facts: dict[str, object] = field(default_factory=dict)
    """What is known when it ends early; goes into the problem JSON."""
    so_far: Callable[[], str] = lambda: "nothing was changed"
    """What was done, for when it is interrupted."""

    def confirm(self, question: str, yes: bool) -> None:
        """Ask on stderr unless ``yes``; ends the command with 1 if the answer is no."""
        confirm(self.out, question, yes)


def command(
    group: typer.Typer, name: str, *, namespaced: bool = True, patience: float = PATIENCE_SECONDS, reads: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command. Its first parameter, a Session, gives way to --url, --context, --token, --json, and --namespace if namespaced.

    ``reads``: it changes nothing, so that what fails was certainly not done.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = [option("namespace", Namespace)] if namespaced else []
        shared += [option(each, annotation) for each, annotation in CONNECTION.items()]
        shared.append(option("as_json", Json, False))

        def run(as_json: bool, **given: Any) -> None:
            options = {each: given.pop(each) for each in CONNECTION}
            if namespaced:
                options["namespace"] = given.pop("namespace")
            connection = connection_of(options)
            with _environment(connection.variables()):
                client, token = opened(connection, patience)
                session = Session(client, connection.namespace, Output(as_json, reads), token)
                with ending(session):
                    function(session, **given)

        as_command(group, name, run, own + shared, function.__doc__ or "")
        return function

    return register


def as_command(group: typer.Typer, name: str, run: Callable[..., None], parameters: list[inspect.Parameter], doc: str) -> None:
    """Register ``run`` as a command with these parameters, which typer reads from a function's signature."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    run.__doc__ = doc
    group.command(name, help=inspect.cleandoc(doc))(run)


def connection_of(options: Mapping[str, str | None]) -> Connection:
    """What counts of options, environment and contexts. Raises BadParameter."""
    for name, text in options.items():
        if text == "":  # of a variable that is not set, most likely: another service would be asked, or that of the context
            raise typer.BadParameter("is empty", param_hint=f"--{name.replace('_', '-')}")
    if options.get("cert_key") is not None and options.get("cert") is None:
        raise typer.BadParameter("a key is of use only with its certificate: --cert", param_hint="--cert-key")
    try:
        return chosen(options, os.environ, lambda: load(path_of(os.environ)))
    except BadContexts as error:
        raise typer.BadParameter(str(error)) from None


def opened(connection: Connection, patience: float) -> tuple[Api, str | None]:
    """A client of the service, and the token that it carries. Raises BadParameter."""
    from oncelog.api.api import Api

    try:
        token = connection.token()
        return Api(connection.url, token=token, retry=patience), token
    except ValueError as error:
        about = connection.choices["url" if "URL" in str(error) else "token" if "token" in str(error).lower() else "ca"]
        raise typer.BadParameter(str(error), param_hint=about.named or None) from error


def option(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    """A parameter for :func:`as_command`."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


@contextmanager
def _environment(said: Mapping[str, str]) -> Iterator[None]:
    """While a command runs, its environment says what was chosen: jobs and Spark read it too."""
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def said_once(name: str) -> Iterator[None]:
    """In this block nothing is logged under this name: why a producer or a consumer has stopped is what the command ends with."""
    from logging import getLogger

    log = getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def ending(session: Session) -> Iterator[None]:
    """Turn what a command raises into what it prints and its exit code."""
    try:
        with session.client:
            yield
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()  # its reader has enough (`| head`): not a fault
        raise typer.Exit(OK) from None
    except OncelogError as error:
        session.out.error(error, session.facts)
        raise typer.Exit(code_of(error)) from None
    except KeyboardInterrupt:
        detail = session.so_far()
        problem = {"title": "Interrupted", "code": "interrupted", "detail": detail, **session.facts}
        session.out.failure(problem, f"interrupted: {detail}")
        raise typer.Exit(INTERRUPTED) from None


def confirm(out: Output, question: str, yes: bool) -> None:
    """Ask on stderr unless ``yes``; ends the command with 1 if the answer is no."""
    if not yes and not _asked(question):
        out.failure({"title": "Declined", "code": "declined", "detail": "nothing was done"}, "nothing was done")
        raise typer.Exit(ERROR)


def _asked(question: str) -> bool:
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = ""
    with suppress(OSError, UnicodeDecodeError):  # there is nobody to answer, or what comes is no answer
        answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")
